// The sections of the prompt as the author wrote them, with what each showed at this turn and who decided it.

import { useEffect, useRef } from "preact/hooks";
import { classes, count, percent, plural } from "wink/format.js";
import { Term } from "wink/terms.js";
import { Text, visible } from "wink/text.js";
import { Disc, Empty, Icon, html } from "wink/view.js";

const DECIDERS = {
  declared: "as declared",
  selector: "by its selector",
  override: "by the caller",
  session: "by the session",
  rule: "by its rule",
  search: "for the user's words",
  budget: "by the budget",
};
const STATES = { full: "in full in the prompt", read: "read in the conversation", summary: "only its summary", hidden: "not seen" };
const SEEN = { prompt: "full", conversation: "read", summary: "summary", none: "hidden" };
const FEWEST = 3;

export const stateOf = (section) => SEEN[section.seen] ?? "hidden";

// Sections in the order of the tree, without those below a folded one; `untouched` of them stand for several siblings.
export function walk(sections, folded = {}, touched = null) {
  const open = sections.filter((section) => section.path.slice(1).every((_, at) => !folded[above(section, at)]));
  if (!touched) return open;
  const found = [];
  for (let at = 0; at < open.length; ) {
    const first = open[at];
    let end = at;
    let siblings = 0;
    while (end < open.length && open[end].path.length >= first.path.length && sameParent(open[end], first) && !touched.has(open[end].key)) {
      siblings += open[end].path.length === first.path.length ? 1 : 0;
      end += 1;
    }
    const key = `untouched ${first.key}`;
    if (siblings >= FEWEST && !folded[key]) {
      const hidden = open.slice(at, end);
      found.push({ ...first, key, untouched: siblings, hidden_tokens: sum(hidden, "hidden_tokens"), shown_tokens: sum(hidden, "shown_tokens") });
      at = end;
    } else {
      end = Math.max(end, at + 1);
      found.push(...open.slice(at, end));
      at = end;
    }
  }
  return found;
}

const above = (section, at) => section.path.slice(0, at + 1).join(".");
const sameParent = (one, other) => other.path.slice(0, -1).every((key, at) => one.path[at] === key);

// Sections that the run has opened or that were open, with those around them, and the selected one.
export function touchedSections(whole, turn, selected) {
  const keys = [
    ...turn.sections.filter((section) => ["prompt", "conversation"].includes(section.seen)).map((section) => section.key),
    ...whole.lanes.filter((lane) => lane.states.length > 1).map((lane) => lane.key),
    // What is being read right now has no turn after it yet.
    ...whole.steps.filter((step) => step.turn >= turn.n).flatMap((step) => step.sections),
    selected,
  ];
  return new Set(keys.flatMap((key) => key.split(".").map((_, at, parts) => parts.slice(0, at + 1).join("."))));
}

