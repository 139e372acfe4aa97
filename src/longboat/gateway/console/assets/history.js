// Rates and quantiles from two looks at the gateway's counters. They are kept in this page for ten minutes.

import { follow } from "./api.js";
import { quantile } from "./format.js";

const MAX_POINTS = 300;
const TOTAL = "";

/** One series' points: time, requests/s, tokens/s, prompt tokens/s, TTFT p50 and p99, ITL p50 and p99, wait p99, … */
export const COLUMNS = ["at", "requests", "tokens", "prompt", "ttft50", "ttft99", "itl50", "itl99", "queue99", "inFlight", "waiting", "errors"];

const kept = new Map();
let before = null;
let stop = null;
let shown = null;
export let latest = null;

/** Begin to look, and call `listener()` after every look until another page asks. */
export function watchTraffic(listener) {
  shown = listener;
  if (latest) listener();
  stop ??= follow("traffic", (data) => {
    take(data);
    latest = data;
    shown?.();
  });
  return () => { if (shown === listener) shown = null; };
}

export function forgetTraffic() {
  stop?.();
  stop = before = latest = shown = null;
  kept.clear();
}

/** The points of a model ("model", name), of a tenant, or of everything ("", ""). */
export const pointsOf = (kind, name) => kept.get(kind ? `${kind}:${name}` : TOTAL) ?? [];

export const lastOf = (kind, name) => {
  const points = pointsOf(kind, name);
  return points.length ? Object.fromEntries(COLUMNS.map((column, index) => [column, points[points.length - 1][index]])) : {};
};

export function take(data) {
  if (data.missing.length) { // counters of some processes only: the next difference would be of their whole life
    before = null;
    return;
  }
  const rows = new Map([[TOTAL, sumOf(data.models)]]);
  for (const row of data.models) rows.set(`model:${row.name}`, row);
  for (const row of data.tenants) rows.set(`tenant:${row.name}`, row);
  if (before !== null && data.at_s > before.at && !fell(before.rows.get(TOTAL), rows.get(TOTAL))) {
    for (const [name, row] of rows) {
      const points = kept.get(name) ?? [];
      kept.set(name, points);
      points.push(pointOf(data, before.rows.get(name), row, data.at_s - before.at));
      if (points.length > MAX_POINTS) points.shift();
    }
  }
  before = { at: data.at_s, rows };
}

/** Whether a counter is lower than before: a process began again. */
function fell(old, row) {
  return row.completion_tokens < old.completion_tokens || row.prompt_tokens < old.prompt_tokens ||
    Object.entries(old.outcomes).some(([name, number]) => (row.outcomes[name] ?? 0) < number);
}

function pointOf(data, old, row, passed) {
  const rate = (name) => Math.max(0, row[name] - (old?.[name] ?? 0)) / passed;
  const outcomes = (source) => Object.entries(source?.outcomes ?? {});
  const sum = (source, wanted) => outcomes(source).reduce((total, [name, number]) => total + (wanted(name) ? number : 0), 0);
  const isError = (name) => ["engine_error", "broken", "expired", "refused"].includes(name);
  const all = Math.max(0, sum(row, () => true) - sum(old, () => true));
  const failed = Math.max(0, sum(row, isError) - sum(old, isError));
  const part = (name, share) => quantile(data.bounds[name], row[name].map((number, index) => number - (old?.[name]?.[index] ?? 0)), share);
  return [data.at_s, all / passed, rate("completion_tokens"), rate("prompt_tokens"), part("ttft", 0.5), part("ttft", 0.99),
    part("itl", 0.5), part("itl", 0.99), part("queue", 0.99), row.in_flight, row.waiting, failed / passed];
}

function sumOf(rows) {
  const total = { outcomes: {}, in_flight: 0, waiting: 0, completion_tokens: 0, prompt_tokens: 0, ttft: [], itl: [], queue: [] };
  for (const row of rows) {
    for (const name of ["in_flight", "waiting", "completion_tokens", "prompt_tokens"]) total[name] += row[name];
    for (const [name, number] of Object.entries(row.outcomes)) total.outcomes[name] = (total.outcomes[name] ?? 0) + number;
    for (const name of ["ttft", "itl", "queue"]) row[name].forEach((number, index) => { total[name][index] = (total[name][index] ?? 0) + number; });
  }
  return total;
}
