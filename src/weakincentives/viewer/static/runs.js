// The list of runs: what was asked and answered, what it opened and what that saved.

import { useEffect, useState } from "preact/hooks";
import { api, changes } from "wink/api.js";
import { classes, count, duration, moment, money, oneLine, percent, plural, short } from "wink/format.js";
import { chatLink } from "wink/chat.js";
import { useShortcuts } from "wink/keys.js";
import { entitle, go, link, route, setParams } from "wink/state.js";
import { TERMS } from "wink/terms.js";
import { runName, visible } from "wink/text.js";
import { Empty, Share, Shown, Status, html, useDocument, useNarrow, useTaken } from "wink/view.js";
import { Rows } from "wink/rows.js";

const STATUSES = ["", "running", "ok", "waiting", "failed", "halted", "interrupted"];
const NAMES = { "": "All", ok: "Answered", waiting: "Waiting", running: "Running", failed: "Failed", halted: "Halted", interrupted: "Interrupted" };
const GROUPS = { "": "Runs", prompt: "By prompt", conversation: "By conversation" };
const PAGE = 100;
// The row that was selected when the list was left.
let chosen = -1;
// What a filter by status is offered for: whatever has occurred, since a filtered list has only one.
const seen = new Set(["", "ok", "failed"]);
// The columns, with what they are sorted by.
const COLUMNS = [
  ["Question and answer", "question"],
  ["Status", "status"],
  ["Prompt and model", "prompt"],
  ["Turns", "turns", "n"],
  ["Opened", "opened"],
  ["Sent of all open", "sent"],
  ["Saved", "saved", "n"],
  ["Cost", "cost", "n"],
  ["Time", "time", "n"],
  ["Started", "started", "n"],
];

export function Runs() {
  const { q = "", status = "", group = "", prompt = "", conversation = "", order = "-started" } = route.value.params;
  const [words, setWords] = useState(q);
  const [selected, setSelected] = useState(chosen);
  const select = (change) => setSelected((at) => (chosen = change(at)));
  const [ticked, setTicked] = useState([]);
  const narrow = useNarrow();
  const filters = { q, status, prompt, conversation };
  // A conversation is one row until somebody looks for single runs.
  const newest = !q && !status && !prompt && !conversation && order === "-started" ? "1" : "";
  const first = useDocument(() => api.runs({ ...filters, order, newest, limit: PAGE }), [q, status, prompt, conversation, order, changes.value]);
  useEffect(() => entitle(), []);
  useEffect(() => setWords(q), [q]);
  useEffect(() => {
    const timer = setTimeout(() => words !== q && setParams({ q: words }), 200);
    return () => clearTimeout(timer);
  }, [words]);
  const total = first.document?.total ?? 0;
  for (const one of [status, ...(first.document?.sums?.statuses?.split(",") ?? [])]) seen.add(one);
  const move = (step) => () => select((at) => Math.max(0, Math.min(total - 1, at + step)));
  const compared = ticked.map((run) => run.run_id);
  const compare = () => ticked.length === 2 && go(link("compare", [], { a: compared[0], b: compared[1] }));
  useShortcuts({
    j: move(1),
    k: move(-1),
    ArrowDown: move(1),
    ArrowUp: move(-1),
    Enter: () => document.querySelector(".run-row.selected a")?.click(),
    x: () => document.querySelector(".run-row.selected input")?.click(),
    d: compare,
  });
  const tick = (run) => setTicked((before) => (before.some((one) => one.run_id === run.run_id) ? before.filter((one) => one.run_id !== run.run_id) : [...before, run].slice(-2)));
  return html`<section class="page runs">
    <div class="page-head">
      <h1>Runs</h1>
      <span class="quiet">${first.document && `${count(first.document.sums?.runs ?? total)} in ${first.document.file}`}</span>
      ${[["prompt", prompt], ["conversation", conversation]].map(([name, value]) => value && html`<button class="chip selected" onClick=${() => setParams({ [name]: "" })}>${name} <code>${visible(value)}</code> ×</button>`)}
      <div class="spacer"></div>
      <input class="filter" type="search" placeholder="Filter by prompt, model, words…" aria-label="Filter runs"
        value=${words} onInput=${(event) => setWords(event.target.value)} />
      <${Choice} label="Status" options=${STATUSES.filter((one) => seen.has(one)).map((one) => [one, NAMES[one], TERMS[NAMES[one].toLowerCase()]])} value=${status} onPick=${(one) => setParams({ status: one })} />
      <${Choice} label="Group" options=${Object.entries(GROUPS)} value=${group} onPick=${(one) => setParams({ group: one })} />
    </div>
    ${first.document?.sums && total > 0 && html`<${Totals} sums=${first.document.sums} />`}
    ${ticked.length > 0 && html`<div class="ticked" role="status">${ticked.length === 2 ? html`<button class="primary" onClick=${compare}>Compare these two <kbd>d</kbd></button>` : "Tick another run to compare the two."}
      <button onClick=${() => setTicked([])}>Clear</button></div>`}
    <${Shown} of=${first}>${(list) =>
      list.total === 0
        ? html`<${Nothing} filtered=${q || status || prompt || conversation} />`
        : group
          ? html`<${Groups} by=${group} filters=${filters} />`
          : html`<div class="table" role="table" aria-label="Runs" aria-rowcount=${list.total + 1}>
            <div class="run-row head" role="row"><span role="columnheader" class="tick"><span class="hush">Compare</span></span>
              ${COLUMNS.map(([label, name, kind]) => html`<${Heading} label=${label} name=${name} kind=${kind} order=${order} />`)}</div>
            <${Rows} key=${`${q} ${status} ${prompt} ${conversation} ${order} ${narrow}`} total=${list.total} height=${narrow ? 104 : 58} page=${PAGE} version=${changes.value} selected=${selected}
              load=${async (offset) => (await api.runs({ ...filters, order, newest, offset, limit: PAGE })).runs}
              row=${(run, index) => html`<${Row} run=${run} selected=${index === selected} ticked=${ticked.some((one) => one.run_id === run.run_id)} onTick=${() => tick(run)} />`} />
          </div>`}<//>
  </section>`;
}

