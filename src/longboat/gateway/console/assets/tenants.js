// Who may use what, how much, and with which keys. Keys themselves are never here: only their public ids.

import { follow, post, session } from "./api.js";
import { h, table, text } from "./dom.js";
import { count, day, money, short } from "./format.js";

const MAX_ROWS = 400;

export function show(main, { query }) {
  let data = null;
  const filter = h("input", { type: "search", placeholder: "Filter: tenant, model, key id or note   /", size: "34", "aria-label": "Filter", value: query.get("find") ?? "", oninput: changed });
  const about = h("span", { class: "soft" });
  const limit = (name) => (row) => (row[name] === null ? "–" : short(row[name]));
  const list = table([
    { title: "Tenant", cell: (row) => ({ text: row.name, href: `/console/traffic?tenant=${encodeURIComponent(row.name)}`, class: "name" }) },
    { title: "Class", num: true, cell: (row) => row.priority },
    { title: "Weight", num: true, cell: (row) => row.weight },
    { title: "Requests/min", num: true, cell: limit("requests_per_minute") },
    { title: "Tokens/min", num: true, cell: limit("tokens_per_minute") },
    { title: "Tokens/day", num: true, cell: limit("tokens_per_day") },
    { title: "Money/day", num: true, cell: (row) => (row.money_per_day === null ? "–" : money(row.money_per_day, data.currency)) },
    { title: "At once", num: true, cell: limit("concurrent_requests") },
    { title: "Running", num: true, cell: (row) => count(row.in_flight) },
    { title: "Waiting", num: true, cell: (row) => count(row.waiting) },
    { title: "Keys", num: true, cell: (row) => row.keys.length },
    { title: "Models", wide: true, cell: (row) => (row.models === null ? "all" : row.models.join(", ")) },
  ], (row) => row.name, { empty: "No tenant matches. The fleet file names tenants in gateway.tenants." });
  const keys = table([
    { title: "Key", cell: (row) => ({ text: row.id, class: "mono" }) },
    { title: "Tenant", cell: (row) => row.tenant },
    { title: "Created", cell: (row) => day(row.created_s) },
    { title: "Expires", cell: (row) => (row.expires_s ? { text: day(row.expires_s), class: row.expires_s * 1e3 < Date.now() ? "tag bad" : row.expires_s * 1e3 < Date.now() + 7 * 86400e3 ? "tag warn" : "" } : "never") },
    { title: "Note", wide: true, cell: (row) => row.note },
    ...(session.may_steer ? [{ title: "Change", cell: (row) => ({ node: (cell) => revoking(cell, row) }) }] : []),
  ], (row) => row.id, { empty: "No key matches." });
  const admins = table([{ title: "Admin", cell: (row) => row.name }, { title: "Role", cell: (row) => row.role }], (row) => row.name, { empty: "The fleet file names no admin." });
  const making = session.may_steer ? makingKeys(() => data?.tenants.map((row) => row.name) ?? []) : null;
  const ofAdmins = h("div", {}, h("h2", { text: "Admins" }), admins.node);
  main.append(h("p", { class: "row" }, filter, about), list.node, h("h2", { text: "Keys" }), making?.node ?? "", keys.node, ofAdmins);

  function changed() {
    history.replaceState(null, "", filter.value ? `/console/tenants?find=${encodeURIComponent(filter.value)}` : "/console/tenants");
    render();
  }

  function render() {
    if (data === null) return;
    const wanted = filter.value.toLowerCase();
    const has = (...values) => !wanted || values.some((value) => value?.toLowerCase().includes(wanted));
    const found = data.tenants.filter((row) => has(row.name, ...(row.models ?? []), ...row.keys.flatMap((key) => [key.id, key.note])));
    const all = found.flatMap((row) => row.keys.map((key) => ({ ...key, tenant: row.name }))).filter((key) => has(key.id, key.note, key.tenant));
    list.update(found.slice(0, MAX_ROWS));
    keys.update(all.slice(0, MAX_ROWS));
    admins.update(data.admins);
    making?.update();
    ofAdmins.classList.toggle("hidden", !data.admins.length);
    const more = found.length > MAX_ROWS ? `, the first ${MAX_ROWS} are shown` : "";
    text(about, data.auth === "none" ? "Requests need no key here." : `${found.length} of ${data.tenants.length} tenants${more}.`);
  }

  function revoking(cell, row) {
    if (!cell.firstChild) cell.append(h("button", { text: "Revoke", "aria-label": `Revoke the key ${row.id}`, onclick: () => making.revoke(row) }));
  }

  return follow("tenants", (found) => {
    data = found;
    render();
  });
}

/** Operators make keys, as `longboat keys create` does. A key is shown once, and kept nowhere in the page. */
function makingKeys(names) {
  const said = h("span", { class: "soft", role: "status" });
  const tenant = h("select", { required: true, "aria-label": "Tenant of the key" });
  const note = h("input", { maxlength: "200", size: "22", placeholder: "for what", "aria-label": "Note" });
  const days = h("input", { type: "number", min: "1", max: "36500", placeholder: "never", "aria-label": "Days until it expires" });
  const button = h("button", { class: "main", text: "Make a key" });
  const once = h("div", { class: "once hidden", role: "alert" });
  const form = h("form", { class: "row" }, h("label", { class: "row" }, "Tenant", tenant), h("label", { class: "row" }, "Note", note), h("label", { class: "row" }, "Expires after days", days), button, said);
  let shown = "";
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    text(said, "Gateways are told …");
    try {
      const wanted = { tenant: tenant.value, note: note.value };
      if (days.value) wanted.expires_days = Number(days.value);
      const made = await post("make-key", wanted);
      text(said, "");
      note.value = days.value = "";
      reveal(made);
    } catch (problem) {
      text(said, problem.message);
    }
    button.disabled = false;
  });

  function reveal(made) {
    const key = h("code", { class: "mono secret", text: made.key });
    const copied = h("span", { class: "soft", role: "status" });
    const copy = h("button", { text: "Copy", onclick: () => navigator.clipboard?.writeText(key.textContent).then(() => text(copied, "Copied."), () => text(copied, "Select it and copy it.")) ?? text(copied, "Select it and copy it.") });
    const hide = h("button", { text: "Hide it for good", onclick: () => { once.replaceChildren(); once.classList.add("hidden"); } });
    once.replaceChildren(h("p", {}, h("b", { text: `The key of ${made.tenant}` }), " is shown only now: the fleet keeps a digest of it."), key,
      h("p", { class: "row" }, copy, hide, copied, made.informed < made.gateways ? h("span", { class: "tag warn", text: `${made.informed} of ${made.gateways} gateways know it` }) : ""));
    once.classList.remove("hidden");
  }

  async function revoke(row) {
    if (!confirm(`Revoke the key ${row.id} of ${row.tenant}? Requests with it are refused at once.`)) return;
    text(said, "Gateways are told …");
    try {
      const gone = await post("revoke-key", { id: row.id });
      text(said, `The key ${gone.id} is revoked${gone.informed < gone.gateways ? `; ${gone.informed} of ${gone.gateways} gateways know it` : ""}.`);
    } catch (problem) {
      text(said, problem.message);
    }
  }

  function update() {
    const wanted = names();
    if (wanted.join("\n") === shown) return;
    const chosen = tenant.value;
    shown = wanted.join("\n");
    tenant.replaceChildren(...wanted.map((name) => h("option", { value: name, text: name })));
    if (wanted.includes(chosen)) tenant.value = chosen;
  }

  return { node: h("div", { class: "making" }, form, once), update, revoke };
}
