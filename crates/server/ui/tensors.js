// Elements of tensors, from text to the protocol's binary data and back. No number passes through JSON: that has neither all
// integers of 64 bits nor NaN and infinity, and no form for FP16 and BF16.

/** Floats that are narrower than those of the language: bits of the fraction, and the exponent's bias. */
const HALF = [10, 15];
const BRAIN = [7, 127];

function fromBits(bits, [fraction, bias]) {
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, rest] = [(bits & 0x7fff) >> fraction, bits & ((1 << fraction) - 1)];
  if (exponent === (0x7fff >> fraction)) return rest ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + rest / 2 ** fraction) * 2 ** (exponent - bias) : (rest / 2 ** fraction) * 2 ** (1 - bias));
}

/** The nearest float of that width, of two the even one. */
function toBits(value, [fraction, bias]) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const infinity = (0x7fff >> fraction) << fraction;
  if (Number.isNaN(value)) return infinity | (1 << (fraction - 1));
  const size = Math.abs(value);
  if (size === Infinity) return sign | infinity;
  const wide = new DataView(new ArrayBuffer(8));
  wide.setFloat64(0, size);
  const exponent = Math.max((wide.getUint16(0) >> 4) - 1023, 1 - bias);
  // Exact, as is all that has a power of two as its divisor.
  const units = size / 2 ** (exponent - fraction);
  const near = Math.round(units) - (units % 1 === 0.5 && Math.round(units) % 2 ? 1 : 0);
  // Where rounding makes it a unit more than the fraction holds, the exponent becomes the next one.
  const bits = near + ((exponent + bias - 1) << fraction);
  return sign | Math.min(bits, infinity);
}

const narrowed = (width) => (value) => fromBits(toBits(value, width), width);

/** Reads whole numbers between two bounds; 1e3 is one, too. */
const whole = (low, high) => (word) => {
  const isPlain = /^[+-]?\d+$/.test(word);
  if (!isPlain && !Number.isSafeInteger(Number(word))) return undefined;
  const value = isPlain ? BigInt(word.replace("+", "")) : BigInt(Number(word));
  return value >= low && value <= high ? value : undefined;
};

/** Reads numbers that a float can hold; `store` is what becomes of one in it. */
const real = (store) => (word) => {
  const [, sign, special] = /^([+-]?)(nan|inf|infinity)$/i.exec(word) ?? [];
  if (special) return special.toLowerCase() === "nan" ? NaN : sign === "-" ? -Infinity : Infinity;
  const value = Number(word);
  return Number.isFinite(store(value)) ? value : undefined;
};

/** As few digits as tell the float from its neighbours, and all of a number that people may count with. */
const short = (store) => (value) => {
  if (Object.is(value, -0)) return "-0";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  for (let digits = 1; digits <= 9 && Number.isFinite(value); digits += 1) {
    const near = Number(value.toPrecision(digits));
    if (store(near) === value) return String(near);
  }
  return String(value);
};

/** A type of elements: bytes of one, how to read a word, to write and to read bytes, to show a value. */
const integer = (bits, isSigned, name) => ({
  bytes: bits / 8,
  parse: isSigned ? whole(-(2n ** BigInt(bits - 1)), 2n ** BigInt(bits - 1) - 1n) : whole(0n, 2n ** BigInt(bits) - 1n),
  write: (view, at, value) => view[`set${name}`](at, bits === 64 ? BigInt(value) : Number(value), true),
  read: (view, at) => view[`get${name}`](at, true),
  text: String,
});
const float = (bits, store, write, read) => ({ bytes: bits / 8, parse: real(store), write, read, text: short(store) });
const narrow = (width) => float(16, narrowed(width), (view, at, value) => view.setUint16(at, toBits(value, width), true),
  (view, at) => fromBits(view.getUint16(at, true), width));
const BOOLEANS = new Map([["true", 1], ["1", 1], ["false", 0], ["0", 0]]);

const TYPES = new Map(Object.entries({
  BOOL: {
    bytes: 1,
    parse: (word) => BOOLEANS.get(word.toLowerCase()),
    write: (view, at, value) => view.setUint8(at, value),
    read: (view, at) => view.getUint8(at) !== 0,
    text: String,
  },
  INT8: integer(8, true, "Int8"),
  INT16: integer(16, true, "Int16"),
  INT32: integer(32, true, "Int32"),
  INT64: integer(64, true, "BigInt64"),
  UINT8: integer(8, false, "Uint8"),
  UINT16: integer(16, false, "Uint16"),
  UINT32: integer(32, false, "Uint32"),
  UINT64: integer(64, false, "BigUint64"),
  FP16: narrow(HALF),
  BF16: narrow(BRAIN),
  FP32: float(32, Math.fround, (view, at, value) => view.setFloat32(at, value, true), (view, at) => view.getFloat32(at, true)),
  FP64: float(64, Number, (view, at, value) => view.setFloat64(at, value, true), (view, at) => view.getFloat64(at, true)),
}));

/** Bytes of one element; of one of BYTES at least. */
export const elementBytes = (datatype) => TYPES.get(datatype)?.bytes ?? 4;

/** Values from words between blanks, commas and brackets. */
export function parse(text, datatype, name) {
  const { parse: read } = TYPES.get(datatype);
  return text.split(/[\s,[\]]+/).filter(Boolean).map((word) => {
    const value = read(word);
    if (value === undefined) throw new Error(`'${name}': '${word}' is no ${datatype}`);
    return value;
  });
}

/** The bytes of `number` elements, of which there are as many values, or one for all. */
export function encode(values, datatype, number) {
  const type = TYPES.get(datatype);
  const one = type ? numbers(values, type) : strings(values);
  if (values.length === number) return one;
  const all = new Uint8Array(one.length * number);
  all.set(one);
  for (let filled = one.length; filled < all.length; filled *= 2) all.copyWithin(filled, 0, filled);
  return all;
}

function numbers(values, { bytes, write }) {
  const view = new DataView(new ArrayBuffer(values.length * bytes));
  values.forEach((value, index) => write(view, index * bytes, value));
  return new Uint8Array(view.buffer);
}

/** Each has its length in front. */
function strings(values) {
  const texts = values.map((value) => new TextEncoder().encode(value));
  const view = new DataView(new ArrayBuffer(texts.reduce((sum, text) => sum + 4 + text.length, 0)));
  const all = new Uint8Array(view.buffer);
  let at = 0;
  for (const text of texts) {
    view.setUint32(at, text.length, true);
    all.set(text, at + 4);
    at += 4 + text.length;
  }
  return all;
}

/** The first elements of a tensor, `most` at most, as texts. */
export function decode(bytes, datatype, most) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const type = TYPES.get(datatype);
  const texts = [];
  if (type) {
    const number = Math.min(most, Math.floor(bytes.length / type.bytes));
    for (let index = 0; index < number; index += 1) texts.push(type.text(type.read(view, index * type.bytes)));
    return texts;
  }
  for (let at = 0; at + 4 <= bytes.length && texts.length < most;) {
    const end = at + 4 + view.getUint32(at, true);
    texts.push(textOf(bytes.subarray(at + 4, end)));
    at = end;
  }
  return texts;
}

/** What is no UTF-8 is shown byte by byte. */
function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return `bytes ${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}`;
  }
}
