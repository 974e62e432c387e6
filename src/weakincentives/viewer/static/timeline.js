// How the prompt opened: every section that moved over all turns, and beside it each step with its reason and route.

import { useState } from "preact/hooks";
import { plural } from "wink/format.js";
import { toTurn } from "wink/state.js";
import { Term } from "wink/terms.js";
import { Text, visible } from "wink/text.js";
import { Empty, Icon, Some, html, useWidth } from "wink/view.js";

const ROW = 24;
const FEWEST = 3;
const NAMES = { open: "Opened", close: "Closed", collapsed: "Closed", injected: "Tools added", withdrawn: "Tools withdrawn", restart: "Restarted", compacted: "Shortened the conversation" };
const MARKS = { rewound: "undo", restored: "restart", asked: "alert", decided: "check", inside: "open" };
const STATES = { full: "in full", read: "read in the conversation", summary: "summary", hidden: "not seen" };

export function Timeline({ whole }) {
  const { lanes, turns, run, marks } = whole;
  const [all, setAll] = useState(false);
  if (!lanes.length) return html`<${Empty} title="No tree was recorded"><p>This run has no rendered prompt yet.</p><//>`;
  const still = lanes.filter((lane) => lane.states.length < 2);
  const folds = still.length >= FEWEST;
  const shown = folds && !all ? lanes.filter((lane) => lane.states.length > 1) : lanes;
  return html`<div class="scroll disclosure" tabindex="0" role="region" aria-label="Disclosure">
    <section class="card">
      <h2>Sections, turn by turn</h2>
      <p class="quiet">What each section showed when the model was called. ${legend()}</p>
      ${shown.length > 0 && html`<${Lanes} lanes=${shown} turns=${turns} id=${run.run_id} marks=${marks} undone=${whole.undone_from} />`}
      ${folds && html`<button class="more wide" aria-expanded=${all} onClick=${() => setAll(!all)}>${all ? "Fold those that did not change" : `${plural(still.length, "section")} did not change: ${tally(still)}`}</button>`}
    </section>
    <section class="card"><h2>Steps</h2><${Steps} whole=${whole} /></section>
  </div>`;
}

const legend = () => Object.entries(STATES).map(([state, label]) => html`<span class=${`key ${state}`}><i></i>${label}</span>`);

function tally(lanes) {
  const many = {};
  for (const lane of lanes) many[lane.states[0][1]] = (many[lane.states[0][1]] ?? 0) + 1;
  return Object.entries(many).map(([state, n]) => `${n} ${STATES[state]}`).join(", ");
}

function Lanes({ lanes, turns, id, marks, undone }) {
  const [place, width] = useWidth();
  const total = turns.n.length;
  const names = Math.min(220, Math.max(110, width * 0.24));
  const wide = total ? Math.min(140, (width - names) / total) : 0;
  const tall = lanes.length * ROW;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((step) => step * wide >= 26) ?? 10000;
  return html`<div class="lanes" ref=${place}>${width > 0 && html`<svg width=${width} height=${tall + 24}>
    ${lanes.map((lane, at) => {
      const parent = lane.key.split(".").slice(0, -1).join(".");
      const depth = !parent || lanes.some((one) => one.key === parent) ? lane.key.split(".").length - 1 : 0;
      const title = parent && !depth ? `${parent} › ${lane.title}` : lane.title;
      return html`<g transform=${`translate(0 ${at * ROW})`}>
        <text class="lane-name" x=${depth * 12} y=${ROW / 2 + 4}>${shortened(visible(title), Math.floor((names - depth * 12) / 7))}<title>${visible(lane.key)}</title></text>
        ${lane.states.map(([from, state, by], index) => {
          const to = lane.states[index + 1]?.[0] ?? total + 1;
          const x = names + (from - 1) * wide + 1;
          const opens = index > 0 && ["full", "read"].includes(state) && !["full", "read"].includes(lane.states[index - 1][1]);
          return html`<a href=${toTurn(id, from, { section: lane.key })}><rect class=${`lane ${state}`} x=${x} y="4" rx="3"
            width=${Math.max(1, (to - from) * wide - 2)} height=${ROW - 8}><title>${`${lane.key}: ${STATES[state]} from turn ${from}${to - 1 > from ? ` to ${to - 1}` : ""}, decided by ${by}`}</title></rect>
            ${opens && html`<path class="opens-here" d=${`M${x} 1v${ROW - 2}`} />`}</a>`;
        })}
      </g>`;
    })}
    ${turns.n.filter((n) => n === 1 || n % every === 0).map((n) => html`<text class="tick" x=${names + (n - 0.5) * wide} y=${tall + 16}>${n}</text>`)}
    ${turns.attempt.map((attempt, index) => index > 0 && attempt !== turns.attempt[index - 1] && html`<line class="restart" x1=${names + index * wide} x2=${names + index * wide} y1="0" y2=${tall} />`)}
    ${marks.filter((mark) => mark.kind === "compacted").map((mark) => html`<line class="compacted" x1=${names + mark.turn * wide} x2=${names + mark.turn * wide} y1="0" y2=${tall}><title>${`Shortened the conversation ${mark.text}`}</title></line>`)}
    ${undone != null && undone <= total && html`<rect class="undone-turns" x=${names + (Math.max(1, undone) - 1) * wide} y="0" width=${(total - Math.max(1, undone) + 1) * wide} height=${tall}><title>The conversation went back to before these turns</title></rect>`}
  </svg>`}</div>`;
}

