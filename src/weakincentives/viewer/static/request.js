// What a turn sent, in four tabs: what is new since the last turn, the conversation, the prompt, and the tools.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, mediaUrl, messagesOf } from "wink/api.js";
import { classes, count, plural } from "wink/format.js";
import { Link, Prose, RawSwitch, Result } from "wink/markdown.js";
import { route, setParams } from "wink/state.js";
import { Json, Text, visible } from "wink/text.js";
import { stateOf } from "wink/tree.js";
import { Disc, Empty, Icon, Loading, Problem, html, reachable, useDocument } from "wink/view.js";

const NEWEST = 12;
const EARLIER = 50;
const FARTHEST = 600;
const PARTS = { new: "New since the last turn", conversation: "Conversation", prompt: "Prompt", tools: "Tools" };

export function Request({ whole, turn, selected, reveal, onSelect }) {
  const id = whole.run.run_id;
  const part = PARTS[route.value.params.part] ? route.value.params.part : "new";
  const before = useDocument(async () => (turn.n > 1 ? api.turn(id, turn.n - 1) : null), [id, turn.n]);
  const prompt = useDocument(async () => (turn.prompt == null ? null : api.prompt(id, turn.prompt)), [id, turn.prompt]);
  const body = useRef(null);
  const states = Object.fromEntries(turn.sections.map((section) => [section.key, section]));
  useEffect(() => {
    if (body.current) body.current.scrollTop = 0;
  }, [part, turn.n]);
  const shared = { id, turn, earlier: whole.earlier ?? 0, place: whole.conversation, states, selected, reveal, onSelect, prompt, body, before: before.document?.n === turn.n - 1 ? before.document : null };
  return html`<section class="request panel" aria-label="Request">
    <div class="panel-head">
      <div class="parts" role="tablist" aria-label="Parts of the request">
        ${Object.entries(PARTS).map(([name, label]) => html`<button role="tab" id=${`part-${name}`} aria-selected=${part === name} aria-controls="part" tabindex=${part === name ? 0 : -1}
          class=${part === name ? "on" : ""} onKeyDown=${along} onClick=${() => setParams({ part: name === "new" ? "" : name })}>${name === "new" && turn.n === 1 ? (whole.earlier ? "New in this exchange" : "New") : label}</button>`)}
      </div>
      <span class="spacer"></span>
      <${RawSwitch} />
      <span class="quiet tokens-sent">${turn.pending ? "its tokens were not counted" : `${count(turn.called.usage.input_tokens)} tokens sent${turn.called.usage.cached_tokens ? `, ${count(turn.called.usage.cached_tokens)} cached` : ""}`}</span>
    </div>
    <div class="panel-body" role="tabpanel" id="part" aria-labelledby=${`part-${part}`} tabindex="0" ref=${body}>
      ${!turn.complete && html`<div class="banner warn"><${Icon} name="alert" /><span>The beginning of this conversation was not recorded.</span></div>`}
      ${shortened(whole, turn) && html`<p class="chat-note"><${Icon} name="fold" />Sent shortened: ${visible(shortened(whole, turn))}. The messages are shown here as they were said.</p>`}
      ${part === "new" && html`<${New} ...${shared} loading=${turn.n > 1 && before.loading && !shared.before} />`}
      ${part === "conversation" && html`<${Conversation} ...${shared} />`}
      ${part === "prompt" && html`<${Prompt} ...${shared} />`}
      ${part === "tools" && html`<${Tools} ...${shared} />`}
    </div>
  </section>`;
}

// The last compaction before this request, of this run or of an exchange before it.
const shortened = (whole, turn) => whole.marks.filter((mark) => mark.kind === "compacted" && mark.turn < turn.n).at(-1)?.text ?? whole.shortened ?? "";

// Left and right move between tabs, as the pattern for tabs has it.
function along(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const tabs = [...event.currentTarget.parentElement.children];
  const next = tabs[(tabs.indexOf(event.currentTarget) + step + tabs.length) % tabs.length];
  event.preventDefault();
  event.stopPropagation();
  next.click();
  next.focus();
}

