// The list of runs.

import { useEffect, useState } from "preact/hooks";
import { api, changes } from "wink/api.js";
import { count, duration, moment, money, percent, plural, short } from "wink/format.js";
import { useShortcuts } from "wink/keys.js";
import { entitle, go, link, route, setParams } from "wink/state.js";
import { visible } from "wink/text.js";
import { Empty, Shown, Status, html, useDocument, useTaken } from "wink/view.js";
import { Rows } from "wink/rows.js";

const STATUSES = ["", "running", "ok", "failed", "halted", "interrupted"];
const NAMES = { "": "All", ok: "Answered", running: "Running", failed: "Failed", halted: "Halted", interrupted: "Interrupted" };
const PAGE = 100;

export function Runs() {
  const { q = "", status = "" } = route.value.params;
  const [words, setWords] = useState(q);
  const [selected, select] = useState(-1);
  const first = useDocument(() => api.runs({ q, status, limit: PAGE }), [q, status, changes.value]);
  useEffect(() => entitle(), []);
  useEffect(() => setWords(q), [q]);
  useEffect(() => {
    const timer = setTimeout(() => words !== q && setParams({ q: words }), 200);
    return () => clearTimeout(timer);
  }, [words]);
  const total = first.document?.total ?? 0;
  const move = (step) => () => select((at) => Math.max(0, Math.min(total - 1, at + step)));
  useShortcuts({
    j: move(1),
    k: move(-1),
    ArrowDown: move(1),
    ArrowUp: move(-1),
    Enter: () => document.querySelector(".run-row.selected")?.click(),
  });
  return html`<section class="page runs">
    <div class="page-head">
      <h1>Runs</h1>
      <span class="quiet">${first.document && `${count(total)} in ${first.document.file}`}</span>
      <div class="spacer"></div>
      <input class="filter" type="search" placeholder="Filter by prompt, model, words…" aria-label="Filter runs"
        value=${words} onInput=${(event) => setWords(event.target.value)} />
      <div class="segments" role="group" aria-label="Status">
        ${STATUSES.map(
          (one) => html`<button class=${one === status ? "on" : ""} aria-pressed=${one === status}
            onClick=${() => setParams({ status: one })}>${NAMES[one]}</button>`,
        )}
      </div>
    </div>
    <${Shown} of=${first}>${(list) =>
      list.total === 0 ? html`<${Nothing} filtered=${q || status} />` : html`<div class="table" role="table" aria-label="Runs">
        <div class="run-row head" role="row">
          <span>Prompt</span><span>Status</span><span>Model</span><span class="n">Turns</span><span class="n">Tools</span>
          <span class="n">Opened</span><span class="n">Input</span><span class="n">Cached</span><span class="n">Output</span>
          <span class="n">Cost</span><span class="n">Time</span><span class="n">Started</span>
        </div>
        <${Rows} key=${`${q} ${status}`} total=${list.total} height=${52} page=${PAGE} version=${changes.value} selected=${selected}
          load=${async (offset) => (await api.runs({ q, status, offset, limit: PAGE })).runs}
          row=${(run, index) => html`<${Row} run=${run} selected=${index === selected} />`} />
      </div>`}<//>
  </section>`;
}

function Row({ run, selected }) {
  const usage = run.usage;
  return html`<a class=${`run-row ${selected ? "selected" : ""}`} role="row" href=${link("run", [run.run_id])}
    onClick=${(event) => {
      event.preventDefault();
      go(link("run", [run.run_id]));
    }}>
    <span class="name"><strong>${visible(run.prompt_name || run.prompt || "unnamed")}</strong><small class=${run.error ? "bad" : ""}>${visible(run.error || run.run_id)}</small></span>
    <span><${Status} status=${run.status} /></span>
    <span class="name"><span>${visible(run.model)}</span><small>${visible(run.adapter)}</small></span>
    <span class="n">${count(run.turns)}</span>
    <span class="n">${count(run.tool_calls)}${run.tool_failures ? html`<small class="bad">${count(run.tool_failures)} failed</small>` : ""}</span>
    <span class="n">${count(run.disclosures)}${run.restarts ? html`<small>${plural(run.restarts, "restart")}</small>` : ""}</span>
    <span class="n">${short(usage.input_tokens)}</span>
    <span class="n">${percent(usage.cached_tokens, usage.input_tokens)}</span>
    <span class="n">${short(usage.output_tokens)}</span>
    <span class="n">${money(run.cost)}</span>
    <span class="n">${duration(useTaken(run))}</span>
    <span class="n quiet">${moment(run.started)}</span>
  </a>`;
}

function Nothing({ filtered }) {
  if (filtered) return html`<${Empty} title="No run fits"><p>Try other words, or another status.</p><//>`;
  return html`<${Empty} title="Nothing is recorded yet">
    <p>Runs appear here as they happen:</p>
    <div class="code"><span class="text">${'from weakincentives.telemetry import record\n\nwith record("runs.db"):\n    adapter.evaluate(prompt, session=session)'}</span></div>
  <//>`;
}
