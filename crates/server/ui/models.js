// The table of models, and all of one model.

import { bars, lines, waterfall } from "./charts.js";
import { bytes, count, facts, html, rate, shape, table, time } from "./elements.js";
import { key } from "./rates.js";

export const address = (model) => `#/models/${encodeURIComponent(key(model))}`;

const title = (model) => (model.namespace ? `${model.namespace}/${model.name}` : model.name);
const calm = (value, text) => (value == null ? html("span", { class: "soft" }, "–") : text(value));

/** Buttons that load and unload, where clients may. */
function control(model, state, act) {
  if (!state.server.is_explicit) return null;
  // Nobody asks for a second time what is being done.
  const disabled = act.isBusy(model) || model.state === "LOADING" || model.state === "UNLOADING";
  const button = (action, text) => html("button", { type: "button", disabled, onclick: () => act.run(model, action) }, text);
  return model.state === "READY" ? button("unload", "Unload") : button("load", "Load");
}

export function models(state, history, act) {
  if (!state.models.length) return html("p", {}, "There is no model in the repository.");
  const now = (model) => history.now(model);
  const columns = [
    ["Model", false, (model) => (model.loaded ? html("a", { href: address(model) }, title(model)) : title(model))],
    ["Version", true, (model) => model.version ?? "–"],
    ["State", false, (model) => html("span", { class: `state ${model.state ?? ""}` }, model.state ?? "not loaded")],
    ["Why", false, (model) => model.reason, "why"],
    ["Requests", true, (model) => calm(now(model).requests, rate)],
    ["p50", true, (model) => calm(now(model).p50, time)],
    ["p99", true, (model) => calm(now(model).p99, time)],
    ["Waiting", true, (model) => calm(model.loaded?.pending, count)],
    ["Failed", true, (model) => calm(model.loaded?.failed.count, count)],
  ];
  if (state.server.is_explicit) columns.push(["Control", false, (model) => control(model, state, act), "control"]);
  return table("Rates and percentiles since the look before, which is two seconds ago unless the page was paused", columns, state.models, key);
}

const instances = (loaded) =>
  loaded.instances.map(({ count, kind }) => `${count} × ${kind}`).join(", ") || "those of its members";

function placement(loaded) {
  const all = loaded.operators.reduce((sum, work) => sum + work.ns, 0);
  const rows = loaded.operators
    .map((work) => [`${work.operator}, ${work.factors}`, work.ns / all, work.unit])
    .sort((a, b) => b[1] - a[1])
    .slice(0, 8);
  const unit = rows.length ? ` on ${rows[0][2]}` : "";
  return bars(`Placement${unit}: share of the time by operator and factors`, rows.map(([name, share]) => [name, share]),
    (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`,
    `Instances: ${instances(loaded)}. Operators are known of ONNX models that have run: one execution a second is measured at most.`);
}

function memory(loaded) {
  const of = loaded.memory;
  const parts = of ? [
    ...of.parts.flatMap(([name, own, mapped]) => [[name, own], [`${name}, file`, mapped]]),
    ...of.instances.map(([index, own]) => [`instance ${index}`, own]),
  ] : [];
  return bars("Memory", parts.filter(([, size]) => size > 0), bytes, "Unavailable: this backend does not tell.");
}

export function model(found, state, history, act) {
  const { loaded } = found;
  const points = history.points(found);
  const tensors = (list) => list.map((tensor) => html("div", {}, html("code", {}, tensor.name), ` ${tensor.datatype} ${shape(tensor.shape)}`));
  const failures = Object.entries(loaded.failures).map(([reason, number]) => `${number} ${reason}`).join(", ");
  return [
    html("div", { class: "grid" },
      html("section", { class: "card tall" }, html("h3", {}, "Model"), facts([
        ["State", html("span", { class: `state ${found.state}` }, found.state)],
        ["Platform", loaded.platform],
        ["Instances", instances(loaded)],
        ["Inputs", tensors(loaded.inputs)],
        ["Outputs", tensors(loaded.outputs)],
        ["Largest batch", loaded.batch_size_max || "the model has no batches"],
        ["Loaded in", time(loaded.load_seconds * 1e9)],
        ["Requests", `${count(loaded.success.count)}, ${count(loaded.failed.count)} failed${failures && `: ${failures}`}`],
        ["Running", `${count(loaded.in_flight)}, ${count(loaded.pending)} of them waiting`],
        ["Cache", loaded.cache_hit.count + loaded.cache_miss.count
          ? `${count(loaded.cache_hit.count)} found, ${count(loaded.cache_miss.count)} not` : "not used"],
        ["Tuning", loaded.tuning ? `${loaded.tuning.tuned} operators measured, ${loaded.tuning.won} faster, ${loaded.tuning.waiting} to do` : "off"],
      ]), control(found, state, act)),
      lines("Throughput", points, [["requests", (p) => p.requests], ["failures", (p) => p.failures]], rate),
      lines("Latency", points, [["p50", (p) => p.p50], ["p95", (p) => p.p95], ["p99", (p) => p.p99]], time),
      lines("Queue and compute, mean", points, [["queue", (p) => p.queue], ["compute", (p) => p.compute]], time),
      lines("Waiting requests", points, [["waiting", (p) => p.pending]], count),
      bars("Executions by batch size", loaded.batches.map(([size, number]) => [`batch of ${size}`, number]), count, "None yet."),
      placement(loaded),
      memory(loaded),
      waterfall("Slow requests", loaded.slowest, "None in the last two minutes.")),
  ];
}