// The steps of disclosure, and what else happened to the conversation, in order.
function Steps({ whole }) {
  const { steps, marks, turns, run } = whole;
  const others = marks.filter((mark) => mark.kind !== "compacted").map((mark) => ({ ...mark, mark: true }));
  const all = [...steps, ...others].sort((one, other) => one.seq - other.seq);
  const last = turns.n.length;
  if (!all.length) return html`<p class="quiet">Nothing was opened or closed in this run.</p>`;
  return html`<ol class="steps-list"><${Some} of=${all} first=${200} each=${(step) => (step.mark ? html`<${Mark} mark=${step} id=${run.run_id} last=${last} />` : html`<${Step} step=${step} id=${run.run_id} last=${last} />`)} /></ol>`;
}

function Mark({ mark, id, last }) {
  return html`<li><a class="at" href=${toTurn(id, Math.max(1, Math.min(mark.turn, last)))}>Turn ${Math.max(1, mark.turn)}</a>
    <span class="dot mark"><${Icon} name=${MARKS[mark.kind]} /></span><div><p>${visible(mark.text)}</p></div></li>`;
}

function Step({ step, id, last }) {
  const icon = step.kind === "compacted" ? "fold" : ["withdrawn", "close", "collapsed"].includes(step.kind) ? "cross" : step.route === "restart" ? "restart" : step.tools.length ? "tool" : "open";
  return html`<li class=${step.success ? "" : "failed"}>
    <a class="at" href=${toTurn(id, Math.max(1, Math.min(step.turn, last)), { section: step.sections[0] })}>Turn ${step.turn}</a>
    <span class="dot"><${Icon} name=${icon} /></span>
    <div>
      <p><strong title=${visible(step.action)}>${NAMES[step.kind]}</strong> ${step.sections.map((key) => html`<a class="section-link" href=${toTurn(id, Math.min(step.turn + 1, last), { section: key })}>${visible(key)}</a> `)}
        ${!step.success && html`<span class="pill bad">refused</span>`}
        ${step.route && step.kind !== "compacted" && html`<span class=${`pill ${step.route === "restart" ? "warn" : ""}`}><${Term} name=${step.route}>${step.route}<//></span>`}</p>
      ${step.tools.length > 0 && html`<p class="small">${plural(step.tools.length, "tool")}: ${step.tools.map((name) => html`<code class="tool">${visible(name)}</code> `)}</p>`}
      ${(step.reason || step.said) && html`<p class="small quiet">${step.kind === "compacted" ? visible(step.reason) : html`${step.reason ? "" : "said: "}“<${Text} value=${step.reason || step.said} first=${400} plain />”`}</p>`}
    </div>
  </li>`;
}

const shortened = (text, length) => (text.length > length ? `${text.slice(0, Math.max(1, length - 1))}…` : text);
