// Tokens and money by day, tenant and model, and what is left of the limits of today.

import { follow } from "./api.js";
import { h, select, table } from "./dom.js";
import { count, money, percent, short } from "./format.js";
import { barPlot } from "./plot.js";

const MAX_LIMITS = 200;
const SUMMED = ["requests", "prompt_tokens", "completion_tokens", "cached_tokens", "sent", "cost_nanos"];

export function show(main, { query }) {
  let days = [];
  let currencies = {};
  const unit = (row) => row.currency || currencies[row.model] || "";
  const currency = () => [...new Set(days.filter((row) => row.cost_nanos).map(unit))].sort().join(", ");
  const by = select("By", ["tenant", "model", "tenant and model", "day"], query.get("by") ?? "tenant", changed);
  const output = barPlot("Output tokens by day (UTC)", short);
  const prompt = barPlot("Prompt tokens by day (UTC)", short);
  const cost = barPlot("Cost by day (UTC)", (value) => money(value, currency()));
  const save = h("button", { text: "Save as CSV", onclick: () => saveCsv(days, unit) });
  const picture = h("button", { text: "Save as SVG", onclick: () => saveFile("longboat-usage.svg", "image/svg+xml", output.file()) });
  const bill = h("button", { class: "hidden", text: "Save cost as SVG", onclick: () => saveFile("longboat-cost.svg", "image/svg+xml", cost.file()) });
  const list = table([
    { title: "Name", cell: (row) => ({ text: row.name, class: "name" }) },
    { title: "Requests", num: true, cell: (row) => count(row.requests) },
    { title: "Prompt tokens", num: true, cell: (row) => count(row.prompt_tokens) },
    { title: "From cache", num: true, cell: (row) => (row.prompt_tokens ? percent(row.cached_tokens / row.prompt_tokens) : "–") },
    { title: "Output tokens", num: true, cell: (row) => count(row.completion_tokens) },
    { title: "Sent outside", num: true, cell: (row) => (row.sent ? count(row.sent) : "") },
    { title: "Cost", num: true, cell: (row) => Object.entries(row.costs).map(([unit, nanos]) => money(nanos / 1e9, unit)).join(" + ") },
  ], (row) => row.name, { empty: "Nothing was used in the last 31 days." });
  const amount = (name) => (row) => (row.kind === "money_per_day" ? money(row[name], row.currency) : count(row[name]));
  const limits = table([
    { title: "Limit of today (UTC)", cell: (row) => row.kind.replaceAll("_", " ") },
    { title: "Tenant or model", cell: (row) => ({ text: row.tenant ?? `external ${row.model}`, class: "name" }) },
    ...["used", "left", "limit"].map((name) => ({ title: name[0].toUpperCase() + name.slice(1), num: true, cell: amount(name) })),
    { title: "Share used", num: true, cell: (row) => ({ text: percent(row.used / row.limit), class: row.used >= row.limit ? "tag bad" : row.used >= 0.8 * row.limit ? "tag warn" : "" }) },
  ], (row) => `${row.tenant} ${row.model} ${row.kind}`, { empty: "No daily limit is set." });
  const cut = h("span", {});
  const ofToday = h("div", { class: "hidden" }, h("h2", { text: "Left today" }), limits.node);
  main.append(h("p", { class: "row" }, by.node, save, picture, bill, h("span", { class: "soft" }, "The last 31 days, of this node. ", cut, h("code", { text: "longboat usage" }), " adds up all nodes.")),
    h("div", { class: "plots" }, cost.node, output.node, prompt.node), ofToday, h("h2", { text: "Total" }), list.node);

  function changed(value) {
    history.replaceState(null, "", `/console/usage?by=${encodeURIComponent(value)}`);
    render();
  }

  function render() {
    const names = { tenant: (row) => row.tenant, model: (row) => row.model, "tenant and model": (row) => `${row.tenant} · ${row.model}`, day: (row) => row.day };
    const rows = summed(days, names[by.value], unit);
    list.update(by.value === "day" ? rows.sort((one, two) => two.name.localeCompare(one.name)) : rows.sort((one, two) => two.completion_tokens - one.completion_tokens));
    const each = summed(days, names.day, unit);
    const last = Array.from({ length: 31 }, (_, index) => new Date(Date.now() - (30 - index) * 86400e3).toISOString().slice(0, 10));
    const values = (column) => last.map((name) => ({ name, value: each.find((row) => row.name === name)?.[column] ?? 0 }));
    output.update(values("completion_tokens"));
    prompt.update(values("prompt_tokens"));
    cost.update(values("cost_nanos").map((each) => ({ ...each, value: each.value / 1e9 })));
    for (const node of [cost.node, bill]) node.classList.toggle("hidden", !currency());
  }

  return follow("usage", (data) => {
    days = data.days;
    currencies = data.currencies;
    cut.textContent = data.older ? `They have too many rows for this page: those up to ${data.older} are missing here. ` : "";
    limits.update([...data.limits].sort((one, two) => two.used / two.limit - one.used / one.limit).slice(0, MAX_LIMITS));
    ofToday.classList.toggle("hidden", !data.limits.length);
    render();
  });
}

function summed(days, nameOf, unit) {
  const found = new Map();
  for (const row of days) {
    const name = nameOf(row);
    const total = found.get(name) ?? { name, costs: {}, ...Object.fromEntries(SUMMED.map((column) => [column, 0])) };
    for (const column of SUMMED) total[column] += row[column] ?? 0;
    if (row.cost_nanos) total.costs[unit(row)] = (total.costs[unit(row)] ?? 0) + row.cost_nanos;
    found.set(name, total);
  }
  return [...found.values()];
}

function saveCsv(rows, unit) {
  const columns = ["day", "tenant", "model", ...SUMMED, "cost", "currency"];
  const days = rows.map((row) => (row.cost_nanos ? { ...row, cost: row.cost_nanos / 1e9, currency: unit(row) } : { ...row, currency: "" }));
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
