// What happened between two states of the server: rates, means and percentiles.

const since = (now, before) => ({ count: now.count - before.count, ns: now.ns - before.ns });
const mean = (events) => (events.count > 0 ? events.ns / events.count : null);

/** Which versions of models are the same in two states. */
export const key = (model) => JSON.stringify([model.namespace, model.name, model.version]);

/** Buckets of what came between, as [upper bound, count]. */
function between(now, before) {
  const old = new Map(before);
  return now.map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]).filter(([, count]) => count > 0);
}

/** The bound below which that share of the observations lies; null without any. */
export function percentile(buckets, share) {
  const all = buckets.reduce((sum, [, count]) => sum + count, 0);
  let left = share * all;
  for (const [bound, count] of buckets) {
    left -= count;
    if (left <= 1e-9) return bound;
  }
  return null;
}

/** What a model did between two states, `seconds` apart; null where it was loaded in between. */
export function activity(now, before, seconds) {
  if (!now || !before || now.success.count < before.success.count || !(seconds > 0)) return null;
  const latencies = between(now.latencies, before.latencies);
  return {
    requests: (now.success.count - before.success.count) / seconds,
    inferences: (now.inferences - before.inferences) / seconds,
    failures: (now.failed.count - before.failed.count) / seconds,
    p50: percentile(latencies, 0.5),
    p95: percentile(latencies, 0.95),
    p99: percentile(latencies, 0.99),
    queue: mean(since(now.queue, before.queue)),
    compute: ["input", "infer", "output"]
      .map((part) => mean(since(now[part], before[part])))
      .reduce((sum, part) => (sum == null || part == null ? null : sum + part), 0),
    pending: now.pending,
  };
}

/** The last states, and what every model did from one to the next. */
export class History {
  constructor(length) {
    this.length = length;
    this.models = new Map();
    this.last = null;
  }

  add(state, at) {
    const seen = new Map();
    for (const model of state.models) {
      const points = this.models.get(key(model)) ?? [];
      const before = this.last?.state.models.find((other) => key(other) === key(model));
      const seconds = this.last ? (at - this.last.at) / 1000 : 0;
      points.push({ at, ...activity(model.loaded, before?.loaded, seconds) });
      seen.set(key(model), points.slice(-this.length));
    }
    this.models = seen;
    this.last = { state, at, time: new Date().toLocaleTimeString() };
  }

  points(model) {
    return this.models.get(key(model)) ?? [];
  }

  now(model) {
    return this.points(model).at(-1) ?? {};
  }
}
