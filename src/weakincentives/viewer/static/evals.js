// Evaluations: the list, the cases of one, and two side by side; each row leads to its run.

import { useEffect } from "preact/hooks";
import { api, changes } from "wink/api.js";
import { PromptChange } from "wink/compare.js";
import { classes, count, duration, moment, money, oneLine, plural } from "wink/format.js";
import { entitle, go, link, route, setParams, toTurn } from "wink/state.js";
import { visible } from "wink/text.js";
import { Empty, Pill, Shown, html, useDocument } from "wink/view.js";

const KINDS = { passed: "good", failed: "bad", diverged: "warn", unscored: "warn" };

export function Evals() {
  const { a = "", b = "", only = "" } = route.value.params;
  const list = useDocument(() => api.evals(), [changes.value]);
  useEffect(() => entitle("Evals"), []);
  const found = list.document?.evaluations ?? [];
  const set = (chosen) => go(link("evals", [], { a, b, only, ...chosen }), { replace: true });
  return html`<section class="page scroll" tabindex="0" aria-label="Evaluations">
    <div class="page-head compare-head">
      <h1>Evals</h1>
      <${Pick} name="Evaluation" none="All evaluations" value=${b} found=${found} onChange=${(value) => set({ b: value })} />
      ${b && html`<span class="quiet">compared with</span><${Pick} name="Compared with" none="Nothing" value=${a} found=${found.filter((one) => one.id !== b)} onChange=${(value) => set({ a: value })} />`}
      ${b && html`<label class="only"><input type="checkbox" checked=${only === "changed"} onChange=${(event) => setParams({ only: event.target.checked ? "changed" : "" })} /> ${a ? "only changed" : "only not passed"}</label>`}
    </div>
    ${b && a
      ? html`<${Two} key=${`${a} ${b}`} a=${a} b=${b} only=${only} />`
      : b
        ? html`<${One} key=${b} id=${b} only=${only} />`
        : html`<${Shown} of=${list}>${(all) => html`<${List} found=${all.evaluations} set=${set} />`}<//>`}
  </section>`;
}

function Pick({ name, none, value, found, onChange }) {
  return html`<select aria-label=${name} value=${value} onChange=${(event) => onChange(event.target.value)}>
    <option value="">${none}</option>
    ${found.map((one) => html`<option value=${one.id}>${visible(one.name)} · ${visible(one.variant)} · ${visible(one.model)} · ${moment(one.started)}</option>`)}
  </select>`;
}

function List({ found }) {
  if (!found.length) return html`<${Empty} title="No evaluations yet"><p>Run a prompt on cases with <code>wink eval run CASES module:prompt</code>.</p><//>`;
  return html`<section class="card"><div class="card-head"><h2>Evaluations</h2><span class="quiet">${plural(found.length, "evaluation")}, newest first</span></div>
    <div class="sheet evals" role="table" aria-label="Evaluations" tabindex="0">
      <div class="sheet-row head" role="row"><span role="columnheader">Name and prompt</span><span role="columnheader">Model</span><span role="columnheader" class="n">Passed</span><span role="columnheader" class="n">Not scored</span><span role="columnheader" class="n">Mean</span><span role="columnheader" class="n">Cost</span><span role="columnheader">Started</span></div>
      ${found.map((one) => html`<div class="sheet-row" role="row">
        <span role="cell" class="case"><span class="ellipsis"><a href=${link("evals", [], { b: one.id })}>${visible(one.name)}</a></span><small class="ellipsis" title=${visible(one.overridden.join(", "))}>${visible(one.variant)}</small></span>
        <span role="cell" class="ellipsis">${visible(one.model)}</span>
        <span role="cell" class="n">${count(one.passed)} of ${count(one.cases * one.repeats)}<span class="unit"> passed</span></span>
        <${Number} value=${one.diverged + one.unscored || null} shown=${count} unit=" not scored" />
        <${Number} value=${one.mean} shown=${(mean) => mean.toFixed(2)} before="mean " />
        <${Number} value=${one.cost} shown=${money} />
        <span role="cell">${moment(one.started)}${one.finished ? "" : " (not finished)"}</span>
      </div>`)}
    </div></section>`;
}

function One({ id, only }) {
  const loaded = useDocument(() => api.evaluation(id), [id, changes.value]);
  return html`<${Shown} of=${loaded}>${(one) => {
    const rows = one.results.filter((result) => !only || result.verdict !== "passed");
    return html`<${Tiles} about=${one} />
      <section class="card"><div class="card-head"><h2>Cases</h2><span class="quiet">${plural(rows.length, "result")}, scored by ${one.scorers.map(visible).join(", ")}</span></div>
      <div class="sheet cases" role="table" aria-label="Cases" tabindex="0">
        <div class="sheet-row head" role="row"><span role="columnheader">Case</span><span role="columnheader">Verdict</span><span role="columnheader" class="n">Score</span><span role="columnheader" class="n">Tokens</span><span role="columnheader" class="n">Cost</span><span role="columnheader" class="n">Time</span><span role="columnheader">Reason or answer</span></div>
        ${rows.map((result) => html`<div class="sheet-row" role="row">
          <${Case} of=${result} name=${named(result, one.repeats)} />
          <span role="cell"><${Verdict} of=${result} /></span>
          <${Number} value=${result.score} shown=${(score) => score.toFixed(2)} before="score " />
          <${Number} value=${result.tokens} shown=${count} unit=" tokens" />
          <${Number} value=${result.cost} shown=${money} />
          <${Number} value=${result.seconds} shown=${duration} />
          <span role="cell" class="ellipsis" title=${visible(result.reason || result.answer)}>${visible(oneLine(result.reason || result.answer))}</span>
        </div>`)}
      </div></section>`;
  }}<//>`;
}

