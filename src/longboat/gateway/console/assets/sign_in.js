// Signing in through the fleet's provider: the link to it, and what went wrong on the way.

import { h } from "./dom.js";

const TROUBLE = {
  busy: "Too many sign-ins failed or run now. Try again in a minute.",
  denied: "The provider did not sign you in.",
  expired: "This sign-in took too long, or belongs to another browser or tab. Try again.",
  no_group: "Your account is in no group that this fleet knows. Ask its operator for access (gateway.sign_in.groups).",
  refused: "The provider’s answer was refused. The gateway’s log has the reason.",
  silent: "The provider does not answer, or this gateway cannot use it. The gateway’s log has the reason.",
  token_refused: "The provider’s token was refused. The gateway’s log has the reason.",
  unchecked: "The provider gives no way to notice a removed group. The gateway’s log says what to change.",
};

/** Return what to tell a person whom the provider sent back without a session, and take it out of the address. */
export function troubleOnTheWay() {
  const code = new URLSearchParams(location.search).get("sign_in");
  if (code === null) return "";
  history.replaceState(null, "", "/console/");
  return TROUBLE[code] ?? "The sign-in failed.";
}

/** Return the link to the provider, or null where the fleet has none. */
export function providerLink(provider) {
  if (!provider) return null;
  const text = provider.here ? `Sign in with ${provider.name}` : `Open ${provider.url} to sign in with ${provider.name}`;
  return h("a", { class: "main button", href: provider.url, target: "_self", text });
}
