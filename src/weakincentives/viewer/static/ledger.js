// What disclosure saved and what it cost: in money, in tokens turn by turn, and by section.

import { useState } from "preact/hooks";
import { Chart } from "wink/chart.js";
import { classes, count, money, percent, plural, signed } from "wink/format.js";
import { go, toTurn } from "wink/state.js";
import { Term } from "wink/terms.js";
import { visible } from "wink/text.js";
import { Empty, html } from "wink/view.js";

export function Ledger({ whole }) {
  const { ledger, turns, run } = whole;
  const [summed, setSummed] = useState(true);
  if (!turns.n.length) return html`<${Empty} title="No turns yet"><p>The ledger begins with the first call of the model.</p><//>`;
  const grow = (values) => (summed ? running(values) : values);
  const cached = ledger.cached > 0;
  const lines = [
    { name: "With everything open", kind: "full", values: grow(turns.full), dashed: true },
    { name: "Sent", kind: "sent", values: grow(turns.input) },
    ...(cached ? [{ name: "Cached", kind: "cached", values: grow(turns.cached), area: true }] : []),
  ];
  const opening = turns.n.filter((_, index) => turns.full[index] == null);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Ledger">
    <${Tiles} whole=${whole} needed=${turns.n.length - opening.length} />
    <section class="card">
      <div class="card-head"><h2>Input tokens</h2>
        <div class="segments" role="group" aria-label="Sum"><button class=${summed ? "on" : ""} onClick=${() => setSummed(true)}>Summed up</button><button class=${summed ? "" : "on"} onClick=${() => setSummed(false)}>Per turn</button></div></div>
      ${opening.length > 0 && html`<p class="quiet">${listed(opening)} only opened sections; with everything open there would be no such ${opening.length === 1 ? "turn" : "turns"}.</p>`}
      <${Chart} lines=${lines} label="Turn" onPick=${(at) => go(toTurn(run.run_id, at + 1))} />
    </section>
    <${Sections} whole=${whole} needed=${turns.n.length - opening.length} />
  </div>`;
}

function Tiles({ whole, needed }) {
  const { ledger, turns, bill } = whole;
  const cached = ledger.cached > 0;
  const lost = Object.entries(ledger.lost_by_route).map(([route, tokens]) => `${count(tokens)} by ${route}`).join(", ");
  return html`<div class="tiles">
    ${bill && html`<${Tile} name="Cost" value=${money(bill.cost)} kind=${Math.abs(bill.open_cost - bill.cost) < 0.01 * bill.cost ? "" : bill.cost > bill.open_cost ? "bad" : "good"}
      note=${`would have cost ${money(bill.open_cost)} with everything open${cached ? ", its cache included" : ""}`} />`}
    <${Tile} name="Sent" value=${count(ledger.sent)} note=${`tokens in ${plural(turns.n.length, "request")}; ${cached ? `${percent(ledger.cached, ledger.sent)} of them from the cache` : "no cache was reported"}`} />
    <${Tile} name=${html`<${Term} name="with everything open">With everything open<//>`} value=${count(ledger.full)} note=${`tokens in ${plural(needed, "request")}, tools included`} />
    <${Tile} name="Saved" value=${signed(ledger.saved)} kind=${ledger.saved < 0 ? "bad" : "good"}
      note=${ledger.saved < 0 ? "tokens: disclosure cost more than it saved here" : `tokens, ${percent(ledger.saved, ledger.full)} of those with everything open`} />
    ${cached && html`<${Tile} name="Cache lost" value=${count(ledger.lost)} kind=${ledger.lost ? "warn" : ""} note=${lost || "no request changed its beginning"} />`}
    ${ledger.ranked > 0 && html`<${Tile} name="Ranked" value=${count(ledger.ranked)} note=${`tokens read by the model that ranks sections, for ${money(ledger.ranking_cost)}`} />`}
  </div>`;
}

// In an average request, so that sections that are always open show no difference however many turns there were.
function Sections({ whole, needed }) {
  const { ledger, turns, run } = whole;
  const rows = ledger.sections.map((section) => {
    const sent = section.sent_tokens / turns.n.length;
    const full = needed ? section.full_prompt_tokens / needed : section.full_tokens;
    return { ...section, sent, full, less: Math.round(full) - Math.round(sent) };
  });
  const most = Math.max(1, ...rows.map((section) => Math.max(section.sent, section.full)));
  return html`<section class="card">
    <h2>By section, in an average request</h2>
    <p class="quiet">Tokens with the section's tools: what this run sent, and what it would send with everything open.</p>
    <div class="sheet" role="table" aria-label="Sections" tabindex="0">
      <div class="sheet-row head" role="row"><span role="columnheader">Section</span><span role="columnheader" class="n">Opened</span><span role="columnheader" class="n">Tools used</span><span role="columnheader" class="n">Sent</span><span role="columnheader" class="n">Open</span><span role="columnheader" class="n">Less</span><span role="columnheader"><span class="hush">Share</span></span></div>
      ${rows.map((section) => html`<div class="sheet-row" role="row">
        <span role="cell" class="ellipsis"><a title=${section.key} href=${toTurn(run.run_id, 1, { section: section.key })}>${visible(section.key)}</a></span>
        <span role="cell" class="n">${section.opened ? count(section.opened) : "–"}</span><span role="cell" class="n">${section.tools_used ? count(section.tools_used) : "–"}</span>
        <span role="cell" class="n">${count(section.sent)}</span><span role="cell" class="n">${count(section.full)}</span>
        <span role="cell" class=${classes("n", section.less < 0 ? "bad" : section.less > 0 ? "good" : "")}>${section.less ? signed(section.less) : "–"}</span>
        <span role="cell" class="pair"><i class="sent" style=${{ width: `${(100 * section.sent) / most}%` }}></i><i class="full" style=${{ width: `${(100 * section.full) / most}%` }}></i></span>
      </div>`)}
    </div>
  </section>`;
}

function Tile({ name, value, note, kind = "" }) {
  return html`<div class="tile"><span>${name}</span><strong class=${kind}>${value}</strong><small>${note}</small></div>`;
}

// "Turns 1, 3 and 7"; of many, the first few.
function listed(turns) {
  if (turns.length === 1) return `Turn ${turns[0]}`;
  if (turns.length > 8) return `${count(turns.length)} turns (${turns.slice(0, 5).join(", ")}, …)`;
  return `Turns ${turns.slice(0, -1).join(", ")} and ${turns.at(-1)}`;
}

// A turn that would not be needed with everything open has no value.
function running(values) {
  let total = 0;
  return values.map((value) => (value == null ? null : (total += value)));
}
