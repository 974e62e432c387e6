// Where the reader is: the address after "#" is the whole state of a page, so every view is a link.

import { computed, signal } from "@preact/signals";

const address = signal(location.hash);
addEventListener("hashchange", () => (address.value = location.hash));

export const route = computed(() => parse(address.value));
// What the browser's tab is called.
export function entitle(...parts) {
  document.title = [...parts.filter(Boolean), "wink"].join(" · ");
}

export const helping = signal(false);
// Whether texts are shown to the letter instead of as Markdown.
export const raw = signal(false);
export const theme = signal(read("wink-theme") || "system");

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const params = Object.fromEntries(new URLSearchParams(query));
  const [page = "runs", run = "", tab = "turn", n = ""] = parts;
  if (page !== "run") return { page, params };
  return { page, run, tab, n: Number(n) || 0, params };
}

// A typed address may have a "%" that encodes nothing.
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(page, parts = [], params = {}) {
  // Below the playground a run stays below it.
  if (page === "run" && route.value.params.play) params = { play: "1", ...params };
  const path = [page, ...parts].map((part) => encodeURIComponent(part)).join("/");
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value)).toString();
  return `#/${page === "runs" ? "" : path}${query ? `?${query}` : ""}`;
}

export const toTurn = (run, n, params) => link("run", n ? [run, "turn", n] : [run], params);

// Moving about inside a page replaces the entry in the history; only another page is a step back.
export function go(hash, { replace = false } = {}) {
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    address.value = hash;
  } else {
    location.hash = hash;
  }
}

export function setParams(changes, options = { replace: true }) {
  const { page, run, tab, n, params } = route.value;
  const parts = page === "run" ? [run, tab, ...(n ? [n] : [])] : [];
  go(link(page, parts, { ...params, ...changes }), options);
}

// The other of light and dark; back at what the system says, the choice is the system's again.
export function cycleTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const shown = theme.value === "system" ? system : theme.value;
  const other = shown === "dark" ? "light" : "dark";
  theme.value = other === system ? "system" : other;
  write("wink-theme", theme.value);
}

// A page opened from disk may have no storage; a choice then lasts as long as the page.
export function write(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {}
}

export function read(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
