// The sections of the prompt as the author wrote them, with what each showed at this turn and who decided it.

import { useEffect, useRef } from "preact/hooks";
import { classes, count, percent, plural } from "wink/format.js";
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
const STATES = { full: "in full", read: "read", summary: "summary", hidden: "hidden" };

export function stateOf(section) {
  if (section.visibility === "full") return "full";
  if (section.read) return "read";
  return section.visibility ?? "hidden";
}

// Sections in the order of the tree, without those below a folded one.
export function walk(sections, folded = {}) {
  return sections.filter((section) => section.path.slice(1).every((_, at) => !folded[section.path.slice(0, at + 1).join(".")]));
}

export function Tree({ turn, whole, selected, folded, reveal, onFold, onSelect }) {
  const list = useRef(null);
  useEffect(() => {
    if (reveal && reveal.from !== "tree") list.current?.querySelector(".node.selected")?.scrollIntoView({ block: "nearest" });
  }, [reveal, selected]);
  const sections = turn.sections;
  const parents = new Set(sections.flatMap((one) => one.path.slice(1).map((_, at) => one.path.slice(0, at + 1).join("."))));
  const shown = sum(sections, "shown_tokens");
  const hidden = sum(sections, "hidden_tokens");
  const largest = Math.max(1, ...sections.map((one) => one.shown_tokens + one.hidden_tokens));
  if (!sections.length) return html`<aside class="tree panel"><${Empty} title="No tree"><p>The render of this turn was not recorded.</p><//></aside>`;
  return html`<aside class="tree panel" aria-label="Sections">
    <div class="panel-head">
      <h2>Sections</h2>
      <span class="quiet" title="Tokens of the prompt that the model could read, tools included">${count(shown)} of ${count(shown + hidden)} tokens shown</span>
      <div class="meter" title=${`${percent(shown, shown + hidden)} shown`}><i style=${{ width: `${(100 * shown) / Math.max(1, shown + hidden)}%` }}></i></div>
    </div>
    <div class="nodes panel-body" role="tree" ref=${list}>
      ${walk(sections, folded).map((section) => {
        const state = stateOf(section);
        const depth = section.path.length - 1;
        const here = section.key === selected;
        return html`<div key=${section.key} class=${classes("node", state, here && "selected")} role="treeitem" aria-selected=${here}
          aria-level=${depth + 1} data-section=${section.key}>
          <div class="row" style=${{ paddingLeft: `${10 + depth * 18}px` }} onClick=${() => onSelect(section.key)}>
            ${parents.has(section.key)
              ? html`<button class=${classes("fold", folded[section.key] && "folded")} aria-label=${folded[section.key] ? "Unfold" : "Fold"}
                  aria-expanded=${!folded[section.key]} onClick=${(event) => (event.stopPropagation(), onFold(section.key))}><${Icon} name="caret" /></button>`
              : html`<span class="fold"></span>`}
            <${Disc} state=${state} />
            <button class="label" title=${section.key}>${visible(section.title)}</button>
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
  return html`<dl class="details">
    <dt>Key</dt><dd><code>${visible(section.key)}</code></dd>
    <dt>Shows</dt><dd>${STATES[state]}, ${DECIDERS[section.decided_by] ?? section.decided_by}</dd>
    ${section.reason && html`<dt>Reason</dt><dd><${Text} value=${section.reason} first=${400} plain /></dd>`}
    ${opened && html`<dt>Opened</dt><dd>after turn ${opened.turn}, ${opened.route || opened.action}</dd>`}
    <dt>Tokens</dt><dd>${count(section.shown_tokens)} shown, ${count(section.hidden_tokens)} hidden; ${count(section.full_tokens)} in full${section.tool_tokens ? `, of which ${count(section.tool_tokens)} for ${plural(section.tools.length, "tool")}` : ""}</dd>
    ${section.tools.length > 0 && html`<dt>Tools</dt><dd>${section.tools.map((name) => html`<code class=${classes("tool", !section.tools_offered.includes(name) && "off")}>${visible(name)}</code> `)}</dd>`}
  </dl>`;
}

const sum = (sections, name) => sections.reduce((total, section) => total + section[name], 0);