function Choice({ label, options, value, onPick }) {
  return html`<div class="segments" role="group" aria-label=${label}>
    ${options.map(([one, name, hint]) => html`<button class=${one === value ? "on" : ""} title=${hint} aria-pressed=${one === value} onClick=${() => onPick(one)}>${name}</button>`)}
  </div>`;
}

// The largest first on the first click, since that is what one looks for; names begin with A.
function Heading({ label, name, kind = "", order }) {
  const by = order.replace("-", "") === name;
  const down = order.startsWith("-");
  const names = ["question", "status", "prompt"].includes(name);
  const next = by ? (down ? name : `-${name}`) : names ? name : `-${name}`;
  return html`<span role="columnheader" class=${kind} aria-sort=${by ? (down ? "descending" : "ascending") : "none"}>
    <button class="sort" onClick=${() => setParams({ order: next })}>${label}${by ? (down ? " ↓" : " ↑") : ""}</button></span>`;
}

function Totals({ sums }) {
  const saved = sums.full_prompt_tokens - sums.compared_tokens;
  return html`<dl class="totals">
    <div><dt>Answered</dt><dd>${count(sums.answered)}<small> of ${plural(sums.runs, "run")}${sums.failed ? html`, <span class="bad">${count(sums.failed)} failed</span>` : ""}</small></dd></div>
    <div><dt>Turns</dt><dd>${count(sums.turns)}</dd></div>
    <div class="wide"><dt>Sent, of everything open</dt><dd>${short(sums.compared_tokens)}<small> of ${short(sums.full_prompt_tokens)} tokens</small>
      <${Share} sent=${sums.compared_tokens} full=${sums.full_prompt_tokens} label=${`${percent(sums.compared_tokens, sums.full_prompt_tokens)} of what everything open would have sent`} /></dd></div>
    <div><dt>Saved</dt><dd class=${saved < 0 ? "bad" : "good"}>${percent(saved, sums.full_prompt_tokens)}</dd></div>
    <div><dt>From the cache</dt><dd>${percent(sums.cached_tokens, sums.input_tokens)}</dd></div>
    <div><dt>Cost</dt><dd>${money(sums.cost)}${isPartial(sums) && html`<small> of ${count(sums.priced)} of ${plural(sums.runs, "run")}</small>`}</dd></div>
  </dl>`;
}

// Whether the cost is that of only some runs, since the prices of some models are not known.
const isPartial = (sums) => sums.priced > 0 && sums.priced < sums.runs;

