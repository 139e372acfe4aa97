// One conversation with one model: it sends, streams, shows tool calls and takes their results.

import { get, headers, messageOf, post, session } from "./api.js";
import { h, text } from "./dom.js";
import { count, seconds } from "./format.js";

/** A shorter answer came at once, and tells no speed. */
const LEAST_MS = 100;

/** settings: functions that return the model and the fields of the page; changed: called when an answer begins or ends */
export function lane(settings, changed) {
  let messages = []; // of the conversation on the page; one that was cleared keeps its own
  let calls = []; // tool calls of the newest answer that have no result yet
  let aborter = null;
  const said = h("div", { class: "said", tabindex: "0", role: "log", "aria-label": "Conversation" });

  function add(kind, content) {
    const body = h("span", { text: content });
    const thought = h("span", { class: "thought hidden" });
    const note = h("span", { class: "about" });
    const node = h("article", { class: kind }, thought, body, note);
    said.append(node);
    said.scrollTop = said.scrollHeight;
    return { node, body, thought, note };
  }

  function talk(content, shown) {
    answerCalls(() => "no result");
    messages.push({ role: "user", content });
    add("user", shown);
    return answered(1);
  }

  function answerCalls(resultOf) {
    for (const call of calls) messages.push({ role: "tool", tool_call_id: call.id, content: resultOf(call) });
    calls = [];
    said.querySelectorAll("form.results button").forEach((button) => { button.disabled = true; });
  }

  /** asked: how many of the newest messages go with an answer that never came */
  async function answered(asked) {
    const mine = messages;
    const shown = add("assistant", "");
    aborter = new AbortController();
    changed();
    const kill = killer(shown);
    const answer = { content: "", thought: "", tokens: 0, began: performance.now(), first: null, id: "", calls: [], model: settings.model() };
    try {
      await stream(mine, answer, shown, kill, aborter.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") {
        shown.node.classList.add("failed");
        text(shown.body, answer.content ? `${answer.content}\n${problem.message}` : problem.message);
      } else answer.stopped = true;
    }
    const made = answer.calls.filter((call) => call?.function.name);
    if (made.length && !answer.stopped) mine.push({ role: "assistant", content: answer.content || null, tool_calls: made });
    else if (answer.content) mine.push({ role: "assistant", content: answer.content });
    else mine.splice(-asked, asked);
    summarize(answer, shown, settings.json.schema);
    kill.ended(answer);
    if (made.length && !answer.stopped && mine === messages) showCalls(shown, made);
    aborter = null;
    changed();
  }

  function showCalls(shown, made) {
    calls = made;
    const fields = made.map((call) => h("input", { "aria-label": `Result of ${call.function.name}`, placeholder: "its result" }));
    const form = h("form", { class: "results" }, ...made.flatMap((call, index) => [h("label", {}, `Result of ${call.function.name}`, fields[index])]), h("button", { text: made.length > 1 ? "Send the results" : "Send the result" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (aborter !== null || calls !== made) return;
      const asked = made.length;
      answerCalls((call) => fields[made.indexOf(call)].value || "no result");
      answered(asked);
    });
    shown.node.append(form);
    said.scrollTop = said.scrollHeight;
  }

  async function stream(mine, answer, shown, kill, signal) {
    const place = session.chooses_tenant ? `?tenant=${encodeURIComponent(settings.tenant())}` : "";
    const response = await fetch(`/console/api/chat${place}`, { method: "POST", credentials: "same-origin", headers: headers(), body: JSON.stringify(bodyOf(mine, answer.model, settings)), signal });
    answer.id = response.headers.get("x-request-id") ?? "";
    if (!response.ok) throw new Error(await messageOf(response));
    kill.offer(response.headers.get("x-longboat-replica"));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let left = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (left + value).split("\n");
      left = lines.pop();
      for (const line of lines) if (line.startsWith("data: ") && line !== "data: [DONE]") take(JSON.parse(line.slice(6)), answer);
      text(shown.body, shownOf(answer));
      kill.heard(answer);
      shown.thought.classList.toggle("hidden", !answer.thought);
      text(shown.thought, answer.thought);
      said.scrollTop = said.scrollHeight;
    }
  }

  return {
    node: said,
    talk,
    stop: () => aborter?.abort(),
    clear: () => {
      aborter?.abort();
      messages = [];
      calls = [];
      said.replaceChildren();
    },
    get busy() { return aborter !== null; },
  };
}

