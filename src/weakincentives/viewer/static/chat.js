// A conversation from the top down, as a chat: what was said and answered, and below each answer its turns.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, changes } from "wink/api.js";
import { classes, count, duration, moment, money, oneLine, percent, plural } from "wink/format.js";
import { Prose } from "wink/markdown.js";
import { Part } from "wink/request.js";
import { entitle, link, route, toTurn } from "wink/state.js";
import { Json, visible } from "wink/text.js";
import { Icon, Loading, Problem, Shown, Some, Status, html, useDocument } from "wink/view.js";

const PAGE = 50;

export function Chat() {
  const { id = "", at = "" } = route.value.params;
  const first = useDocument(() => api.conversation(id, 0), [id, changes.value]);
  const [more, setMore] = useState([]);
  useEffect(() => setMore([]), [id]);
  return html`<section class="page scroll chat" tabindex="0" aria-label="Conversation">
    <${Shown} of=${first}>${(chat) => {
      const exchanges = [...chat.exchanges, ...more.flatMap((page) => page.exchanges)];
      const forks = [...chat.forks, ...more.flatMap((page) => page.forks)];
      const rest = chat.sums.runs - exchanges.length;
      return html`<${Head} chat=${chat} />
        ${exchanges.map((one) => html`<${Exchange} key=${one.run.run_id} one=${one} marked=${one.run.run_id === at} forks=${forks.filter((fork) => fork.after === one.run.run_id)} />`)}
        ${rest > 0 && html`<button class="more wide" onClick=${async () => setMore([...more, await api.conversation(id, exchanges.length)])}>Show ${plural(Math.min(rest, PAGE), "later exchange")} of ${count(rest)}</button>`}`;
    }}<//>
  </section>`;
}

function Head({ chat }) {
  const { sums, exchanges, forked_from: origin } = chat;
  const title = named(exchanges[0].run);
  useEffect(() => entitle(visible(oneLine(title)).slice(0, 60)), [title]);
  const cached = sums.cached_tokens > 0 ? `, ${percent(sums.cached_tokens, sums.input_tokens)} of them from the cache` : "";
  return html`<div class="page-head chat-head">
    <a class="up" href="#/" title="All runs (u)" aria-label="All runs"><${Icon} name="back" /></a>
    <h1>${visible(oneLine(title))}</h1>
    <p class="quiet">${plural(sums.runs, "exchange")}, ${plural(sums.turns, "turn")}, ${count(sums.input_tokens)} tokens sent${cached}${sums.cost == null ? "" : `, ${money(sums.cost)}`}${sums.failed ? html`, <span class="bad">${count(sums.failed)} failed</span>` : ""}. Prompt ${visible(sums.prompt_name)}.</p>
    ${origin && html`<p class="fork-note"><${Icon} name="fork" />Forked from <a href=${chatLink(origin.conversation_id, origin.run_id)}>another conversation</a>, after “${visible(oneLine(origin.question))}”</p>`}
  </div>`;
}

export const chatLink = (id, run) => link("conversation", [], { id, at: run });
const named = (run) => run.question || run.prompt_name || run.prompt || "unnamed";

function Exchange({ one, marked, forks }) {
  const { run, said } = one;
  const [open, setOpen] = useState(false);
  const place = useRef(null);
  useEffect(() => {
    if (marked) place.current?.scrollIntoView({ block: "nearest" });
  }, [marked]);
  const undone = one.undone_from === 0;
  const opened = [...new Set(run.opened.map(([, key]) => key))];
  const facts = [
    duration(run.duration),
    opened.length ? `opened ${opened.map(visible).join(", ")}` : "",
    run.tool_failures ? plural(run.tool_failures, "failed call") : "",
    run.children.runs ? `${plural(run.children.runs, "run")} inside` : "",
    run.total_cost == null ? "" : money(run.total_cost),
  ].filter(Boolean);
  return html`<article class=${classes("exchange", undone && "undone-exchange", marked && "marked")} aria-label=${`Exchange ${one.at}`} ref=${place}>
    <div class="said">${said.length
      ? said.map((message) => (message.parts.length ? message.parts.map((part) => html`<${Part} part=${part} />`) : html`<${Prose} value=${message.text} breaks />`))
      : html`<${Prose} value=${named(run)} breaks />`}</div>
    ${one.compacted.map((note) => html`<p class="chat-note"><${Icon} name="fold" />The conversation was shortened here, before turn ${note.turn + 1}: ${visible(note.text)}</p>`)}
    <div class="answered">
      ${run.status !== "ok" && html`<${Status} status=${run.status} /> `}
      ${run.error ? html`<p class="bad">${visible(run.error.slice(0, 1000))}</p>` : one.output != null ? html`<${Json} value=${one.output} />` : one.answer ? html`<${Prose} value=${one.answer} breaks />` : run.status === "waiting" ? html`<span class="quiet">a call waits for a decision; <a href=${link("run", [run.run_id])}>look at it</a></span>` : html`<span class="quiet">no answer</span>`}
    </div>
    <p class="exchange-foot">
      <button class="plain" aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name="caret" />${plural(run.turns, "turn")}</button>
      <a href=${link("run", [run.run_id])}>Exchange ${one.at}</a>
      <span>${facts.join(" · ")} · ${moment(run.started)}</span>
      ${one.undone_from != null && html`<span class="pill warn" title="The conversation went back to before this; what it used still counts">${undone ? "undone" : `undone from turn ${one.undone_from}`}</span>`}
    </p>
    ${open && html`<${Turns} run=${run} />`}
    ${forks.map((fork) => html`<p class="fork-note"><${Icon} name="fork" />Another conversation goes on from here: <a href=${chatLink(fork.conversation_id)}>${visible(oneLine(fork.question)) || "without a question"}</a></p>`)}
  </article>`;
}

// The turns of an answer, each with its words and calls; the page of the turn has the rest.
function Turns({ run }) {
  return html`<ol class="chat-turns"><${Some} of=${Array.from({ length: run.turns }, (_, at) => at + 1)} first=${8} each=${(n) => html`<${Turn} key=${n} run=${run} n=${n} />`} /></ol>`;
}

function Turn({ run, n }) {
  const loaded = useDocument(() => api.turn(run.run_id, n, run.status === "running"), [run.run_id, n]);
  const turn = loaded.document;
  if (loaded.error) return html`<li><${Problem} text=${loaded.error} /></li>`;
  if (!turn) return html`<li><${Loading} /></li>`;
  return html`<li><a href=${toTurn(run.run_id, n)}>Turn ${n}</a>
    <span class="quiet">${count(turn.called.usage.input_tokens)} tokens sent, ${duration(turn.called.latency)}</span>
    ${turn.calls.map((call) => html`<span class=${classes("chat-call", !call.result?.success && "bad")}><${Icon} name=${call.disclosure ? "open" : "tool"} /><code>${visible(call.name)}</code> <span class="quiet">${visible(oneLine(call.arguments)).slice(0, 120)}</span>${!call.result?.success && html` <span class="pill bad">failed</span>`}${call.rolled_back && html` <span class="pill warn">undone</span>`}</span>`)}
    ${!turn.calls.length && turn.reply?.text && html`<span class="quiet">answered</span>`}
  </li>`;
}
