// How fast, how much, how many wait: plots of the last ten minutes, and the same by model and tenant.

import { h, select, table } from "./dom.js";
import { count, percent, seconds, short } from "./format.js";
import { COLUMNS, lastOf, latest, pointsOf, watchTraffic } from "./history.js";
import { linePlot } from "./plot.js";

const PLOTS = [
  ["Time to first token", ["p50", "p99"], ["ttft50", "ttft99"], seconds, 0.1],
  ["Inter-token latency", ["p50", "p99"], ["itl50", "itl99"], seconds, 0.01],
  ["Tokens per second", ["out", "prompt"], ["tokens", "prompt"], short, 10],
  ["Requests", ["running", "waiting"], ["inFlight", "waiting"], short, 10],
  ["Requests per second", ["all", "failed"], ["requests", "errors"], short],
  ["Wait for a slot", ["p99"], ["queue99"], seconds, 0.1],
];

export function show(main, { query }) {
  let kind = query.get("tenant") ? "tenant" : query.get("model") ? "model" : "";
  let name = query.get(kind) ?? "";
  const chooser = select("Show", [{ value: "", text: "everything" }], "", (value) => choose(value));
  const plots = PLOTS.map(([title, names, columns, form, least]) => ({ plot: linePlot(title, names, form, least), at: columns.map((column) => COLUMNS.indexOf(column)) }));
  const columns = (title, of) => [
    { title, cell: (row) => ({ text: row.name, href: `/console/traffic?${of}=${encodeURIComponent(row.name)}`, class: "name" }) },
    { title: "Requests", num: true, cell: (row) => count(Object.values(row.outcomes).reduce((sum, number) => sum + number, 0)) },
    { title: "Failed", num: true, cell: (row) => failed(row) },
    { title: "Running", num: true, cell: (row) => count(row.in_flight) },
    { title: "Waiting", num: true, cell: (row) => count(row.waiting) },
    { title: "Tokens/s", num: true, cell: (row) => short(lastOf(of, row.name).tokens ?? 0) },
    { title: "TTFT p50", num: true, cell: (row) => seconds(lastOf(of, row.name).ttft50) },
    { title: "TTFT p99", num: true, cell: (row) => seconds(lastOf(of, row.name).ttft99) },
    { title: "ITL p50", num: true, cell: (row) => seconds(lastOf(of, row.name).itl50) },
    { title: "Prompt tokens", num: true, cell: (row) => short(row.prompt_tokens) },
    { title: "From cache", num: true, cell: (row) => (row.prompt_tokens ? percent(row.cached_tokens / row.prompt_tokens) : "–") },
    { title: "Output tokens", num: true, cell: (row) => short(row.completion_tokens) },
  ];
  const models = table(columns("Model", "model"), (row) => row.name, { empty: "No request came yet." });
  const tenants = table(columns("Tenant", "tenant"), (row) => row.name, { empty: "No request came yet." });
  main.append(h("p", { class: "row" }, chooser.node, h("span", { class: "soft", text: "Of this node’s gateway, since this page was opened." })),
    h("div", { class: "plots" }, ...plots.map((each) => each.plot.node)), h("h2", { text: "By model" }), models.node, h("h2", { text: "By tenant" }), tenants.node);

  function choose(value) {
    [kind, name] = value ? [value.slice(0, value.indexOf(":")), value.slice(value.indexOf(":") + 1)] : ["", ""];
    history.replaceState(null, "", kind ? `/console/traffic?${kind}=${encodeURIComponent(name)}` : "/console/traffic");
    render();
  }

  function render() {
    if (latest === null) return;
    const options = [{ value: "", text: "everything" }, ...latest.models.map((row) => ({ value: `model:${row.name}`, text: `model ${row.name}` })), ...latest.tenants.map((row) => ({ value: `tenant:${row.name}`, text: `tenant ${row.name}` }))];
    chooser.set(options, kind ? `${kind}:${name}` : "");
    const points = pointsOf(kind, name);
    for (const { plot, at } of plots) plot.update(points.map((point) => [point[0], ...at.map((index) => point[index])]));
    models.update(latest.models);
    tenants.update(latest.tenants);
  }

  for (const { plot } of plots) plot.update([]);
  return watchTraffic(render);
}

function failed(row) {
  const number = ["engine_error", "broken", "expired", "refused"].reduce((sum, name) => sum + (row.outcomes[name] ?? 0), 0);
  return { text: count(number), class: number ? "tag bad" : "" };
}
