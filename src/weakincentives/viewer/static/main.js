// The frame around every page, and which page it is.

import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { api, cutOff, exported, listen, play } from "wink/api.js";
import { Chat } from "wink/chat.js";
import { Compare } from "wink/compare.js";
import { Evals } from "wink/evals.js";
import { Help, useKeys } from "wink/keys.js";
import { Play } from "wink/play.js";
import { Report } from "wink/report.js";
import { Run } from "wink/run.js";
import { Runs } from "wink/runs.js";
import { Search } from "wink/search.js";
import { cycleTheme, go, helping, link, route, theme } from "wink/state.js";
import { TermCard } from "wink/terms.js";
import { Icon, Loading, html, useDocument } from "wink/view.js";

function App() {
  const { page, params } = route.value;
  const field = useRef(null);
  const words = page === "search" ? params.q ?? "" : "";
  // Set only when another search begins, so that nothing that happens meanwhile wipes what is being typed.
  useEffect(() => {
    field.current.value = words;
  }, [words]);
  useEffect(() => {
    document.documentElement.dataset.theme = theme.value;
  }, [theme.value]);
  useKeys();
  return html`
    <button class="skip" onClick=${() => document.querySelector("main [tabindex='0']")?.focus()}>Skip to the content</button>
    <header class="bar">
      <a class="brand" href="#/" aria-label="wink, all runs"><${Mark} /><span>wink</span></a>
      <nav>
        ${!exported && html`<a href="#/" class=${page === "runs" ? "here" : ""}>Runs</a>`}
        ${play.value && html`<a href="#/play" class=${page === "play" || params.play ? "here" : ""}>Playground</a>`}
        ${!exported && html`<a href="#/report" class=${page === "report" ? "here" : ""}>Report</a>`}
        ${!exported && html`<a href="#/evals" class=${page === "evals" ? "here" : ""}>Evals</a>`}
        <a href="#/compare" class=${page === "compare" ? "here" : ""}>Compare</a>
      </nav>
      ${cutOff.value && html`<span class="pill status interrupted" title="Open the address that was printed when the server was started">${cutOff.value}</span>`}
      <form class="find" role="search" onSubmit=${submit}>
        <${Icon} name="search" />
        <input name="q" type="search" placeholder="Search everything" aria-label="Search everything"
          autocomplete="off" spellcheck="false" ref=${field} />
        <kbd>/</kbd>
      </form>
      <button class="plain" onClick=${cycleTheme} title="Light or dark (t)" aria-label="Light or dark"><${Icon} name="sun" /></button>
      <button class="plain" onClick=${() => (helping.value = true)} title="Keyboard (?)" aria-label="Keyboard shortcuts">?</button>
    </header>
    <main><${Page} /></main>
    <${Help} />
    <${TermCard} />
  `;
}

function Page() {
  const { page, run, params } = route.value;
  if (page === "play" || (page === "run" && params.play)) {
    return html`<div class="playing"><${Play} key="play" />${page === "run" && html`<${Run} key=${run} />`}</div>`;
  }
  if (page === "run") return html`<${Run} key=${run} />`;
  if (page === "conversation" && !exported) return html`<${Chat} />`;
  if (page === "compare") return html`<${Compare} />`;
  if (page === "search") return html`<${Search} />`;
  if (page === "evals") return html`<${Evals} />`;
  if (page === "report") return html`<${Report} />`;
  return exported ? html`<${OnlyRun} />` : html`<${Runs} />`;
}

// An exported file opens at its one run.
function OnlyRun() {
  const { document: list } = useDocument(() => api.runs(), []);
  useEffect(() => {
    if (list) go(link("run", [list.runs[0].run_id]), { replace: true });
  }, [list]);
  return html`<${Loading} />`;
}

function Mark() {
  return html`<svg viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="8" />
    <path d="M8 9h16" /><path d="M12 16h12" opacity=".75" /><path d="M12 23h7" opacity=".5" />
  </svg>`;
}

function submit(event) {
  event.preventDefault();
  const words = new FormData(event.target).get("q").trim();
  const { page, run, params } = route.value;
  const inside = page === "run" ? run : page === "search" ? params.run : "";
  if (words) go(link("search", [], { q: words, run: inside }));
}

document.documentElement.dataset.theme = theme.value;
listen();
render(html`<${App} />`, document.getElementById("app"));

