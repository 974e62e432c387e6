// One run: its head, its turns as a scrubber, and the four ways to look at it.

import { useEffect, useState } from "preact/hooks";
import { api, changes, exported, play } from "wink/api.js";
import { chatLink } from "wink/chat.js";
import { count, duration, moment, money, oneLine, percent, plural, short, signed } from "wink/format.js";
import { Events } from "wink/events.js";
import { useShortcuts } from "wink/keys.js";
import { Ledger } from "wink/ledger.js";
import { Scrubber } from "wink/scrubber.js";
import { entitle, go, link, route, toTurn } from "wink/state.js";
import { Term } from "wink/terms.js";
import { visible } from "wink/text.js";
import { Waiting } from "wink/waiting.js";
import { Timeline } from "wink/timeline.js";
import { Turn } from "wink/turn.js";
import { Empty, Icon, Shown, Status, html, useDocument, useTaken } from "wink/view.js";

const TABS = [
  ["turn", "Turns"],
  ["disclosure", "Disclosure"],
  ["ledger", "Ledger"],
  ["events", "Events"],
];

export function Run() {
  const { run: id } = route.value;
  const [version, setVersion] = useState(0);
  const loaded = useDocument(() => api.run(id), [id, version]);
  const running = isOpen(loaded.document?.run);
  // A run that has ended does not change, so news from other runs is not for it.
  useEffect(() => {
    if (loaded.loading || version === changes.value || (loaded.document && !running)) return undefined;
    const timer = setTimeout(() => setVersion(changes.value), 150);
    return () => clearTimeout(timer);
  }, [changes.value, loaded.loading, running]);
  return html`<${Shown} of=${loaded}>${(whole) => html`<${Whole} whole=${whole} />`}<//>`;
}

// A run that waits may go on at any time.
const isOpen = (run) => ["running", "waiting"].includes(run?.status);

function Whole({ whole }) {
  const { tab, n, params } = route.value;
  const { run, turns } = whole;
  const answered = turns.n.length;
  const last = answered + (whole.pending ? 1 : 0);
  const running = run.status === "running";
  const [follow, setFollow] = useState(running && !n);
  // Following shows what was answered last; the request that waits for its reply is one turn further.
  const at = follow ? answered || last : Math.min(n || (run.status === "waiting" ? last : 1), last);
  const show = (to) => {
    const target = Math.max(1, Math.min(last, to));
    go(toTurn(run.run_id, target, { section: params.section, part: params.part }), { replace: tab === "turn" });
  };
  useEffect(() => {
    if (tab === "turn" && last && n !== at) go(toTurn(run.run_id, at, params), { replace: true });
  }, [tab, at, last, n]);
  useEffect(() => entitle(tab === "turn" ? `Turn ${at}` : TABS.find(([name]) => name === tab)?.[1], visible(run.prompt_name)), [tab, at]);
  const step = (by) => () => (tab === "turn" ? (setFollow(false), show(at + by)) : false);
  const toNext = (column) => {
    const to = nextTurn(turns, column, at);
    if (to) setFollow(false), show(to);
  };
  const tabs = Object.fromEntries(TABS.map(([name], index) => [String(index + 1), () => go(tabLink(run.run_id, name, at))]));
  useShortcuts({
    ...tabs,
    j: step(1),
    k: step(-1),
    ArrowRight: step(1),
    ArrowLeft: step(-1),
    Home: step(-last),
    End: step(last),
    f: () => running && setFollow(!follow),
    e: () => toNext("failed"),
    o: () => toNext("opened"),
    "[": () => whole.conversation?.previous && go(link("run", [whole.conversation.previous])),
    "]": () => whole.conversation?.next && go(link("run", [whole.conversation.next])),
    d: () => tab === "turn" && at > 1 && go(link("compare", [], { a: `${run.run_id}:${at - 1}`, b: `${run.run_id}:${at}` })),
  });
  return html`<section class="page run">
    <${Head} whole=${whole} tab=${tab} at=${at} />
    ${tab === "turn" &&
    (last === 0
      ? html`<${NoTurns} run=${run} outcome=${whole.outcome} />`
      : html`<${Scrubber} turns=${turns} marks=${whole.marks} undone=${whole.undone_from} pending=${whole.pending} at=${at} running=${running} follow=${follow} onFollow=${setFollow}
            onMove=${(to) => (setFollow(false), show(to))} />
          <${Turn} whole=${whole} n=${at} last=${(isOpen(run) && at === answered) || at > answered ? run.events : 0} />`)}
    ${tab === "disclosure" && html`<${Timeline} whole=${whole} />`}
    ${tab === "ledger" && html`<${Ledger} whole=${whole} />`}
    ${tab === "events" && html`<${Events} run=${run} />`}
  </section>`;
}

