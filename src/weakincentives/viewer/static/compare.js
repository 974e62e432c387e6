// Two runs side by side as wholes, and two turns, of one run or of two: what they were sent and replied.

import { useEffect, useState } from "preact/hooks";
import { api, changes, messagesOf } from "wink/api.js";
import { diff, lines } from "wink/diff.js";
import { classes, count, duration, moment, money, oneLine, plural, signed } from "wink/format.js";
import { entitle, go, link, route, toTurn } from "wink/state.js";
import { Text, runName, visible } from "wink/text.js";
import { stateOf } from "wink/tree.js";
import { Disc, Empty, Icon, Loading, NumberField, Problem, STATUSES, html, useDocument } from "wink/view.js";

const AROUND = 3;
const MOST_MESSAGES = 400;
const STATES = { full: "in full", read: "read", summary: "summary", hidden: "not seen", absent: "not there" };

export function Compare() {
  const { a = "", b = "" } = route.value.params;
  const list = useDocument(() => api.runs({ limit: 200 }), [changes.value]);
  const both = useDocument(async () => (a && b ? load(a, b) : null), [a, b]);
  const runs = list.document?.runs ?? [];
  useEffect(() => entitle("Compare"), []);
  const set = (changes) => go(link("compare", [], { a, b, ...changes }), { replace: true });
  const turns = both.document?.turns ?? [];
  return html`<section class="page scroll" tabindex="0" aria-label="Compare">
    <div class="page-head compare-head">
      <h1>Compare</h1>
      <${Pick} name="before" value=${a} at=${turns[0]} runs=${runs} onChange=${(value) => set({ a: value })} />
      <span class="quiet">with</span>
      <${Pick} name="after" value=${b} at=${turns[1]} runs=${runs} onChange=${(value) => set({ b: value })} />
      <button onClick=${() => set({ a: b, b: a })} disabled=${!a || !b}>Swap</button>
    </div>
    ${!a || !b
      ? html`<${Empty} title="Choose two runs"><p>Or two turns of one. Inside a run, <kbd>d</kbd> compares a turn with the one before.</p><//>`
      : both.error
        ? html`<${Problem} text=${both.error} />`
        : !both.document
          ? html`<${Loading} label="Comparing" />`
          : html`${both.document.runs && html`<${Runs} ...${both.document.runs} set=${set} />`}
              <${Differences} before=${both.document.sides[0]} after=${both.document.sides[1]} />`}
  </section>`;
}

// Both sides; of two runs also the runs, compared at the turn in which they part unless another was asked for.
async function load(a, b) {
  const [[id, n], [other, m]] = [split(a), split(b)];
  let runs = null;
  if (id !== other) {
    const [before, after, parts] = await Promise.all([api.run(id), api.run(other), api.parting(id, other)]);
    runs = { before, after, parts };
  }
  const at = (whole, turn) => turn || Math.max(1, Math.min(runs?.parts.turn ?? whole.run.turns, whole.run.turns));
  const turns = runs ? [at(runs.before, n), at(runs.after, m)] : [n || 1, m || 1];
  return { runs, turns, sides: await Promise.all([side(id, turns[0]), side(other, turns[1])]) };
}

function Pick({ name, value, at, runs, onChange }) {
  const [id, given] = split(value);
  const n = given || at || 1;
  const known = runs.find((run) => run.run_id === id);
  return html`<span class="pick">
    <select aria-label=${`Run ${name}`} value=${id} onChange=${(event) => onChange(event.target.value)}>
      <option value="">Choose a run</option>
      ${id && !known && html`<option value=${id}>${visible(id)}</option>`}
      ${runs.map((run) => html`<option value=${run.run_id}>${visible(oneLine(run.question || run.prompt_name || run.run_id)).slice(0, 60)} · ${visible(run.model)} · ${moment(run.started)} · ${runName(run.run_id)}</option>`)}
    </select>
    <label>turn <${NumberField} value=${n} max=${known?.turns} disabled=${!id} label=${`Turn ${name}`} onPick=${(turn) => onChange(`${id}:${turn}`)} />${known ? html` <span class="quiet">of ${count(known.turns)}</span>` : ""}</label>
  </span>`;
}

// Two runs as wholes: what each took, where they part, and how their answers differ.
function Runs({ before, after, parts, set }) {
  const sides = [before, after];
  const rows = facts(before, after);
  const differ = rows.filter(([, one, other]) => one !== other);
  const same = rows.filter(([, one, other]) => one === other && one !== "–" && one !== "0");
  const answers = sides.map((whole) => answerOf(whole));
  const answer = diff(lines(answers[0]), lines(answers[1]));
  const at = parts.turn;
  return html`<section class="card" aria-label="Runs">
    <h2>The runs</h2>
    <div class="sheet two-runs" role="table" aria-label="Two runs" tabindex="0">
      <div class="sheet-row head" role="row"><span role="columnheader"></span>${sides.map(({ run }, index) => html`<span role="columnheader"><a href=${toTurn(run.run_id)}>${index ? "After" : "Before"}: ${visible(run.model)}, ${runName(run.run_id)}</a></span>`)}<span role="columnheader" class="n">Change</span></div>
      ${differ.map(([name, one, other, change]) => html`<div class="sheet-row" role="row"><span role="cell">${name}</span><span role="cell">${one}</span><span role="cell">${other}</span><span role="cell" class=${classes("n", change?.kind)}>${change?.text ?? ""}</span></div>`)}
    </div>
    ${same.length > 0 && html`<p class="quiet alike">The same in both: ${same.map(([name, one]) => `${name.toLowerCase()} ${one}`).join(", ")}.</p>`}
    <p class="parting">${parts.same_prompt ? "" : "They begin with different prompts. "}${at == null
      ? "Both say the same to the end."
      : html`They part in <button class="section-link" onClick=${() => set({ a: `${before.run.run_id}:${Math.min(at, before.run.turns)}`, b: `${after.run.run_id}:${Math.min(at, after.run.turns)}` })}>turn ${count(at)}</button>, by ${parts.what}:`}</p>
    ${at != null && html`<div class="diff"><${Line} kind="gone" line=${parts.before || "nothing"} /><${Line} kind="new" line=${parts.after || "nothing"} /></div>`}
    <h3>Answer</h3>
    ${answer.every((run) => run.kind === "same") ? html`<p class="quiet">Both give the same answer.</p>` : html`<${Lines} runs=${answer} />`}
  </section>`;
}

const answerOf = ({ run, outcome }) => (outcome?.output != null ? JSON.stringify(outcome.output, null, 2) : outcome?.text || run.answer || run.error || "no answer");

function facts(before, after) {
  const of = (name, value, shown, better = 0) => {
    const [one, other] = [value(before), value(after)];
    const change = one == null || other == null || typeof one !== "number" || one === other ? null : changed(one, other, better);
    return [name, shown(one), shown(other), change];
  };
  const text = (value) => (value === "" || value == null ? "–" : visible(String(value)));
  const opened = ({ run }) => [...new Set(run.opened.map(([, key]) => key))].join(", ");
  return [
    of("Model", ({ run }) => run.model, text),
    of("Status", ({ run }) => STATUSES[run.status] ?? run.status, text),
    of("Override", ({ overrides_tag }) => overrides_tag, text),
    of("Turns", ({ run }) => run.turns, count, -1),
    of("Time", ({ run }) => run.duration, duration, -1),
    of("Cost", ({ run }) => run.total_cost, money, -1),
    of("Tokens sent", ({ run }) => run.usage.input_tokens, count, -1),
    of("From the cache", ({ run }) => run.usage.cached_tokens, count, 1),
    of("Output tokens", ({ run }) => run.usage.output_tokens, count, -1),
    of("With everything open", ({ ledger }) => ledger.full, count),
    of("Opened", opened, text),
    of("Tool calls", ({ calls }) => calls.made, count),
    of("Failed calls", ({ calls }) => calls.failed, count, -1),
    of("Restarts", ({ run }) => run.restarts, count, -1),
  ];
}

// How a number changed, in percent; `better` is 1 where more of it is good and -1 where less is.
function changed(one, other, better) {
  const share = one ? (100 * (other - one)) / one : null;
  const text = share == null ? "new" : other === 0 ? "none" : share >= 100 ? `${other / one < 10 ? (other / one).toFixed(1) : count(other / one)}×` : `${share > 0 ? "+" : "−"}${Math.abs(share) < 1 ? "<1" : Math.round(Math.abs(share))}%`;
  return { text, kind: better && Math.abs(share ?? 100) >= 5 ? (Math.sign(other - one) === better ? "good" : "bad") : "" };
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
  const same = [["sections", !sections.length], ["tools", !tools.length], ["prompt", alike(prompt)], ["conversation", alike(spoken)], ["reply", alike(reply)]].filter(([, is]) => is).map(([name]) => name);
  const moved = tools.length > 0 || usage.some((name) => spent(after.turn, name) !== spent(before.turn, name));
  return html`
    <h2 class="compared-turns">${before.turn.run_id === after.turn.run_id ? `Turn ${before.turn.n} and turn ${after.turn.n}` : `Turn ${before.turn.n} of the first, turn ${after.turn.n} of the second`}</h2>
    ${moved && html`<div class="tiles">
      ${usage.map((name) => html`<div class="tile"><span>${{ input_tokens: "Sent", cached_tokens: "Cached", output_tokens: "Output" }[name]}</span>
        <strong>${signed(spent(after.turn, name) - spent(before.turn, name))}</strong><small>${count(spent(before.turn, name))} → ${count(spent(after.turn, name))} tokens</small></div>`)}
      <div class="tile"><span>Tools</span><strong>${signed(names(after.turn).length - names(before.turn).length)}</strong><small>${count(names(before.turn).length)} → ${count(names(after.turn).length)} offered</small></div>
    </div>`}
    ${same.length > 0 && html`<p class="quiet alike in-page">${sentence(same)} the same in both turns.</p>`}
    ${sections.length > 0 && html`<${Part} title="Sections">
      <div class="changes">${sections.map((section) => html`<div class="change"><a class="section-link" href=${toTurn(after.turn.run_id, after.turn.n, { section: section.key })}>${visible(section.key)}</a>
        <span>${section.from !== "absent" && html`<${Disc} state=${section.from} />`}${STATES[section.from]}</span><${Icon} name="next" /><span>${section.to !== "absent" && html`<${Disc} state=${section.to} />`}${STATES[section.to]}</span>
        <span class="n quiet">${signed(section.tokens)} tokens shown</span></div>`)}</div>
    <//>`}
    ${tools.length > 0 && html`<${Part} title="Tools">
      <p class="tool-changes">${tools.map(([kind, name]) => html`<code class=${`tool ${kind}`}>${kind === "new" ? "+" : "−"} ${visible(name)}</code> `)}</p>
    <//>`}
    ${!alike(prompt) && html`<${Part} title="Prompt"><${Lines} runs=${prompt} /><//>`}
    ${!alike(spoken) && html`<${Part} title="Conversation"><${Messages} runs=${spoken} cut=${before.cut || after.cut} /><//>`}
    ${!alike(reply) && html`<${Part} title="Reply"><${Lines} runs=${reply} /><//>`}
  `;
}

const alike = (runs) => runs.every((run) => run.kind === "same");

// "Sections, tools and prompt are"
function sentence(names) {
  const words = names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)} are` : `${names[0]} ${names[0] === "tools" || names[0] === "sections" ? "are" : "is"}`;
  return words[0].toUpperCase() + words.slice(1);
}