// Everything that the request before did not have: sections seen for the first time, tools, messages, and changed text.
function New({ id, turn, before, earlier: past, place, states, selected, prompt, loading, onSelect }) {
  const numbers = spoken(turn);
  // The first request of a later exchange has the messages of the exchanges before; they come first.
  const continues = !before && past > 0;
  const known = new Set(before ? flat(before.request) : []);
  const again = before && before.prompt === turn.prompt;
  const former = continues ? numbers.filter((number) => number < past) : [];
  const fresh = again ? numbers.filter((number) => !known.has(number)) : numbers.filter((number) => !continues || number >= past);
  const messages = useDocument(() => load(id, fresh.slice(-FARTHEST)), [id, turn.n, before?.n, fresh.length]);
  const earlier = useDocument(async () => (before && !again ? load(id, spoken(before).slice(-FARTHEST)) : []), [id, turn.n, before?.n]);
  const old = useDocument(async () => (before && !again && before.prompt != null ? api.prompt(id, before.prompt) : null), [id, turn.n, before?.n]);
  if (loading) return html`<${Loading} />`;
  const told = new Set((earlier.document ?? []).map(identity));
  const said = (messages.document ?? []).filter((message) => !told.has(identity(message)));
  const pieces = new Set((old.document?.pieces ?? []).map((piece) => piece.text));
  const changed = again ? [] : (prompt.document?.pieces ?? []).filter((piece) => !pieces.has(piece.text));
  const was = Object.fromEntries((before?.sections ?? []).map((section) => [section.key, stateOf(section)]));
  const opened = before ? turn.sections.filter((section) => stateOf(section) !== (was[section.key] ?? "hidden")) : [];
  const had = new Set((before?.tools ?? []).filter((tool) => !tool.withdrawn).map((tool) => tool.name));
  const tools = before ? turn.tools.filter((tool) => !tool.withdrawn && !had.has(tool.name)) : [];
  const gone = before ? turn.tools.filter((tool) => tool.withdrawn && had.has(tool.name)) : [];
  return html`
    ${before && (opened.length > 0 || tools.length > 0 || gone.length > 0) && html`<div class="changed">
      ${opened.map((section) => html`<button class="chip" onClick=${() => onSelect(section.key, "new")}><${Disc} state=${stateOf(section)} /><span>${visible(section.title)}</span><small>${was[section.key] ?? "new"} → ${stateOf(section)}</small></button>`)}
      ${tools.map((tool) => html`<span class="chip"><${Icon} name="tool" /><code>${visible(tool.name)}</code><small>can be called now</small></span>`)}
      ${gone.map((tool) => html`<span class="chip off"><${Icon} name="tool" /><code>${visible(tool.name)}</code><small>withdrawn</small></span>`)}
    </div>`}
    ${!before && !continues && html`<h3 class="divider"><span>The prompt</span><small>this is the first turn: everything is new</small></h3>`}
    ${before && !again && html`<h3 class="divider"><span>The prompt</span><small>rendered again: ${plural(changed.length, "piece")} changed</small></h3>`}
    ${prompt.error && html`<${Problem} text=${prompt.error} />`}
    ${!continues && changed.map((piece, index) => html`<${Piece} key=${index} piece=${piece} section=${states[piece.section]} selected=${piece.section === selected} onSelect=${onSelect} />`)}
    ${said.length > 0 && html`<h3 class="divider"><span>${before ? "Since the last turn" : continues ? "New in this exchange" : "Conversation"}</span><small>${plural(said.length, "message")}</small></h3>`}
    ${messages.error && html`<${Problem} text=${messages.error} />`}
    ${said.map((message) => html`<${Message} key=${`${message.run_id} ${message.seq}`} message=${message} turn=${turn} selected=${selected} fresh=${Boolean(before)} onSelect=${onSelect} />`)}
    ${continues && html`<${Earlier} id=${id} numbers=${former} place=${place} turn=${turn} selected=${selected} onSelect=${onSelect} />
      <details class="earlier"><summary>The prompt, which the conversation had before</summary>${(prompt.document?.pieces ?? []).map((piece, index) => html`<${Piece} key=${index} piece=${piece} section=${states[piece.section]} selected=${piece.section === selected} onSelect=${onSelect} />`)}</details>`}
    ${before && !said.length && !changed.length && !messages.loading && html`<${Empty} title="Nothing new"><p>This request is the one before, sent again.</p><//>`}`;
}

