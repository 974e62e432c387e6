// The exact request of a turn: the prompt, piece by piece with its section, then the conversation, then the tools.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, messagesOf } from "wink/api.js";
import { classes, count, plural } from "wink/format.js";
import { Json, Text, isJson, visible } from "wink/text.js";
import { stateOf } from "wink/tree.js";
import { Disc, Icon, Loading, Problem, html, useDocument } from "wink/view.js";

const NEWEST = 12;
const EARLIER = 50;

export function Request({ whole, turn, selected, reveal, onSelect }) {
  const id = whole.run.run_id;
  const [earlier, setEarlier] = useState(0);
  const spoken = flat(turn.request);
  const conversation = turn.prompt == null ? spoken : spoken.slice(1);
  const shown = conversation.slice(-(NEWEST + earlier));
  const skipped = conversation.length - shown.length;
  const prompt = useDocument(async () => (turn.prompt == null ? null : api.prompt(id, turn.prompt)), [id, turn.prompt]);
  const messages = useDocument(() => load(id, shown), [id, turn.n, shown[0], shown.length]);
  const fresh = turn.n > 1 ? sinceLast(messages.document ?? []) : 0;
  const body = useRef(null);
  useEffect(() => setEarlier(0), [id, turn.n]);
  useEffect(() => {
    if (reveal && reveal.from !== "request" && selected) {
      body.current?.querySelector(`[data-section="${CSS.escape(selected)}"]`)?.scrollIntoView({ block: "nearest" });
    }
  }, [reveal, prompt.document]);
  const jump = (part) => () => body.current?.querySelector(`[data-part="${part}"]`)?.scrollIntoView();
  const states = Object.fromEntries(turn.sections.map((section) => [section.key, section]));
  return html`<section class="request panel" aria-label="Request">
    <div class="panel-head">
      <h2>Request</h2>
      <span class="quiet">${turn.pending ? "its tokens were not counted" : `${count(turn.called.usage.input_tokens)} tokens sent, ${count(turn.called.usage.cached_tokens)} cached`}</span>
      <span class="spacer"></span>
      <nav class="jumps" aria-label="Parts of the request">
        ${["prompt", "conversation", "tools"].map((part) => html`<button class="plain" onClick=${jump(part)}>${part}</button>`)}
      </nav>
    </div>
    <div class="panel-body" ref=${body}>
      ${!turn.complete && html`<div class="banner warn"><${Icon} name="alert" /><span>The beginning of this conversation was not recorded.</span></div>`}
      <h3 class="divider" data-part="prompt"><span>Prompt</span>${prompt.document && html`<small>rendered before turn ${prompt.document.turn + 1}${prompt.document.attempt > 1 ? `, attempt ${prompt.document.attempt}` : ""}</small>`}</h3>
      ${prompt.error && html`<${Problem} text=${prompt.error} />`}
      ${prompt.loading && !prompt.document && html`<${Loading} />`}
      ${prompt.document?.pieces.map((piece, index) =>
        piece.section
          ? html`<${Piece} key=${index} piece=${piece} section=${states[piece.section]} selected=${piece.section === selected} onSelect=${onSelect} />`
          : piece.text.trim() && html`<div class="piece loose" key=${index}><${Text} value=${piece.text} /></div>`,
      )}
      <h3 class="divider" data-part="conversation"><span>Conversation</span><small>${conversation.length ? plural(conversation.length, "message") : "nothing yet: this is the first turn"}</small></h3>
      ${skipped > 0 && html`<button class="more wide" onClick=${() => setEarlier(earlier + EARLIER)}>Show ${plural(Math.min(EARLIER, skipped), "earlier message")} of ${count(skipped)}</button>`}
      ${messages.error && html`<${Problem} text=${messages.error} />`}
      ${messages.loading && !messages.document && html`<${Loading} />`}
      ${messages.document?.map((message, index) =>
        html`<${Message} key=${message.seq} message=${message} sections=${sectionsRead(message, messages.document)} selected=${selected}
          fresh=${turn.n > 1 && index >= fresh} onSelect=${onSelect} />`,
      )}
      <h3 class="divider" data-part="tools"><span>Tools</span><small>${plural(turn.tools.filter((tool) => !tool.withdrawn).length, "tool")} can be called</small></h3>
      <div class="offers">${turn.tools.map((tool) => html`<${Offered} key=${tool.name} tool=${tool} selected=${selected} onSelect=${onSelect} />`)}</div>
    </div>
  </section>`;
}

