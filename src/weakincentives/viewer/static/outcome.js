// What came of a turn: the reply, each tool call with its result, and how the run ended if it did.

import { exported, live } from "wink/api.js";
import { classes, count, duration, plural } from "wink/format.js";
import { link } from "wink/state.js";
import { Link, Prose, Result } from "wink/markdown.js";
import { Json, Text, visible } from "wink/text.js";
import { Term } from "wink/terms.js";
import { Icon, Loading, Some, Status, html, reachable } from "wink/view.js";
import { Decided, Question } from "wink/waiting.js";

export function Outcome({ whole, turn, selected, onSelect }) {
  const { reply, calls, hosted, ended, called } = turn;
  const usage = called?.usage;
  const said = live.value?.run_id === whole.run.run_id ? live.value.text : "";
  return html`<section class="outcome panel" aria-label="Reply and tools">
    <div class="panel-head">
      <h2>Reply</h2>
      <span class="quiet">${turn.pending ? (whole.run.status === "running" ? "not yet" : reply ? "cut off, not counted" : "none") : html`${duration(called.latency)} · ${plural(usage.output_tokens, "token")}${usage.reasoning_tokens ? `, ${count(usage.reasoning_tokens)} reasoning` : ""} · ${STOPS[called.stop_reason] ?? called.stop_reason}${called.retries ? ` · ${plural(called.retries, "retry", "retries")}` : ""}`}</span>
    </div>
    <div class="panel-body">
      ${turn.n > 1 && html`<a class="compare-link" href=${link("compare", [], { a: `${turn.run_id}:${turn.n - 1}`, b: `${turn.run_id}:${turn.n}` })}>Compare with turn ${turn.n - 1} <kbd>d</kbd></a>`}
      ${reply?.text && html`<div class="reply"><${Prose} value=${reply.text} breaks /></div>`}
      ${sources(reply).length > 0 && html`<p class="quiet pad quoted">Quoted word for word from ${sources(reply).join(", ")}</p>`}
      <${Ranking} reply=${reply} />
      ${turn.pending && whole.run.status === "running" && (said ? html`<div class="reply"><${Prose} value=${said} breaks /></div>` : html`<${Loading} label="The model has this request" />`)}
      ${turn.pending && !reply && whole.run.status !== "running" && html`<p class="quiet pad">This request got no reply.</p>`}
      ${!reply && !turn.pending && html`<p class="quiet pad">The reply was not recorded.</p>`}
      ${reply && !reply.text && !reply.tool_calls.length && html`<p class="quiet pad">The model said nothing.</p>`}
      <${Some} key=${turn.n} of=${calls} first=${40} each=${(call) => html`<${Call} key=${call.seq} call=${call} inner=${whole.children[call.call_id]} selected=${selected} onSelect=${onSelect} />`} />
      ${unanswered(reply, calls).map((call) => html`<article class="call waiting"><header><${Icon} name="tool" /><code>${visible(call.name)}</code><span class="pill">${waits(whole, call) ? "waits for a decision" : whole.run.status === "running" ? "running" : "not run"}</span></header>${whole.children[call.id] && html`<${Inner} run=${whole.children[call.id]} />`}<${Json} text=${call.arguments} />${!waits(whole, call) && turn.questions?.[call.id] && html`<h4>The question</h4><${Question} asked=${turn.questions[call.id]} />`}</article>`)}
      ${hosted.map((used) => html`<${Hosted} key=${used.seq} used=${used} section=${turn.tools.find((tool) => tool.name === used.name)?.section} selected=${selected} onSelect=${onSelect} />`)}
      ${ended.filter((event, index) => event.status !== "waiting" || index === ended.length - 1).map((event) => html`<${Ended} event=${event} said=${reply?.text} run=${whole.run} />`)}
    </div>
  </section>`;
}