// What was said in the exchanges before, folded; the newest of it is asked for first.
function Earlier({ id, numbers, place, turn, selected, onSelect }) {
  const [shown, setShown] = useState(0);
  const messages = useDocument(() => load(id, shown ? numbers.slice(-shown) : []), [id, shown]);
  const rest = numbers.length - shown;
  if (!numbers.length) return null;
  return html`<h3 class="divider"><span>Before</span><small>${place && place.at > 1 ? `${plural(place.at - 1, "earlier exchange")}` : "from another conversation"}</small></h3>
    ${rest > 0 && html`<button class="more wide" onClick=${() => setShown(shown + EARLIER)}>${shown ? `Show ${plural(Math.min(EARLIER, rest), "more message")}` : plural(numbers.length, "earlier message")}</button>`}
    ${messages.error && html`<${Problem} text=${messages.error} />`}
    ${(messages.document ?? []).map((message) => html`<${Message} key=${`${message.run_id} ${message.seq}`} message=${message} turn=${turn} selected=${selected} onSelect=${onSelect} />`)}`;
}

function Conversation({ id, turn, before, selected, reveal, body, onSelect }) {
  const [earlier, setEarlier] = useState(0);
  const numbers = spoken(turn);
  const shown = numbers.slice(-(NEWEST + earlier));
  const skipped = numbers.length - shown.length;
  const messages = useDocument(() => load(id, shown), [id, turn.n, shown[0], shown.length]);
  const known = new Set(before ? flat(before.request) : []);
  const wanted = turn.sections.find((section) => section.key === selected)?.call_id;
  const there = (messages.document ?? []).some((message) => message.call_id === wanted);
  useEffect(() => setEarlier(0), [id, turn.n]);
  useEffect(() => {
    // The result that brought the selected section may be far back.
    if (wanted && messages.document && !messages.loading && !there && skipped > 0 && earlier < FARTHEST) setEarlier(earlier + EARLIER);
    else if (wanted && there && reveal) body.current?.querySelector(".message.selected")?.scrollIntoView({ block: "nearest" });
  }, [wanted, messages.document, reveal]);
  return html`
    <h3 class="divider"><span>Conversation</span><small>${numbers.length ? plural(numbers.length, "message") : "nothing yet: the prompt is all that was sent"}</small></h3>
    ${skipped > 0 && html`<button class="more wide" onClick=${() => setEarlier(earlier + EARLIER)}>Show ${plural(Math.min(EARLIER, skipped), "earlier message")} of ${count(skipped)}</button>`}
    ${messages.error && html`<${Problem} text=${messages.error} />`}
    ${messages.loading && !messages.document && html`<${Loading} />`}
    ${messages.document?.map((message, index) => html`<${Message} key=${`${message.run_id} ${message.seq}`} message=${message} turn=${turn} selected=${selected}
      fresh=${Boolean(before) && before.prompt === turn.prompt && !known.has(shown[index])} onSelect=${onSelect} />`)}`;
}