function Part({ title, children }) {
  return html`<section class="card" aria-label=${title}><h2>${title}</h2>${children}</section>`;
}

// How the prompts of two runs of a case differ: what both were sent, and the sections that both opened.
export function PromptChange({ before, after }) {
  const both = useDocument(() => Promise.all([before, after].map((result) => side(result.run_id, result.turns))), [before.run_id, after.run_id]);
  if (!both.document) return both.error ? html`<${Problem} text=${both.error} />` : html`<${Loading} label="Comparing" />`;
  const opened = both.document.map(openedTexts);
  const texts = both.document.map(({ prompt }, index) => [prompt, ...[...opened[index]].filter(([key]) => opened[1 - index].has(key)).map(([, text]) => text)].join("\n\n"));
  const prompt = diff(lines(texts[0]), lines(texts[1]));
  return html`<${Part} title=${`Prompt, in case ${visible(after.case_id)}`}>${alike(prompt) ? html`<p class="quiet">What this case was sent and opened in both is the same; the prompts differ in other sections.</p>` : html`<${Lines} runs=${prompt} />`}<//>`;
}

// The text of each section that was read in the conversation, by its key.
function openedTexts({ turn, messages }) {
  const read = messages.filter((message) => message.role === "tool").flatMap((message) => turn.sections.filter((section) => section.call_id && section.call_id === message.call_id).map(({ key }) => [key, message.text]));
  return new Map(read.sort(([one], [other]) => one.localeCompare(other)));
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

async function side(id, n) {
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
  const n = at < 0 ? 0 : Number(value.slice(at + 1));
  return n ? [value.slice(0, at), n] : [value, 0];
}

function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    if (found.at(-1)?.[1] === number) found.at(-1)[1] += 1;
    else found.push([number, number + 1]);
  }
  return found;
}