const tabLink = (id, name, at) => (name === "turn" ? toTurn(id, at) : link("run", [id, name]));

// The next turn after `at` of which the column counts something; from the last one it begins again.
function nextTurn(turns, column, at) {
  const all = turns[column].map((many, index) => (many ? index + 1 : 0)).filter(Boolean);
  return all.find((n) => n > at) ?? all[0];
}

function Head({ whole, tab, at }) {
  const { run, ledger, parent, calls } = whole;
  const { usage, children } = run;
  const running = run.status === "running";
  const cut = whole.pending && run.status === "interrupted";
  const answer = run.answer || (isOpen(run) || run.error ? "" : "no answer");
  return html`<div class="run-head">
    <div class="title">
      ${!exported && (parent
        ? html`<a class="up" href=${toTurn(parent.run_id, parent.turn)} title="The call that made this run" aria-label="The call that made this run"><${Icon} name="back" /></a>`
        : html`<a class="up" href="#/" title="All runs (u)" aria-label="All runs"><${Icon} name="back" /></a>`)}
      <h1 title=${visible(run.question)}>${visible(oneLine(run.question || run.prompt_name || run.prompt || "unnamed"))}</h1>
      <${Status} status=${run.status} />
      <div class="spacer"></div>
      <nav class="tabs" aria-label="Views of the run">
        ${TABS.map(
          ([name, label]) => html`<a aria-current=${tab === name ? "page" : undefined} class=${tab === name ? "on" : ""}
            href=${tabLink(run.run_id, name, at)}>${label}</a>`,
        )}
      </nav>
    </div>
    ${whole.conversation && html`<${Place} place=${whole.conversation} run=${run} />`}
    ${parent && html`<p class="quiet inside">Inside ${exported ? visible(parent.name) : html`<a href=${toTurn(parent.run_id, parent.turn)}>${visible(oneLine(parent.question || parent.name || parent.run_id))}</a>`}, turn ${parent.turn}</p>`}
    ${answer && html`<p class="answer" title=${visible(answer)}>${visible(oneLine(answer))}</p>`}
    ${whole.evaluation && html`<p class="quiet place">Case ${exported ? visible(whole.evaluation.case_id) : html`<a href=${link("evals", [], { b: whole.evaluation.id })}>${visible(whole.evaluation.case_id)} of the evaluation ${visible(whole.evaluation.name)}</a>`}, ${whole.evaluation.verdict}</p>`}
    ${run.error && html`<div class="banner bad"><${Icon} name="alert" /><span>${visible(run.error.slice(0, 2000))}</span></div>`}
    <${Waiting} whole=${whole} />
    <div class="story">${whole.story && html`<p>${visible(whole.story)}</p>`}<div class="spacer"></div><${Actions} run=${run} at=${at} /></div>
    <dl class="facts">
      <${Fact} name="Prompt" value=${visible(run.prompt_name || run.prompt)} hint=${`${run.prompt}, run ${run.run_id}`} />
      ${whole.overrides_tag && html`<${Fact} name="Override" value=${visible(whole.overrides_tag)} hint="The tag of the stored override that changed its texts" />`}
      <${Fact} name="Model" value=${visible(run.model)} hint=${`by the ${run.adapter} adapter`} />
      <${Fact} name="Started" value=${moment(run.started)} />
      <${Fact} name=${running ? "Takes" : "Took"} value=${duration(useTaken(run))} />
      <${Fact} name="Turns" term="turn" value=${run.turns || !whole.pending ? count(run.turns) + (cut ? " + 1" : "") : "0 + 1"}
        hint=${whole.pending && run.status !== "running" ? "The last request got no whole reply, so its tokens are not known" : ""} />
      <${Fact} name="Input" value=${short(usage.input_tokens)} hint=${`${count(usage.input_tokens)} tokens`} />
      ${usage.cached_tokens > 0 && html`<${Fact} name="Cached" term="cached" value=${percent(usage.cached_tokens, usage.input_tokens)} hint=${`${count(usage.cached_tokens)} tokens`} />`}
      <${Fact} name="Output" value=${short(usage.output_tokens)} />
      <${Fact} name="Cost" value=${money(run.cost)} hint=${run.cost == null ? "The price of this model is not known" : ""} />
      ${ledger.full > 0 && ledger.saved !== 0 && html`<${Fact} name="Saved" value=${signed(ledger.saved)} kind=${ledger.saved < 0 ? "bad" : "good"}
        hint=${`Input tokens over all turns: ${count(ledger.sent)} sent, ${count(ledger.full)} with everything open`} />`}
      ${calls.made > 0 && html`<${Fact} name="Tool calls" value=${count(calls.made)} hint="Without those that open sections" />`}
      ${calls.hosted > 0 && html`<${Fact} name="Hosted tools" term="hosted tool" value=${count(calls.hosted)} />`}
      ${calls.failed > 0 && html`<${Fact} name="Failed calls" value=${count(calls.failed)} kind="bad" />`}
      ${children.runs > 0 && html`<${Fact} name="Runs inside" value=${count(children.runs)} hint=${`${count(children.usage.input_tokens)} tokens in, ${money(children.cost)}; not counted here`} />`}
      ${run.restarts > 0 && html`<${Fact} name="Restarts" value=${count(run.restarts)} kind="warn" />`}
      ${whole.undone_from != null && html`<${Fact} name="Undone" value=${whole.undone_from ? `from turn ${whole.undone_from}` : "all of it"} hint="The conversation went back to before these turns; what they used still counts" kind="warn" />`}
    </dl>
  </div>`;
}