function Prompt({ prompt, states, selected, reveal, body, onSelect }) {
  useEffect(() => {
    if (reveal && reveal.from !== "request" && selected) {
      body.current?.querySelector(`[data-section="${CSS.escape(selected)}"]`)?.scrollIntoView({ block: "nearest" });
    }
  }, [reveal, prompt.document]);
  return html`
    <h3 class="divider"><span>Prompt</span>${prompt.document && html`<small>rendered before turn ${prompt.document.turn + 1}${prompt.document.attempt > 1 ? `, attempt ${prompt.document.attempt}` : ""}</small>`}</h3>
    ${prompt.error && html`<${Problem} text=${prompt.error} />`}
    ${prompt.loading && !prompt.document && html`<${Loading} />`}
    ${prompt.document?.pieces.map((piece, index) => html`<${Piece} key=${index} piece=${piece} section=${states[piece.section]} selected=${Boolean(selected) && piece.section === selected} onSelect=${onSelect} />`)}`;
}

function Tools({ turn, selected, onSelect }) {
  return html`
    <h3 class="divider"><span>Tools</span><small>${plural(turn.tools.filter((tool) => !tool.withdrawn).length, "tool")} can be called</small></h3>
    <div class="offers">${turn.tools.map((tool) => html`<${Offered} key=${tool.name} tool=${tool} selected=${selected} onSelect=${onSelect} />`)}</div>`;
}

// A piece of the prompt with its section. What stands under a summary is for the model; people see that it is there.
export function Piece({ piece, section, selected, mark = "", onSelect }) {
  if (!piece.section) return piece.text.trim() && html`<div class="piece loose"><${Prose} value=${piece.text} /></div>`;
  const state = section ? stateOf(section) : piece.visibility;
  const tail = piece.visibility === "summary" ? piece.text.lastIndexOf("\n\n---\n") : -1;
  const words = tail < 0 ? piece.text : piece.text.slice(0, tail);
  const below = tail < 0 ? "" : piece.text.slice(tail + 6).trim();
  return html`<div class=${classes("piece", piece.visibility, selected && "selected", mark)} data-section=${piece.section}
    onClick=${(event) => !event.target.closest("a, button") && !String(getSelection()) && onSelect(piece.section, "request")}>
    <button class="origin" title=${`From section ${piece.section}, ${piece.visibility}`} onClick=${() => onSelect(piece.section, "request")}><${Disc} state=${state === "hidden" ? "summary" : state} /><span>${visible(piece.section)}</span></button>
    <div class="piece-text"><${Prose} value=${words} />${below && html`<details class="tail"><summary>how to open it</summary><${Text} value=${below} /></details>`}</div>
  </div>`;
}

const ROLES = { user: "User", assistant: "Model", tool: "Tool result", tools_added: "Tools added", tools_removed: "Tools withdrawn", system: "System" };

// A tool's result stands as it is; that of a built-in tool is the text of a section.
function Message({ message, turn, selected, fresh, onSelect }) {
  const brought = message.role === "tool" ? turn.sections.filter((section) => section.call_id === message.call_id).map((section) => section.key) : [];
  const keys = [...new Set([message.section_key, ...brought].filter(Boolean))];
  const here = Boolean(selected) && keys.includes(selected);
  return html`<article class=${classes("message", message.role, fresh && "fresh", here && "selected", !message.success && "failed")} data-section=${keys[0]}>
    <header>
      <span class="role">${ROLES[message.role] ?? message.role}</span>
      ${(message.name || message.kind) && html`<code>${visible(message.name || message.kind)}</code>`}
      ${!message.success && html`<span class="pill bad">failed</span>`}
      ${(message.role === "tools_added" || message.role === "tools_removed") && message.tools.map((name) => html`<code class="tool">${visible(name)}</code>`)}
      ${keys.map((key) => html`<button class="section-link" onClick=${() => onSelect(key, "request")}>${visible(key)}</button>`)}
      ${fresh && html`<span class="new">new</span>`}
    </header>
    ${message.reasoning && html`<details class="items"><summary>What it showed of its thinking</summary><${Prose} value=${message.reasoning} /></details>`}
    ${(message.parts ?? []).length > 0
      ? html`<div class="words" ...${reachable(message.text, "What it says")}>${message.parts.map((part) => html`<${Part} part=${part} />`)}</div>`
      : message.text && html`<div class="words" ...${reachable(message.text, "What it says")}>${message.role === "tool" && !brought.length && !(message.success && turn.tools.find((tool) => tool.name === message.name)?.builtin) ? html`<${Result} value=${message.text} first=${1500} />` : html`<${Prose} value=${message.text} first=${1500} breaks=${["user", "assistant"].includes(message.role)} />`}</div>`}
    ${message.tool_calls.map((call) => html`<div class="called"><${Icon} name="tool" /><code>${visible(call.name)}</code><span class="quiet"><${Text} value=${call.arguments} first=${300} plain /></span></div>`)}
    ${message.items.length > 0 && html`<details class="items"><summary>${plural(message.items.length, "item")} as the provider sent ${message.items.length === 1 ? "it" : "them"}</summary>${message.items.map((item) => html`<${Json} text=${item} />`)}</details>`}
  </article>`;
}

