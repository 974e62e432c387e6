// Calls that wait for a person: the question with what would change, and how to decide it, here or elsewhere.

import { useState } from "preact/hooks";
import { api, exported, live, play, running } from "wink/api.js";
import { classes, plural } from "wink/format.js";
import { visible } from "wink/text.js";
import { Icon, html, useDocument } from "wink/view.js";

const FIRST = 400;
const KINDS = { "+": "new", "-": "gone" };

// A question: the call, then what it would change, line by line as in a diff.
export function Question({ text }) {
  const [all, setAll] = useState(false);
  const lines = text.split("\n");
  const rest = all ? 0 : Math.max(0, lines.length - FIRST);
  return html`<div class="diff question" tabindex="0" role="group" aria-label="What would change">
    ${lines.slice(0, lines.length - rest).map((line) => {
      const kind = line.startsWith("+++ ") || line.startsWith("--- ") ? "file" : (KINDS[line[0]] ?? "same");
      return html`<div class=${classes("line", kind)}><span class="text">${visible(line)}</span></div>`;
    })}
    ${rest > 0 && html`<button class="more wide" onClick=${() => setAll(true)}>Show ${plural(rest, "more line")}</button>`}
  </div>`;
}

export function Waiting({ whole }) {
  const [decided, setDecided] = useState(0);
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
    ${here.length && found.document.error ? html`<p class="bad" role="alert">${visible(found.document.error)}</p>` : null}
    ${(here.length ? here : waiting).map((call) => html`<${Call} key=${call.call_id} run=${run} call=${call} here=${here.length > 0} where=${durable ? "work" : "play"} onDecided=${() => setDecided(decided + 1)} />`)}
    ${!here.length && !found.loading && html`<p class="elsewhere">Decide with <code>${visible(whole.continue)}</code></p>`}
  </section>`;
}

function Call({ run, call, here, where, onDecided }) {
  const [asks, setAsks] = useState("");
  const [text, setText] = useState("");
  const [told, setTold] = useState("");
  const open = (what) => {
    setAsks(asks === what ? "" : what);
    setText(what === "edit" ? indented(call.arguments) : "");
  };
  const decide = async (decision) => {
    setTold("");
    try {
      const words = decision === "edit" ? { arguments: text } : decision === "approve" ? {} : { text };
      await api.act("decide", { run_id: run.run_id, call_id: call.call_id, decision, ...words }, where);
      onDecided();
      if (where === "work") return;
      live.value = null;
      running.value = run.run_id;
    } catch (error) {
      setTold(error.message);
    }
  };
  const labels = { deny: "Reason, which the model reads", edit: "Arguments as JSON", answer: "Answer, in place of the call" };
  return html`<article class="call waits">
    <header><${Icon} name="tool" /><code>${visible(call.tool)}</code>${call.section_key && html`<span class="quiet">${visible(call.section_key)}</span>`}</header>
    <${Question} text=${call.text ?? ""} />
    ${here && html`<div class="save">
      ${call.needs !== "answer" && html`<button class="primary" onClick=${() => decide("approve")}>Approve</button>`}
      <button aria-expanded=${asks === "deny"} onClick=${() => open("deny")}>Deny</button>
      ${call.needs && call.needs !== "answer" && html`<button aria-expanded=${asks === "edit"} disabled=${!call.editable} title=${call.editable ? "" : "Its arguments contain a secret, which is not shown"} onClick=${() => open("edit")}>Edit</button>`}
      ${call.needs && html`<button aria-expanded=${asks === "answer"} onClick=${() => open("answer")}>Answer</button>`}
      <span role="status" class="bad">${visible(told)}</span></div>`}
    ${here && asks && html`<div class="decide"><label>${labels[asks]}<textarea rows=${asks === "edit" ? 6 : 2} spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
      <button class="primary" onClick=${() => decide(asks)}>${{ deny: "Deny it", edit: "Use these", answer: "Answer it" }[asks]}</button></div>`}
  </article>`;
}

const DECISIONS = { approve: "approved", deny: "denied", edit: "edited", answer: "answered", undecided: "not decided" };

// What a person decided about a call that has ended.
export function Decided({ call }) {
  if (!call.question && !call.decided?.length) return null;
  return html`<h4>Approval</h4>
    ${call.decided.map((one) => html`<p class="decision"><span class="pill">${DECISIONS[one.decision] ?? visible(one.decision)}</span>${one.by && html` by ${visible(one.by)}`}${one.reason && html` <span class="quiet">“${visible(one.reason)}”</span>`}</p>`)}
    ${call.question?.text && html`<details><summary>The question</summary><${Question} text=${call.question.text} /></details>`}`;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
