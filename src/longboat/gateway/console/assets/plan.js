// What if: a model on machines, under a load. The planner runs in a process of its own on the gateway's node.

import { get, post } from "./api.js";
import { h, table, text, tile } from "./dom.js";
import { bytes, count, percent, seconds, short, usd } from "./format.js";

const FIELDS = {
  model: { label: "Model", placeholder: "Qwen3-32B", wide: true, required: true },
  on: { label: "Machines", placeholder: "live", value: "live", wide: true },
  concurrency: { label: "Requests at once", type: "number", min: "1", value: "8" },
  rate: { label: "or requests a second", type: "number", min: "0", step: "any", placeholder: "not asked" },
  prompt_tokens: { label: "Prompt tokens", type: "number", min: "1", value: "1024" },
  output_tokens: { label: "Response tokens", type: "number", min: "1", value: "256" },
  slo: { label: "Limits", placeholder: "ttft=500ms,itl=50ms" },
  quantization: { label: "Formats", placeholder: "as stored: q4, fp8, awq" },
};
const NUMBERS = ["concurrency", "rate", "prompt_tokens", "output_tokens"];

export function show(main, { query }) {
  const aborted = new AbortController();
  let served = new Set();
  let known = new Set();
  let asked = 0;
  const names = h("datalist", { id: "plan-models" });
  const fields = Object.fromEntries(Object.entries(FIELDS).map(([name, { label, wide, value, ...rest }]) => [name,
    h("input", { name, spellcheck: "false", autocomplete: "off", list: name === "model" ? "plan-models" : null, ...rest, value: query.get(name) ?? value })]));
  for (const [name, field] of Object.entries(fields)) field.value = query.get(name) ?? FIELDS[name].value ?? "";
  const button = h("button", { class: "main", text: "Plan" });
  const said = h("p", { class: "soft", role: "status", text: "Nothing is started: the planner says what would fit, how fast it would be, what it would cost, and why." });
  const form = h("form", { class: "panel form" },
    ...Object.entries(fields).map(([name, field]) => h("label", { class: FIELDS[name].wide ? "wide" : "" }, FIELDS[name].label, field)), h("div", { class: "row" }, button), names);
  const result = h("div");
  main.append(form, h("p", { class: "soft" }, "Machines are written as ", h("code", { text: "4x(2xRTX4090), net=10GbE" }), ", as ", h("code", { text: "any of: 8xH100, 4xL40S" }), " to compare kinds, or as ", h("code", { text: "live" }), ": the nodes of this cluster."), said, result);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  const ready = load().catch((problem) => { if (!aborted.signal.aborted) text(said, problem.message); });
  if (fields.model.value) ready.then(ask);

  async function load() {
    const [models, { data }] = await Promise.all([post("plan", { kind: "models" }), get("live/models", aborted.signal)]);
    known = new Set(models.models);
    served = new Set(data.models.filter((row) => row.served_here).map((row) => row.name));
    names.replaceChildren(...[...served].map((name) => h("option", { value: name, label: "served here" })), ...models.models.map((name) => h("option", { value: name })));
  }

  async function ask() {
    const mine = ++asked;
    const question = { kind: "plan" };
    const address = new URLSearchParams();
    for (const [name, field] of Object.entries(fields)) {
      const value = field.value.trim();
      if (!value) continue;
      address.set(name, value);
      question[name] = NUMBERS.includes(name) ? Number(value) : value;
    }
    question.served = served.has(question.model) && !known.has(question.model);
    history.replaceState(null, "", `/console/plan?${address}`);
    text(said, "The planner computes …");
    button.disabled = true;
    try {
      const found = await post("plan", question);
      if (mine !== asked || aborted.signal.aborted) return;
      text(said, "");
      result.replaceChildren(...(found.kinds ? kinds(found) : plans(found)));
    } catch (problem) {
      if (mine !== asked || aborted.signal.aborted) return;
      text(said, "");
      result.replaceChildren(h("ul", { class: "problems" }, h("li", { class: "bad", role: "alert", text: problem.message })));
    } finally {
      button.disabled = false;
    }
  }

  return () => aborted.abort();
}

