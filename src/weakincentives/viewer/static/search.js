// Places that say what was searched for, run by run.

import { useEffect } from "preact/hooks";
import { api, exported } from "wink/api.js";
import { moment, oneLine, plural } from "wink/format.js";
import { entitle, link, route, setParams, toTurn } from "wink/state.js";
import { visible } from "wink/text.js";
import { Empty, Shown, Status, html, useDocument } from "wink/view.js";

export function Search() {
  const { q = "", run = "" } = route.value.params;
  const found = useDocument(() => api.search(q, run), [q, run]);
  useEffect(() => entitle(`“${visible(q)}”`), [q]);
  useEffect(() => document.querySelector(".find input")?.blur(), [q]);
  return html`<section class="page scroll" tabindex="0" aria-label="Search">
    <div class="page-head"><h1>“${visible(q)}”</h1>
      <span class="quiet">${found.document && tally(found.document)}</span>
      <div class="spacer"></div>
      ${run && !exported && html`<button class="chip selected" onClick=${() => setParams({ run: "" })}>in run <code>${run}</code> ×</button>`}
    </div>
    <${Shown} of=${found}>${({ hits, runs }) =>
      hits.length === 0
        ? html`<${Empty} title="Nothing says that"><p>${run && !exported ? "Try all runs: remove the run above." : "Search looks into prompts, messages, arguments, results and errors."}</p><//>`
        : grouped(hits).map(([id, places]) => html`<section class="card hits">
            <header><a href=${link("run", [id])}><strong>${visible(oneLine(runs[id]?.question || runs[id]?.prompt_name || id)).slice(0, 120)}</strong></a><${Status} status=${runs[id]?.status} /><code class="quiet">${visible(id)}</code><span class="spacer"></span><span class="quiet">${runs[id] && moment(runs[id].started)}</span></header>
            ${places.map((hit) => html`<a class="hit" href=${target(hit, runs[id], q)}>
              <span class="quiet">${hit.turn ? `Turn ${hit.turn}` : "Start"}</span>
              <span class="kind">${visible(named(hit))}</span>
              <span class="snippet">${hit.before.length >= 60 ? "…" : ""}${visible(hit.before)}<mark>${visible(hit.match)}</mark>${visible(hit.after)}</span>
            </a>`)}
          </section>`)}<//>
  </section>`;
}

function tally({ hits, matching, cut, runs }) {
  const shown = Object.keys(runs).length;
  if (!cut) return `${plural(hits.length, "place")} in ${plural(matching, "run")}`;
  return matching > shown ? `the first places in the newest ${shown} of ${plural(matching, "run")}; search for more words to see the others` : `the first places in ${plural(shown, "run")}; search inside a run to see all of its places`;
}

const PLACES = { PromptRendered: "Prompt", ModelCalled: "Model call" };

function named(hit) {
  if (hit.kind === "Message") return { assistant: "Reply", tool: "Tool result", user: "User" }[hit.name] ?? "Message";
  if (hit.kind === "ToolInvoked" || hit.kind === "HostedToolInvoked") return `${hit.name} ${hit.where.split(".")[0]}`;
  if (hit.kind === "RunEnded") return hit.where.startsWith("reason") ? "Error" : "Answer";
  return PLACES[hit.kind] ?? hit.kind;
}

// A prompt that was rendered after turn n is what turn n + 1 was sent; other kinds of events have no place in a turn.
function target(hit, run, words) {
  const shown = ["PromptRendered", "Message", "ToolInvoked", "HostedToolInvoked", "RunEnded", "ModelCalled"];
  if (!shown.includes(hit.kind) || !run?.turns) return link("run", [hit.run_id, "events"], { event: String(hit.seq), find: words });
  const turn = hit.kind === "PromptRendered" ? hit.turn + 1 : hit.turn;
  return toTurn(hit.run_id, Math.max(1, Math.min(turn, run.turns)), { find: words });
}

function grouped(hits) {
  const groups = new Map();
  for (const hit of hits) groups.set(hit.run_id, [...(groups.get(hit.run_id) ?? []), hit]);
  return [...groups];
}
