// What disclosure saved and what it cost: tokens sent against those of the full prompt, turn by turn and by section.

import { useState } from "preact/hooks";
import { Chart } from "wink/chart.js";
import { classes, count, percent, signed } from "wink/format.js";
import { go, toTurn } from "wink/state.js";
import { visible } from "wink/text.js";
import { Empty, html } from "wink/view.js";

export function Ledger({ whole }) {
  const { ledger, turns, run } = whole;
  const [summed, setSummed] = useState(true);
  if (!turns.n.length) return html`<${Empty} title="No turns yet"><p>The ledger begins with the first call of the model.</p><//>`;
  const grow = (values) => (summed ? running(values) : values);
  const lines = [
    { name: "Full prompt", kind: "full", values: grow(turns.full), dashed: true },
    { name: "Sent", kind: "sent", values: grow(turns.input) },
    { name: "Cached", kind: "cached", values: grow(turns.cached), area: true },
  ];
  const most = Math.max(1, ...ledger.sections.map((section) => Math.max(section.sent_tokens, section.full_prompt_tokens)));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Ledger">
    <div class="tiles">
      <${Tile} name="Sent" value=${count(ledger.sent)} note=${`${percent(ledger.cached, ledger.sent)} of it from the cache`} />
      <${Tile} name="Full prompt would send" value=${count(ledger.full)} note="everything open from the start, no turns to open sections" />
      <${Tile} name="Saved" value=${signed(ledger.saved)} kind=${ledger.saved < 0 ? "bad" : "good"}
        note=${ledger.saved < 0 ? "disclosure cost more than it saved here" : `${percent(ledger.saved, ledger.full)} of the full prompt`} />
      <${Tile} name="Cache lost" value=${count(ledger.lost)} kind=${ledger.lost ? "warn" : ""}
        note=${Object.entries(ledger.lost_by_route).map(([route, tokens]) => `${count(tokens)} by ${route}`).join(", ") || "no request changed its beginning"} />
      ${ledger.ranked ? html`<${Tile} name="Ranked" value=${count(ledger.ranked)} note=${`read by the model that ranks sections, for $${ledger.ranking_cost.toFixed(4)}`} />` : ""}
    </div>
    <section class="card">
      <div class="card-head"><h2>Input tokens</h2>
        <div class="segments" role="group" aria-label="Sum"><button class=${summed ? "on" : ""} onClick=${() => setSummed(true)}>Summed up</button><button class=${summed ? "" : "on"} onClick=${() => setSummed(false)}>Per turn</button></div></div>
      <${Chart} lines=${lines} label="Turn" onPick=${(at) => go(toTurn(run.run_id, at + 1))} />
    </section>
    <section class="card">
      <h2>By section</h2>
      <p class="quiet">Tokens over all turns, tools included: sent in this run, and in the run with everything open.</p>
      <div class="sheet" role="table" aria-label="Sections" tabindex="0">
        <div class="sheet-row head" role="row"><span role="columnheader">Section</span><span role="columnheader" class="n">Opened</span><span role="columnheader" class="n">Tools used</span><span role="columnheader" class="n">Sent</span><span role="columnheader" class="n">Full prompt</span><span role="columnheader" class="n">Saved</span><span role="columnheader"><span class="hush">Share</span></span></div>
        ${ledger.sections.map((section) => html`<div class="sheet-row" role="row">
          <span role="cell" class="ellipsis"><a title=${section.key} href=${toTurn(run.run_id, 1, { section: section.key })}>${visible(section.key)}</a></span>
          <span role="cell" class="n">${section.opened ? count(section.opened) : "–"}</span><span role="cell" class="n">${section.tools_used ? count(section.tools_used) : "–"}</span>
          <span role="cell" class="n">${count(section.sent_tokens)}</span><span role="cell" class="n">${count(section.full_prompt_tokens)}</span>
          <span role="cell" class=${classes("n", section.saved < 0 ? "bad" : section.saved > 0 ? "good" : "")}>${signed(section.saved)}</span>
          <span role="cell" class="pair"><i class="sent" style=${{ width: `${(100 * section.sent_tokens) / most}%` }}></i><i class="full" style=${{ width: `${(100 * section.full_prompt_tokens) / most}%` }}></i></span>
        </div>`)}
      </div>
    </section>
  </div>`;
}

function Tile({ name, value, note, kind = "" }) {
  return html`<div class="tile"><span>${name}</span><strong class=${kind}>${value}</strong><small>${note}</small></div>`;
}

// A turn that the full prompt would not have needed adds nothing.
function running(values) {
  let total = 0;
  return values.map((value) => (total += value ?? 0));
}
