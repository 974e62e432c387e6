// Calls that wait for a person: the question with what would change, and how to decide it, here or elsewhere.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, exported, live, play, running } from "wink/api.js";
import { classes, plural } from "wink/format.js";
import { visible } from "wink/text.js";
import { escaped } from "wink/unseen.js";
import { Icon, html, useDocument } from "wink/view.js";

const FIRST = 400;
const KINDS = { added: "new", removed: "gone", changed: "changed", heading: "file", note: "note" };

// A question as it was made: the call, then what it would change, line by line.
export function Question({ asked }) {
  const [all, setAll] = useState(false);
  const parts = asked.parts ?? [];
  let room = all ? Infinity : FIRST;
  const shown = [];
  for (const part of parts) {
    const lines = part.kind === "missing" ? part.lines : part.lines.slice(0, Math.max(0, room));
    room -= lines.length;
    if (lines.length) shown.push({ ...part, lines });
  }
  const rest = all ? 0 : parts.reduce((sum, part) => sum + part.lines.length, 0) - shown.reduce((sum, part) => sum + part.lines.length, 0);
  return html`<div class="diff question" tabindex="0" role="group" aria-label="What would change">
    ${shown.map((part) => html`<div class=${classes("part", part.kind)}>
      ${part.lines.map((line) => html`<div class=${classes("line", KINDS[line.kind] ?? "same")}><span class="text">${visible(line.text) || " "}</span></div>`)}
    </div>`)}
    ${rest > 0 && html`<button class="more wide" onClick=${() => setAll(true)}>Show ${plural(rest, "more line")}</button>`}
  </div>`;
}

export function Waiting({ whole }) {
  const [decided, setDecided] = useState(0);
  const [notice, setNotice] = useState("");
  const { run, waiting } = whole;
  // Only the playground that started the run has its session; of durable work, the server may know the database.
  const durable = run.run_id.includes("/") && !whole.parent;
  const ask = async () => (run.status !== "waiting" || exported ? null : durable ? api.work(run.run_id) : play.value ? api.live(run.run_id) : null);
  const found = useDocument(ask, [run.run_id, run.events, run.status, play.value, decided]);
  if (run.status !== "waiting" || !waiting.length) return null;
  if (durable && decided && !found.loading && !found.document?.pending.length) return html`<p class="waiting-calls" role="status">Decided; the run goes on as soon as a worker is free.</p>`;
  const here = found.document?.pending ?? [];
  return html`<section class="waiting-calls" tabindex="0" aria-label="Calls that wait for a decision">
    <h2><${Icon} name="alert" />${waiting.length === 1 ? "A call waits" : `${waiting.length} calls wait`} for a decision</h2>
    ${notice && html`<p class="bad" role="alert">${visible(notice)}</p>`}
    ${here.length && found.document.error ? html`<p class="bad" role="alert">${visible(found.document.error)}</p>` : null}
    ${(here.length ? here : waiting).map((call) => html`<${Call} key=${call.id || call.call_id} run=${run} call=${call} here=${here.length > 0} where=${durable ? "work" : "play"} onDecided=${(problem = "") => {
      setNotice(problem);
      setDecided(decided + 1);
    }} />`)}
    ${!here.length && !found.loading && html`<p class="elsewhere">Decide with <code>${visible(whole.continue)}</code></p>`}
  </section>`;
}

function Call({ run, call, here, where, onDecided }) {
  const [asks, setAsks] = useState("");
  const [text, setText] = useState("");
  const [told, setTold] = useState("");
  const field = useRef(null);
  useEffect(() => {
    if (asks) field.current?.focus();
  }, [asks]);
  const open = (what) => {
    setAsks(asks === what ? "" : what);
    setText(what === "edit" ? indented(call.arguments) : "");
  };
  const decide = async (decision) => {
    setTold("");
    try {
      const words = decision === "edit" ? { arguments: text } : decision === "approve" ? {} : { text };
      await api.act("decide", { run_id: run.run_id, question: call.id, decision, ...words }, where);
    } catch (error) {
      setTold(error.message);
      // It may have changed, or somebody else has decided: what is asked now is shown.
      if (error.status === 409) onDecided(error.message);
      return;
    }
    onDecided();
    if (where === "work") return;
    live.value = null;
    running.value = run.run_id;
  };
  const labels = { deny: "Reason, which the model reads", edit: "Arguments as JSON", answer: "Answer, in place of the call" };
  const may = (what) => (call.answers ?? []).includes(what);
  return html`<article class="call waits">
    <header><${Icon} name="tool" /><code>${visible(call.tool)}</code>${call.section_key && html`<span class="quiet">${visible(call.section_key)}</span>`}<span class="words">${visible(call.words ?? "")}</span></header>
    <${Question} asked=${call} />
    ${here && html`<div class="save">
      ${may("approve") && html`<button class="primary" disabled=${asks !== ""} onClick=${() => decide("approve")}>Approve</button>`}
      ${may("deny") && html`<button aria-expanded=${asks === "deny"} onClick=${() => open("deny")}>Deny</button>`}
      ${may("edit") && html`<button aria-expanded=${asks === "edit"} disabled=${!call.editable} title=${call.editable ? "" : "Its arguments contain a secret, which is not shown"} onClick=${() => open("edit")}>Edit</button>`}
      ${may("answer") && html`<button aria-expanded=${asks === "answer"} onClick=${() => open("answer")}>Answer</button>`}
      <span role="status" class="bad">${visible(told)}</span></div>`}
    ${here && asks && html`<div class="decide"><label>${labels[asks]}<textarea ref=${field} rows=${asks === "edit" ? 6 : 2} spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
      <button class="primary" onClick=${() => decide(asks)}>${{ deny: "Deny it", edit: "Use these", answer: "Answer it" }[asks]}</button></div>`}
  </article>`;
}

const DECISIONS = { approve: "approved", deny: "denied", edit: "edited", answer: "answered", undecided: "not decided" };

// What a person decided about a call that has ended.
export function Decided({ call }) {
  if (!call.question && !call.decided?.length) return null;
  return html`<h4>Approval</h4>
    ${call.decided.map((one) => html`<p class="decision"><span class="pill">${DECISIONS[one.decision] ?? visible(one.decision)}</span>${one.by && html` by ${visible(one.by)}`}${one.reason && html` <span class="quiet">“${visible(one.reason)}”</span>`}</p>`)}
    ${call.question && html`<details><summary>The question</summary><p class="quiet">${visible(call.question.words)}</p><${Question} asked=${call.question} /></details>`}`;
}

function indented(text) {
  try {
    return escaped(JSON.stringify(JSON.parse(text), null, 2));
  } catch {
    return escaped(text);
  }
}
