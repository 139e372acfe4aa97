// Nodes, the ranks on them, and what is wrong: first.

import { follow } from "./api.js";
import { attribute, classes, h, keyed, table, text, tile } from "./dom.js";
import { bytes, clock, count, counted, seconds, short } from "./format.js";
import { lastOf } from "./history.js";

const MAX_CARDS = 64;
const GOOD = ["ready"];
const BAD = ["failed", "gone", "suspect"];
export const stateOf = (phase) => (GOOD.includes(phase) ? "good" : BAD.includes(phase) ? "bad" : "warn");

export function show(main, { query, go }) {
  let view = null;
  let chosen = query.get("replica") ?? "";
  const problems = h("ul", { class: "problems", "aria-label": "What is wrong" });
  const tiles = { replicas: tile("replicas ready of wanted"), nodes: tile("nodes"), cards: tile("accelerators"), running: tile("requests running"), waiting: tile("requests waiting"), tokens: tile("tokens/s") };
  const nodes = h("div", { class: "nodes" });
  const about = h("span", { class: "soft" });
  const choose = (replica) => {
    chosen = chosen === replica ? "" : replica;
    history.replaceState(null, "", chosen ? `/console/fleet?replica=${encodeURIComponent(chosen)}` : "/console/fleet");
    render();
  };
  const replicas = table([
    { title: "Model", cell: (row) => ({ text: row.model, href: `/console/models/${encodeURIComponent(row.model)}` }) },
    { title: "Replica", cell: (row) => ({ node: (cell) => button(cell, row.replica, () => choose(row.replica)) }) },
    { title: "Phase", cell: (row) => ({ text: row.phase, class: `tag ${stateOf(row.phase)}` }) },
    { title: "For", num: true, cell: (row) => seconds(row.phase_s[row.phase]) },
    { title: "What it says", wide: true, cell: (row) => row.detail || row.resume_detail },
    { title: "Hosts", cell: (row) => row.ranks.map((rank) => rank.hostname || rank.address || rank.node.slice(0, 8)).join(" + ") },
    { title: "Shape", cell: (row) => row.shape },
    { title: "Memory", num: true, cell: (row) => bytes(row.ranks.reduce((sum, rank) => sum + rank.memory_bytes, 0)) },
    { title: "Resume", cell: (row) => row.resume },
    { title: "Start", cell: (row) => phases(row.phase_s) },
  ], (row) => `${row.replica}/${row.generation}`, { empty: "No replica is known.", rowClass: (row) => (row.replica === chosen ? "chosen" : "") });
  const pairs = table([
    { title: "Model", cell: (row) => row.model },
    ...[["KV blocks", "kv_blocks", count], ["Memory of a rank", "rank_bytes", bytes], ["ITL", "itl_s", seconds], ["TTFT", "ttft_s", seconds]].map(([title, name, form]) => ({
      title: `${title}: predicted / measured`, num: true, cell: (row) => `${form(row[`predicted_${name}`])} / ${form(row[name])}`,
    })),
    { title: "Tokens measured", num: true, cell: (row) => count(row.num_tokens) },
  ], (row) => row.model, { empty: "Nothing was measured yet." });
  const decisions = table([
    { title: "When", cell: (row) => clock(row.at_s) },
    { title: "Model", cell: (row) => row.model },
    { title: "Replicas", num: true, cell: (row) => `${row.before} → ${row.replicas}` },
    { title: "By", cell: (row) => row.by },
    { title: "Why", wide: true, cell: (row) => row.reason },
  ], (row) => JSON.stringify(row), { empty: "No number of replicas changed lately." });
  const whole = h("div", {}, h("h2", { text: "Nodes" }), nodes, h("h2", { text: "Replicas" }), replicas.node,
    h("h2", { text: "Predicted and measured" }), pairs.node, h("h2", { text: "Numbers of replicas" }), decisions.node);
  main.append(problems, h("div", { class: "tiles" }, ...Object.values(tiles).map((each) => each.node)), about, whole);

  function render() {
    if (view === null) return;
    keyed(nodes, nodesWithRanks(view), (node) => node.id, makeNode, (card, node) => updateNode(card, node, chosen, choose));
    replicas.update([...view.replicas].sort(worstFirst));
  }

  return follow("fleet", (data) => {
    const { gateway } = data;
    view = data.view;
    const totals = lastOf("", "");
    tiles.running.set(count(gateway.in_flight));
    tiles.waiting.set(count(gateway.waiting), gateway.waiting ? "warn" : "");
    tiles.tokens.set(short(totals.tokens ?? 0));
    whole.classList.toggle("hidden", view === null);
    text(about, view === null ? alone(gateway) : "");
    list(problems, view === null ? gatewayProblems(gateway) : [...late(data.view_age_s), ...problemsOf(view, gateway)]);
    if (view === null) return tiles.replicas.set(count(gateway.ready));
    const ready = view.replicas.filter((each) => each.phase === "ready").length;
    const wanted = Object.values(view.counts).reduce((sum, each) => sum + each.wanted, 0) || view.replicas.length;
    tiles.replicas.set(`${ready} / ${wanted}`, ready < wanted ? "warn" : "");
    tiles.nodes.set(count(view.nodes.filter((node) => node.alive).length));
    tiles.cards.set(count(view.nodes.reduce((sum, node) => sum + node.gpus, 0)));
    pairs.update(Object.entries(view.pairs).map(([model, pair]) => ({ model, ...pair })));
    decisions.update([...view.decisions].reverse());
    render();
  });
}

