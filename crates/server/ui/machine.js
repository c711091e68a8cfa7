// What the server runs on.

import { bytes, count, facts, html } from "./elements.js";

export function machine(state) {
  const { process, machine, units, cache } = state;
  const used = machine.total == null || machine.available == null ? null : machine.total - machine.available;
  const cached = Object.entries(cache).map(([name, value]) => [name.replace(/^nv_cache_/, "").replaceAll("_", " "), count(value)]);
  return html("div", { class: "grid" },
    units.map((unit) => html("section", { class: "card" }, html("h3", {}, `Unit ${unit.name}`), facts([
      ["Device", unit.device],
      ["Uses", unit.features.join(", ")],
      ["Threads", unit.threads],
      ["Precisions", unit.precisions.join(", ")],
    ]))),
    html("section", { class: "card" }, html("h3", {}, "Memory"), facts([
      ["Server, its own", bytes(process.private)],
      ["Server, with files", bytes(process.resident)],
      ["Machine, in use", `${bytes(used)} of ${bytes(machine.total)}`],
    ])),
    html("section", { class: "card" }, html("h3", {}, "Response cache"),
      cached.length ? facts(cached) : html("p", { class: "soft" }, "Off. --cache-config local,size=BYTES turns it on.")));
}