function Row({ run, selected, ticked, onTick }) {
  const sent = run.usage.input_tokens;
  const title = run.question || run.prompt_name || run.prompt || "unnamed";
  const labels = visible([run.model, ...Object.entries(run.tags).map(([name, text]) => `${name}=${text}`)].join(" · "));
  return html`<div class=${classes("run-row", selected && "selected", ticked && "ticked-row")} role="row">
    <span role="cell" class="tick"><input type="checkbox" checked=${ticked} onChange=${onTick} aria-label=${`Compare ${oneLine(title).slice(0, 60)}`} /></span>
    <span role="cell" class="name"><span class="title-line"><a href=${link("run", [run.run_id])}>${visible(oneLine(title))}</a>${run.exchanges && html`<a class="exchanges" href=${chatLink(run.conversation_id, run.run_id)} title="The whole conversation">${count(run.exchanges.of)} exchanges${run.exchanges.failed ? html`, <span class="bad">${count(run.exchanges.failed)} failed</span>` : ""}</a>`}</span>
      <small class=${run.error ? "bad" : ""}>${run.run_id.includes("/") && `${runName(run.run_id)} · `}${visible(oneLine(run.error || run.answer)) || (run.status === "running" ? "…" : run.status === "waiting" ? "a call waits for a decision" : "no answer")}</small></span>
    <span role="cell" class="ended-as"><${Status} status=${run.status} />${run.tool_failures ? html`<small class="bad">${plural(run.tool_failures, "failed call")}</small>` : ""}</span>
    <span role="cell" class="name"><span>${visible(run.prompt_name || run.prompt)}</span><small title=${labels}>${labels}</small></span>
    <span role="cell" class="n">${count(run.turns)}<span class="unit">${run.turns === 1 ? " turn" : " turns"}</span>${run.children.runs ? html`<small>${plural(run.children.runs, "run")} inside</small>` : ""}</span>
    <span role="cell"><${Openings} run=${run} /></span>
    <span role="cell" class="sent-cell"><small>${short(sent)}${!run.full_prompt_tokens ? "" : ` of ${short(run.full_prompt_tokens)}`}</small>
      ${run.full_prompt_tokens > 0 && html`<${Share} sent=${sent} full=${run.full_prompt_tokens} label=${`${count(sent)} tokens sent, ${count(run.full_prompt_tokens)} with everything open`} />`}</span>
    <span role="cell" class=${classes("n", run.saved < 0 ? "bad" : run.saved > 0 && "good")} title=${run.saved == null ? "known when the run has ended" : `${count(run.saved)} tokens`}>${!run.full_prompt_tokens ? "–" : percent(run.saved, run.full_prompt_tokens)}</span>
    <span role="cell" class="n">${money(run.total_cost)}</span>
    <span role="cell" class="n">${duration(useTaken(run))}</span>
    <span role="cell" class="n quiet">${moment(run.started)}</span>
  </div>`;
}

// The turns of a run in a line, with a mark where sections were opened.
function Openings({ run }) {
  const keys = [...new Set(run.opened.map(([, key]) => key))];
  if (!keys.length) return html`<small class="quiet">${run.disclosures ? plural(run.disclosures, "request") : "none"}</small>`;
  const label = `${plural(keys.length, "section")} opened: ${run.opened.map(([turn, key]) => `${key} in turn ${turn}`).join(", ")}`;
  return html`<span class="openings" role="img" aria-label=${label} title=${label}>
    ${run.opened.map(([turn]) => html`<i style=${{ left: `${(100 * (turn - 0.5)) / Math.max(1, run.turns)}%` }}></i>`)}</span><small>${plural(keys.length, "section")}</small>`;
}

function Groups({ by, filters }) {
  const loaded = useDocument(() => api.groups({ by, ...filters }), [by, changes.value, ...Object.values(filters)]);
  return html`<${Shown} of=${loaded}>${({ groups }) => html`<div class="table scrolls" role="table" aria-label=${GROUPS[by]}>
    <div class="group-row head" role="row"><span role="columnheader">${by === "prompt" ? "Prompt" : "First question"}</span>${["Runs", "Answered", "Turns", "Sent of all open", "Saved", "Cost", "Last"].map((name) => html`<span role="columnheader" class="n">${name}</span>`)}</div>
    ${groups.map((one) => html`<div class="group-row" role="row">
      <span role="cell" class="name"><a href=${by === "conversation" ? chatLink(one.key) : link("runs", [], { [by]: one.key })}>${visible(oneLine((by === "prompt" ? one.key : one.question) || one.prompt_name || one.key || "unnamed"))}</a><small>${visible(one.prompt_name)}</small></span>
      <span role="cell" class="n">${count(one.runs)}</span>
      <span role="cell" class="n">${count(one.answered)}${one.failed ? html`<small class="bad">${count(one.failed)} failed</small>` : ""}</span>
      <span role="cell" class="n">${count(one.turns)}</span>
      <span role="cell" class="sent-cell"><small>${short(one.compared_tokens)} of ${short(one.full_prompt_tokens)}</small><${Share} sent=${one.compared_tokens} full=${one.full_prompt_tokens} label="Tokens sent, of what everything open would have sent" /></span>
      <span role="cell" class="n">${percent(one.full_prompt_tokens - one.compared_tokens, one.full_prompt_tokens)}</span>
      <span role="cell" class="n">${money(one.cost)}${isPartial(one) && html`<small>of ${plural(one.priced, "run")}</small>`}</span>
      <span role="cell" class="n quiet">${moment(one.updated)}</span>
    </div>`)}
  </div>`}<//>`;
}

function Nothing({ filtered }) {
  if (filtered) return html`<${Empty} title="No run fits"><p>Try other words, or another status.</p><//>`;
  return html`<${Empty} title="Nothing is recorded yet">
    <p>Runs appear here as they happen:</p>
    <div class="code"><span class="text">${'from weakincentives.telemetry import record\n\nwith record("runs.db"):\n    adapter.evaluate(prompt, session=session)'}</span></div>
  <//>`;
}