function Piece({ piece, section, selected, onSelect }) {
  const state = section ? stateOf(section) : piece.visibility;
  return html`<div class=${classes("piece", piece.visibility, selected && "selected")} data-section=${piece.section}
    onClick=${() => !String(getSelection()) && onSelect(piece.section)}>
    <button class="origin" title=${`From section ${piece.section}, ${piece.visibility}`}><${Disc} state=${state === "hidden" ? "summary" : state} /><span>${visible(piece.section)}</span></button>
    <${Text} value=${piece.text} />
  </div>`;
}

const ROLES = { user: "User", assistant: "Model", tool: "Tool result", tools_added: "Tools added", tools_removed: "Tools withdrawn", system: "Prompt" };

function Message({ message, sections, selected, fresh, onSelect }) {
  const here = sections.includes(selected) || (message.section_key && message.section_key === selected);
  const linked = message.section_key || sections[0];
  return html`<article class=${classes("message", message.role, fresh && "fresh", here && "selected", !message.success && "failed")} data-section=${linked}>
    <header>
      <span class="role">${ROLES[message.role] ?? message.role}</span>
      ${message.name && html`<code>${visible(message.name)}</code>`}
      ${!message.success && html`<span class="pill bad">failed</span>`}
      ${(message.role === "tools_added" || message.role === "tools_removed") && message.tools.map((name) => html`<code class="tool">${visible(name)}</code>`)}
      ${[...new Set([message.section_key, ...sections].filter(Boolean))].map((key) => html`<button class="section-link" onClick=${() => onSelect(key)}>${visible(key)}</button>`)}
      ${fresh && html`<span class="new">new</span>`}
    </header>
    ${message.text && html`<div class="words">${isJson(message.text) ? html`<${Json} text=${message.text} />` : html`<${Text} value=${message.text} first=${1500} />`}</div>`}
    ${message.tool_calls.map((call) => html`<div class="called"><${Icon} name="tool" /><code>${visible(call.name)}</code><span class="quiet"><${Text} value=${call.arguments} first=${300} plain /></span></div>`)}
    ${message.items.length > 0 && html`<details class="items"><summary>${plural(message.items.length, "item")} as the provider sent ${message.items.length === 1 ? "it" : "them"}</summary>${message.items.map((item) => html`<${Json} text=${item} />`)}</details>`}
  </article>`;
}

// A tool as the model has it; its definition unfolds.
function Offered({ tool, selected, onSelect }) {
  const origin = tool.builtin ? "built in" : tool.section || "unknown section";
  const hint = `${origin}${tool.initial ? "" : ", appeared during the conversation"}${tool.withdrawn ? ", withdrawn" : ""}`;
  return html`<details class=${classes("offered", tool.withdrawn && "off", tool.section && tool.section === selected && "selected")}>
    <summary title=${hint}>
      <${Icon} name="caret" /><code>${visible(tool.name)}</code>
      ${tool.section ? html`<button class="section-link" onClick=${(event) => (event.preventDefault(), onSelect(tool.section))}>${visible(tool.section)}</button>` : html`<small class="quiet">${origin}</small>`}
      <span class="spacer"></span>
      ${tool.hosted && html`<span class="pill">hosted</span>`}${!tool.initial && html`<span class="new">added</span>`}${tool.withdrawn && html`<span class="pill warn">withdrawn</span>`}
    </summary>
    ${tool.definition ? html`<${Json} text=${tool.definition} />` : html`<p class="quiet pad">Its definition was not recorded.</p>`}
  </details>`;
}

const flat = (ranges) => ranges.flatMap(([from, to]) => Array.from({ length: to - from }, (_, at) => from + at));

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

// Everything from the model's last reply on was not in the request before.
function sinceLast(messages) {
  return Math.max(0, messages.findLastIndex((message) => message.role === "assistant"));
}

// The sections whose text a tool result carries: those that its call asked for.
function sectionsRead(message, messages) {
  if (message.role !== "tool" || !message.success) return [];
  const call = messages.flatMap((one) => one.tool_calls).find((one) => one.id === message.call_id);
  if (!call || !["read_section", "open_sections"].includes(call.name)) return [];
  try {
    const asked = JSON.parse(call.arguments);
    return [asked.section_key, ...(asked.section_keys ?? [])].filter(Boolean);
  } catch {
    return [];
  }
}