function Two({ a, b, only }) {
  const loaded = useDocument(() => api.comparison(a, b), [a, b, changes.value]);
  return html`<${Shown} of=${loaded}>${(both) => {
    const rows = both.rows.filter((row) => !only || row.changed);
    const pair = mostAlike(both.rows);
    return html`<section class="card" aria-label="Comparison"><h2>${visible(both.after.name)} compared with ${visible(both.before.name)}</h2>
        <div class="tiles"><${Changes} both=${both} /></div>
        ${both.text.map((line) => html`<p>${visible(line).replace(/-(?=\d)/g, "−")}</p>`)}
      </section>
      ${!both.same_prompt && pair && html`<${PromptChange} key=${pair.case_id} before=${pair.before} after=${pair.after} />`}
      <section class="card"><div class="card-head"><h2>Cases</h2><span class="quiet">${plural(rows.length, "case")}</span></div>
      ${rows.length === 0 && html`<p class="quiet">No verdict changed.</p>`}
      <div class="sheet pairs" role="table" aria-label="Cases" tabindex="0">
        <div class="sheet-row head" role="row"><span role="columnheader">Case</span><span role="columnheader">Before</span><span role="columnheader">After</span><span role="columnheader">Opened before</span><span role="columnheader">Opened after</span><span role="columnheader">Answer before</span><span role="columnheader">Answer after</span><span role="columnheader"></span></div>
        ${rows.map((row) => html`<div class=${classes("sheet-row", row.regressed && "regressed")} role="row">
          <${Case} of=${row.after ?? row.before} name=${visible(row.case_id)} />
          ${[row.before, row.after].map((result) => html`<span role="cell">${result ? html`<${Verdict} of=${result} linked /> ` : "–"}</span>`)}
          ${[row.before, row.after].map((result) => html`<span role="cell" class="ellipsis">${visible((result?.opened ?? []).join(", ")) || "–"}</span>`)}
          ${[row.before, row.after].map((result) => html`<span role="cell" class="ellipsis" title=${visible(result?.reason || result?.answer || "")}>${visible(oneLine(result?.answer || result?.reason || "–"))}</span>`)}
          <span role="cell">${row.before?.turns && row.after?.turns ? html`<a href=${link("compare", [], { a: `${row.before.run_id}:${row.before.turns}`, b: `${row.after.run_id}:${row.after.turns}` })}>difference</a>` : ""}</span>
        </div>`)}
      </div></section>`;
  }}<//>`;
}

// The case in which both evaluations opened most of the same sections, whose texts can then be compared.
function mostAlike(rows) {
  const shared = (row) => row.before.opened.filter((key) => row.after.opened.includes(key)).length;
  return rows.filter((row) => row.before?.turns && row.after?.turns).sort((one, other) => shared(other) - shared(one))[0];
}

// Each figure before and after; tokens, cost and time are means per case.
function Changes({ both }) {
  const { before, after } = both;
  const figures = [["Passed", { before: before.passed, after: after.passed }, count], ["Tokens per case", both.tokens, count], ["Cost per case", both.cost, money], ["Time per case", both.seconds, duration]];
  return figures.filter(([, change]) => change.before != null && change.after != null).map(([name, change, shown]) => html`<div class="tile"><span>${name}</span><strong>${shown(change.after)}</strong><small>${shown(change.before)} before</small></div>`);
}

// A cell with a number; in a narrow window its unit stands beside it, and an unknown one is left out.
function Number({ value, shown, before = "", unit = "" }) {
  return html`<span role="cell" class=${classes("n", value == null && "none")}>${value == null ? "–" : html`<span class="unit">${before}</span>${shown(value)}<span class="unit">${unit}</span>`}</span>`;
}

function Case({ of, name }) {
  return html`<span role="cell" class="case"><span class="ellipsis">${name}</span><small class="ellipsis" title=${visible(of.question)}>${visible(oneLine(of.question))}</small></span>`;
}

function Tiles({ about }) {
  const spent = about.cost == null ? `${count(about.tokens)} tokens` : money(about.cost);
  const judges = about.cost && about.judge_cost ? `, ${money(about.judge_cost)} for judges` : "";
  return html`<div class="tiles">
    <div class="tile"><span>Passed</span><strong>${count(about.passed)}</strong><small>of ${count(about.cases * about.repeats)}${about.finished ? "" : ", not finished"}</small></div>
    <div class="tile"><span>Prompt</span><strong class="ellipsis" title=${visible(about.overridden.join(", "))}>${visible(about.variant)}</strong><small>${visible(about.prompt)}</small></div>
    <div class="tile"><span>Mean</span><strong>${about.mean == null ? "–" : about.mean.toFixed(2)}</strong><small>${[["diverged", about.diverged], ["unscored", about.unscored]].filter(([, many]) => many).map(([what, many]) => `${count(many)} ${what}`).join(", ") || "all cases scored"}</small></div>
    <div class="tile"><span>Spent</span><strong>${spent}</strong><small>${visible(about.model)}, ${visible(about.tools)} tools${judges}</small></div>
  </div>`;
}

function Verdict({ of, linked }) {
  const pill = html`<${Pill} kind=${KINDS[of.verdict]}>${of.verdict}<//>`;
  return linked && of.turns ? html`<a href=${toTurn(of.run_id, of.turns)}>${pill}</a>` : pill;
}

const named = (result, repeats) => {
  const name = `${visible(result.case_id)}${repeats > 1 ? ` (${result.repeat + 1})` : ""}`;
  return result.turns ? html`<a href=${toTurn(result.run_id)}>${name}</a>` : name;
};