export function Tree({ turn, whole, selected, folded, reveal, onFold, onSelect }) {
  const list = useRef(null);
  useEffect(() => {
    if (reveal && reveal.from !== "tree") list.current?.querySelector(".node.selected")?.scrollIntoView({ block: "nearest" });
  }, [reveal, selected]);
  const sections = turn.sections;
  const parents = new Set(sections.flatMap((one) => one.path.slice(1).map((_, at) => one.path.slice(0, at + 1).join("."))));
  const shown = sum(sections, "shown_tokens") + (turn.builtin_tokens ?? 0);
  const all = sum(sections, "full_tokens");
  const largest = Math.max(1, ...sections.map((one) => one.shown_tokens + one.hidden_tokens));
  if (!sections.length) return html`<aside class="tree panel"><${Empty} title="No tree"><p>The render of this turn was not recorded.</p><//></aside>`;
  return html`<aside class="tree panel" aria-label="Sections">
    <div class="panel-head">
      <h2>Sections</h2>
      <span class="quiet" title=${`In this request, tools included: ${count(shown)} tokens shown, ${count(all)} with everything open`}>${count(shown)} of ${count(all)} tokens</span>
      <div class="meter" title=${`${percent(shown, all)} of everything open`}><i style=${{ width: `${Math.min(100, (100 * shown) / Math.max(1, all))}%` }}></i></div>
    </div>
    <div class="nodes panel-body" role="tree" aria-label="Sections" tabindex="0" ref=${list}>
      ${walk(sections, folded, touchedSections(whole, turn, selected)).map((section) => {
        const state = stateOf(section);
        const depth = section.path.length - 1;
        if (section.untouched) {
          return html`<div key=${section.key} class="node untouched" role="treeitem" aria-level=${depth + 1} aria-expanded="false">
            <button class="row" style=${{ paddingLeft: `${32 + depth * 18}px` }} onClick=${() => onFold(section.key)}>
              <span class="label">${section.untouched} untouched sections</span><span class="tokens" title="Tokens shown and hidden, tools included">${count(section.shown_tokens)}<small>+${count(section.hidden_tokens)}</small></span></button></div>`;
        }
        const here = section.key === selected;
        return html`<div key=${section.key} class=${classes("node", state, here && "selected")} role="treeitem" aria-selected=${here}
          aria-level=${depth + 1} data-section=${section.key}>
          <div class="row" style=${{ paddingLeft: `${10 + depth * 18}px` }} onClick=${() => onSelect(section.key)}>
            ${parents.has(section.key)
              ? html`<button tabindex="-1" class=${classes("fold", folded[section.key] && "folded")} aria-label=${folded[section.key] ? "Unfold" : "Fold"}
                  aria-expanded=${!folded[section.key]} onClick=${(event) => (event.stopPropagation(), onFold(section.key))}><${Icon} name="caret" /></button>`
              : html`<span class="fold"></span>`}
            <${Disc} state=${state} />
            <button class="label" title=${section.key} tabindex=${here ? 0 : -1}>${visible(section.title)}</button>
            ${section.tools.length > 0 &&
            html`<span class=${classes("tools", section.tools_offered.length > 0 && "on")}
              title=${`${section.tools.join(", ")}: ${section.tools_offered.length ? "can be called" : "not offered"}`}><${Icon} name="tool" />${section.tools.length}</span>`}
            <span class="tokens" title="Tokens shown and hidden, tools included">${count(section.shown_tokens)}<small>${section.hidden_tokens ? `+${count(section.hidden_tokens)}` : ""}</small></span>
          </div>
          <div class="weight" style=${{ marginLeft: `${46 + depth * 18}px` }}>
            <i class="shown" style=${{ width: `${(100 * section.shown_tokens) / largest}%` }}></i>
            <i class="hidden" style=${{ width: `${(100 * section.hidden_tokens) / largest}%` }}></i>
          </div>
          ${here && html`<${Details} section=${section} state=${state} whole=${whole} turn=${turn} />`}
        </div>`;
      })}
    </div>
    <div class="legend">${Object.entries(STATES).map(([state, label]) => html`<span><${Disc} state=${state} />${label}</span>`)}</div>
  </aside>`;
}

function Details({ section, state, whole, turn }) {
  const opened = whole.steps.filter((step) => step.turn < turn.n && step.success && step.sections.includes(section.key)).at(-1);
  const decider = (section, opened) => (opened && ["session", "declared"].includes(section.decided_by) ? `by ${opened.tool ? "the model" : opened.route === "code" ? "the program" : "the session"}` : DECIDERS[section.decided_by] ?? section.decided_by);
  return html`<dl class="details">
    <dt>Key</dt><dd><code>${visible(section.key)}</code></dd>
    <dt>Shows</dt><dd>${STATES[state]}, <${Term} name=${section.decided_by}>${decider(section, opened)}<//></dd>
    ${section.reason && html`<dt>Reason</dt><dd><${Text} value=${section.reason} first=${400} plain /></dd>`}
    ${opened && html`<dt>Opened</dt><dd>after turn ${opened.turn}, ${opened.route || opened.action}</dd>`}
    <dt>Tokens</dt><dd>${count(section.shown_tokens)} shown, ${count(section.hidden_tokens)} hidden; ${count(section.full_tokens)} in full${section.tool_tokens ? `, of which ${count(section.tool_tokens)} for ${plural(section.tools.length, "tool")}` : ""}</dd>
    ${section.tools.length > 0 && html`<dt>Tools</dt><dd>${section.tools.map((name) => html`<code class=${classes("tool", !section.tools_offered.includes(name) && "off")}>${visible(name)}</code> `)}</dd>`}
  </dl>`;
}

const sum = (sections, name) => sections.reduce((total, section) => total + section[name], 0);
