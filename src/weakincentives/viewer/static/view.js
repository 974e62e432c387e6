// What every page is made of: elements, loading, and the states in which there is nothing to show.

import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import { exported } from "wink/api.js";

export const html = htm.bind(h);

// The newest document for these inputs; while another is on its way the last one stays.
export function useDocument(load, inputs) {
  const [state, set] = useState({ document: null, error: null, loading: true });
  useEffect(() => {
    let wanted = true;
    set((before) => ({ ...before, loading: true }));
    load().then(
      (document) => wanted && set({ document, error: null, loading: false }),
      (error) => wanted && set({ document: null, error: String(error.message ?? error), loading: false }),
    );
    return () => {
      wanted = false;
    };
  }, inputs);
  return state;
}

// How long a run took, or has been running so far: a model that thinks leaves no events.
export function useTaken(run) {
  const running = run.status === "running" && !exported;
  const [now, set] = useState(Date.now());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => set(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return running ? Math.max(run.duration, now / 1000 - run.started) : run.duration;
}

// The first so many children, and a button for more.
export function Some({ of, first, each }) {
  const [shown, setShown] = useState(first);
  const rest = of.length - shown;
  return html`${of.slice(0, shown).map(each)}${rest > 0 && html`<button class="more wide" onClick=${() => setShown(shown + first)}>Show ${Math.min(rest, first)} of ${rest} more</button>`}`;
}

// Whether the window is as narrow as a phone.
export function useNarrow(most = 700) {
  const query = matchMedia(`(max-width: ${most}px)`);
  const [narrow, set] = useState(query.matches);
  useEffect(() => {
    const listen = () => set(query.matches);
    query.addEventListener("change", listen);
    return () => query.removeEventListener("change", listen);
  }, []);
  return narrow;
}

export function useWidth() {
  const place = useRef(null);
  const [width, set] = useState(0);
  useEffect(() => {
    if (!place.current) return undefined;
    const watcher = new ResizeObserver(([entry]) => set(Math.round(entry.contentRect.width)));
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, []);
  return [place, width];
}

// A number to type; while someone types, a value that changes meanwhile does not get in the way.
export function NumberField({ value, max, label, disabled, onPick }) {
  const field = useRef(null);
  const typing = useRef(false);
  useEffect(() => {
    if (!typing.current) field.current.value = value || "";
  });
  const done = () => {
    typing.current = false;
    onPick(Math.max(1, Math.min(max || Infinity, Number(field.current.value) || 1)));
  };
  return html`<input type="number" min="1" max=${max} aria-label=${label} disabled=${disabled} ref=${field}
    onInput=${() => (typing.current = true)} onChange=${done} onBlur=${() => (typing.current = false)} />`;
}

export function Loading({ label = "Loading" }) {
  return html`<div class="state" role="status"><span class="spinner"></span>${label}…</div>`;
}

export function Problem({ text }) {
  return html`<div class="state problem" role="alert"><${Icon} name="alert" />${text}</div>`;
}

// Attributes of a box that cuts off a long text: it can be reached by keyboard, to scroll it.
export function reachable(text, label) {
  return text.length > 500 || text.split("\n").length > 12 ? { tabindex: 0, role: "group", "aria-label": label } : {};
}

export function Empty({ title, children }) {
  return html`<div class="state empty"><strong>${title}</strong><div>${children}</div></div>`;
}

export function Shown({ of, children }) {
  if (of.error) return html`<${Problem} text=${of.error} />`;
  if (!of.document) return html`<${Loading} />`;
  return children(of.document);
}

const ICONS = {
  alert: "M8 1.5 15 14H1L8 1.5Z M8 6v4 M8 12v.5",
  back: "M10 3 5 8l5 5",
  next: "M6 3l5 5-5 5",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9Z M10.5 10.5 14 14",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6Z M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  tool: "M10.5 2a3.5 3.5 0 0 0-3.3 4.7L2 11.9 4.1 14l5.2-5.2A3.5 3.5 0 0 0 13.8 4.6L11.5 6.8 9.2 4.5 11.4 2.2A3.5 3.5 0 0 0 10.5 2Z",
  undo: "M3 6h7a3.5 3.5 0 0 1 0 7H6 M6 3 3 6l3 3",
  open: "M8 3v10M3 8h10",
  restart: "M13 8a5 5 0 1 1-1.5-3.6 M13 2v3h-3",
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  caret: "M6 4l4 4-4 4",
  fork: "M4 2v12 M4 9c0-3 8-1 8-5V2",
  fold: "M3 3h10 M3 13h10 M8 5v2.5 M8 11V8.5 M6 6.5l2 1.5 2-1.5 M6 9.5l2-1.5 2 1.5",
};

export function Icon({ name, label }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden=${label ? undefined : "true"} aria-label=${label}>
    <path d=${ICONS[name]} />
  </svg>`;
}

const SHAPES = {
  full: "In full in the prompt",
  read: "Summarized in the prompt; read in the conversation",
  summary: "Only its summary is shown",
  hidden: "Inside a summarized section, not shown",
};

// Tokens sent as a part of what everything open would have sent; what goes beyond is shown as such.
export function Share({ sent, full, label }) {
  const most = Math.max(1, sent, full ?? 0);
  return html`<span class=${`share ${full != null && sent > full ? "over" : ""}`} role="img" aria-label=${label} title=${label}>
    <i style=${{ width: `${(100 * sent) / most}%` }}></i></span>`;
}

// A section's state as a small disc: full, half, half with a dot, or a ring.
export function Disc({ state }) {
  return html`<svg class=${`disc ${state}`} viewBox="0 0 12 12" role="img" aria-label=${SHAPES[state]}>
    <title>${SHAPES[state]}</title>
    <circle cx="6" cy="6" r="4.5" class="rim" />
    ${state === "full" && html`<circle cx="6" cy="6" r="4.5" class="fill" />`}
    ${(state === "summary" || state === "read") && html`<path d="M6 1.5a4.5 4.5 0 0 0 0 9Z" class="fill" />`}
    ${state === "read" && html`<circle cx="8.1" cy="6" r="1.2" class="fill" />`}
  </svg>`;
}

export function Pill({ kind, children }) {
  return html`<span class=${`pill ${kind ?? ""}`}>${children}</span>`;
}

// The words of docs/reference/glossary.md.
const MEANINGS = { waiting: "a call waits for a person", failed: "an error ended it", halted: "the model asked to open sections, and the caller decides", interrupted: "the process ended before the run did" };
export const STATUSES = { ok: "answered", waiting: "waiting", failed: "failed", running: "running", halted: "halted", interrupted: "interrupted" };

export function Status({ status }) {
  const word = STATUSES[status] ?? status;
  return html`<span class=${`pill status ${status}`} title=${MEANINGS[status]}>${word}</span>`;
}
