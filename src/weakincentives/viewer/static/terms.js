// Words of this library, explained where they stand; the texts are those of docs/reference/glossary.md.

import { signal } from "@preact/signals";
import { html } from "wink/view.js";

export const TERMS = {
  "with everything open": "what the same run would have sent with every section open: each request, with all tools",
  cached: "the beginning of a request that the provider has read before and bills at a fraction",
  ledger: "tokens sent, cached and saved, by turn and by section",
  disclosure: "which sections the model has in full, which as a summary, and when that changed",
  exchange: "a user's message and its answer, in a conversation",
  turn: "one model call and the tool calls that follow from it: Budget(max_turns=)",
  "hosted tool": "a tool that the provider runs, such as a web search",
  "rolled back": "the call failed, so the session, files and resources with snapshots are as before it",
  value: "what the tool returned to the program; the model reads its text",
  declared: "the section shows what its author wrote in the prompt",
  session: "of a section: it was opened or closed during the conversation, by the model, the user or the program",
  "tool result": "a route: the section's text came back as the result of the call that opened it",
  additional_tools: "routes: the tools are added inside the conversation; what is cached stays cached",
  tool_addition: "routes: the tools are added inside the conversation; what is cached stays cached",
  append: "a route: the tools are added at the end of the list of tools; what follows them is no longer cached",
  restart: "a route: the run begins again with the section open",
  answered: "there is an answer; in run files and on the command line, ok",
  waiting: "a call waits for a person",
  halted: "the model asked to open sections, and the caller decides",
  stopped: "you stopped it: a closed stream, a cancelled task, Ctrl-C",
  failed: "an error ended it",
  interrupted: "the process ended before the run did",
};

const shown = signal(null);
const WIDTH = 280;

// A word with its explanation: on hover, and on focus for those who use a keyboard.
export function Term({ name, children }) {
  const text = TERMS[name];
  if (!text) return children ?? name;
  const show = (event) => {
    const { left, bottom, top } = event.currentTarget.getBoundingClientRect();
    shown.value = { name, text, left: Math.max(8, Math.min(left, innerWidth - WIDTH - 12)), below: bottom + 90 < innerHeight, top, bottom };
  };
  const hide = () => (shown.value = null);
  return html`<span class="term" tabindex="0" aria-description=${text} onMouseEnter=${show} onMouseLeave=${hide} onFocus=${show} onBlur=${hide}
    onKeyDown=${(event) => event.key === "Escape" && hide()}>${children ?? name}</span>`;
}

// The one card; it is drawn over everything, so that nothing cuts it off.
export function TermCard() {
  const at = shown.value;
  if (!at) return null;
  const place = at.below ? { top: `${at.bottom + 6}px` } : { bottom: `${innerHeight - at.top + 6}px` };
  return html`<div class="term-card" role="tooltip" style=${{ left: `${at.left}px`, maxWidth: `${WIDTH}px`, ...place }}><strong>${at.name}</strong> ${at.text}</div>`;
}
