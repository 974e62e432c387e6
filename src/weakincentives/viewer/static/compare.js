// Two turns side by side, of one run or of two: the tree, the tools, the prompt, the conversation and the reply.

import { useEffect, useState } from "preact/hooks";
import { api, changes, messagesOf } from "wink/api.js";
import { diff, lines } from "wink/diff.js";
import { classes, count, moment, plural, signed } from "wink/format.js";
import { entitle, go, link, route, toTurn } from "wink/state.js";
import { Text, runName, visible } from "wink/text.js";
import { stateOf } from "wink/tree.js";
import { Disc, Empty, Icon, Loading, NumberField, Problem, html, useDocument } from "wink/view.js";

const AROUND = 3;
const MOST_MESSAGES = 400;
const STATES = { full: "in full", read: "read", summary: "summary", hidden: "not seen", absent: "not there" };

export function Compare() {
  const { a = "", b = "" } = route.value.params;
  const list = useDocument(() => api.runs({ limit: 200 }), [changes.value]);
  const both = useDocument(async () => (a && b ? Promise.all([side(a), side(b)]) : null), [a, b]);
  const runs = list.document?.runs ?? [];
  useEffect(() => entitle("Compare"), []);
  const set = (changes) => go(link("compare", [], { a, b, ...changes }), { replace: true });
  return html`<section class="page scroll" tabindex="0" aria-label="Compare">
    <div class="page-head compare-head">
      <h1>Compare</h1>
      <${Pick} name="before" value=${a} runs=${runs} onChange=${(value) => set({ a: value })} />
      <span class="quiet">with</span>
      <${Pick} name="after" value=${b} runs=${runs} onChange=${(value) => set({ b: value })} />
      <button onClick=${() => set({ a: b, b: a })} disabled=${!a || !b}>Swap</button>
    </div>
    ${!a || !b
      ? html`<${Empty} title="Choose two turns"><p>Of one run or of two. Inside a run, <kbd>d</kbd> compares a turn with the one before.</p><//>`
      : both.error
        ? html`<${Problem} text=${both.error} />`
        : !both.document
          ? html`<${Loading} label="Comparing" />`
          : html`<${Differences} before=${both.document[0]} after=${both.document[1]} />`}
  </section>`;
}

function Pick({ name, value, runs, onChange }) {
  const [id, n] = split(value);
  const known = runs.find((run) => run.run_id === id);
  return html`<span class="pick">
    <select aria-label=${`Run ${name}`} value=${id} onChange=${(event) => {
      const chosen = runs.find((run) => run.run_id === event.target.value);
      onChange(chosen ? `${chosen.run_id}:${Math.min(n || 1, chosen.turns) || 1}` : "");
    }}>
      <option value="">Choose a run</option>
      ${id && !known && html`<option value=${id}>${visible(id)}</option>`}
      ${runs.map((run) => html`<option value=${run.run_id}>${visible(run.prompt_name || run.run_id)} · ${visible(run.model)} · ${moment(run.started)} · ${runName(run.run_id)}</option>`)}
    </select>
    <label>turn <${NumberField} value=${n} max=${known?.turns} disabled=${!id} label=${`Turn ${name}`} onPick=${(turn) => onChange(`${id}:${turn}`)} />${known ? html` <span class="quiet">of ${count(known.turns)}</span>` : ""}</label>
  </span>`;
}

function Differences({ before, after }) {
  const sections = changedSections(before.turn, after.turn);
  const tools = [
    ...names(before.turn).filter((name) => !names(after.turn).includes(name)).map((name) => ["gone", name]),
    ...names(after.turn).filter((name) => !names(before.turn).includes(name)).map((name) => ["new", name]),
  ];
  const prompt = diff(lines(before.prompt), lines(after.prompt));
  const spoken = diff(before.messages, after.messages, (one, other) => identity(one) === identity(other));
  const reply = diff(lines(words(before.turn.reply)), lines(words(after.turn.reply)));
  const usage = ["input_tokens", "cached_tokens", "output_tokens"];
  return html`
    <div class="tiles">
      ${usage.map((name) => html`<div class="tile"><span>${{ input_tokens: "Sent", cached_tokens: "Cached", output_tokens: "Output" }[name]}</span>
        <strong>${signed(spent(after.turn, name) - spent(before.turn, name))}</strong><small>${count(spent(before.turn, name))} → ${count(spent(after.turn, name))} tokens</small></div>`)}
      <div class="tile"><span>Tools</span><strong>${signed(names(after.turn).length - names(before.turn).length)}</strong><small>${count(names(before.turn).length)} → ${count(names(after.turn).length)} offered</small></div>
    </div>
    <${Part} title="Sections" none="Every section shows the same." empty=${!sections.length}>
      <div class="changes">${sections.map((section) => html`<div class="change"><a class="section-link" href=${toTurn(after.turn.run_id, after.turn.n, { section: section.key })}>${visible(section.key)}</a>
        <span>${section.from !== "absent" && html`<${Disc} state=${section.from} />`}${STATES[section.from]}</span><${Icon} name="next" /><span>${section.to !== "absent" && html`<${Disc} state=${section.to} />`}${STATES[section.to]}</span>
        <span class="n quiet">${signed(section.tokens)} tokens shown</span></div>`)}</div>
    <//>
    <${Part} title="Tools" none="The same tools are offered." empty=${!tools.length}>
      <p class="tool-changes">${tools.map(([kind, name]) => html`<code class=${`tool ${kind}`}>${kind === "new" ? "+" : "−"} ${visible(name)}</code> `)}</p>
    <//>
    <${Part} title="Prompt" none="The rendered prompt is the same, to the letter." empty=${prompt.every((run) => run.kind === "same")}><${Lines} runs=${prompt} /><//>
    <${Part} title="Conversation" none="The same messages were sent." empty=${spoken.every((run) => run.kind === "same")}><${Messages} runs=${spoken} cut=${before.cut || after.cut} /><//>
    <${Part} title="Reply" none="The model said the same." empty=${reply.every((run) => run.kind === "same")}><${Lines} runs=${reply} /><//>
  `;
}

function Part({ title, none, empty, children }) {
  return html`<section class="card" aria-label=${title}><h2>${title}</h2>${empty ? html`<p class="quiet">${none}</p>` : children}</section>`;
}

// Changed lines with a few around them; longer stretches that are the same can be unfolded.
function Lines({ runs }) {
  const [open, setOpen] = useState({});
  return html`<div class="diff">${runs.map((run, index) => {
    if (run.kind !== "same" || open[index] || run.items.length <= 2 * AROUND + 1) {
      return run.items.map((line) => html`<${Line} kind=${run.kind} line=${line} />`);
    }
    const head = index === 0 ? [] : run.items.slice(0, AROUND);
    const tail = index === runs.length - 1 ? [] : run.items.slice(-AROUND);
    const hidden = run.items.length - head.length - tail.length;
    return [
      ...head.map((line) => html`<${Line} kind="same" line=${line} />`),
      html`<button class="fold-lines" onClick=${() => setOpen({ ...open, [index]: true })}>${plural(hidden, "line")} the same</button>`,
      ...tail.map((line) => html`<${Line} kind="same" line=${line} />`),
    ];
  })}</div>`;
}

function Line({ kind, line }) {
  return html`<div class=${`line ${kind}`}><span class="sign">${{ same: "", gone: "−", new: "+" }[kind]}</span><${Text} value=${line} first=${4000} /></div>`;
}

function Messages({ runs, cut }) {
  return html`<div class="diff">${cut && html`<p class="quiet pad">Only the last ${MOST_MESSAGES} messages of each side are compared.</p>`}
    ${runs.map((run) => run.kind === "same"
      ? html`<div class="fold-lines">${plural(run.items.length, "message")} the same</div>`
      : run.items.map((message) => html`<div class=${classes("line", run.kind)}><span class="sign">${run.kind === "new" ? "+" : "−"}</span><span class="who">${message.role}${message.name || message.kind ? ` ${visible(message.name || message.kind)}` : ""}</span><${Text} value=${words(message) || message.tools.join(", ")} first=${600} /></div>`))}
  </div>`;
}

async function side(value) {
  const [id, n] = split(value);
  const turn = await api.turn(id, n, true);
  const prompt = turn.prompt == null ? null : await api.prompt(turn.run_id, turn.prompt);
  const numbers = turn.request.flatMap(([from, to]) => Array.from({ length: to - from }, (_, at) => from + at)).slice(turn.prompt == null ? 0 : 1);
  const kept = numbers.slice(-MOST_MESSAGES);
  const messages = [];
  for (const [from, to] of ranges(kept)) messages.push(...(await messagesOf(turn.run_id, from, to)));
  return { turn, messages, cut: kept.length < numbers.length, prompt: (prompt?.pieces ?? []).map((piece) => piece.text).join("") };
}

function changedSections(before, after) {
  const old = Object.fromEntries(before.sections.map((section) => [section.key, section]));
  const now = Object.fromEntries(after.sections.map((section) => [section.key, section]));
  return [...new Set([...Object.keys(old), ...Object.keys(now)])]
    .map((key) => ({
      key,
      from: old[key] ? stateOf(old[key]) : "absent",
      to: now[key] ? stateOf(now[key]) : "absent",
      tokens: (now[key]?.shown_tokens ?? 0) - (old[key]?.shown_tokens ?? 0),
    }))
    .filter((section) => section.from !== section.to || section.tokens);
}

// A request without a reply has no usage.
const spent = (turn, name) => turn.called?.usage[name] ?? 0;
const names = (turn) => turn.tools.filter((tool) => !tool.withdrawn).map((tool) => tool.name);
// Ids of calls differ between runs that say the same.
const identity = (message) => JSON.stringify([message.role, message.text, message.name, message.kind, message.tools, message.tool_calls.map((call) => [call.name, call.arguments])]);
const words = (message) => [message?.text, ...(message?.tool_calls ?? []).map((call) => `${call.name}(${call.arguments})`)].filter(Boolean).join("\n");

function split(value) {
  const at = value.lastIndexOf(":");
  return at < 0 ? [value, 1] : [value.slice(0, at), Number(value.slice(at + 1)) || 1];
}

function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    if (found.at(-1)?.[1] === number) found.at(-1)[1] += 1;
    else found.push([number, number + 1]);
  }
  return found;
}
