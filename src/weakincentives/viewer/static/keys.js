// Keyboard: one listener, the shortcuts of the page that is open, and the list of them.

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { cycleTheme, go, helping, route, setParams } from "wink/state.js";
import { html } from "wink/view.js";

const SHORTCUTS = [
  ["j  k", "next and previous turn, run, or row"],
  ["←  →", "previous and next turn"],
  ["↑  ↓", "previous and next section of the tree"],
  ["Home  End", "first and last turn"],
  ["Enter", "open the selected run"],
  ["e  o", "next turn with a failure, with an opening"],
  ["1 … 4", "turns, disclosure, ledger, events"],
  ["[  ]", "previous and next exchange of a conversation"],
  ["m", "Markdown or raw text"],
  ["x", "tick the selected run, to compare it"],
  ["d", "compare this turn with the one before, or the two ticked runs"],
  ["f", "follow a run that is being recorded"],
  ["u", "up to the list of runs"],
  ["/", "search"],
  ["t", "light or dark"],
  ["?", "this list"],
  ["Esc", "close, or clear what is selected"],
];

const handlers = [];

// While the component is there, its keys are heard; the innermost component hears first.
export function useShortcuts(keys) {
  const current = useRef(keys);
  current.current = keys;
  // At once, so that a key is heard as soon as the component is seen.
  useLayoutEffect(() => {
    handlers.push(current);
    return () => handlers.splice(handlers.indexOf(current), 1);
  }, []);
}

export function useKeys() {
  useEffect(() => {
    const listener = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const field = event.target.closest?.("input, textarea, select");
      if (field) {
        if (event.key === "Escape") field.blur();
        return;
      }
      if (helping.value && !["?", "Escape"].includes(event.key)) return;
      for (const handler of [...handlers].reverse()) {
        const action = handler.current[event.key];
        if (action && action(event) !== false) {
          event.preventDefault();
          return;
        }
      }
      const action = everywhere[event.key];
      if (action) {
        event.preventDefault();
        action();
      }
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
}

const everywhere = {
  "/": () => document.querySelector(".find input")?.select(),
  "?": () => (helping.value = !helping.value),
  t: cycleTheme,
  u: () => go("#/"),
  Escape: () => {
    if (helping.value) helping.value = false;
    else if (route.value.params.find) setParams({ find: "" });
  },
};

export function Help() {
  const dialog = useRef(null);
  useEffect(() => {
    if (helping.value) dialog.current.showModal();
    else dialog.current.close();
  }, [helping.value]);
  return html`<dialog ref=${dialog} class="help" onClose=${() => (helping.value = false)}
    onClick=${(event) => event.target === dialog.current && (helping.value = false)}>
    <h2>Keyboard</h2>
    <dl>${SHORTCUTS.map(
      ([keys, words]) => html`<dt>${keys.split("  ").map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${words}</dd>`,
    )}</dl>
    <button onClick=${() => (helping.value = false)}>Close</button>
  </dialog>`;
}
