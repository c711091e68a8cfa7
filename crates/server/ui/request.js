// A form that sends a request to a model, made from its inputs.

import { bytes as inBytes, count, html, segment, shape } from "./elements.js";
import { decode, elementBytes, encode, parse } from "./tensors.js";

const HEADER_LENGTH = "Inference-Header-Content-Length";

const FLOATS = new Set(["FP16", "BF16", "FP32", "FP64"]);
/** Longer answers are cut: a page with a million numbers helps nobody. */
const SHOWN = 200;
const NO_PICTURE = "an image needs a shape that ends in channels (1 or 3), height, width, or in height, width, channels";

const limit = (most) => `the server takes requests of ${inBytes(most)} at most (--http-max-input-size)`;

/** A shape to begin with: what varies is 1. */
const begin = (dims) => dims.map((dim) => (dim < 0 ? 1 : dim));
const size = (dims) => dims.reduce((product, dim) => product * dim, 1);

function readShape(text) {
  const dims = text.split(/[\s,]+/).filter(Boolean).map(Number);
  if (dims.some((dim) => !Number.isSafeInteger(dim) || dim < 0)) throw new Error(`'${text}' is no shape: whole numbers with commas between them`);
  return dims;
}

/** Strings of a text: the whole of it for one element, else one a line, or those of an array of JSON. */
function readStrings(text, isJson, number, name) {
  if (isJson) {
    let values;
    try {
      values = JSON.parse(text);
    } catch (error) {
      throw new Error(`'${name}' is no JSON: ${error.message}`);
    }
    values = [values].flat(Infinity);
    const wrong = values.find((value) => typeof value !== "string");
    if (wrong !== undefined) throw new Error(`'${name}': ${JSON.stringify(wrong)} is no string`);
    return values;
  }
  if (number === 0 && text === "") return [];
  if (number === 1) return [text];
  const lines = text.split("\n");
  // The end of the last line begins no other one.
  return lines.length === number + 1 && lines.at(-1) === "" ? lines.slice(0, -1) : lines;
}

/** Where the colours of an image are in a shape, channels first or last; null where they are not. What the model itself says
 * of its channels goes before what may be by chance. */
function channelsOf(own, declared) {
  const isColour = (dim) => dim === 3 || dim === 1;
  if (own.length < 3 || size(own.slice(0, -3)) !== 1) return null;
  const [first, last] = [isColour(own.at(-3)), isColour(own.at(-1))];
  if (first && last && own.length === declared.length) return declared.at(-3) < 0 && declared.at(-1) > 0 ? "last" : "first";
  return first ? "first" : last ? "last" : null;
}

/** The places of height and width in a shape. */
const places = (dims, channels) => (channels === "first" ? [dims.length - 2, dims.length - 1] : [dims.length - 3, dims.length - 2]);