const late = (age) => (age ? [{ name: "Controller", words: `has sent no news for ${seconds(age)}: this page shows the fleet as it was then.`, state: "bad" }] : []);

function alone(gateway) {
  return gateway.fleet
    ? "The controller sends its view of the fleet within two seconds of the first look. It has sent none yet: the page of models shows what this gateway sees."
    : "This gateway runs by itself, without a fleet. The page of models shows the endpoints that it sends requests to.";
}

function button(cell, label, onclick) {
  let node = cell.firstElementChild;
  if (node === null) cell.replaceChildren((node = h("button", { class: "plain mono", onclick })));
  text(node, label);
}

function phases(spent) {
  return Object.entries(spent).filter(([phase, value]) => !["ready", "draining", "failed", "gone"].includes(phase) && value >= 1).map(([phase, value]) => `${phase} ${value < 90 ? `${Math.round(value)} s` : seconds(value)}`).join(", ");
}

const RANKING = { failed: 0, suspect: 1, gone: 2, draining: 8, ready: 9 };
const worstFirst = (one, two) => (RANKING[one.phase] ?? 5) - (RANKING[two.phase] ?? 5) || one.model.localeCompare(two.model) || one.replica.localeCompare(two.replica);

function problemsOf(view, gateway) {
  const found = gatewayProblems(gateway);
  const bad = (name, words) => found.push({ name, words, state: "bad" });
  const warn = (name, words) => found.push({ name, words, state: "warn" });
  for (const [model, wanted] of Object.entries(view.counts)) {
    const ready = view.replicas.filter((each) => each.model === model && each.phase === "ready").length;
    if (wanted.wanted > 0 && ready === 0) bad(model, "no replica is ready, so requests wait or fail.");
    if (wanted.unplaced) bad(model, `${counted(wanted.unplaced, "replica")} without a place: no node has room. ${wanted.problem}`);
    else if (wanted.problem) warn(model, wanted.problem);
    if (wanted.paused) warn(model, "is paused; `longboat resume` starts it.");
  }
  for (const each of view.replicas) {
    if (BAD.includes(each.phase)) bad(`${each.model} ${each.replica}`, `${each.phase === "failed" ? "has failed" : `is ${each.phase}`}${each.detail ? `: ${each.detail}` : "."}`);
    else if (!["ready", "draining"].includes(each.phase)) warn(`${each.model} ${each.replica}`, `has been ${each.phase} for ${seconds(each.phase_s[each.phase])}${each.detail ? `: ${each.detail}` : "."}`);
    for (const [adapter, why] of Object.entries(each.adapter_problems)) warn(`${each.model} ${each.replica}`, `does not serve the adapter ${adapter}: ${why}`);
  }
  for (const [model, lines] of Object.entries(view.failures)) warn(`${model}: the last failure`, lines.slice(-4).join("\n"));
  for (const node of view.nodes) {
    if (!node.alive) bad(node.hostname || node.id.slice(0, 8), "the node is gone.");
    else if (node.gateway.problem) bad(node.hostname || node.id.slice(0, 8), `its gateway: ${node.gateway.problem}`);
    else if (node.gateway.draining) warn(node.hostname || node.id.slice(0, 8), "its gateway is draining.");
  }
  for (const [model, why] of Object.entries(view.taken_back)) warn(model, `an update failed and was rolled back: ${why}`);
  for (const problem of view.problems) if (!found.some((each) => each.words.includes(problem))) bad("Fleet", problem);
  if (view.partial) warn("Controller", "it has just started, and may not know all replicas yet.");
  return found.sort((one, two) => (one.state === "bad" ? 0 : 1) - (two.state === "bad" ? 0 : 1));
}

function gatewayProblems(gateway) {
  const found = [];
  if (gateway.draining) found.push({ name: "This gateway", words: "is draining: load balancers send it nothing new.", state: "warn" });
  for (const [key, why] of Object.entries(gateway.lost ?? {})) found.push({ name: key.split("/")[0], words: `no heartbeat: ${why}`, state: "bad" });
  for (const name of gateway.missing ?? []) found.push({ name, words: "this process of the gateway does not answer.", state: "bad" });
  return found;
}