/** In a demo fleet: a button that kills the engine of a running answer, and a line that says how the answer went on. */
function killer(shown) {
  if (!session.may_kill) return { offer() {}, heard() {}, ended() {} };
  const said = h("span", { role: "status" });
  const button = h("button", { type: "button", class: "danger", text: "Kill the engine now" });
  const row = h("div", { class: "kill hidden" }, button, said);
  shown.node.append(row);
  let length = 0; // of the answer, last seen
  let dead = null; // the replica whose engine was killed, when, and the answer's length then
  return {
    offer(replica) {
      row.classList.toggle("hidden", !replica);
      button.addEventListener("click", async () => {
        button.disabled = true;
        text(said, `Killing the engine of ${replica} …`);
        try {
          const { killed } = await post("kill-engine", { replica });
          dead = { replica, at: performance.now(), length };
          text(said, `The engine of ${killed.model} ${replica} on ${killed.hostname} is dead (SIGKILL). Waiting for another …`);
        } catch (problem) {
          text(said, problem.message);
          button.disabled = false;
        }
      });
    },
    heard(answer) {
      length = shownOf(answer).length;
      if (dead && !dead.went && length > dead.length) {
        dead.went = performance.now();
        text(said, `The engine of ${dead.replica} is dead, and the answer goes on.`);
      }
    },
    async ended(answer) {
      button.remove();
      if (!dead) return row.remove();
      const { events } = await get(`request/${encodeURIComponent(answer.id)}`).catch(() => ({ events: [] }));
      text(said, `The engine of ${dead.replica} was killed${whatCameOf(events, dead.replica, answer)}.`);
    },
  };
}

/** How an answer went on after the engine of a replica was killed, by its timeline; nothing where that is not known. */
function whatCameOf(events, replica, answer) {
  const at = events.findLastIndex((event) => event.event === "attempt_failed" && event.replica === replica);
  const next = events.slice(at + 1).find((event) => event.event === "sent");
  if (at >= 0 && next) return `; ${next.replica} continued the answer after ${seconds((next.at_ms - events[at].at_ms) / 1e3)}`;
  if (answer.stopped) return "; the answer was stopped";
  const end = events.find((event) => event.event === "ended");
  if (!end) return "";
  return end.outcome === "ok" ? "; the answer had ended before" : "; no other replica continued the answer";
}

function bodyOf(messages, model, settings) {
  const body = { model, stream: true, stream_options: { include_usage: true }, messages: settings.system() ? [{ role: "system", content: settings.system() }, ...messages] : messages };
  if (Number(settings.most()) > 0) body.max_tokens = Number(settings.most());
  if (settings.heat() !== "") body.temperature = Number(settings.heat());
  if (settings.json.tools) body.tools = settings.json.tools;
  if (settings.json.schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: settings.json.schema, strict: true } };
  return body;
}

function take(event, answer) {
  if (event.error) throw new Error(event.error.message);
  const delta = event.choices?.[0]?.delta ?? {};
  const piece = delta.content ?? "";
  const thought = delta.reasoning ?? delta.reasoning_content ?? "";
  if (piece || thought || delta.tool_calls) answer.first ??= performance.now();
  answer.content += piece;
  answer.thought += thought;
  for (const part of delta.tool_calls ?? []) {
    const index = Math.min(part.index ?? 0, 63);
    const call = (answer.calls[index] ??= { id: part.id ?? `call-${index}`, type: "function", function: { name: "", arguments: "" } });
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
  if (event.usage) answer.tokens = event.usage.completion_tokens;
}

const shownOf = (answer) => [answer.content, ...answer.calls.filter(Boolean).map((call) => `→ ${call.function.name}(${call.function.arguments})`)].filter(Boolean).join("\n");

function summarize(answer, shown, schema) {
  const ended = performance.now();
  const parts = [answer.model];
  if (answer.stopped) parts.push("stopped");
  if (answer.first !== null) parts.push(`first token after ${seconds((answer.first - answer.began) / 1e3)}`);
  if (answer.tokens) parts.push(`${count(answer.tokens)} tokens`);
  if (answer.tokens > 1 && ended - answer.first >= LEAST_MS) parts.push(`${((answer.tokens - 1) / ((ended - answer.first) / 1e3)).toFixed(1)} tokens/s`);
  if (schema && answer.content) parts.push(isJson(answer.content) ? "the answer is JSON" : "the answer is not JSON");
  text(shown.note, parts.join(" · "));
  if (answer.id) shown.note.append(" · ", h("a", { href: `/console/requests/${encodeURIComponent(answer.id)}`, text: "timeline" }));
}

function isJson(value) {
  try {
    JSON.parse(value);
    return true;
  } catch {
    return false;
  }
}