// Where the run stands in its conversation, with the way to its neighbours.
function Place({ place, run }) {
  const words = `Exchange ${place.at} of ${place.of} in this conversation`;
  if (exported) return html`<p class="quiet place">${words}</p>`;
  const step = (to, icon, label) => (to ? html`<a class="up" href=${link("run", [to])} title=${label} aria-label=${label}><${Icon} name=${icon} /></a>` : html`<span class="up off"><${Icon} name=${icon} /></span>`);
  return html`<p class="quiet place">${step(place.previous, "back", "Previous exchange ([)")}<a href=${chatLink(place.id, run.run_id)}>${words}</a>${step(place.next, "next", "Next exchange (])")}</p>`;
}

function Actions({ run, at }) {
  const [copied, setCopied] = useState("");
  const playable = play.value && play.value.prompt === run.prompt;
  const copy = async () => {
    const { text } = await api.script(run.run_id);
    try {
      await navigator.clipboard.writeText(text);
      setCopied("Copied");
    } catch {
      setCopied("The browser refused to copy");
    }
    setTimeout(() => setCopied(""), 2500);
  };
  const goOn = async () => {
    if (playable) return go(link("play", [], { run: run.run_id, turn: String(at || 1), on: "1" }));
    const name = /^[\w./:-]+$/.test(run.run_id) ? run.run_id : `'${run.run_id.replaceAll("'", "'\\''")}'`;
    const command = `wink fork ${name} --turn ${at || 1}`;
    setCopied(command);
    await navigator.clipboard?.writeText(command).catch(() => {});
  };
  return html`<span class="actions">
    <span role="status" class="quiet">${copied}</span>
    <button onClick=${copy} title="The replies of this run as a script for ScriptedAdapter">Copy as a test</button>
    ${!exported && run.turns > 0 && html`<button onClick=${goOn} title=${playable ? "Before the reply of this turn, in the playground" : "The command that goes on from before the reply of this turn, in a conversation of its own"}>Continue from here</button>`}
    ${!exported && html`<button disabled=${!playable} onClick=${() => go(link("play", [], { run: run.run_id, turn: String(at || 1) }))}
      title=${playable ? "Its prompt, with the sections as they were at this turn" : "Start the playground of its prompt: wink play module:template"}>Open in the playground</button>`}
  </span>`;
}

function Fact({ name, value, hint, term = "", kind = "" }) {
  return html`<div title=${hint ? visible(hint) : undefined}><dt>${term ? html`<${Term} name=${term}>${name}<//>` : name}</dt><dd class=${kind}>${value}</dd></div>`;
}

function NoTurns({ run, outcome }) {
  if (run.status === "running") return html`<${Empty} title="Waiting for the model"><p>${plural(run.events, "event")} so far.</p><//>`;
  return html`<${Empty} title="The model was never asked">
    <p>${outcome?.reason ? visible(outcome.reason.slice(0, 2000)) : "The run ended before its first turn."}</p><//>`;
}