function plans(found) {
  const [best] = found.plans;
  const [group] = best.groups;
  const tiles = [["Tokens/s", short(best.total.tokens_per_s)], ["TTFT", seconds(best.total.ttft_s)], ["ITL", seconds(best.total.itl_s)],
    ["Requests held", count(best.total.max_sequences)], ["Longest request", count(group.per_replica.max_context_tokens)], ["Memory of the fullest card", percent(used(group))],
    ["A million tokens", usd(best.cost.usd_per_million)], ["A month", usd(best.cost.usd_per_month)]].map(([label, value]) => {
    const made = tile(label);
    made.set(value);
    return made.node;
  });
  const list = table([
    { title: "Plan", cell: (row) => row.title },
    { title: "Weights", cell: (row) => row.groups[0].quantization },
    { title: "Tokens/s", num: true, cell: (row) => short(row.total.tokens_per_s) },
    { title: "TTFT", num: true, cell: (row) => seconds(row.total.ttft_s) },
    { title: "ITL", num: true, cell: (row) => seconds(row.total.itl_s) },
    { title: "Held", num: true, cell: (row) => count(row.total.max_sequences) },
    { title: "Longest", num: true, cell: (row) => short(row.groups[0].per_replica.max_context_tokens) },
    { title: "Memory", num: true, cell: (row) => memory(row.groups[0].fullest) },
    { title: "$/M tokens", num: true, cell: (row) => usd(row.cost.usd_per_million) },
    { title: "$/month", num: true, cell: (row) => usd(row.cost.usd_per_month) },
    { title: "Limits", wide: true, cell: (row) => (row.missed ? { text: `misses ${row.missed}`, class: "tag warn" } : row.idle.length ? `idle: ${row.idle.join(", ")}` : "kept") },
  ], (row) => row.title + row.groups[0].quantization, { rowClass: (row) => (row === best ? "chosen" : "") });
  list.update(found.plans);
  const why = [...best.reasons, ...(found.notes ?? []), ...best.estimate.map((what) => `estimated: ${what}`), ...found.cluster.notes];
  const more = found.num_plans > found.plans.length ? `, the best ${found.plans.length} of ${found.num_plans}` : "";
  return [
    h("h2", { text: "Best" }), h("p", {}, h("b", { text: best.title }), h("span", { class: "soft", text: ` · ${found.model} on ${found.cluster.text} · ${group.engine}` })),
    h("div", { class: "tiles" }, ...tiles), h("h2", { text: "Why" }), h("ul", { class: "panel reasons" }, ...why.map((words) => h("li", { text: words }))),
    h("h2", { text: `Plans${more}` }), list.node,
    h("p", { class: "soft", text: `Cost: ${best.cost.purchase_usd === null ? "power alone, as no price is known of " + best.cost.without_price.join(", ") : `accelerators for ${usd(best.cost.purchase_usd)}, written off in 3 years, and power`}, in use half of the time. Tokens are those of prompts and responses.${best.cost.rent_usd_per_hour === null ? "" : ` Rented: ${usd(best.cost.rent_usd_per_hour)} an hour.`}` }),
    ...refused(found.rejected),
  ];
}

function refused(rejected) {
  if (!rejected.length) return [];
  const list = table([{ title: "Refused", cell: (row) => row.what }, { title: "Why", wide: true, cell: (row) => row.why }, { title: "What would help", wide: true, cell: (row) => row.hint }], (row) => row.what);
  list.update(rejected.slice(0, 40));
  return [h("h2", { text: "What does not work" }), list.node];
}

function kinds(found) {
  const list = table([
    { title: "Machine", cell: (row) => row.machine },
    { title: "How many", num: true, cell: (row) => count(row.count) },
    { title: "Plan", cell: (row) => row.plan?.title ?? "–" },
    { title: "Tokens/s", num: true, cell: (row) => short(row.plan?.total.tokens_per_s) },
    { title: "TTFT", num: true, cell: (row) => seconds(row.plan?.total.ttft_s) },
    { title: "ITL", num: true, cell: (row) => seconds(row.plan?.total.itl_s) },
    { title: "To buy", num: true, cell: (row) => usd(row.purchase_usd) },
    { title: "To rent, an hour", num: true, cell: (row) => usd(row.rent_usd_per_hour) },
    { title: "Load", wide: true, cell: (row) => (row.keeps ? { text: "kept", class: "tag good" } : { text: row.problem, class: "tag warn long" }) },
  ], (row) => row.machine, { rowClass: (row) => (row === found.kinds[0] && row.keeps ? "chosen" : "") });
  list.update(found.kinds);
  return [h("h2", { text: `${found.model}: how many of each kind` }), list.node];
}

const used = (group) => group.fullest.used_bytes / group.fullest.memory_bytes;

const memory = (rank) => `${bytes(rank.used_bytes)} of ${bytes(rank.memory_bytes)}`;