// The run that a call made, with the way to it; an exported file holds only its own run.
function Inner({ run }) {
  const name = visible(run.prompt_name || run.prompt || run.run_id);
  return html`<p class="inner-run"><${Icon} name="fork" />${exported ? html`<span>Run of ${name}</span>` : html`<a href=${link("run", [run.run_id])}>Run of ${name}</a>`}
    <${Status} status=${run.status} /><span class="quiet">${plural(run.turns, "turn")}, ${plural(run.usage.input_tokens + run.children.usage.input_tokens, "token")}${run.children.runs ? `, ${plural(run.children.runs, "run")} inside it` : ""}</span></p>`;
}

// What the local adapter's answer is a quotation of: tools or sections.
const sources = (reply) => (noted(reply, "quotation")?.from ?? []).map((one) => visible(String(one)));

// What the local adapter noted beside its reply.
function noted(reply, wanted) {
  for (const item of reply?.items ?? []) {
    try {
      const note = JSON.parse(item);
      if (note?.type === wanted) return note;
    } catch {}
  }
  return null;
}

// How the local adapter chose a section: by rank, not by the model.
function Ranking({ reply }) {
  const note = noted(reply, "ranking");
  if (!Array.isArray(note?.best) || !note.best.length) return null;
  return html`<p class="quiet pad ranked">Picked by rank${note.of ? ` among ${count(note.of)} sections` : ""}: ${note.best.map((one) => `${visible(String(one.key))} ${Number(one.score).toFixed(2)}`).join(", ")}</p>`;
}

const STOPS = { end: "ended", tool_calls: "calls tools", length: "cut off at its limit", refusal: "refused", content_filter: "filtered", pause: "paused" };

