// A form that sends a request to a model, made from its inputs.

import { html, shape } from "./elements.js";

const FLOATS = new Set(["FP16", "BF16", "FP32", "FP64"]);
/** Longer answers are cut: a page with a million numbers helps nobody. */
const SHOWN = 200;

/** A shape to begin with: what varies is 1. */
const begin = (dims) => dims.map((dim) => (dim < 0 ? 1 : dim));
const size = (dims) => dims.reduce((product, dim) => product * dim, 1);

function readShape(text) {
  const dims = text.split(/[\s,]+/).filter(Boolean).map(Number);
  if (dims.some((dim) => !Number.isInteger(dim) || dim < 0)) throw new Error(`'${text}' is no shape: whole numbers with commas between them`);
  return dims;
}

/** Whether a tensor of a datatype can hold an element; the protocol cuts integers that are too long. */
function fits(value, datatype) {
  const [, kind, bits] = /^(U?INT)(\d+)$/.exec(datatype) ?? [];
  if (datatype === "BYTES") return typeof value === "string";
  if (datatype === "BOOL") return typeof value === "boolean";
  if (typeof value !== "number" || Number.isNaN(value)) return false;
  if (!kind) return true;
  const [low, high] = kind === "INT" ? [-(2 ** (bits - 1)), 2 ** (bits - 1)] : [0, 2 ** bits];
  return Number.isInteger(value) && value >= low && value < high;
}

/** Elements from JSON, or from words between blanks and commas; one value fills the tensor. */
function readElements(text, datatype, dims, name) {
  const number = size(dims);
  let values;
  if (text.trim().startsWith("[")) values = JSON.parse(text).flat(Infinity);
  else if (datatype === "BYTES") values = text === "" ? [] : number === 1 ? [text] : text.split("\n");
  else values = text.split(/[\s,]+/).filter(Boolean).map((word) => (datatype === "BOOL" ? word === "true" || word === "1" : Number(word)));
  const wrong = values.find((value) => !fits(value, datatype));
  if (wrong !== undefined) throw new Error(`'${name}': ${JSON.stringify(wrong)} is no ${datatype}`);
  if (values.length === 1 && number > 1) values = Array(number).fill(values[0]);
  if (values.length !== number) throw new Error(`'${name}': ${values.length} elements, but its shape holds ${number}`);
  return values;
}

/** Where the colours of an image are in a shape: [height, width, channels, whether channels come first]. */
function pictured(dims, datatype) {
  if (!FLOATS.has(datatype) && datatype !== "UINT8") return null;
  const [a, b, c] = dims.slice(-3);
  if (dims.length < 3 || size(dims.slice(0, -3)) !== 1) return null;
  if (a === 3 || a === 1) return [b, c, a, true];
  return c === 3 || c === 1 ? [a, b, c, false] : null;
}

/** The pixels of an image, resized to a shape; `scale` is what becomes of 0 to 255. */
async function pixels(file, [height, width, channels, isFirst], scale) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(await createImageBitmap(file), 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const values = new Array(height * width * channels);
  for (let pixel = 0; pixel < height * width; pixel += 1) {
    const colours = data.subarray(4 * pixel, 4 * pixel + 3);
    const shown = channels === 3 ? colours : [0.299 * colours[0] + 0.587 * colours[1] + 0.114 * colours[2]];
    for (let channel = 0; channel < channels; channel += 1) {
      values[isFirst ? channel * height * width + pixel : pixel * channels + channel] = scale(shown[channel], channel);
    }
  }
  return values;
}

const MEAN = [0.485, 0.456, 0.406];
const DEVIATION = [0.229, 0.224, 0.225];
const SCALES = {
  "0 to 255": (value) => value,
  "0 to 1": (value) => value / 255,
  "-1 to 1": (value) => value / 127.5 - 1,
  "as for ImageNet": (value, channel) => (value / 255 - MEAN[channel]) / DEVIATION[channel],
};

