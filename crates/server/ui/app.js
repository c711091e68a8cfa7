// Asks for the server's state again and again and shows it. What is shown follows from the state and the address.

import { html } from "./elements.js";
import { machine } from "./machine.js";
import { model, models } from "./models.js";
import { History, key } from "./rates.js";
import { request } from "./request.js";

const PERIOD_MS = 2000;
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

async function ask(path, body) {
  const options = body === undefined ? { headers: access() }
    : { method: "POST", headers: { ...access(), "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(path, options);
  const text = await reply.text();
  let json = null;
  try {
    json = text ? JSON.parse(text) : null;
  } catch {
    throw new Error(`the server answered ${reply.status} with what is no JSON`);
  }
  if (reply.status === 403) wanted(json?.error ?? "");
  if (!reply.ok) throw new Error(json?.error ?? `the server answered ${reply.status}`);
  return json;
}

/** Asks for the header that the server wants. */
function wanted(text) {
  const form = find("access");
  const header = /'([^']+)'/.exec(text)?.[1];
  if (header && form.elements.header.value !== header) {
    form.elements.header.value = header;
    form.elements.value.value = "";
  }
  form.hidden = false;
}

find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const { header, value } = event.currentTarget.elements;
  sessionStorage.setItem(STORED, JSON.stringify({ ...access(), [header.value]: value.value }));
  event.currentTarget.hidden = true;
  update();
});

find("pause").addEventListener("click", (event) => {
  isPaused = !isPaused;
  event.currentTarget.setAttribute("aria-pressed", isPaused);
  if (!isPaused) update();
});

/** Loads or unloads a model. */
async function act(button, { name }, action) {
  button.disabled = true;
  tell("done", `${action === "load" ? "Loading" : "Unloading"} ${name}…`);
  try {
    await ask(`../v2/repository/models/${encodeURIComponent(name)}/${action}`, {});
    tell("done", `${name}: ${action}ed`);
  } catch (error) {
    tell("done", `${name}: ${error.message}`);
  }
  button.disabled = false;
  await update();
}

/** Said once, also to those who listen. */
function tell(place, text) {
  if (find(place).textContent !== text) find(place).textContent = text;
}

/** The view of an address: `parts` draws what changes; the rest stays, so that nobody's input is lost. */
function open(state) {
  const address = location.hash;
  const wantedKey = /^#\/models\/(.+)$/.exec(address)?.[1];
  if (!wantedKey) {
    const [list, about] = [html("div"), html("div")];
    content.replaceChildren(html("h2", {}, "Models"), list, html("h2", {}, "Machine"), about);
    return { address, draw: (now) => {
      replace(list, models(now, history, act));
      replace(about, machine(now));
    } };
  }
  const own = decodeURIComponent(wantedKey);
  const found = (now) => now.models.find((one) => key(one) === own);
  const [, name, version] = JSON.parse(own);
  const [pictures, form] = [html("div"), html("div", { class: "card" })];
  content.replaceChildren(html("p", {}, html("a", { href: "#/" }, "All models")),
    html("h2", {}, `${name}, version ${version}`), pictures, html("h2", {}, "Send a request"), form);
  let isFormed = false;
  return { address, draw: (now) => {
    const one = found(now);
    if (!one?.loaded) {
      replace(pictures, html("p", {}, `The model is ${one?.state ?? "not in the repository"}. ${one?.reason ?? ""}`));
      return;
    }
    if (!isFormed) {
      form.replaceChildren(request(one, ask));
      isFormed = true;
    }
    replace(pictures, model(one, now, history, act));
  } };
}

/** Draws a part anew, and leaves the keyboard where it was. */
function replace(part, ...children) {
  const focusable = () => [...part.querySelectorAll("a, button, [tabindex]")];
  const place = focusable().indexOf(document.activeElement);
  part.replaceChildren(...children.flat());
  if (place >= 0) focusable()[place]?.focus();
}

function draw(state) {
  if (view?.address !== location.hash) {
    const isFirst = view === null;
    view = open(state);
    if (!isFirst) content.focus();
  }
  view.draw(state);
}

async function update() {
  try {
    const state = await ask("state");
    history.add(state, performance.now());
    const { server } = state;
    find("about").textContent = `${server.name}, version ${server.version}, speaks the protocols of tritonserver ${server.protocol}`;
    find("access").hidden = true;
    tell("status", server.is_ready ? "Ready" : "Not ready");
    draw(state);
  } catch (error) {
    tell("status", `No state: ${error.message}`);
  }
}

addEventListener("hashchange", () => history.last && draw(history.last.state));
await update();
setInterval(() => isPaused || document.hidden || update(), PERIOD_MS);