function list(node, problems) {
  const shown = problems.length ? problems.slice(0, 40) : [{ name: "Nothing is wrong.", words: "", state: "calm" }];
  if (problems.length > 40) shown.push({ name: `${problems.length - 40} more`, words: "are in the tables below.", state: "warn" });
  keyed(node, shown, (each) => each.name + each.state, () => h("li", {}, h("b"), h("span")), (item, each) => {
    classes(item, each.state);
    text(item.firstChild, each.name);
    text(item.lastChild, each.words);
  });
}

function nodesWithRanks(view) {
  const byNode = new Map(view.nodes.map((node) => [node.id, { ...node, ranks: [] }]));
  for (const each of view.replicas) {
    for (const rank of each.ranks) {
      if (!byNode.has(rank.node)) byNode.set(rank.node, { id: rank.node, hostname: rank.hostname, address: rank.address, alive: false, gpus: 0, cpus: 0, accelerator: "", memory_bytes: 0, gateway: { problem: "", in_flight: 0, url: "" }, ranks: [] });
      byNode.get(rank.node).ranks.push({ ...rank, replica: each.replica, model: each.model, phase: each.phase, size: each.ranks.length });
    }
  }
  return [...byNode.values()].sort((one, two) => (one.hostname || one.id).localeCompare(two.hostname || two.id, "en", { numeric: true }) || one.id.localeCompare(two.id));
}

/** The node's accelerators with the ranks on them. A name that is not a number takes the next place. */
function cardsOf(node) {
  const cards = Array.from({ length: Math.min(MAX_CARDS, Math.ceil(node.gpus)) }, (_, index) => ({ index, ranks: [] }));
  const named = [...new Set(node.ranks.flatMap((rank) => rank.gpus ?? []).filter((id) => !/^\d+$/.test(id)))];
  for (const rank of node.ranks) for (const id of rank.gpus ?? []) cards[named.includes(id) ? named.indexOf(id) : Number(id)]?.ranks.push(rank);
  return cards.map((card, at) => ({ ...card, joins: card.ranks.length > 0 && card.ranks[0] === cards[at - 1]?.ranks[0] }));
}

function updateCard(cell, card, chosen) {
  const states = card.ranks.map((rank) => stateOf(rank.phase));
  const state = ["bad", "warn", "good"].find((each) => states.includes(each)) ?? "free";
  const isChosen = card.ranks.some((rank) => rank.replica === chosen);
  classes(cell, `${state}${card.joins ? " joins" : ""}${isChosen ? " chosen" : ""}`);
  text(cell, card.index);
  const words = card.ranks.map((rank) => `${rank.model}, ${rank.replica}, rank ${rank.rank}: ${rank.phase}`).join("; ");
  attribute(cell, "title", `Accelerator ${card.index}: ${words || "free"}`);
}

function makeNode() {
  const name = h("b");
  const gateway = h("span", { class: "tag" });
  const hardware = h("div", { class: "soft" });
  const cards = h("ol", { class: "cards", "aria-label": "Accelerators" });
  const ranks = h("div", { class: "ranks" });
  return Object.assign(h("section", { class: "panel node" }, h("header", {}, name, gateway), hardware, cards, ranks), { parts: { name, gateway, hardware, cards, ranks } });
}

function updateNode(card, node, chosen, choose) {
  const { name, gateway, hardware, cards, ranks } = card.parts;
  classes(card, !node.alive || node.gateway.problem ? "panel node bad" : "panel node");
  text(name, node.hostname || node.id.slice(0, 8));
  text(gateway, !node.alive ? "gone" : node.gateway.problem ? "gateway down" : node.gateway.draining ? "draining" : `${node.gateway.in_flight} running`);
  classes(gateway, `tag ${!node.alive || node.gateway.problem ? "bad" : node.gateway.draining ? "warn" : ""}`);
  const kind = node.gpus ? `${node.gpus} × ${node.accelerator || "GPU"}` : `${node.cpus} CPUs`;
  text(hardware, [node.address, kind].filter(Boolean).join(" · "));
  cards.classList.toggle("hidden", !node.gpus);
  keyed(cards, cardsOf(node), (each) => String(each.index), () => h("li"), (cell, each) => updateCard(cell, each, chosen));
  keyed(ranks, node.ranks, (rank) => `${rank.replica}#${rank.rank}`, (rank) => h("button", { onclick: () => choose(rank.replica) }), (chip, rank) => {
    classes(chip, `rank ${stateOf(rank.phase)}${rank.replica === chosen ? " chosen" : ""}`);
    text(chip, rank.size > 1 ? `${rank.model} · ${rank.rank + 1}/${rank.size}` : rank.model);
    attribute(chip, "title", `${rank.replica}, rank ${rank.rank}: ${rank.phase}`);
    attribute(chip, "aria-pressed", String(rank.replica === chosen));
  });
}
