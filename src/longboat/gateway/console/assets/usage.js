// Tokens by day, tenant and model.

import { follow } from "./api.js";
import { h, select, table } from "./dom.js";
import { count, percent, short } from "./format.js";
import { barPlot } from "./plot.js";

const SUMMED = ["requests", "prompt_tokens", "completion_tokens", "cached_tokens", "sent", "cost_nanos"];

export function show(main, { query }) {
  let days = [];
  const by = select("By", ["tenant", "model", "tenant and model", "day"], query.get("by") ?? "tenant", changed);
  const output = barPlot("Output tokens by day (UTC)", short);
  const prompt = barPlot("Prompt tokens by day (UTC)", short);
  const save = h("button", { text: "Save as CSV", onclick: () => saveCsv(days) });
  const picture = h("button", { text: "Save as SVG", onclick: () => saveFile("longboat-usage.svg", "image/svg+xml", output.file()) });
  const list = table([
    { title: "Of", cell: (row) => ({ text: row.name, class: "name" }) },
    { title: "Requests", num: true, cell: (row) => count(row.requests) },
    { title: "Prompt tokens", num: true, cell: (row) => count(row.prompt_tokens) },
    { title: "From cache", num: true, cell: (row) => (row.prompt_tokens ? percent(row.cached_tokens / row.prompt_tokens) : "–") },
    { title: "Output tokens", num: true, cell: (row) => count(row.completion_tokens) },
    { title: "Sent outside", num: true, cell: (row) => (row.sent ? count(row.sent) : "") },
    { title: "Cost", num: true, cell: (row) => (row.cost_nanos ? (row.cost_nanos / 1e9).toFixed(2) : "") },
  ], (row) => row.name, { empty: "Nothing was used in the last 31 days." });
  main.append(h("p", { class: "row" }, by.node, save, picture, h("span", { class: "soft", text: "The last 31 days, of this node. `longboat usage` adds up all nodes." })),
    h("div", { class: "plots" }, output.node, prompt.node), h("h2", { text: "In all" }), list.node);

  function changed(value) {
    history.replaceState(null, "", `/console/usage?by=${encodeURIComponent(value)}`);
    render();
  }

  function render() {
    const names = { tenant: (row) => row.tenant, model: (row) => row.model, "tenant and model": (row) => `${row.tenant} · ${row.model}`, day: (row) => row.day };
    const rows = summed(days, names[by.value]);
    list.update(by.value === "day" ? rows.sort((one, two) => two.name.localeCompare(one.name)) : rows.sort((one, two) => two.completion_tokens - one.completion_tokens));
    const each = summed(days, names.day);
    const last = Array.from({ length: 31 }, (_, index) => new Date(Date.now() - (30 - index) * 86400e3).toISOString().slice(0, 10));
    const values = (column) => last.map((name) => ({ name, value: each.find((row) => row.name === name)?.[column] ?? 0 }));
    output.update(values("completion_tokens"));
    prompt.update(values("prompt_tokens"));
  }

  return follow("usage", (data) => {
    days = data.days;
    render();
  });
}

function summed(days, nameOf) {
  const found = new Map();
  for (const row of days) {
    const name = nameOf(row);
    const total = found.get(name) ?? { name, ...Object.fromEntries(SUMMED.map((column) => [column, 0])) };
    for (const column of SUMMED) total[column] += row[column] ?? 0;
    found.set(name, total);
  }
  return [...found.values()];
}

function saveCsv(days) {
  const columns = ["day", "tenant", "model", ...SUMMED];
  const quoted = (value) => `"${String(value).replaceAll('"', '""').replace(/^[=+@\t\r-]/, "'$&")}"`;
  const lines = [columns.join(","), ...days.map((row) => columns.map((name) => (typeof row[name] === "number" ? row[name] : quoted(row[name] ?? ""))).join(","))];
  saveFile("longboat-usage.csv", "text/csv", `${lines.join("\n")}\n`);
}

function saveFile(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
