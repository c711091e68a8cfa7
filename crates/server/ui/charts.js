// Charts in SVG. Each says in words what it shows, for those who do not see it.

import { html, svg, table, time } from "./elements.js";

const WIDTH = 320;
const HEIGHT = 110;
const LEFT = 52;

const swatch = (index) => svg("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, svg("rect", { class: `s${index}`, width: 8, height: 8 }));

const legend = (names) => html("ul", { class: "legend" }, names.map((name, index) => html("li", {}, swatch(index), name)));

const card = (title, ...content) => html("section", { class: "card" }, html("h3", {}, title), content);

const frame = (label, height, ...content) =>
  svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label }, content);

/** Lines over time. `series` are [name, how to read a point]; what is not known leaves a gap. */
export function lines(title, points, series, text) {
  const values = series.map(([, read]) => points.map((point) => read(point) ?? null));
  const known = values.flat().filter((value) => value != null);
  const top = Math.max(...known, 0) || 1;
  const x = (index) => LEFT + ((WIDTH - LEFT) * index) / Math.max(points.length - 1, 1);
  const y = (value) => 8 + (HEIGHT - 16) * (1 - value / top);
  const path = (line) => line.map((value, index) =>
    value == null ? "" : `${line[index - 1] == null ? "M" : "L"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const last = series.map(([name], index) => `${name} ${values[index].at(-1) == null ? "nothing" : text(values[index].at(-1))}`);
  return card(title,
    frame(`${title}, now: ${last.join(", ")}`, HEIGHT,
      [0, top].map((value) => [
        svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, text(value)),
      ]),
      values.map((line, index) => svg("path", { class: `line s${index}`, fill: "none", d: path(line) }))),
    legend(last));
}

/** Bars side by side, `rows` being [name, value]. */
export function bars(title, rows, text, hint) {
  if (!rows.length) return card(title, html("p", { class: "soft" }, hint));
  const top = Math.max(...rows.map(([, value]) => value)) || 1;
  const step = 20;
  return card(title,
    frame(`${title}: ${rows.map(([name, value]) => `${name} ${text(value)}`).join(", ")}`, rows.length * step,
      rows.map(([name, value], index) => [
        svg("text", { x: 96, y: index * step + 14, "text-anchor": "end" }, name),
        svg("rect", { class: "s0", x: 102, y: index * step + 4, height: step - 7, width: Math.max(1, 150 * (value / top)) }),
        svg("text", { x: 108 + 150 * (value / top), y: index * step + 14 }, text(value)),
      ])));
}

/** Slow requests, the parts of each one behind the other. */
export function waterfall(title, requests, hint) {
  if (!requests.length) return html("section", { class: "card wide" }, html("h3", {}, title), html("p", { class: "soft" }, hint));
  const names = requests[0].parts.map(([name]) => name);
  const top = Math.max(...requests.map((request) => request.total)) || 1;
  const picture = (request) => {
    let at = 0;
    return svg("svg", { viewBox: "0 0 400 14", "aria-hidden": "true", preserveAspectRatio: "none" },
      svg("line", { class: "axis", x1: 0, x2: (400 * request.total) / top, y1: 7, y2: 7 }),
      request.parts.map(([, ns], index) => {
        const part = svg("rect", { class: `s${index}`, x: (400 * at) / top, y: 1, height: 12, width: (400 * ns) / top });
        at += ns;
        return part;
      }));
  };
  const columns = [
    ["Request", false, (request) => request.id || html("span", { class: "soft" }, "no identifier")],
    ["Answered", false, (request) => new Date(request.ended_ms).toLocaleTimeString()],
    ["Batch", true, (request) => request.batch_size],
    ["Total", true, (request) => time(request.total)],
    ...names.map((name, index) => [name, true, (request) => time(request.parts[index][1])]),
    ["From arrival to response", false, picture],
  ];
  return html("section", { class: "card wide" }, html("h3", {}, title),
    table("The slowest of the last one to two minutes. A thin line is time between the parts: in an ensemble its members' queues, too.", columns, requests), legend(names));
}