function Call({ call, inner, selected, onSelect }) {
  const failed = !call.result?.success;
  const opened = call.disclosure?.keys ?? [];
  const read = call.text;
  const value = call.result?.value;
  return html`<article class=${classes("call", failed && "failed", (call.section_key === selected || opened.includes(selected)) && selected && "selected")}>
    <header>
      <${Icon} name=${call.disclosure ? "open" : "tool"} />
      <code>${visible(call.name)}</code>
      ${call.section_key && html`<button class="section-link" onClick=${() => onSelect(call.section_key)}>${visible(call.section_key)}</button>`}
      <span class="quiet">${duration(call.duration)}</span>
      <span class="spacer"></span>
      ${call.rolled_back && html`<span class="pill warn"><${Icon} name="undo" /><${Term} name="rolled back" /></span>`}
      <span class=${classes("pill", failed ? "bad" : "good")}>${failed ? "failed" : "ok"}</span>
    </header>
    ${inner && html`<${Inner} run=${inner} />`}
    <h4>Arguments</h4>
    <${Json} text=${call.arguments || JSON.stringify(call.params)} />
    <${Decided} call=${call} />
    ${call.disclosure && html`<${Disclosed} disclosure=${call.disclosure} onSelect=${onSelect} />`}
    <h4>${failed ? "What the model was told" : "Result, as the model read it"}</h4>
    <div class="code" ...${reachable(read ?? "", "Result")}>${read ? html`<${call.disclosure ? Prose : Result} value=${read} first=${2000} />` : html`<span class="quiet">nothing</span>`}</div>
    ${value != null && !call.disclosure && html`<details><summary><${Term} name="value">Value, for the program<//></summary><${Json} value=${value} /></details>`}
    ${call.rolled_back && html`<h4>Undone</h4><p class="undone">${call.undone.length ? plural(call.undone.length, "event") : "No event"}${call.undone.map((one) => html` <s><code>${visible(one)}</code></s>`)}</p>`}
    ${call.compensation && html`<h4>Compensation</h4><div class="code"><${Text} value=${call.compensation} /></div>`}
  </article>`;
}

// The provider ran it: what it gave over all turns is known when the run ends.
function Hosted({ used, section, selected, onSelect }) {
  return html`<article class=${classes("call", section && section === selected && "selected")}>
    <header>
      <${Icon} name="tool" />
      <code>${visible(used.name)}</code>
      ${section && html`<button class="section-link" onClick=${() => onSelect(section)}>${visible(section)}</button>`}
      ${used.kind !== used.name && html`<span class="quiet">${visible(used.kind)}</span>`}
      <span class="spacer"></span>
      <span class="pill"><${Term} name="hosted tool">hosted<//></span>
    </header>
    ${used.queries?.length > 0 && html`<h4>Asked for</h4><ul class="sources">${used.queries.map((query) => html`<li>${visible(query)}</li>`)}</ul>`}
    ${cited(used.output).length > 0 && html`<h4>Sources</h4><ul class="sources">${cited(used.output).map(([url, title]) => html`<li><${Link} href=${url}>${visible(title || url)}<//></li>`)}</ul>`}
    <details open=${!cited(used.output).length}><summary>What it gave in this run</summary><${Json} value=${used.output} /></details>
  </article>`;
}

function Disclosed({ disclosure, onSelect }) {
  return html`<h4>Opens</h4><p class="opens">
    ${disclosure.keys.map((key) => html`<button class="section-link" onClick=${() => onSelect(key)}>${visible(key)}</button> `)}
    ${disclosure.reason && html`<span class="quiet">“<${Text} value=${disclosure.reason} first=${400} plain />”</span>`}
  </p>`;
}

// Every address that a hosted tool names, once, with its title.
function cited(value, found = new Map()) {
  if (Array.isArray(value)) for (const item of value) cited(item, found);
  else if (value && typeof value === "object") {
    if (/^https?:\/\//.test(value.url ?? "") && !found.has(value.url)) found.set(value.url, String(value.title ?? ""));
    for (const item of Object.values(value)) cited(item, found);
  }
  return [...found].slice(0, 60);
}

function Ended({ event, said, run }) {
  if (event.status === "restarted") {
    return html`<article class="ended warn"><header><${Icon} name="restart" /><strong>Restarts with more open</strong></header>
      <p>${event.section_keys.map((key) => html`<code>${visible(key)}</code> `)}${event.reason && html`<span class="quiet">“${visible(event.reason.slice(0, 600))}”</span>`}</p></article>`;
  }
  if (event.status === "waiting") {
    return run.status === "waiting" && html`<article class="ended warn"><header><${Icon} name="alert" /><strong>Waits for a decision</strong><span class="quiet">about ${visible(event.reason)}</span></header></article>`;
  }
  if (event.status === "stopped") {
    return html`<article class="ended warn"><header><${Icon} name="cross" /><strong>Stopped by its caller</strong></header></article>`;
  }
  if (event.status === "suspended") {
    return html`<article class="ended warn"><header><${Icon} name="cross" /><strong>Left this process</strong><span class="quiet">${visible(event.reason)}</span></header></article>`;
  }
  if (event.error) {
    return html`<article class="ended bad"><header><${Icon} name="alert" /><strong>${visible(event.error)}</strong>${event.phase && html`<span class="quiet">in ${event.phase}</span>`}</header>
      <div class="code"><${Text} value=${event.reason} /></div></article>`;
  }
  return html`<article class="ended good"><header><${Icon} name="check" /><strong>${event.status === "halted" ? "Halted for its caller" : "Answer"}</strong><span class="quiet">after ${plural(event.turns, "turn")}, ${duration(run.duration)}</span></header>
    ${isSaid(event, said) ? "" : event.output != null ? html`<${Json} value=${event.output} />` : event.text && html`<${Prose} value=${event.text} breaks />`}</article>`;
}

// An answer that only repeats the reply is not shown twice.
function isSaid(event, said) {
  if (event.status === "halted" || !said) return false;
  if (event.output == null) return event.text === said;
  try {
    return JSON.stringify(JSON.parse(said)) === JSON.stringify(event.output);
  } catch {
    return false;
  }
}

// A call waits too if one of a run inside it does.
const waits = (whole, call) => whole.waiting.some((one) => one.call_id === call.id || one.call_id.startsWith(`${call.id}/`));

function unanswered(reply, calls) {
  const done = new Set(calls.map((call) => call.call_id));
  return (reply?.tool_calls ?? []).filter((call) => !done.has(call.id));
}
