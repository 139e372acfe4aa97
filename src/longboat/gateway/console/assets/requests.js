// The last requests, and the way of each: what was decided, and why.

import { follow, get } from "./api.js";
import { h, select, table, text } from "./dom.js";
import { clock, count, ms, percent } from "./format.js";

const GOOD = ["ok"];
const outcomeTag = (row) => ({ text: row.outcome, class: `tag ${GOOD.includes(row.outcome) ? "good" : ["client_left", "client_error"].includes(row.outcome) ? "warn" : "bad"}` });

export function show(main, page) {
  return page.path.length ? showOne(main, page) : showList(main, page);
}

function showList(main, { query }) {
  let rows = [];
  const filter = h("input", { type: "search", placeholder: "Filter: id, model, tenant, replica, error   /", size: "38", "aria-label": "Filter", value: query.get("find") ?? "", oninput: changed });
  const outcome = select("Outcome", ["all", "failed", "resumed or retried"], query.get("only") ?? "all", changed);
  const list = table([
    { title: "Received", cell: (row) => clock(row.received) },
    { title: "Request", cell: (row) => ({ text: row.id, href: `/console/requests/${encodeURIComponent(row.id)}`, class: "mono" }) },
    { title: "Model", cell: (row) => row.model ?? "" },
    { title: "Tenant", cell: (row) => row.tenant },
    { title: "Outcome", cell: outcomeTag },
    { title: "Status", num: true, cell: (row) => row.status },
    { title: "Waited", num: true, cell: (row) => (row.queue_ms ? ms(row.queue_ms) : "") },
    { title: "TTFT", num: true, cell: (row) => ms(row.ttft_ms) },
    { title: "Total", num: true, cell: (row) => ms(row.total_ms) },
    { title: "Prompt", num: true, cell: (row) => count(row.prompt_tokens) },
    { title: "Cached", num: true, cell: (row) => (row.prompt_tokens && row.cached_tokens !== null ? percent(row.cached_tokens / row.prompt_tokens) : "–") },
    { title: "Output", num: true, cell: (row) => count(row.completion_tokens) },
    { title: "Tries", num: true, cell: (row) => row.retries + 1 },
    { title: "Replica", cell: (row) => ({ text: row.replica, class: "mono" }) },
    { title: "Error", cell: (row) => row.error ?? "" },
  ], (row) => `${row.id} ${row.received}`, { empty: "No request matches. Finished requests for models appear here." });
  main.append(h("p", { class: "row" }, filter, outcome.node), list.node);

  function changed() {
    const words = new URLSearchParams();
    if (filter.value) words.set("find", filter.value);
    if (outcome.value !== "all") words.set("only", outcome.value);
    history.replaceState(null, "", `/console/requests${words.size ? `?${words}` : ""}`);
    render();
  }

  function render() {
    const wanted = filter.value.toLowerCase();
    const matches = (row) => !wanted || [row.id, row.model, row.tenant, row.replica, row.error, row.outcome].some((value) => value?.toLowerCase().includes(wanted));
    const counts = { all: () => true, failed: (row) => row.outcome !== "ok", "resumed or retried": (row) => row.retries > 0 };
    list.update(rows.filter((row) => matches(row) && counts[outcome.value](row)));
  }

  return follow("requests", (data) => {
    rows = data.requests;
    render();
  });
}

function showOne(main, { title, path }) {
  const id = path[0];
  text(title, "Request");
  const body = h("div", {}, h("p", { class: "soft", text: "Loading…" }));
  main.append(h("p", {}, h("a", { href: "/console/requests", text: "← All requests" })), body);
  const aborter = new AbortController();
  get(`request/${encodeURIComponent(id)}`, aborter.signal).then((found) => fill(body, found)).catch((problem) => {
    if (!aborter.signal.aborted) body.replaceChildren(h("p", { class: "error", text: problem.message }));
  });
  return () => aborter.abort();
}

function fill(body, found) {
  const tag = outcomeTag(found);
  const facts = [
    ["Request", found.id], ["Received", new Date(found.received * 1e3).toLocaleString("en-GB")], ["Tenant", found.tenant], ["Path", found.path],
    ["Asked for", found.routing.asked ?? ""], ["Served by", `${found.pool ?? ""}${found.replica ? ` · ${found.replica}` : ""}`], ["Routed by", found.routing.reason],
    ["TTFT", ms(found.ttft_ms)], ["Total", ms(found.total_ms)], ["Tokens in / cached / out", `${count(found.prompt_tokens)} / ${count(found.cached_tokens)} / ${count(found.completion_tokens)}`],
    ["Status", `${found.status}${found.error ? ` · ${found.error}` : ""}`],
  ];
  const head = h("dl", { class: "panel facts" }, ...facts.map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", { text: value }))),
    h("div", {}, h("dt", { text: "Outcome" }), h("dd", {}, h("span", tag))));
  body.replaceChildren(head, h("h2", { text: "What happened" }), way(found), ...choice(found.routing.choice));
}

function way(found) {
  const total = Math.max(found.total_ms ?? 0, 0.001);
  const steps = found.events.map((event, index) => {
    const next = found.events[index + 1]?.at_ms ?? event.at_ms;
    const facts = Object.entries(event).filter(([name, value]) => !["at_ms", "event"].includes(name) && value !== null && value !== "");
    const left = h("span");
    const spent = h("i");
    left.style.width = `${(event.at_ms / total) * 100}%`;
    spent.style.width = `${Math.max(0.3, ((next - event.at_ms) / total) * 100)}%`;
    return h("div", { class: "step" }, h("span", { class: "at", text: ms(event.at_ms) }), h("b", { text: event.event.replaceAll("_", " ") }),
      h("span", { class: "what", text: facts.map(([name, value]) => `${name.replaceAll("_", " ")} ${name.endsWith("_ms") ? ms(value) : value}`).join(", ") }),
      h("div", { class: "track" }, left, spent));
  });
  return h("div", { class: "panel way" }, ...steps);
}

function choice(made) {
  if (!made) return [h("p", { class: "soft", text: "There was no choice among replicas." })];
  const terms = Object.keys(made.candidates[0] ?? {}).filter((name) => !["replica", "chosen"].includes(name));
  const candidates = table([
    { title: "Replica", cell: (row) => ({ text: (row.chosen ? "▸ " : "") + row.replica, class: "mono" }) },
    ...terms.map((name) => ({ title: name.replace(/_s$/, "").replaceAll("_", " "), num: true, cell: (row) => (name.endsWith("_s") ? ms(row[name] * 1e3) : count(row[name])) })),
  ], (row) => row.replica, { rowClass: (row) => (row.chosen ? "chosen" : ""), empty: "What other replicas had to do is shown to admins." });
  candidates.update(made.candidates);
  const beside = table([
    { title: "Figure", cell: (row) => row[0] }, { title: "Expected", num: true, cell: (row) => row[1] }, { title: "Happened", num: true, cell: (row) => row[2] },
  ], (row) => row[0]);
  beside.update([
    ["TTFT", ms(made.expected.ttft_ms), ms(made.happened.ttft_ms)], ["Prompt tokens", count(made.expected.prompt_tokens), count(made.happened.prompt_tokens)],
    ["Cached tokens", count(made.expected.cached_tokens), count(made.happened.cached_tokens)],
  ]);
  const more = made.compared - made.candidates.length;
  return [h("h2", { text: "Why this replica" }), h("p", { text: `${made.replica}: ${made.why} (policy ${made.policy}).${more > 0 && made.candidates.length ? ` ${more} more were compared.` : ""}` }),
    candidates.node, h("h2", { text: "Expected and happened" }), beside.node];
}
