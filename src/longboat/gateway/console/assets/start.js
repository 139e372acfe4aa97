// Starting a model that the fleet file does not have, and ending it: the same plan and the same change as `longboat up`.

import { follow, post } from "./api.js";
import { h, table, text } from "./dom.js";

const FIELDS = {
  source: { label: "Source", placeholder: "hf:Qwen/Qwen3-0.6B", size: "30", required: true },
  name: { label: "Name", placeholder: "from the source", size: "14" },
  engine: { label: "Engine", placeholder: "vllm", size: "9" },
  replicas: { label: "Replicas", type: "number", min: "1", value: "1" },
  context: { label: "Longest request (tokens)", type: "number", min: "1", placeholder: "the model’s" },
  input_per_million: { label: "Price of a million prompt tokens", type: "number", min: "0", step: "any", placeholder: "none" },
  output_per_million: { label: "of a million completion tokens", type: "number", min: "0", step: "any", placeholder: "none" },
  currency: { label: "in", size: "4", placeholder: "USD", maxlength: "3" },
};

const PRICE = ["input_per_million", "output_per_million", "currency"];

/** What the form says, as the admin API takes it; what is empty is left to the fleet. */
function orderOf(fields) {
  const given = Object.entries(fields)
    .filter(([, field]) => field.value.trim())
    .map(([name, field]) => [name, field.type === "number" ? field.valueAsNumber : field.value.trim()]);
  const price = given.filter(([name]) => PRICE.includes(name));
  const order = given.filter(([name]) => !PRICE.includes(name));
  return Object.fromEntries(price.length ? [...order, ["price", Object.fromEntries(price)]] : order);
}

/** The part of the page. `open(source)` fills the form, for a row of the catalog. */
export function starting(part, wanted) {
  const fields = Object.fromEntries(Object.entries(FIELDS).map(([name, { label, ...rest }]) => [name, h("input", { name, spellcheck: "false", autocomplete: "off", ...rest })]));
  const button = h("button", { class: "main", text: "Start" });
  const said = h("p", { role: "status" });
  const keep = h("p", { class: "soft hidden" }, "To keep it when longboat up reads the fleet file again, write there: ");
  const entry = h("code");
  keep.append(entry);
  const form = h("form", { class: "row" }, ...Object.entries(fields).map(([name, field]) => h("label", { class: "row" }, FIELDS[name].label, field)), button);
  let view = null;
  const list = table([
    { title: "Model", cell: (row) => ({ text: row.name, href: `/console/models/${encodeURIComponent(row.name)}`, class: "name" }) },
    { title: "Started by", cell: (row) => row.by },
    { title: "On", cell: (row) => new Date(row.since_s * 1e3).toLocaleString() },
    { title: "Replicas", cell: (row) => phasesOf(row.name) },
    { title: "Trouble", wide: true, cell: (row) => view.failures[row.name]?.at(-1) ?? view.counts[row.name]?.problem ?? "" },
    { title: "End", cell: (row) => ({ node: (cell) => ending(cell, row.name) }) },
  ], (row) => row.name, { empty: "Every model that runs is in the fleet file." });
  list.update([]);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change("It is being planned on the nodes …", () => post("start-model", orderOf(fields)), (found) => {
      text(entry, `- ${found.entry}${found.price ? `, and below gateway.prices ${found.price}` : ""}`);
      return `${found.started} is being started (${found.shape}): ${[found.why, ...found.notes].join("; ")}.`;
    });
  });
  const made = part("Start a model", () => follow("fleet", (data) => {
    view = data.view;
    list.update(Object.entries(view?.started ?? {}).map(([name, mark]) => ({ name, ...mark })));
  }), h("p", { class: "soft", text: "Sources are written as in the fleet file. Whatever does not fit beside the models that run is refused, with the reason." }), form, said, keep, list.node);
  const open = (source) => {
    fields.source.value = source;
    made.node.open = true;
    made.node.scrollIntoView({ block: "nearest" });
    fields.source.focus();
  };
  if (wanted) queueMicrotask(() => open(wanted));
  return { ...made, open };

  function phasesOf(model) {
    const phases = view.replicas.filter((replica) => replica.model === model).map((replica) => replica.phase);
    const counts = [...new Set(phases)].map((phase) => `${phases.filter((one) => one === phase).length} ${phase}`);
    return counts.join(", ") || "none yet";
  }

  function ending(cell, model) {
    if (cell.firstChild) return;
    cell.append(h("button", { text: "End", "aria-label": `End ${model}`, onclick: () => {
      if (confirm(`End ${model}? It gets no new requests, and running ones have 20 s.`)) change(`${model} is being ended …`, () => post(`end-model?model=${encodeURIComponent(model)}`), () => `${model} leaves the fleet.`);
    } }));
  }

  async function change(before, order, after) {
    button.disabled = true;
    keep.classList.add("hidden");
    text(said, before);
    try {
      const found = await order();
      text(said, after(found));
      keep.classList.toggle("hidden", !found.entry);
    } catch (problem) {
      text(said, problem.message);
    }
    button.disabled = false;
  }
}
