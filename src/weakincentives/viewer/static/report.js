// Advice over all recorded runs, what saves most first: which sections to show otherwise, and the change to copy.

import { useEffect, useState } from "preact/hooks";
import { api, changes } from "wink/api.js";
import { count, percent, plural } from "wink/format.js";
import { entitle } from "wink/state.js";
import { visible } from "wink/text.js";
import { Disc, Empty, Pill, Shown, html, useDocument } from "wink/view.js";

const FEWEST_RUNS = 3;

export function Report() {
  const loaded = useDocument(() => api.report(), [changes.value]);
  useEffect(() => entitle("Report"), []);
  return html`<section class="page scroll" tabindex="0" aria-label="Report">
    <div class="page-head"><h1>Report</h1><span class="quiet">${loaded.document?.runs ? `from the last ${plural(loaded.document.runs, "answered run")} in ${loaded.document.file}` : ""}</span></div>
    <${Shown} of=${loaded}>${(report) =>
      report.error || !report.prompts.length
        ? html`<${Empty} title="No advice yet"><p>${report.error ?? "Advice is computed from runs that ended with an answer."}</p><//>`
        : html`<${Prompts} prompts=${report.prompts} />`}<//>
  </section>`;
}

const advised = (prompt) => prompt.sections.filter((section) => section.advised && section.advised !== section.shown);

function Prompts({ prompts }) {
  const known = prompts.filter((prompt) => prompt.runs >= FEWEST_RUNS || advised(prompt).length > 0);
  const few = prompts.filter((prompt) => !known.includes(prompt));
  // Dollars before tokens, which cannot be compared with them.
  const order = (prompt) => [prompt.unit === "USD" ? 0 : 1, -prompt.saved];
  known.sort((one, other) => order(one)[0] - order(other)[0] || order(one)[1] - order(other)[1]);
  return html`${known.map((prompt) => html`<${Prompt} key=${prompt.prompt} prompt=${prompt} />`)}
    ${few.length > 0 && html`<details class="card few"><summary>${plural(few.length, "prompt")} with fewer than ${FEWEST_RUNS} runs: no advice yet</summary>
      <ul>${few.map((prompt) => html`<li>${visible(prompt.prompt)} <span class="quiet">${plural(prompt.runs, "run")}</span></li>`)}</ul></details>`}`;
}

function Prompt({ prompt }) {
  const [all, setAll] = useState(false);
  const price = (value) => cost(value, prompt.unit, Math.max(prompt.cost, prompt.cost_advised));
  const changed = advised(prompt);
  const kept = prompt.sections.filter((section) => !changed.includes(section));
  return html`<section class="card" aria-label=${`Advice on ${visible(prompt.prompt)}`}>
    <div class="card-head"><h2>${visible(prompt.prompt)}</h2><span class="quiet">${plural(prompt.runs, "run")}, ${price(prompt.cost)}${prompt.cache_again > 0 ? `, ${percent(prompt.cache_again, 1)} of repeated tokens from the cache` : ""}</span></div>
    ${changed.length > 0 ? html`<${Change} prompt=${prompt} changed=${changed} price=${price} />` : html`<p class="keep-all">Nothing to change: every section is shown in its cheapest way.</p>`}
    ${kept.length > 0 && html`<button class="more wide" aria-expanded=${all} onClick=${() => setAll(!all)}>${all ? "Fold the sections to keep as they are" : `${plural(kept.length, "section")} to keep as ${kept.length === 1 ? "it is" : "they are"}`}</button>`}
    ${all && html`<${Rows} prompt=${prompt} sections=${kept} />`}
  </section>`;
}

// What to change, what it saves, and the change itself.
function Change({ prompt, changed, price }) {
  const [copied, setCopied] = useState("");
  const code = changed.map((section) => `visibility=SectionVisibility.${section.advised.toUpperCase()},  # in section '${section.key}' of ${prompt.prompt}`).join("\n");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(code);
      setCopied("Copied");
    } catch {
      setCopied("The browser refused to copy");
    }
    setTimeout(() => setCopied(""), 2500);
  };
  return html`<div class="advice">
    <p class="advice-sum"><strong class=${prompt.saved > 0 ? "good" : ""}>${price(prompt.saved)} less</strong> <span class="quiet">of ${price(prompt.cost)} in these runs, ${percent(prompt.saved, prompt.cost)}</span></p>
    <ul>${changed.map((section) => html`<li><code>${visible(section.key)}</code> <span class="quiet">${visible(section.shown)}</span> → <${Pill} kind="good">${section.advised}<//> <span>${visible(section.reason)}</span>${section.findings.map((finding) => html` <small class="quiet">${finding}</small>`)}</li>`)}</ul>
    <div class="advice-code"><pre class="code" tabindex="0" aria-label="The change">${visible(code)}</pre><button onClick=${copy}>Copy the change</button><span role="status" class="quiet">${copied}</span></div>
  </div>`;
}

function Rows({ prompt, sections }) {
  const costs = prompt.sections.flatMap((section) => [section.cost_full, section.cost_summary]);
  const each = (value) => (value == null ? "–" : cost(value, prompt.unit, Math.max(...costs.map((one) => one ?? 0))));
  return html`<div class="sheet report" role="table" aria-label="Sections to keep" tabindex="0">
    <div class="sheet-row head" role="row"><span role="columnheader">Section</span><span role="columnheader">Shown as</span><span role="columnheader" class="n">Opened</span><span role="columnheader" class="n">First use</span><span role="columnheader" class="n">In full</span><span role="columnheader" class="n">Cost full</span><span role="columnheader" class="n">Cost summary</span><span role="columnheader">Advice</span></div>
    ${sections.map((section) => html`<div class="sheet-row" role="row">
      <span role="cell" class="ellipsis" title=${section.key}>${visible(section.key)}${section.findings.map((finding) => html`<small class="finding">${finding}</small>`)}</span>
      <span role="cell" class="state-cell">${section.shown !== "mixed" && html`<${Disc} state=${section.shown} />`}${section.shown}</span>
      <span role="cell" class="n">${section.shown === "full" ? "–" : `${section.opened_runs} of ${section.runs}`}</span>
      <span role="cell" class="n">${section.first_use == null ? "–" : `turn ${section.first_use}`}</span>
      <span role="cell" class="n">${count(section.full_tokens)}</span>
      <span role="cell" class="n">${each(section.cost_full)}</span>
      <span role="cell" class="n">${each(section.cost_summary)}</span>
      <span role="cell" class="verdict">${section.advised && html`<${Pill}>keep<//>`}<small>${visible(section.reason)}</small></span>
    </div>`)}
  </div>`;
}

// Costs are often far below a cent: as many digits as the largest of them needs, so that columns line up.
function cost(value, unit, largest) {
  if (unit !== "USD") return `${count(value)} tokens`;
  const digits = largest > 0 ? Math.min(6, Math.max(2, 2 - Math.floor(Math.log10(largest)))) : 2;
  return `${value < 0 ? "−" : ""}$${Math.abs(value).toFixed(digits)}`;
}