/** The fields of one input, and how to read them. */
function field(tensor) {
  const dims = html("input", { name: `${tensor.name} shape`, value: begin(tensor.shape).join(", "), spellcheck: "false" });
  const text = html("textarea", { name: tensor.name, spellcheck: "false" }, tensor.datatype === "BYTES" ? "" : "0");
  const choose = html("input", { type: "file", accept: "image/*" });
  const scale = html("select", {}, Object.keys(SCALES).map((name) => html("option", {}, name)));
  const isPicture = tensor.shape.length >= 3 && (FLOATS.has(tensor.datatype) || tensor.datatype === "UINT8");
  const read = async () => {
    const own = readShape(dims.value);
    if (choose.files.length) {
      const place = pictured(own, tensor.datatype);
      if (!place) throw new Error(`'${tensor.name}': an image needs a shape that ends in channels (1 or 3), height, width, or in height, width, channels`);
      let data = await pixels(choose.files[0], place, SCALES[scale.value]);
      if (tensor.datatype === "UINT8") data = data.map((value) => Math.max(0, Math.min(255, Math.round(value))));
      return { name: tensor.name, shape: own, datatype: tensor.datatype, data };
    }
    return { name: tensor.name, shape: own, datatype: tensor.datatype, data: readElements(text.value, tensor.datatype, own, tensor.name) };
  };
  const element = html("fieldset", {},
    html("legend", {}, `${tensor.name}: ${tensor.datatype} ${shape(tensor.shape)}`),
    html("label", {}, "Shape ", dims),
    html("label", {}, tensor.datatype === "BYTES" ? "Strings, one a line " : "Elements; one fills the tensor ", text),
    isPicture && html("div", { class: "row" }, html("label", {}, "Or an image ", choose), html("label", {}, "Its colours ", scale)));
  return { element, read };
}

function shown(output) {
  const { name, datatype, shape: dims, data } = output;
  const rest = data.length > SHOWN ? `\n… ${data.length - SHOWN} more` : "";
  return [html("h3", {}, `${name}: ${datatype} ${shape(dims)}`), html("pre", { tabindex: "0" }, data.slice(0, SHOWN).join(", ") + rest)];
}

/** The form for a model; `ask` sends a request to a path of the server. */
export function request(model, ask) {
  const { loaded } = model;
  if (loaded.is_decoupled) return html("p", { class: "soft" }, "A decoupled model answers with several responses: it is asked over gRPC or generate_stream.");
  const fields = loaded.inputs.map(field);
  const sequence = html("input", { name: "sequence", value: "1", inputmode: "numeric" });
  const start = html("input", { type: "checkbox", checked: true });
  const end = html("input", { type: "checkbox", checked: true });
  const send = html("button", { class: "main" }, "Send");
  const answer = html("div", { "aria-live": "polite" });
  const submit = async (event) => {
    event.preventDefault();
    send.disabled = true;
    answer.replaceChildren("Waiting for the answer…");
    try {
      const body = { inputs: await Promise.all(fields.map(({ read }) => read())) };
      if (loaded.is_sequential) {
        body.parameters = { sequence_id: Number(sequence.value), sequence_start: start.checked, sequence_end: end.checked };
      }
      const path = `../v2/models/${encodeURIComponent(model.name)}/versions/${model.version}/infer`;
      const before = performance.now();
      const reply = await ask(path, body);
      const took = `${(performance.now() - before).toFixed(1)} ms, as this browser saw it`;
      answer.replaceChildren(html("p", {}, took), ...reply.outputs.flatMap(shown));
    } catch (error) {
      answer.replaceChildren(html("p", { class: "error" }, error.message));
    }
    send.disabled = false;
  };
  return html("form", { onsubmit: submit, "aria-label": `A request to ${model.name}` },
    fields.map(({ element }) => element),
    loaded.is_sequential && html("fieldset", {}, html("legend", {}, "Sequence"), html("div", { class: "row" },
      html("label", {}, "Its number ", sequence), html("label", {}, start, " it starts here"), html("label", {}, end, " it ends here"))),
    send, answer);
}
