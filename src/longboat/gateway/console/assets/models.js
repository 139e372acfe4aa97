// What runs: how busy, how it goes on after a failure, how many replicas there are to be.

import { follow, post, session } from "./api.js";
import { adapters, fitting, part, weights } from "./catalog.js";
import { h, table, text } from "./dom.js";
import { count, counted, percent, seconds, short } from "./format.js";
import { lastOf } from "./history.js";
import { logs } from "./logs.js";
import { starting } from "./start.js";

export function show(main, { title, path, query }) {
  const wanted = path[0] ?? "";
  const overview = table([
    { title: "Model", cell: (row) => ({ text: row.name, href: `/console/models/${encodeURIComponent(row.name)}`, class: "name" }) },
    { title: "State", cell: stateOf },
    { title: "Ready", num: true, cell: (row) => (row.served_here ? `${row.ready}${row.scaling.wanted === undefined ? "" : ` / ${row.scaling.wanted}`}` : "") },
    { title: "Bounds", num: true, cell: (row) => (row.scaling.maximum > row.scaling.minimum ? `${row.scaling.minimum} to ${row.scaling.maximum}` : "") },
    { title: "Running", num: true, cell: (row) => count(row.in_flight) },
    { title: "Waiting", num: true, cell: (row) => ({ text: count(row.waiting), class: row.waiting ? "tag warn" : "" }) },
    { title: "Tokens/s", num: true, cell: (row) => short(lastOf("model", row.name).tokens ?? 0) },
    { title: "TTFT p50", num: true, cell: (row) => seconds(lastOf("model", row.name).ttft50) },
    { title: "ITL p50", num: true, cell: (row) => seconds(lastOf("model", row.name).itl50) },
    { title: "Resume", cell: (row) => resumeOf(row.replicas) },
    { title: "Task", cell: (row) => (row.adapts ? `adapts ${row.adapts}` : row.task) },
    { title: "Chat", cell: (row) => ({ text: "try", href: `/console/playground?model=${encodeURIComponent(row.name)}` }) },
  ], (row) => row.name, { empty: "No model is served here." });
  const detail = table([
    { title: "Replica", cell: (row) => ({ text: row.replica, href: `/console/fleet?replica=${encodeURIComponent(row.replica)}`, class: "mono" }) },
    { title: "State", cell: (row) => (row.suspect ? { text: "suspect", class: "tag bad" } : row.moving ? { text: "moving", class: "tag warn" } : row.ready ? { text: "ready", class: "tag good" } : { text: "not ready", class: "tag warn" }) },
    { title: "Running", num: true, cell: (row) => `${row.in_flight}${row.capacity ? ` / ${row.capacity}` : ""}` },
    { title: "In prefill", num: true, cell: (row) => `${row.prefilling} (${short(row.prefill_tokens)} tokens)` },
    { title: "Engine runs / waits", num: true, cell: (row) => (row.engine.running === undefined ? "–" : `${row.engine.running} / ${row.engine.waiting}`) },
    { title: "KV cache", num: true, cell: (row) => percent(row.engine.kv_usage) },
    { title: "Prompt from cache", num: true, cell: (row) => (row.hits.prompt_tokens ? percent(row.hits.cached_tokens / row.hits.prompt_tokens) : "–") },
    { title: "Resume", cell: (row) => row.resume },
    { title: "Adapters", wide: true, cell: (row) => row.adapters.join(", ") },
  ], (row) => row.replica, { empty: "No replica of this model runs." });
  const facts = h("p", { class: "soft" });
  const commands = h("p", { class: "row" });
  const counts = wanted && session.may_steer ? counting(wanted) : null;
  let names = [];
  const parts = partsOf(wanted, () => names, query.get("start"));
  if (wanted) {
    text(title, wanted);
    main.append(h("p", {}, h("a", { href: "/console/models", text: "← All models" })), facts, detail.node, commands);
    commands.append(h("span", { class: "soft", text: "On a node:" }), h("code", { class: "tag", text: `longboat logs ${wanted}` }));
    if (session.may_steer) commands.append(h("a", { href: `/console/plan?model=${encodeURIComponent(wanted)}`, text: "Plan it on other machines" }));
    if (counts) main.append(counts.node);
  } else {
    main.append(h("p", { class: "soft", text: "Numbers are of this node’s gateway." }), overview.node);
  }
  main.append(...parts.map((part) => part.node), wanted ? "" : steering());
  const end = follow("models", (data) => {
    names = data.models.filter((row) => row.served_here).map((row) => row.name);
    if (!wanted) return overview.update(data.models);
    const found = data.models.find((row) => row.name === wanted);
    text(facts, found ? describe(found, data.policy) : "This gateway serves no model of this name.");
    detail.update(found?.replicas ?? []);
    if (found) counts?.suggest(found.scaling.wanted ?? found.ready);
  });
  return () => {
    end();
    parts.forEach((part) => part.end());
  };
}

