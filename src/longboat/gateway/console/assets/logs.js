// The log of one rank of a replica, live. Logs are hostile text: they become the text of one element, and nothing else.

import { get } from "./api.js";
import { h, select, text } from "./dom.js";

const EVERY_MS = 2000;
const MOST_CHARS = 200_000;

export function logs(model) {
  let chosen = { replica: "", rank: "", offset: "" };
  let timer = 0;
  let aborter = null;
  const said = h("span", { class: "soft", role: "status" });
  const shown = h("pre", { class: "panel log", tabindex: "0", role: "log", "aria-label": `Log of ${model}`, "aria-live": "off" });
  const replica = select("Replica", [], "", (value) => begin({ replica: value, rank: "", offset: "" }));
  const rank = select("Rank", [], "", (value) => begin({ ...chosen, rank: value, offset: "" }));
  const node = h("details", { class: "part" }, h("summary", { text: "Log" }), h("p", { class: "row" }, replica.node, rank.node, said), shown);
  node.addEventListener("toggle", () => (node.open ? begin(chosen) : end()));

  function begin(wanted) {
    end();
    chosen = { ...wanted, offset: "" };
    shown.textContent = "";
    aborter = new AbortController();
    ask(aborter.signal);
  }

  async function ask(signal) {
    if (!document.hidden) {
      try {
        take(await get(`log?model=${encodeURIComponent(model)}&${new URLSearchParams(chosen)}`, signal));
      } catch (problem) {
        if (signal.aborted || problem.status === 401) return;
        text(said, problem.message);
      }
    }
    if (!signal.aborted) timer = setTimeout(ask, EVERY_MS, signal);
  }

  function take(found) {
    text(said, found.replica ? (found.cut ? "Only the end is shown." : "") : "No replica of this model has a log yet.");
    replica.set(found.replicas.map((row) => ({ value: row.replica, text: `${row.replica} · ${row.phase}` })), found.replica);
    const ranks = found.replicas.find((row) => row.replica === found.replica)?.ranks ?? [];
    rank.set(ranks.map((row) => ({ value: String(row.rank), text: `${row.rank} on ${row.hostname}` })), String(found.rank));
    if (!found.replica) return;
    const atEnd = shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 8;
    const begins = chosen.offset === "" || found.replica !== chosen.replica;
    const before = begins ? "" : shown.textContent;
    chosen = { replica: found.replica, rank: String(found.rank), offset: String(found.offset) };
    if (found.text) text(shown, (before + found.text).slice(-MOST_CHARS));
    if (atEnd || begins) shown.scrollTop = shown.scrollHeight;
  }

  function end() {
    clearTimeout(timer);
    aborter?.abort();
  }

  return { node, end };
}
