// How the prompt opened: every section over all turns, and each step with its reason and route.

import { plural } from "wink/format.js";
import { toTurn } from "wink/state.js";
import { Text, visible } from "wink/text.js";
import { Empty, Icon, Some, html, useWidth } from "wink/view.js";

const ROW = 24;
const NAMES = { open: "Opened", close: "Closed", collapsed: "Closed", injected: "Tools added", withdrawn: "Tools withdrawn", restart: "Restarted", compacted: "Shortened the conversation" };
const ROUTES = {
  "tool result": "text came back as the tool's result",
  file: "text was written to a file of the workspace",
  halt: "the evaluation ended here, and its caller opens it",
  restart: "the run started again with it open",
  additional_tools: "tools added in the conversation; the cache holds",
  tool_addition: "tools added in the conversation; the cache holds",
  append: "tools appended to the list; the cached prefix ends before them",
};

export function Timeline({ whole }) {
  const { steps, lanes, turns, run } = whole;
  if (!lanes.length) return html`<${Empty} title="No tree was recorded"><p>This run has no rendered prompt yet.</p><//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Disclosure">
    <section class="card">
      <h2>Sections, turn by turn</h2>
      <p class="quiet">What each section showed when the model was called. ${legend()}</p>
      <${Lanes} lanes=${lanes} turns=${turns} id=${run.run_id} />
    </section>
    <section class="card">
      <h2>Steps</h2>
      ${steps.length === 0
        ? html`<p class="quiet">Nothing was opened or closed in this run.</p>`
        : html`<ol class="steps-list">${html`<${Some} of=${steps} first=${200} each=${(step) => html`<${Step} step=${step} id=${run.run_id} last=${turns.n.length} />`} />`}</ol>`}
    </section>
  </div>`;
}

const legend = () =>
  ["full", "read", "summary", "hidden"].map((state) => html`<span class=${`key ${state}`}><i></i>${{ full: "in full", read: "read in the conversation", summary: "summary", hidden: "not seen" }[state]}</span>`);

function Lanes({ lanes, turns, id }) {
  const [place, width] = useWidth();
  const total = turns.n.length;
  const names = Math.min(220, Math.max(120, width * 0.24));
  const wide = total ? Math.min(140, (width - names) / total) : 0;
  const tall = lanes.length * ROW;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((step) => step * wide >= 26) ?? 10000;
  return html`<div class="lanes" ref=${place}>${width > 0 && html`<svg width=${width} height=${tall + 24}>
    ${lanes.map((lane, at) => {
      const depth = lane.key.split(".").length - 1;
      return html`<g transform=${`translate(0 ${at * ROW})`}>
        <text class="lane-name" x=${depth * 12} y=${ROW / 2 + 4}>${shortened(visible(lane.title), Math.floor((names - depth * 12) / 7))}<title>${visible(lane.key)}</title></text>
        ${lane.states.map(([from, state, by], index) => {
          const to = lane.states[index + 1]?.[0] ?? total + 1;
          return html`<a href=${toTurn(id, from, { section: lane.key })}><rect class=${`lane ${state}`} x=${names + (from - 1) * wide + 1} y="4" rx="3"
            width=${Math.max(1, (to - from) * wide - 2)} height=${ROW - 8}><title>${`${lane.key}: ${state} from turn ${from}${to - 1 > from ? ` to ${to - 1}` : ""}, decided by ${by}`}</title></rect></a>`;
        })}
      </g>`;
    })}
    ${turns.n.filter((n) => n === 1 || n % every === 0).map((n) => html`<text class="tick" x=${names + (n - 0.5) * wide} y=${tall + 16}>${n}</text>`)}
    ${turns.attempt.map((attempt, index) => index > 0 && attempt !== turns.attempt[index - 1] && html`<line class="restart" x1=${names + index * wide} x2=${names + index * wide} y1="0" y2=${tall} />`)}
  </svg>`}</div>`;
}

function Step({ step, id, last }) {
  const icon = ["withdrawn", "close", "collapsed"].includes(step.kind) ? "cross" : step.route === "restart" ? "restart" : step.tools.length ? "tool" : "open";
  return html`<li class=${step.success ? "" : "failed"}>
    <a class="at" href=${toTurn(id, Math.max(1, Math.min(step.turn, last)), { section: step.sections[0] })}>Turn ${step.turn}</a>
    <span class="dot"><${Icon} name=${icon} /></span>
    <div>
      <p><strong title=${visible(step.action)}>${step.kind === "open" && step.route === "tool result" ? "Read" : NAMES[step.kind]}</strong> ${step.sections.map((key) => html`<a class="section-link" href=${toTurn(id, Math.min(step.turn + 1, last), { section: key })}>${visible(key)}</a> `)}
        ${!step.success && html`<span class="pill bad">refused</span>`}
        ${step.route && html`<span class=${`pill ${step.route === "restart" ? "warn" : ""}`} title=${ROUTES[step.route]}>${step.route}</span>`}</p>
      ${step.tools.length > 0 && html`<p class="small">${plural(step.tools.length, "tool")}: ${step.tools.map((name) => html`<code class="tool">${visible(name)}</code> `)}</p>`}
      ${(step.reason || step.said) && html`<p class="small quiet">${step.reason ? "" : "said: "}“<${Text} value=${step.reason || step.said} first=${400} plain />”</p>`}
    </div>
  </li>`;
}

const shortened = (text, length) => (text.length > length ? `${text.slice(0, Math.max(1, length - 1))}…` : text);
