// Every event of a run in its order, whatever its length.

import { useState } from "preact/hooks";
import { api, changes } from "wink/api.js";
import { classes, clock, count } from "wink/format.js";
import { useShortcuts } from "wink/keys.js";
import { Rows } from "wink/rows.js";
import { route, setParams, toTurn } from "wink/state.js";
import { Json, visible } from "wink/text.js";
import { Empty, Icon, Shown, html, useDocument } from "wink/view.js";

const PAGE = 200;

export function Events({ run }) {
  const { kind = "", event = "" } = route.value.params;
  const kinds = kind ? kind.split(",") : [];
  const version = run.status === "running" ? changes.value : run.events;
  const [row, setRow] = useState(-1);
  const first = useDocument(() => api.events(run.run_id, { kind: kinds, limit: 1 }), [run.run_id, kind, version]);
  const total = first.document?.total ?? 0;
  const move = (step) => () => setRow((at) => Math.max(0, Math.min(total - 1, at + step)));
  useShortcuts({
    j: move(1),
    k: move(-1),
    ArrowDown: move(1),
    ArrowUp: move(-1),
    Enter: () => document.querySelector(".event-row.marked")?.click(),
    Escape: () => (event ? setParams({ event: "" }) : false),
  });
  const toggle = (name) => setParams({ kind: (kinds.includes(name) ? kinds.filter((one) => one !== name) : [...kinds, name]).join(","), event: "" });
  return html`<${Shown} of=${first}>${(list) => html`<div class="events">
    <div class="chips filters">
      ${Object.entries(list.kinds).sort(([a], [b]) => a.localeCompare(b)).map(([name, many]) => html`<button class=${classes("chip", kinds.includes(name) && "selected")} aria-pressed=${kinds.includes(name)} onClick=${() => toggle(name)}><span>${visible(name)}</span><small>${count(many)}</small></button>`)}
      ${kinds.length > 0 && html`<button class="chip clear" onClick=${() => setParams({ kind: "" })}><${Icon} name="cross" />All kinds</button>`}
    </div>
    <div class=${classes("split", event && "open")}>
      <div class="table">
        <div class="event-row head"><span class="n">#</span><span>Time</span><span class="n">Turn</span><span>Kind</span><span>What</span></div>
        ${list.total === 0
          ? html`<${Empty} title="No events"><p>None of this kind were recorded.</p><//>`
          : html`<${Rows} key=${kind} total=${list.total} height=${30} page=${PAGE} version=${version} selected=${row} role="group" label="Everything recorded"
              load=${async (offset) => (await api.events(run.run_id, { kind: kinds, offset, limit: PAGE })).events}
              row=${(line, index) => html`<${Line} line=${line} open=${String(line.seq) === event} marked=${index === row} onOpen=${() => (setRow(index), setParams({ event: String(line.seq) }))} />`} />`}
      </div>
      ${event && html`<${One} run=${run} seq=${Number(event)} />`}
    </div>
  </div>`}<//>`;
}

function Line({ line, open, marked, onOpen }) {
  return html`<button class=${classes("event-row", open && "selected", marked && "marked", line.undone && "undone-event")} title=${line.undone ? `Undone: ${line.undone}` : undefined} onClick=${onOpen}>
    <span class="n quiet">${line.seq}</span><span class="quiet">${clock(line.time)}</span><span class="n quiet">${line.turn || ""}</span>
    <span class="kind">${visible(line.kind)}</span><span class="ellipsis">${line.undone && html`<span class="pill warn">undone</span> `}<span class="what">${visible(line.summary.replaceAll("\n", " "))}</span></span>
  </button>`;
}

function One({ run, seq }) {
  const loaded = useDocument(() => api.event(run.run_id, seq), [run.run_id, seq]);
  return html`<aside class="one panel" aria-label="Event">
    <${Shown} of=${loaded}>${(line) => html`
      <div class="panel-head"><h2>${visible(line.kind)}</h2><span class="quiet">event ${line.seq}${line.turn ? html`, <a href=${toTurn(run.run_id, line.turn)}>turn ${line.turn}</a>` : ""}</span>
        <span class="spacer"></span><button class="plain" aria-label="Close" onClick=${() => setParams({ event: "" })}><${Icon} name="cross" /></button></div>
      <div class="panel-body" tabindex="0" role="group" aria-label="As recorded"><${Json} value=${line.event} /></div>`}<//>
  </aside>`;
}
