// What the page asks the gateway. The session is a cookie that scripts cannot read; changes carry the page's token.

const ROOT = "/console/api/";
const EVERY_MS = 2000;

export const session = { signed_in: false };
const lost = new Set();

/** Call `listener` when the session has ended. */
export const onSignedOut = (listener) => lost.add(listener);

export async function loadSession() {
  const found = await request("session");
  for (const name of Object.keys(session)) delete session[name];
  return Object.assign(session, found);
}

export const get = (path, signal) => request(path, { signal });

export const post = (path, body = {}) =>
  request(path, { method: "POST", body: JSON.stringify(body), headers: headers() });

export const headers = () => ({ "content-type": "application/json", "x-csrf-token": session.csrf ?? "" });

export const signIn = (key) => post("sign-in", { key });

async function request(path, options = {}) {
  const response = await fetch(ROOT + path, { credentials: "same-origin", redirect: "error", ...options });
  if (response.ok) return response.json();
  const error = new Error(await messageOf(response));
  error.status = response.status;
  if (response.status === 401 && path !== "sign-in") lost.forEach((listener) => listener());
  throw error;
}

export async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The gateway answered ${response.status}.`;
  }
}

const listeners = new Set();
const incomplete = new Set(); // sections whose newest document lacks the figures of a process
let failedSince = 0;

/** Call `listener(seconds without an answer, 0 while all is well; whether figures are incomplete)` after every question. */
export const onHealth = (listener) => listeners.add(listener);

function heard(isWell) {
  failedSince = isWell ? 0 : failedSince || Date.now();
  const seconds = isWell ? 0 : Math.max(1, Math.round((Date.now() - failedSince) / 1e3));
  listeners.forEach((listener) => listener(seconds, incomplete.size > 0));
}

/** Ask for a section every two seconds while the page is visible; `show(data)` where it changed. Returns what ends it. */
export function follow(section, show) {
  const aborter = new AbortController();
  let tag = "";
  let timer = 0;
  const ask = async () => {
    clearTimeout(timer);
    if (aborter.signal.aborted) return;
    if (!document.hidden) {
      try {
        const found = await get(`live/${section}?have=${tag}`, aborter.signal);
        if (aborter.signal.aborted) return;
        if (!found.same) incomplete[found.data.missing?.length ? "add" : "delete"](section);
        heard(true);
        if (!found.same) show(found.data);
        tag = found.tag;
      } catch (error) {
        if (aborter.signal.aborted || error.status === 401) return;
        if (error.status) console.info(`${section}: ${error.message}`);
        heard(false);
      }
    }
    timer = setTimeout(ask, EVERY_MS);
  };
  const wake = () => { if (!document.hidden) ask(); };
  document.addEventListener("visibilitychange", wake);
  ask();
  return () => {
    aborter.abort();
    incomplete.delete(section);
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}
