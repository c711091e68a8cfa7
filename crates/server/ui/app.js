// Asks for the server's state again and again and shows it. What is shown follows from the state and the address.

import { html, segment, update } from "./elements.js";
import { machine } from "./machine.js";
import { model, models } from "./models.js";
import { History, key } from "./rates.js";
import { request } from "./request.js";

const PERIOD_MS = 2000;
/** How long the server may take to tell its state, before the page says that it does not answer. */
const PATIENCE_MS = 5000;
/** Two minutes of points. */
const POINTS = 60;
const STORED = "halimede-access";

const find = (id) => document.getElementById(id);
const content = find("content");
const history = new History(POINTS);
let isPaused = false;
/** The view that is shown: its address, and what of it is drawn anew with each state. */
let view = null;

/** Headers that somebody has given, by their names. */
const access = () => JSON.parse(sessionStorage.getItem(STORED) ?? "{}");

/** What was refused for want of a header, and is done again once that is given; null where nothing was. */
let refused = null;

/** Sends a request and gives the reply; one that is an error becomes the error that it tells. `again` does once more what it was sent for. */
async function send(path, { headers, again = null, ...options } = {}, isState = false) {
  const reply = await fetch(path, { ...options, headers: { ...headers, ...access() } }).catch((error) => {
    throw new Error(error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : error.message);
  });
  if (reply.ok) return reply;
  const text = await reply.text();
  let said = null;
  try {
    said = JSON.parse(text)?.error;
  } catch {
    // Not every error has a body, and a proxy's has another form.
  }
  // Where no header is named, as to a page that a proxy makes one of another site, none helps.
  if (reply.status === 403 && NAMED.test(said ?? "")) {
    wanted(said, isState);
    // The state is asked for again in any case.
    if (!isState) refused = again;
  }
  throw new Error(said ?? `the server answered ${reply.status}`);
}

/** A text that names the header that is wanted. */
const NAMED = /header '([^']+)'/;

/** Asks for the header that the server wants, for its state or for what else was asked. */
function wanted(text, isState) {
  const form = find("access");
  const header = NAMED.exec(text)?.[1];
  if (header && form.elements.header.value !== header) {
    form.elements.header.value = header;
    form.elements.value.value = "";
  }
  form.dataset.isState = isState;
  form.hidden = false;
}

find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const { header, value } = event.currentTarget.elements;
  try {
    new Headers({ [header.value]: value.value });
  } catch {
    // Kept, it would stop every request of this tab.
    find("access-problem").textContent = "A browser cannot send this: a header's name has letters, digits and -, its value no others than those of Latin-1.";
    return;
  }
  find("access-problem").textContent = "";
  sessionStorage.setItem(STORED, JSON.stringify({ ...access(), [header.value]: value.value }));
  event.currentTarget.hidden = true;
  look();
  const again = refused;
  refused = null;
  again?.();
});

find("close").addEventListener("click", () => {
  find("access").hidden = true;
  refused = null;
});

// Not by the address, which says what is shown.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});

find("pause").addEventListener("click", (event) => {
  isPaused = !isPaused;
  event.currentTarget.setAttribute("aria-pressed", isPaused);
  if (!isPaused) look();
  else if (history.last) tell("status", `Paused: this is what was at ${history.last.time}`);
});

/** Models that are being loaded or unloaded from here. */
const busy = new Set();

/** What loads and unloads models. */
const act = {
  isBusy: ({ name }) => busy.has(name),
  async run({ name }, action) {
    if (busy.has(name)) return;
    busy.add(name);
    tell("done", `${action === "load" ? "Loading" : "Unloading"} ${name}…`);
    if (history.last) draw(history.last.state);
    let failure = null;
    try {
      const again = () => act.run({ name }, action);
      const options = { method: "POST", body: "{}", headers: { "Content-Type": "application/json" }, again };
      await send(`../v2/repository/models/${segment(name)}/${action}`, options);
    } catch (error) {
      failure = error.message;
    }
    busy.delete(name);
    // A look that had begun before does not know of it.
    await looking;
    const state = await look();
    tell("done", `${name}: ${failure ?? outcome(state, name, action)}`);
  },
};

