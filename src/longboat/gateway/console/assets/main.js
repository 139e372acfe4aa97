// The frame: who is signed in, which page the address names, and the bar above it.

import { loadSession, onHealth, onSignedOut, post, session, signIn } from "./api.js";
import { classes, h, text } from "./dom.js";
import { forgetTraffic, watchTraffic } from "./history.js";
import * as fleet from "./fleet.js";
import * as models from "./models.js";
import * as plan from "./plan.js";
import * as playground from "./playground.js";
import * as requests from "./requests.js";
import { providerLink, troubleOnTheWay } from "./sign_in.js";
import * as tenants from "./tenants.js";
import * as traffic from "./traffic.js";
import * as usage from "./usage.js";

const PAGES = { fleet, models, requests, traffic, tenants, usage, plan, playground };
const TITLES = { fleet: "Fleet", models: "Models", requests: "Requests", traffic: "Traffic", tenants: "Tenants", usage: "Usage", plan: "Plan", playground: "Playground" };
const THEME = "longboat-theme";
const app = document.getElementById("app");

let leave = () => {};
let main = null;
let links = new Map();
let goPending = false;

function pagesHere() {
  return Object.keys(PAGES).filter((name) => (name !== "fleet" || session.role !== "tenant") && (name !== "playground" || session.may_chat) && (name !== "plan" || session.may_steer));
}

// theme

function applyTheme() {
  const chosen = localStorage.getItem(THEME);
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

function switchTheme() {
  localStorage.setItem(THEME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
}

// addresses

/** Go to an address of the console without loading the page again. */
export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  showPage();
}

function follow(event) {
  const link = event.target.closest("a");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute("download")) return;
  const address = new URL(link.href, location.href);
  if (address.origin !== location.origin || !address.pathname.startsWith("/console") || address.hash) return;
  event.preventDefault();
  go(address.pathname + address.search);
}

function showPage() {
  if (!session.signed_in || main === null) return;
  leave();
  const [name = "", ...rest] = location.pathname.split("/").slice(2);
  const found = pagesHere().includes(name) ? name : pagesHere()[0];
  if (found !== name) history.replaceState(null, "", `/console/${found}`);
  for (const [link, node] of links) {
    if (link === found) node.setAttribute("aria-current", "page");
    else node.removeAttribute("aria-current");
  }
  links.get(found).scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone the bar scrolls
  document.title = `${TITLES[found]} · ${session.fleet || "Longboat"}`;
  const title = h("h1", { text: TITLES[found], tabindex: "-1" });
  main.replaceChildren(title);
  const end = PAGES[found].show(main, { title, path: rest.map(decode), query: new URLSearchParams(location.search), session, go });
  leave = () => { end?.(); leave = () => {}; };
  title.focus({ preventScroll: true });
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// the frame

function showFrame() {
  const pulse = h("span", { class: "pulse", role: "status", text: "live" });
  links = new Map(pagesHere().map((name) => [name, h("a", { href: `/console/${name}`, text: TITLES[name] })]));
  const out = session.has_session ? h("button", { class: "plain", text: "Sign out", onclick: signOut }) : null;
  main = h("main", { id: "main" });
  app.replaceChildren(
    h("header", { class: "bar" },
      h("a", { class: "brand", href: "/console" }, h("img", { src: "/console/assets/longboat.svg", alt: "Longboat" }), h("span", { class: session.fleet ? "word" : "", "aria-hidden": "true", text: "Longboat" }),
        h("span", { class: "soft", text: session.fleet })),
      h("nav", { "aria-label": "Pages" }, ...links.values()), h("span", { class: "grow" }), pulse,
      h("span", { class: "soft user", text: session.name === session.role ? session.name : `${session.name} · ${session.role}` }),
      h("button", { class: "plain", text: "◐", title: "Dark or light", "aria-label": "Dark or light", onclick: switchTheme }), out),
    main);
  onHealth((silent, isIncomplete) => {
    text(pulse, silent ? `no answer for ${silent} s` : isIncomplete ? "incomplete: a process did not answer" : "live");
    classes(pulse, silent || isIncomplete ? "pulse stale" : "pulse");
  });
  watchTraffic(() => {});
  showPage();
}

async function signOut() {
  try {
    await post("sign-out");
    showGate();
  } catch (problem) {
    if (main === null) return; // the session had ended before
    main.querySelector(".error.out")?.remove();
    main.prepend(h("p", { class: "error out", role: "alert", text: `You are still signed in: ${problem.message}` }));
  }
}

function showGate(message = "") {
  leave();
  forgetTraffic();
  main = null;
  session.signed_in = false;
  document.title = "Sign in · Longboat";
  const error = h("div", { class: "error", role: "alert", text: message });
  const key = h("input", { type: "password", name: "key", id: "key", autocomplete: "off", spellcheck: "false", required: true });
  const button = h("button", { class: "main", text: "Sign in" });
  const form = h("form", { class: "panel" },
    h("h1", { class: "brand" }, h("img", { src: "/console/assets/longboat.svg", alt: "" }), "Longboat", h("span", { class: "soft", text: session.fleet ?? "" })),
    providerLink(session.provider),
    h("label", { for: "key", text: "The secret of an admin, or a tenant’s key" }), key, button, error,
    session.keyless ? h("div", { class: "soft", text: "This gateway has no keys: its console opens only on its own machine. Give the fleet file an admin (gateway.admin) to sign in from elsewhere." }) : null);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await signIn(key.value);
      key.value = "";
      await begin();
    } catch (problem) {
      text(error, problem.message);
      button.disabled = false;
      key.select();
    }
  });
  app.replaceChildren(h("main", { class: "gate", id: "main" }, form));
  key.focus();
}

// keys: "g" and a page's first letter go there; "/" goes to the filter

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if (goPending) {
    goPending = false;
    const letters = { f: "fleet", m: "models", r: "requests", t: "traffic", n: "tenants", u: "usage", w: "plan", p: "playground" };
    if (pagesHere().includes(letters[event.key])) go(`/console/${letters[event.key]}`);
  } else if (event.key === "g") goPending = true;
  else if (event.key === "/") {
    const filter = document.querySelector("input[type=search]");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  }
}

async function begin() {
  await loadSession();
  const trouble = troubleOnTheWay();
  if (session.signed_in) showFrame();
  else showGate(trouble);
}

applyTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
document.addEventListener("click", follow);
document.addEventListener("keydown", press);
addEventListener("popstate", showPage);
onSignedOut(() => { if (main !== null) showGate("The session has ended. Sign in again."); });
begin().catch((problem) => showGate(problem.message));