/** What people with a role see below: of one model its log; of all, what fits here, starting, weights and adapters. */
function partsOf(wanted, names, source) {
  if (session.role === "tenant") return [];
  if (wanted) return session.may_steer ? [logs(wanted)] : [];
  if (!session.may_steer) return [weights(), adapters(names)];
  const start = starting(part, source);
  return [fitting(start.open), start, weights(), adapters(names)];
}

function stateOf(row) {
  if (row.paused) return { text: "paused", class: "tag warn" };
  if (row.asleep) return { text: "asleep", class: "tag" };
  if (!row.served_here && !row.replicas.length) return { text: row.adapts ? "adapter" : "alias or external", class: "tag" };
  return row.ready ? { text: "ready", class: "tag good" } : { text: "no replica", class: "tag bad" };
}

const resumeOf = (replicas) => [...new Set(replicas.map((replica) => replica.resume))].join(", ");

function describe(row, policy) {
  const words = [`${counted(row.ready, "replica")} ready`];
  if (row.scaling.wanted !== undefined) words.push(`${row.scaling.wanted} wanted`);
  if (row.waiting) words.push(`${counted(row.waiting, "request")} waiting`);
  return `${words.join(", ")}.${policy ? ` The policy “${policy}” chooses replicas.` : ""}`;
}

/** Operators change the number of a model's replicas, as `longboat scale`, `pause` and `resume` do. */
function counting(model) {
  const said = h("span", { class: "soft", role: "status" });
  const number = h("input", { type: "number", min: "1", step: "1", "aria-label": `Replicas of ${model}` });
  const order = (verb, words, body, question) => h("button", { text: words, onclick: async () => {
    if (question && !confirm(question)) return;
    try {
      const found = (await post(`${verb}?model=${encodeURIComponent(model)}`, body())).count;
      text(said, found.paused ? "It is being paused." : found.replicas === null ? "The fleet file decides." : `${counted(found.replicas, "replica")} wanted.`);
    } catch (problem) {
      text(said, problem.message);
    }
  } });
  const node = h("div", {}, h("h2", { text: "Replicas" }), h("div", { class: "row" },
    number, order("scale", "Scale", () => ({ replicas: number.valueAsNumber })),
    order("scale", "Let the file decide", () => ({ replicas: "auto" })),
    order("pause", "Pause", () => ({}), `Take all replicas of ${model} out of use? Running requests end first.`),
    order("resume", "Resume", () => ({})), said));
  return { node, suggest: (wanted) => { if (!number.value) number.value = Math.max(1, wanted); } };
}

/** Operators take this node's gateway out of its load balancer, and back. */
function steering() {
  if (!session.may_steer) return "";
  const said = h("span", { class: "soft", role: "status" });
  const order = (verb, words) => h("button", { text: words, onclick: async () => {
    if (verb === "drain" && !confirm("Tell load balancers to send this gateway nothing new? Running requests go on.")) return;
    try {
      text(said, (await post(verb)).draining ? "This gateway is draining." : "This gateway takes requests.");
    } catch (problem) {
      text(said, problem.message);
    }
  } });
  return h("div", {}, h("h2", { text: "This gateway" }), h("div", { class: "row" }, order("drain", "Drain"), order("undrain", "End the drain"), said));
}