/** What has become of a model: to unload one that the server does not know is no error. */
function outcome(state, name, action) {
  if (!state) return `the server says that it is ${action}ed, and nothing since`;
  const versions = state.models.filter((model) => model.name === name);
  const isReady = versions.some((model) => model.state === "READY");
  if (isReady === (action === "load")) return `${action}ed`;
  const states = versions.map((model) => `${model.state ?? "not loaded"} ${model.reason}`.trim());
  return `the server says that it is ${action}ed, but it is ${states.join(", ") || "not in the repository"}`;
}

/** Said once, also to those who listen. */
function tell(place, text) {
  if (find(place).textContent !== text) find(place).textContent = text;
}

/** Which model an address is of, as `key` writes it; null for every other address, such as one that was typed. */
function modelOf(address) {
  try {
    const own = decodeURIComponent(/^#\/models\/(.+)$/.exec(address)?.[1] ?? "");
    const parts = JSON.parse(own);
    return Array.isArray(parts) && parts.length === 3 ? { own, name: parts[1], version: parts[2] } : null;
  } catch {
    return null;
  }
}

/** The view of an address: `draw` changes what has changed; the form stays, so that nobody's input is lost. */
function open(address) {
  const shown = modelOf(address);
  if (!shown) {
    const [list, about] = [html("div"), html("div")];
    content.replaceChildren(html("h2", {}, "Models"), list, html("h2", {}, "Machine"), about);
    return { address, draw: (now) => {
      update(list, models(now, history, act));
      update(about, machine(now));
    } };
  }
  const { own, name, version } = shown;
  const [pictures, form] = [html("div"), html("div", { class: "card" })];
  content.replaceChildren(html("p", {}, html("a", { href: "#/" }, "All models")),
    html("h2", {}, `${name}, version ${version}`), pictures, html("h2", {}, "Send a request"), form);
  let signature = null;
  return { address, draw: (now) => {
    const one = now.models.find((each) => key(each) === own);
    if (!one?.loaded) {
      update(pictures, html("p", {}, `The model is ${one?.state ?? "not in the repository"}. ${one?.reason ?? ""}`));
      return;
    }
    const { inputs, is_decoupled, is_sequential } = one.loaded;
    const found = JSON.stringify([inputs, is_decoupled, is_sequential]);
    // A model that was loaded again may take other inputs.
    if (found !== signature) form.replaceChildren(request(one, send, now.server.request_bytes_max));
    signature = found;
    update(pictures, model(one, now, history, act));
  } };
}

function draw(state) {
  if (view?.address !== location.hash) {
    const isFirst = view === null;
    view = open(location.hash);
    if (!isFirst) content.focus();
  }
  view.draw(state);
}

/** Says how old what is shown is, where the server does not tell its state; null where it does. */
function stale(why) {
  const isStale = why !== null && history.last !== null;
  document.body.classList.toggle("stale", isStale);
  find("stale").hidden = !isStale;
  if (isStale) tell("stale", `The server does not tell its state: ${why}. This is what was at ${history.last.time}.`);
}

/** The look that is under way. */
let looking = null;

/** Asks for the state and shows it; a look that is under way is waited for, no second one begins. Null where it failed. */
function look() {
  looking ??= lookNow().finally(() => {
    looking = null;
  });
  return looking;
}

async function lookNow() {
  try {
    const state = await (await send("state", { signal: AbortSignal.timeout(PATIENCE_MS) }, true)).json();
    history.add(state, performance.now());
    const { server } = state;
    find("about").textContent = `${server.name}, version ${server.version}, speaks the protocols of tritonserver ${server.protocol}`;
    // What was asked for the sake of another request is still being typed.
    if (find("access").dataset.isState === "true") find("access").hidden = true;
    tell("status", server.is_ready ? "Ready" : "Not ready");
    stale(null);
    draw(state);
    return state;
  } catch (error) {
    tell("status", `No state: ${error.message}`);
    stale(error.message);
    return null;
  }
}

addEventListener("hashchange", () => history.last && draw(history.last.state));
await look();
setInterval(() => isPaused || document.hidden || look(), PERIOD_MS);