/** The pixels of an image, resized to a shape; `scale` is what becomes of 0 to 255. */
async function pixels(image, dims, order, scale) {
  const [height, width] = places(dims, order).map((place) => dims[place]);
  const [isFirst, channels] = [order === "first", dims.at(order === "first" ? -3 : -1)];
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
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

/** The fields of one input, and how to read them: the part of the request that is JSON, and the bytes; null without it. */
function field(tensor) {
  const { name, datatype } = tensor;
  const isText = datatype === "BYTES";
  const dims = html("input", { name: `${name} shape`, value: begin(tensor.shape).join(", "), spellcheck: "false" });
  const text = html("textarea", { name, spellcheck: "false" }, isText ? "" : "0");
  const json = html("input", { type: "checkbox" });
  const omit = html("input", { type: "checkbox" });
  const choose = html("input", { type: "file", accept: "image/*" });
  const scale = html("select", {}, Object.keys(SCALES).map((scale) => html("option", {}, scale)));
  const isPicture = tensor.shape.length >= 3 && (FLOATS.has(datatype) || datatype === "UINT8");
  /** The image that is chosen, and the size that it has put into the shape. */
  let image = null;
  let fitted = [1, 1];

  /** Puts the size of an image where the shape has room for any and nobody has written one. */
  async function fit() {
    const found = await createImageBitmap(choose.files[0]).catch(() => {
      throw new Error(`'${name}': this browser cannot read '${choose.files[0].name}' as an image`);
    });
    const own = readShape(dims.value);
    const order = own.length === tensor.shape.length ? channelsOf(own, tensor.shape) : null;
    if (order) {
      places(own, order).forEach((place, index) => {
        if (tensor.shape[place] >= 0 || own[place] !== fitted[index]) return;
        own[place] = fitted[index] = index ? found.width : found.height;
      });
      dims.value = own.join(", ");
    }
    return found;
  }
  choose.addEventListener("change", () => {
    image = choose.files.length ? fit() : null;
    // Said when the request is sent.
    image?.catch(() => {});
  });

  async function data(own, room) {
    const number = size(own);
    const bytes = number * elementBytes(datatype);
    if (bytes > room) throw new Error(`'${name}' would have ${count(number)} elements in ${inBytes(bytes)}: ${limit(room)}`);
    if (image) {
      const order = channelsOf(own, tensor.shape);
      if (!order) throw new Error(`'${name}': ${NO_PICTURE}`);
      const values = number ? await pixels(await image, own, order, SCALES[scale.value]) : [];
      return encode(datatype === "UINT8" ? values.map((value) => Math.max(0, Math.min(255, Math.round(value)))) : values, datatype, number);
    }
    const values = isText ? readStrings(text.value, json.checked, number, name) : parse(text.value, datatype, name);
    if (values.length !== number && (values.length !== 1 || number === 0)) throw new Error(`'${name}': ${values.length} elements, but its shape holds ${number}`);
    return encode(values, datatype, number);
  }

  const read = async (room) => {
    if (omit.checked) return null;
    // The shape waits for the image's size.
    await image;
    const own = readShape(dims.value);
    const bytes = await data(own, room);
    return { head: { name, shape: own, datatype, parameters: { binary_data_size: bytes.length } }, bytes };
  };
  const element = html("fieldset", {},
    html("legend", {}, `${name}: ${datatype} ${shape(tensor.shape)}`),
    tensor.is_optional && html("label", {}, omit, " leave it out: it is optional"),
    html("label", {}, "Shape ", dims),
    html("label", {}, isText ? "Text; of several elements each is a line, and one fills the tensor " : "Elements; one fills the tensor ", text),
    isText && html("label", {}, json, " it is JSON, an array of strings"),
    isPicture && html("div", { class: "row" }, html("label", {}, "Or an image ", choose), html("label", {}, "Its colours ", scale)));
  return { element, read };
}

/** What identifies a sequence: a number as the protocol has it, of 64 bits, or else a text; as JSON. */
const sequenceId = (text) => (/^\d+$/.test(text) && BigInt(text) < 2n ** 64n ? String(BigInt(text)) : JSON.stringify(text));

/** The body of a request: JSON and behind it the tensors' bytes, of which the header tells where they begin. */
function bodyOf(inputs, sequence) {
  const head = [`"inputs":${JSON.stringify(inputs.map(({ head }) => head))}`, `"parameters":{"binary_data_output":true${sequence}}`];
  const json = new TextEncoder().encode(`{${head.join(",")}}`);
  return { body: new Blob([json, ...inputs.map(({ bytes }) => bytes)]), length: json.length };
}

/** The outputs of a reply: what JSON says of each, and its first elements as texts. */
async function outputsOf(reply) {
  const all = new Uint8Array(await reply.arrayBuffer());
  const length = Number(reply.headers.get(HEADER_LENGTH) ?? all.length);
  const { outputs = [] } = JSON.parse(new TextDecoder().decode(all.subarray(0, length)));
  let at = length;
  return outputs.map(({ name, datatype, shape: dims, parameters, data }) => {
    const end = at + (parameters?.binary_data_size ?? 0);
    const texts = data ? data.slice(0, SHOWN).map(String) : decode(all.subarray(at, end), datatype, SHOWN);
    at = end;
    return { name, datatype, dims, texts };
  });
}

function shown({ name, datatype, dims, texts }) {
  const left = size(dims) - texts.length;
  // Texts may hold commas.
  const between = datatype === "BYTES" ? "\n" : ", ";
  return [html("h3", {}, `${name}: ${datatype} ${shape(dims)}`),
    html("pre", { tabindex: "0" }, texts.join(between) + (left > 0 ? `\n… ${left} more` : ""))];
}

/** The form for a model; `send` sends a request to a path of the server, which takes bodies of so many bytes. */
export function request(model, send, bytesMax) {
  const { loaded } = model;
  if (loaded.is_decoupled) return html("p", { class: "soft" }, "A decoupled model answers with several responses: it is asked over gRPC or generate_stream.");
  const fields = loaded.inputs.map(field);
  const sequence = html("input", { name: "sequence", value: "1", spellcheck: "false" });
  const start = html("input", { type: "checkbox", checked: true });
  const end = html("input", { type: "checkbox", checked: true });
  const button = html("button", { class: "main" }, "Send");
  const answer = html("div", { "aria-live": "polite" });
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    answer.replaceChildren("Waiting for the answer…");
    try {
      const inputs = [];
      let room = bytesMax;
      for (const { read } of fields) {
        const input = await read(room);
        if (!input) continue;
        inputs.push(input);
        room -= input.bytes.length;
      }
      const bounds = `"sequence_start":${start.checked},"sequence_end":${end.checked}`;
      const of = loaded.is_sequential ? `,"sequence_id":${sequenceId(sequence.value)},${bounds}` : "";
      const { body, length } = bodyOf(inputs, of);
      if (body.size > bytesMax) throw new Error(`The request would have ${inBytes(body.size)}: ${limit(bytesMax)}`);
      const path = `../v2/models/${segment(model.name)}/versions/${model.version}/infer`;
      const before = performance.now();
      const headers = { "Content-Type": "application/octet-stream", [HEADER_LENGTH]: String(length) };
      const reply = await send(path, { method: "POST", body, headers, again: () => form.requestSubmit() });
      const outputs = await outputsOf(reply);
      const took = `${(performance.now() - before).toFixed(1)} ms, as this browser saw it`;
      answer.replaceChildren(html("p", {}, took), ...outputs.length ? outputs.flatMap(shown) : ["The answer has no outputs."]);
    } catch (error) {
      answer.replaceChildren(html("p", { class: "error" }, error.message));
    }
    button.disabled = false;
  };
  const form = html("form", { onsubmit: submit, "aria-label": `A request to ${model.name}` },
    fields.map(({ element }) => element),
    loaded.is_sequential && html("fieldset", {}, html("legend", {}, "Sequence"), html("div", { class: "row" },
      html("label", {}, "Its number, or a text ", sequence), html("label", {}, start, " it starts here"), html("label", {}, end, " it ends here"))),
    button, answer);
  return form;
}
