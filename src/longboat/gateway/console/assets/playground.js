// A chat with a model, as it streams; with images, tools, a JSON schema, and two models side by side.

import { get, session } from "./api.js";
import { lane } from "./chat.js";
import { h, select, text } from "./dom.js";
import { picture } from "./pictures.js";

const TOOLS = '[{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } } }]';
const SCHEMA = '{ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] }';

export function show(main, { query }) {
  const aborted = new AbortController();
  const words = h("textarea", { rows: "2", placeholder: "Say something. Enter sends, Shift+Enter begins a line.", "aria-label": "Message" });
  const send = h("button", { class: "main", text: "Send" });
  const stop = h("button", { type: "button", text: "Stop", disabled: true, onclick: () => lanes.forEach((each) => each.stop()) });
  const clear = h("button", { type: "button", text: "Clear", onclick: () => { lanes.forEach((each) => each.clear()); images.clear(); words.focus(); } });
  const model = select("Model", [], "", remember);
  const other = select("Compare with", [], "", () => { remember(); layOut(); });
  const tenant = select("As tenant", [], "", () => {});
  const system = h("textarea", { rows: "3" });
  const most = h("input", { type: "number", min: "1", value: "512" });
  const heat = h("input", { type: "number", min: "0", max: "2", step: "0.1", placeholder: "the model’s own" });
  const tools = h("textarea", { rows: "5", spellcheck: "false", class: "mono", placeholder: TOOLS });
  const schema = h("textarea", { rows: "5", spellcheck: "false", class: "mono", placeholder: SCHEMA });
  const wrong = h("div", { class: "error", role: "alert" });
  const images = picture(wrong);
  const ask = h("form", { class: "ask" }, words, images.button, send, stop);
  const about = session.chooses_tenant ? h("div", { class: "soft", text: "The request counts for this tenant, with its limits." }) : "";
  const settings = { model: () => "", system: () => system.value, most: () => most.value, heat: () => heat.value, tenant: () => tenant.value, json: {} };
  const lanes = [model, other].map((field) => lane({ ...settings, model: () => field.value }, changed));
  const both = h("div", { class: "lanes" }, ...lanes.map((each) => each.node));
  main.append(h("div", { class: "chat" }, h("div", { class: "panel talk" }, both, images.node, ask, wrong),
    h("div", { class: "panel settings" }, model.node, other.node, session.chooses_tenant ? tenant.node : "", about,
      h("label", {}, "System prompt", system), h("label", {}, "Token limit", most), h("label", {}, "Temperature", heat),
      h("details", {}, h("summary", { text: "Tools" }), h("label", {}, "Definitions, a JSON array", tools)),
      h("details", {}, h("summary", { text: "JSON schema" }), h("label", {}, "The answer’s schema", schema)), clear)));
  words.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      ask.requestSubmit();
    }
  });
  ask.addEventListener("submit", (event) => {
    event.preventDefault();
    if ((words.value.trim() || images.chosen.length) && !lanes.some((each) => each.busy)) talk();
  });
  layOut();
  load().catch((problem) => { if (!aborted.signal.aborted) text(wrong, problem.message); });
  words.focus();

  async function load() {
    const { data } = await get("live/models", aborted.signal);
    const chats = data.models.filter((row) => row.task === "generate").map((row) => row.name);
    model.set(chats, query.get("model") ?? chats[0] ?? "");
    other.set([{ value: "", text: "no other model" }, ...chats], query.get("with") ?? "");
    layOut();
    if (!session.chooses_tenant) return;
    const names = (await get("live/tenants", aborted.signal)).data.tenants.map((row) => row.name);
    tenant.set(names, names[0] ?? "");
  }

  function remember() {
    const address = new URLSearchParams({ model: model.value, ...(other.value ? { with: other.value } : {}) });
    history.replaceState(null, "", `/console/playground?${address}`);
  }

  function layOut() {
    both.classList.toggle("two", Boolean(other.value));
    lanes[1].node.classList.toggle("hidden", !other.value);
    if (!other.value) lanes[1].clear();
  }

  function changed() {
    const busy = lanes.some((each) => each.busy);
    stop.disabled = !busy;
    send.disabled = busy;
    if (!busy && !aborted.signal.aborted) words.focus();
  }

  function talk() {
    try {
      settings.json.tools = given(tools, "Tools", Array.isArray, "a JSON array");
      settings.json.schema = given(schema, "JSON schema", (value) => value && typeof value === "object" && !Array.isArray(value), "a JSON object");
    } catch (problem) {
      text(wrong, problem.message);
      return;
    }
    text(wrong, "");
    const content = images.chosen.length ? [...(words.value.trim() ? [{ type: "text", text: words.value }] : []), ...images.chosen.map((image) => ({ type: "image_url", image_url: { url: image.url } }))] : words.value;
    const shown = images.chosen.length ? `${words.value}${words.value ? "\n" : ""}${images.chosen.map((image) => `🖼 ${image.name}`).join("\n")}` : words.value;
    words.value = "";
    images.clear();
    for (const each of other.value ? lanes : lanes.slice(0, 1)) each.talk(content, shown);
  }

  return () => {
    aborted.abort();
    lanes.forEach((each) => each.stop());
  };
}

/** Return the JSON in a field; undefined where it is empty. Throws a sentence where it is something else. */
function given(field, name, isGood, wanted) {
  if (!field.value.trim()) return undefined;
  let found;
  try {
    found = JSON.parse(field.value);
  } catch (problem) {
    throw new Error(`${name}: ${problem.message}`);
  }
  if (!isGood(found)) throw new Error(`${name}: this is not ${wanted}.`);
  return found;
}