// Media as they are, where the browser can show them.
export function Part({ part }) {
  const url = useDocument(async () => (part.digest ? mediaUrl(part) : ""), [part.digest]);
  if (part.kind === "text") return html`<${Prose} value=${part.text} first=${1500} breaks />`;
  const source = url.document;
  const label = visible(part.label).replace(/^\[(.*)\]$/, "$1");
  if (source && part.kind === "image") return html`<figure><img src=${source} alt=${label} loading="lazy" /><figcaption>${label}</figcaption></figure>`;
  if (source && part.kind === "audio") return html`<figure><audio controls src=${source}></audio><figcaption>${label}</figcaption></figure>`;
  return html`<p class="quiet">${part.url.startsWith("http") ? html`<${Link} href=${part.url}>${label}<//>` : label}
    ${source && html` <a class="out" href=${source} download=${label}>download</a>`}</p>`;
}

// A tool as the model has it; its definition unfolds.
export function Offered({ tool, selected, onSelect }) {
  const origin = tool.builtin ? "built in" : tool.section || "unknown section";
  const hint = `${origin}${tool.initial ? "" : ", appeared during the conversation"}${tool.withdrawn ? ", withdrawn" : ""}`;
  return html`<details class=${classes("offered", tool.withdrawn && "off", tool.section && tool.section === selected && "selected")}>
    <summary title=${hint}>
      <${Icon} name="caret" /><code>${visible(tool.name)}</code>
      <small class="quiet">${visible(origin)}</small>
      <span class="spacer"></span>
      ${tool.hosted && html`<span class="pill">hosted</span>`}${!tool.initial && html`<span class="new">added</span>`}${tool.withdrawn && html`<span class="pill warn">withdrawn</span>`}
    </summary>
    ${tool.section && onSelect && html`<p><button class="section-link" onClick=${() => onSelect(tool.section, "request")}>${visible(tool.section)}</button></p>`}
    ${tool.definition ? html`<${Json} text=${tool.definition} />` : html`<p class="quiet pad">Its definition was not recorded.</p>`}
  </details>`;
}

const flat = (ranges) => ranges.flatMap(([from, to]) => Array.from({ length: to - from }, (_, at) => from + at));
// The first message is the prompt, which has its own place.
const spoken = (turn) => (turn.prompt == null ? flat(turn.request) : flat(turn.request).slice(1));
const identity = (message) => JSON.stringify([message.role, message.text, message.name, message.kind, message.call_id, message.tools]);

// Messages by their numbers, asked for in unbroken ranges.
async function load(id, numbers) {
  const found = [];
  for (let at = 0; at < numbers.length; ) {
    let end = at + 1;
    while (end < numbers.length && numbers[end] === numbers[end - 1] + 1) end += 1;
    found.push(...(await messagesOf(id, numbers[at], numbers[end - 1] + 1)));
    at = end;
  }
  return found;
}
