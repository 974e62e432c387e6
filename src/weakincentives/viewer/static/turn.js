// One turn: the tree as it was, what was sent, and what came of it.

import { useEffect, useState } from "preact/hooks";
import { api } from "wink/api.js";
import { useShortcuts } from "wink/keys.js";
import { Outcome } from "wink/outcome.js";
import { Request } from "wink/request.js";
import { classes } from "wink/format.js";
import { raw, route, setParams } from "wink/state.js";
import { Tree, touchedSections, walk } from "wink/tree.js";
import { Shown, html, useDocument } from "wink/view.js";

// `last` is not 0 while the turn may still grow, and changes when it has.
export function Turn({ whole, n, last }) {
  const id = whole.run.run_id;
  const loaded = useDocument(() => api.turn(id, n, last), [id, n, last]);
  useEffect(() => {
    // The neighbours are likely next.
    for (const near of [n - 1, n + 1]) if (near >= 1 && near < whole.turns.n.length) api.turn(id, near).catch(() => {});
  }, [id, n]);
  return html`<${Shown} of=${loaded}>${(turn) => html`<${Columns} whole=${whole} turn=${turn} />`}<//>`;
}

function Columns({ whole, turn }) {
  const selected = route.value.params.section ?? "";
  const [side, setSide] = useState("request");
  const [folded, setFolded] = useState({});
  const [reveal, setReveal] = useState(null);
  const select = (section, from) => {
    const chosen = section === selected && from !== "step" ? "" : section;
    const seen = turn.sections.find((one) => one.key === section)?.seen;
    // What was chosen elsewhere is shown where the model has it from.
    const part = chosen && from !== "request" ? { part: seen === "conversation" ? "conversation" : "prompt" } : {};
    setParams({ section: chosen, ...part });
    setReveal({ section, from });
  };
  const order = walk(turn.sections, folded, touchedSections(whole, turn, selected)).filter((section) => !section.untouched).map((section) => section.key);
  const step = (by) => () => {
    const at = order.indexOf(selected);
    select(order[at < 0 ? (by > 0 ? 0 : order.length - 1) : Math.max(0, Math.min(order.length - 1, at + by))], "step");
  };
  useShortcuts({
    m: () => void (raw.value = !raw.value),
    ArrowDown: step(1),
    ArrowUp: step(-1),
    Escape: () => (selected ? setParams({ section: "" }) : false),
  });
  const failed = turn.calls.some((call) => !call.result?.success) || turn.ended.some((event) => event.error);
  return html`<div class=${`columns shows-${side}`}>
    <${Tree} turn=${turn} whole=${whole} selected=${selected} folded=${folded} reveal=${reveal}
      onFold=${(key) => setFolded({ ...folded, [key]: !folded[key] })} onSelect=${(key) => select(key, "tree")} />
    <div class="segments sides" role="group" aria-label="Column">
      ${[["tree", "Sections"], ["request", "Request"], ["outcome", "Reply and tools"]].map(([name, label]) => html`<button class=${classes(`side-${name}`, side === name && "on")} aria-pressed=${side === name} onClick=${() => setSide(name)}>${label}${name === "outcome" && failed ? html`<span class="side-mark" role="img" aria-label="a call failed"></span>` : ""}</button>`)}
    </div>
    <${Request} whole=${whole} turn=${turn} selected=${selected} reveal=${reveal} onSelect=${select} />
    <${Outcome} whole=${whole} turn=${turn} selected=${selected} onSelect=${(key) => select(key, "outcome")} />
  </div>`;
}
