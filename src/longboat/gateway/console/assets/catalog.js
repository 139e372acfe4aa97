// The catalog on this hardware, the weights on the nodes, and adapters: parts of the page of the models.

import { follow, post, session } from "./api.js";
import { h, table, text } from "./dom.js";
import { bytes, count, counted, percent, seconds, short, usd } from "./format.js";

/** A part of the page that works only while it is open. `begin` returns what ends it. */
export function part(title, begin, ...children) {
  let end = null;
  const node = h("details", { class: "part" }, h("summary", { text: title }), ...children);
  node.addEventListener("toggle", () => {
    end?.();
    end = node.open ? begin?.() ?? null : null;
  });
  return { node, end: () => end?.() };
}

/** What fits here: the planner answers when it is asked, since it computes for seconds. `start` takes a source. */
export function fitting(start) {
  const on = h("input", { value: "live", size: "34", "aria-label": "Machines", spellcheck: "false" });
  const slo = h("input", { placeholder: "ttft=500ms,itl=50ms", size: "22", "aria-label": "Limits", spellcheck: "false" });
  const button = h("button", { text: "Look" });
  const said = h("span", { class: "soft", role: "status" });
  let rows = [];
  let machines = "live"; // those of the rows
  const made = () => table([
    { title: "Model", cell: (row) => ({ text: row.model, href: `/console/plan?model=${encodeURIComponent(row.model)}&on=${encodeURIComponent(machines)}`, class: "name" }) },
    { title: "Parameters", num: true, cell: (row) => `${(row.params / 1e9).toFixed(1)}B` },
    { title: "Weights", cell: (row) => (row.fits ? row.quantization : { text: "no", class: "tag" }) },
    { title: "Tokens/s", num: true, cell: (row) => (row.fits ? short(row.tokens_per_s) : "–") },
    { title: "TTFT", num: true, cell: (row) => (row.fits ? seconds(row.ttft_s) : "–") },
    { title: "ITL", num: true, cell: (row) => (row.fits ? seconds(row.itl_s) : "–") },
    { title: "Longest", num: true, cell: (row) => (row.fits ? short(row.max_context_tokens) : "–") },
    { title: "Held", num: true, cell: (row) => (row.fits ? count(row.max_sequences) : "–") },
    { title: "$/M tokens", num: true, cell: (row) => usd(row.usd_per_million) },
    ...(machines === "live" ? [{ title: "Start", cell: (row) => ({ node: (cell) => starter(cell, row) }) }] : []),
    { title: "Plan, or why not", wide: true, cell: (row) => (row.missed ? { text: `misses ${row.missed}: ${row.plan}`, class: "soft" } : row.plan) },
  ], (row) => row.model, { empty: "Look, and the planner compares the models of the catalog on these machines." });
  let list = made();
  function starter(cell, row) {
    const button = () => h("button", { text: "Start …", "aria-label": `Start ${row.model}`, onclick: () => start(row.source) });
    const why = row.fits ? "needs weights in this format" : "";
    cell.replaceChildren(row.source ? button() : h("span", { class: "soft", text: why }));
  }
  const all = h("input", { type: "checkbox", onchange: () => show() });
  const show = () => list.update(all.checked ? rows : rows.filter((row) => row.fits && !row.missed));
  show();
  const form = h("form", { class: "row" }, h("label", { class: "row" }, "Machines", on), h("label", { class: "row" }, "Limits", slo), button, h("label", { class: "row" }, all, "also those that do not fit"), said);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    text(said, "The planner computes …");
    const asked = on.value.trim();
    try {
      const found = await post("plan", { kind: "fit", on: asked, slo: slo.value });
      rows = found.models;
      machines = asked;
      const before = list.node;
      list = made();
      before.replaceWith(list.node);
      show();
      const missing = rows.filter((row) => row.missed).length;
      text(said, `${rows.filter((row) => row.fits).length} of ${rows.length} fit on ${found.cluster}${missing ? `, ${missing} of them miss the limits` : ""}.${machines === "live" ? "" : " To start one, look at “live”."}`);
    } catch (problem) {
      text(said, problem.message);
    }
    button.disabled = false;
  });
  return part("What fits here", null, form, list.node);
}

export function weights() {
  const about = h("p", { class: "soft" });
  const list = table([
    { title: "Node", cell: (row) => row.node },
    { title: "Weights", cell: (row) => ({ text: row.key, class: "mono" }) },
    { title: "Source", wide: true, cell: (row) => row.source },
    { title: "Size", num: true, cell: (row) => bytes(row.total_bytes) },
    { title: "State", cell: (row) => (row.is_whole ? { text: row.in_use ? "in use" : "ready", class: "tag good" } : { text: `${percent(row.have_bytes / Math.max(1, row.total_bytes))} here`, class: "tag warn" }) },
  ], (row) => `${row.node} ${row.key}`, { empty: "No node keeps weights. Models of folders and built-in models need none." });
  list.update([]);
  return part("Weights on the nodes", () => follow("weights", (data) => {
    list.update(data.nodes.flatMap((node) => node.weights.map((row) => ({ ...row, node: node.node }))));
    text(about, !data.known ? "The controller has not sent its view of the fleet yet." : data.silent.length ? `No answer from ${data.silent.join(", ")}.` : "");
  }), about, list.node);
}

export function adapters(models) {
  const said = h("span", { class: "soft", role: "status" });
  const list = table([
    { title: "Adapter", cell: (row) => ({ text: row.name, class: "name" }) },
    { title: "Model", cell: (row) => row.model },
    { title: "Tenants", wide: true, cell: (row) => (row.tenants === null ? "all that may use the model" : row.tenants.join(", ")) },
    { title: "Served by", num: true, cell: (row) => counted(Object.values(row.served_by).flat().length, "replica") },
    ...(session.may_steer ? [{ title: "Change", cell: (row) => ({ node: (cell) => removal(cell, row.name) }) }] : []),
  ], (row) => row.name, { empty: "No model has adapters." });
  list.update([]);
  const model = h("input", { required: true, size: "16", "aria-label": "Model of the adapter", list: "adapter-models" });
  const source = h("input", { required: true, size: "30", placeholder: "/adapters/legal, as nodes see it", "aria-label": "Folder of the adapter", spellcheck: "false" });
  const name = h("input", { size: "14", placeholder: "the folder’s name", "aria-label": "Name of the adapter", spellcheck: "false" });
  const names = h("datalist", { id: "adapter-models" });
  const form = h("form", { class: "row" }, h("label", { class: "row" }, "Model", model), h("label", { class: "row" }, "Folder", source), h("label", { class: "row" }, "Name", name), h("button", { text: "Add" }), names);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change(() => post("add-adapter", { model: model.value, source: source.value, name: name.value }), "Replicas load it …", "It is served.");
  });

  function removal(cell, adapter) {
    if (cell.firstChild) return;
    cell.append(h("button", { text: "Remove", onclick: () => {
      if (confirm(`Take the adapter ${adapter} out of use?`)) change(() => post(`remove-adapter?name=${encodeURIComponent(adapter)}`), "It is being removed …", "It is removed.");
    } }));
  }

  async function change(order, before, after) {
    text(said, before);
    try {
      await order();
      text(said, after);
    } catch (problem) {
      text(said, problem.message);
    }
  }

  return part("Adapters", () => {
    names.replaceChildren(...models().map((value) => h("option", { value })));
    return follow("adapters", (data) => list.update(data.adapters));
  }, session.may_steer ? form : "", said, list.node);
}
