// Advice over all recorded runs: which sections to show in full, and what that would have saved.

import { useEffect } from "preact/hooks";
import { api, changes } from "wink/api.js";
import { classes, count, percent, plural } from "wink/format.js";
import { entitle } from "wink/state.js";
import { visible } from "wink/text.js";
import { Disc, Empty, Pill, Shown, html, useDocument } from "wink/view.js";

export function Report() {
  const loaded = useDocument(() => api.report(), [changes.value]);
  useEffect(() => entitle("Report"), []);
  return html`<section class="page scroll" tabindex="0" aria-label="Report">
    <div class="page-head"><h1>Report</h1><span class="quiet">${loaded.document?.runs ? `from the last ${plural(loaded.document.runs, "answered run")} in ${loaded.document.file}` : ""}</span></div>
    <${Shown} of=${loaded}>${(report) =>
      report.error || !report.prompts.length
        ? html`<${Empty} title="No advice yet"><p>${report.error ?? "Advice is computed from runs that ended with an answer."}</p><//>`
        : report.prompts.map((prompt) => html`<${Prompt} prompt=${prompt} />`)}<//>
  </section>`;
}

function Prompt({ prompt }) {
  const costs = prompt.sections.flatMap((section) => [section.cost_full, section.cost_summary]);
  const price = (value) => cost(value, prompt.unit, Math.max(prompt.cost, prompt.cost_advised));
  const each = (value) => (value == null ? "–" : cost(value, prompt.unit, Math.max(...costs.map((one) => one ?? 0))));
  const changed = prompt.sections.filter((section) => section.advised && section.advised !== section.shown);
  return html`<section class="card">
    <div class="card-head"><h2>${visible(prompt.prompt)}</h2><span class="quiet">${plural(prompt.runs, "run")}, costs in ${prompt.unit === "USD" ? "US dollars" : prompt.unit}</span></div>
    <div class="tiles">
      <div class="tile"><span>These runs cost</span><strong>${price(prompt.cost)}</strong><small>${percent(prompt.cache_again, 1)} of repeated tokens came from the cache</small></div>
      <div class="tile"><span>With the advice</span><strong>${price(prompt.cost_advised)}</strong><small>${changed.length ? `${plural(changed.length, "section")} shown otherwise` : "nothing to change"}</small></div>
      <div class="tile"><span>Saved</span><strong class=${prompt.saved > 0 ? "good" : ""}>${price(prompt.saved)}</strong><small>${percent(prompt.saved, prompt.cost)} of the cost</small></div>
    </div>
    <div class="sheet report" role="table" aria-label="Sections" tabindex="0">
      <div class="sheet-row head" role="row"><span role="columnheader">Section</span><span role="columnheader">Shown as</span><span role="columnheader" class="n">Opened</span><span role="columnheader" class="n">First use</span><span role="columnheader" class="n">In full</span><span role="columnheader" class="n">Cost full</span><span role="columnheader" class="n">Cost summary</span><span role="columnheader">Advice</span></div>
      ${prompt.sections.map((section) => html`<div class="sheet-row" role="row">
        <span role="cell" class="ellipsis" title=${section.key}>${visible(section.key)}${section.findings.map((finding) => html`<small class="finding">${finding}</small>`)}</span>
        <span role="cell" class="state-cell">${section.shown !== "mixed" && html`<${Disc} state=${section.shown} />`}${section.shown}</span>
        <span role="cell" class="n">${section.shown === "full" ? "–" : `${section.opened_runs} of ${section.runs}`}</span>
        <span role="cell" class="n">${section.first_use == null ? "–" : `turn ${section.first_use}`}</span>
        <span role="cell" class="n">${count(section.full_tokens)}</span>
        <span role="cell" class="n">${each(section.cost_full)}</span>
        <span role="cell" class="n">${each(section.cost_summary)}</span>
        <span role="cell" class="verdict">${section.advised && html`<${Pill} kind=${classes(section.advised === section.shown ? "" : "good")}>${section.advised === section.shown ? "keep" : `make it ${section.advised}`}<//>`}<small>${visible(section.reason)}</small></span>
      </div>`)}
    </div>
  </section>`;
}

// Costs are often far below a cent: as many digits as the largest of them needs, so that columns line up.
function cost(value, unit, largest) {
  if (unit !== "USD") return `${count(value)} tokens`;
  const digits = largest > 0 ? Math.min(6, Math.max(2, 2 - Math.floor(Math.log10(largest)))) : 2;
  return `${value < 0 ? "−" : ""}$${Math.abs(value).toFixed(digits)}`;
}
