// The playground: sections on the left, what the model would see in the middle, what it costs on the right, runs below.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, live, play, running } from "wink/api.js";
import { diff, lines } from "wink/diff.js";
import { classes, count, percent, plural } from "wink/format.js";
import { Fields, restored, valueOf } from "wink/fields.js";
import { RawSwitch } from "wink/markdown.js";
import { Offered, Piece } from "wink/request.js";
import { entitle, go, link, route } from "wink/state.js";
import { visible } from "wink/text.js";
import { Disc, Icon, Loading, Problem, Share, html, useDocument } from "wink/view.js";

const WORDS = { out: "left out", summary: "summary", full: "in full", inside: "inside a closed section", off: "off" };
const DISCS = { out: "hidden", off: "hidden", inside: "hidden" };

export function Play() {
  const about = useDocument(() => api.play(), []);
  useEffect(() => entitle("Playground"), []);
  if (about.error) return html`<${Problem} text=${about.error} />`;
  if (!about.document) return html`<${Loading} />`;
  return html`<${Ground} about=${play.value ?? about.document} />`;
}

function Ground({ about }) {
  const [kept, keep] = useKept(about);
  const { states, params, drafts, tag, adapter, message } = kept;
  const [editing, setEditing] = useState("");
  const [side, setSide] = useState("text");
  // Counts what was loaded, so that it is rendered anew.
  const [loaded, setLoaded] = useState({ times: 0, busy: "", error: "" });
  const wanted = { states, params: filled(about, params), drafts, tag, adapter };
  const { document: now, before, error } = useShown(wanted, loaded.times);
  const { run: fromRun, turn: fromTurn } = route.value.params;
  useStatesOfTurn(kept, keep);
  const choose = (section, choice) => keep({ states: chosen(states, section, choice) });
  const load = async (section) => {
    setLoaded((was) => ({ ...was, busy: section.key, error: "" }));
    const failed = await api.act("load", { section: section.key }).then(() => "", (problem) => problem.message);
    if (!failed) play.value = await api.play();
    setLoaded((was) => ({ times: was.times + 1, busy: "", error: failed }));
  };
  const touched = tag || Object.keys(drafts).length > 0 || now?.sections.some((one) => one.key in states && one.state !== one.declared);
  const edited = now?.sections.find((section) => section.key === editing);
  const late = { load, busy: loaded.busy };
  const missing = now?.missing ?? [];
  return html`<section class=${`page play shows-${side}`} aria-label="Playground">
    <div class="page-head">
      <h1>${visible(about.name)}</h1><span class="quiet">${visible(about.prompt)}</span>
      <div class="spacer"></div>
      <div class="segments play-sides" role="group" aria-label="Column">
        ${[["sections", "Sections"], ["text", "Text"], ["ask", "Params and run"]].map(([name, label]) => html`<button class=${classes(`to-${name}`, side === name && "on")} aria-pressed=${side === name} onClick=${() => setSide(name)}>${label}</button>`)}
      </div>
      ${about.tags.length > 0 && html`<label>Override <select value=${tag} onChange=${(event) => keep({ tag: event.target.value })}><option value="">none</option>${about.tags.map((one) => html`<option value=${one}>${visible(one)}</option>`)}</select></label>`}
      ${touched && html`<button onClick=${() => keep({ states: {}, drafts: {}, tag: "" })} title="Forget choices and drafts; params and message stay"><${Icon} name="undo" /> Back to the declared prompt</button>`}
    </div>
    ${(error || loaded.error) && html`<div class="banner bad play-error" role="alert"><${Icon} name="alert" /><span>${visible(error || loaded.error)}</span></div>`}
    ${now && html`<${Bill} now=${now} />`}
    <div class="play-columns">
      ${!now ? html`<div class="panel play-tree"></div><div class="panel play-text">${!error && html`<${Loading} label="Rendering" />`}</div>` : html`
      <${Sections} now=${now} states=${states} editing=${editing} drafts=${drafts} late=${late} onChoose=${choose} onEdit=${(key) => (setEditing(key === editing ? "" : key), setSide("text"))} />
      ${edited
        ? html`<${Editor} key=${edited.key} section=${edited} about=${about} draft=${drafts[edited.key]} drafts=${drafts}
            onDraft=${(text) => keep({ drafts: drafted(drafts, edited, text) })} onClose=${() => setEditing("")} onSaved=${(saved) => keep({ tag: saved, drafts: {} })} />`
        : html`<${Shown} now=${now} before=${before} late=${late} />`}`}
      <aside class="panel ask" aria-label="Params and run">
        <${Params} about=${about} params=${params} missing=${missing} onChange=${(type, value) => keep({ params: { ...params, [type]: value } })} />
        <${Runner} about=${about} from=${fromRun && { from_run: fromRun, from_turn: Number(fromTurn) || 1 }} wanted=${wanted} missing=${missing} adapter=${adapter} onAdapter=${(name) => keep({ adapter: name })} message=${message} onMessage=${(text) => keep({ message: text })} />
      </aside>
    </div>
  </section>`;
}

// What somebody chose and wrote, kept in this tab: it survives other pages and reloads.
function useKept(about) {
  const name = `wink-play ${about.prompt}`;
  const [kept, set] = useState(() => restoredFrom(about, stored(name)));
  useEffect(() => {
    try {
      sessionStorage.setItem(name, JSON.stringify(kept));
    } catch {}
  }, [name, kept]);
  const unsaved = Object.keys(kept.drafts).length > 0;
  useEffect(() => {
    if (!unsaved) return undefined;
    const ask = (event) => event.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [unsaved]);
  return [kept, (changes) => set((was) => ({ ...was, ...changes }))];
}

function stored(name) {
  try {
    return JSON.parse(sessionStorage.getItem(name)) ?? {};
  } catch {
    return {};
  }
}

// What was kept, without what the prompt no longer has.
function restoredFrom(about, was) {
  const known = (all) => Object.fromEntries(Object.entries(all ?? {}).filter(([key]) => about.sections.includes(key)));
  const names = about.adapters.map((one) => one.name);
  const offered = was.adapter && [was.adapter, was.adapter.split(":")[0]].some((name) => names.includes(name));
  return {
    states: known(was.states),
    drafts: known(was.drafts),
    tag: about.tags.includes(was.tag) ? was.tag : "",
    params: Object.fromEntries(about.params.map(({ type, fields }) => [type, Object.fromEntries(fields.map((field) => [field.name, restored(field, was.params?.[type]?.[field.name])]))])),
    adapter: offered ? was.adapter : named(about.adapters[0]),
    message: was.message ?? "",
    from: was.from ?? "",
  };
}

// The choices with one more, or without one: what is inside a section that is closed has none, and what is around an open one is not closed.
function chosen(states, section, choice) {
  const { [section.key]: _, ...others } = states;
  if (!choice) return others;
  const inside = (key, other) => key.startsWith(`${other}.`);
  const found = Object.entries(others).filter(([key, state]) => !(choice !== "full" && inside(key, section.key)) && !(choice !== "out" && inside(section.key, key) && state !== "full"));
  return Object.fromEntries(choice === section.declared ? found : [...found, [section.key, choice]]);
}

// What is wanted now, rendered; what was shown before stays to compare with, and while a form is half filled in.
function useShown(wanted, times) {
  const [state, set] = useState({ document: null, before: null, error: "" });
  const key = JSON.stringify(wanted);
  useEffect(() => {
    let current = true;
    const timer = setTimeout(() => {
      api.act("render", wanted).then(
        (document) => current && set((was) => ({ document, before: was.document, error: "" })),
        (error) => current && set((was) => ({ ...was, error: error.message })),
      );
    }, 60);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key, times]);
  return state;
}

// Begin with the sections as they were at a turn of a recorded run, once.
function useStatesOfTurn(kept, keep) {
  const { run, turn } = route.value.params;
  const from = `${run} ${turn}`;
  useEffect(() => {
    if (!run || route.value.page !== "play" || kept.from === from) return;
    api.turn(run, Number(turn) || 1).then(
      ({ sections }) => keep({ from, states: Object.fromEntries(sections.filter((one) => ["prompt", "conversation", "summary"].includes(one.seen) && one.visibility !== "hidden").map((one) => [one.key, one.seen === "summary" ? "summary" : "full"])) }),
      () => {},
    );
  }, [run, turn]);
}

function Bill({ now }) {
  const { tokens, price, open_price: openPrice, cache, opening } = now;
  const saved = tokens.full - tokens.total;
  const least = tokens.full_least ? "at least " : "";
  const full = `${least}${count(tokens.full)} with everything open`;
  const open = !now.sections.some((one) => one.unloaded || ["summary", "inside", "out"].includes(one.state));
  const share = open ? "everything is open" : saved >= 0 ? `${percent(tokens.total, tokens.full)} of ${full}` : `${count(-saved)} more than the ${full}: closing costs more than it saves`;
  return html`<section class="bill" aria-label="Cost">
    <div><p class="big">${tokens.least && "≥ "}${count(tokens.total)} <small>tokens in the first request</small></p>
      <${Share} sent=${tokens.total} full=${open ? tokens.total : tokens.full} label=${share} /><p class="quiet">${share}</p></div>
    <div><p class="price">${visible(price)}</p>${openPrice && html`<p class="quiet">${visible(openPrice)}</p>`}${cache && html`<p class="cache warn">${visible(cache)}</p>`}</div>
    <div class="quiet"><p>${count(tokens.text)} tokens of text${tokens.tools > 0 && `, ${count(tokens.tools)} for ${plural(now.tools.length, "tool")}`}${tokens.total !== tokens.declared && html`; ${plural(Math.abs(tokens.total - tokens.declared), "token")} ${tokens.total < tokens.declared ? "fewer" : "more"} than declared`}</p>${opening && html`<p>${visible(opening)}</p>`}</div>
  </section>`;
}

function Sections({ now, states, editing, drafts, late, onChoose, onEdit }) {
  const largest = Math.max(1, ...now.sections.map((one) => one.full_tokens + one.tool_tokens));
  return html`<aside class="panel tree play-tree" aria-label="Sections">
    <div class="panel-head play-row"><h2>Sections</h2><span></span><span class="n" title="Tokens in this request, tools included">sent</span><span class="n" title="Tokens with the section open, tools included">in full</span><span></span></div>
    <div class="nodes panel-body" tabindex="0" role="group" aria-label="Sections and what they show">
      ${now.sections.map((section) => {
        const { key, title, state, unloaded, tools } = section;
        const depth = section.path.length - 1;
        const spent = section.shown_tokens + (section.offered ? section.tool_tokens : 0);
        const all = section.full_tokens + section.tool_tokens;
        const least = (n, open) => `${unloaded && open ? "≥" : ""}${count(n)}`;
        return html`<div key=${key} class=${classes("node", DISCS[state] ?? state, unloaded && "unloaded", editing === key && "selected")} data-section=${key} data-state=${state}>
          <div class="play-row">
            <div class="named" style=${{ paddingLeft: `${depth * 14}px` }}><${Switch} section=${section} mine=${states[key]} onChoose=${onChoose} /><span class="label" title=${key}>${visible(title)}</span></div>
            <span class=${classes("tools", section.offered && "on")} title=${tools.length ? `${tools.join(", ")}: ${section.offered ? "can be called" : "not offered"}` : ""}>${tools.length > 0 && html`<${Icon} name="tool" />${tools.length}`}</span>
            <span class="n">${least(spent, state === "full")}</span><span class="n quiet">${least(all, true)}</span>
            <button class=${classes("edit", key in drafts && "drafted")} disabled=${!section.editable} onClick=${() => onEdit(key)} title=${section.editable ? "Write other words for it" : "This section does not accept overrides"} aria-label=${key in drafts ? `Edit the draft of ${title}` : `Edit ${title}`}>${key in drafts ? "draft" : "edit"}</button>
          </div>
          <${Notes} section=${section} changed=${key in states && state !== section.declared} depth=${depth} late=${late} onReset=${() => onChoose(section, "")} />
          <div class=${classes("weight", unloaded && "hatched")} style=${{ marginLeft: `${12 + depth * 14}px` }}><i class="shown" style=${{ width: `${(100 * spent) / largest}%` }}></i><i class="hidden" style=${{ width: unloaded ? "auto" : `${(100 * Math.max(0, all - spent)) / largest}%` }}></i></div>
        </div>`;
      })}
    </div>
    <div class="legend">${["out", "summary", "full"].map((state) => html`<span><${Disc} state=${DISCS[state] ?? state} />${WORDS[state]}</span>`)}<span><i class="declared-dot"></i>as declared</span></div>
  </aside>`;
}

// Three places for what a section shows: left out, its summary, in full. None is marked while it is inside a closed one.
function Switch({ section, mine, onChoose }) {
  const { key, title, declared, choices } = section;
  // A choice is marked at once, before it is rendered.
  const state = mine && section.state !== "off" ? mine : section.state;
  return html`<span class="switch" role="radiogroup" aria-label=${`What ${title} shows`}>${["out", "summary", "full"].map((choice) => {
    if (!choices.includes(choice)) return html`<span class="none" title=${choice === "summary" ? "It has no summary" : "It belongs to what its parent loads"}></span>`;
    const words = `${WORDS[choice]}${choice === declared ? ", as declared" : ""}`;
    return html`<label class=${classes(state === choice && "on", choice === declared && "declared")} title=${words}><input type="radio" name=${`state ${key}`} checked=${state === choice} disabled=${state === "off"} aria-label=${words} onChange=${() => onChoose(section, choice)} /><${Disc} state=${DISCS[choice] ?? choice} /></label>`;
  })}</span>`;
}

function Notes({ section, changed, depth, late, onReset }) {
  const notes = [
    section.state === "off" && html`off: <code>enabled</code> says no`,
    section.inside && html`inside ${visible(section.inside)}, which is closed`,
    section.opened_by && html`opened by ${visible(section.opened_by)}`,
    changed && html`declared: ${WORDS[section.declared]} <button class="link" onClick=${onReset}>undo</button>`,
  ].filter(Boolean);
  if (!notes.length && !section.unloaded) return null;
  return html`<div class="notes" style=${{ paddingLeft: `${84 + depth * 14}px` }}>${notes.map((note) => html`<p>${note}</p>`)}${section.unloaded && section.state !== "off" && html`<${Late} section=${section} late=${late} />`}</div>`;
}

// What is not known of a section before it is loaded, and the two ways to know it.
function Late({ section, late }) {
  const [asked, setAsked] = useState(false);
  const what = section.has_server ? "tools" : "content";
  return html`<div class="late"><p>at least ${plural(section.full_tokens + section.tool_tokens, "token")}; loads ${what} that ${section.has_server ? "are" : "is"} not known yet</p>
    <div class="save"><button disabled=${Boolean(late.busy)} onClick=${() => late.load(section)}>${late.busy === section.key ? "Starting…" : section.has_server ? "Start the server" : "Load it"}</button>
      ${section.has_server && html`<button aria-expanded=${asked} onClick=${() => setAsked(!asked)}>Use a lock file</button>`}</div>
    ${asked && html`<p><code>wink mcp lock</code> starts the servers of a config once and writes what they list beside it; a section of your own takes the file as <code>lock=</code>. Then start the playground again.</p>`}</div>`;
}

function Shown({ now, before, late }) {
  const old = new Map((before?.pieces ?? []).map((piece) => [piece.section, piece.text]));
  const had = new Set((before?.tools ?? []).map((tool) => tool.name));
  const states = Object.fromEntries(now.sections.map((section) => [section.key, { ...section, seen: { full: "prompt", summary: "summary" }[section.state] ?? "none" }]));
  const gone = before ? before.pieces.filter((piece) => piece.section && !now.pieces.some((one) => one.section === piece.section)) : [];
  const first = useRef(null);
  useEffect(() => first.current?.querySelector(".piece.fresh-piece")?.scrollIntoView({ block: "nearest" }), [now]);
  return html`<section class="panel play-text" aria-label="What the model would see">
    <div class="panel-head"><h2>What the model would see</h2><span class="quiet">${now.missing.length ? `examples stand for ${now.missing.map(visible).join(", ")}` : now.tokens.least ? "and what is loaded when the run starts" : ""}</span><span class="spacer"></span><${RawSwitch} /></div>
    <div class="panel-body" tabindex="0" role="group" aria-label="Prompt text" ref=${first}>
      ${gone.map((piece) => html`<p class="gone-piece">${visible(piece.section)} is no longer shown</p>`)}
      ${now.pieces.map((piece, index) => {
        const section = states[piece.section];
        const changed = before && unnumbered(old.get(piece.section)) !== unnumbered(piece.text);
        return html`<${Piece} key=${index} piece=${piece} section=${section} mark=${changed ? "fresh-piece" : ""} onSelect=${() => {}} />
          ${section?.unloaded && section.state === "full" && html`<div class="unknown"><${Late} section=${section} late=${late} /></div>`}`;
      })}
      <h3 class="divider"><span>Tools</span><small>${plural(now.tools.length, "tool")} can be called${now.tokens.least ? ", and those that are not known yet" : ""}</small></h3>
      ${now.tools.length > 0 && html`<div class="offers">${now.tools.map((tool) => html`<${Offered} key=${tool.name} tool=${{ ...tool, initial: !before || had.has(tool.name) }} selected="" />`)}</div>`}
    </div>
  </section>`;
}

// A section that only moved up or down has not changed.
const unnumbered = (text) => text?.replace(/^(#+ )[\d.]+ /gm, "$1");

function Editor({ section, about, draft, drafts, onDraft, onClose, onSaved }) {
  const [tag, setTag] = useState(about.tags[0] ?? "latest");
  const [told, setTold] = useState("");
  const text = draft ?? section.source;
  const original = useRef(section.original);
  const all = Object.keys(drafts).length;
  const save = async () => {
    try {
      const { file } = await api.act("save", { tag, drafts });
      setTold(`Saved to ${file}`);
      play.value = await api.play();
      onSaved(tag);
    } catch (error) {
      setTold(error.message);
    }
  };
  return html`<section class="panel play-text" aria-label=${`Edit ${section.title}`}>
    <div class="panel-head"><h2>${visible(section.title)}</h2><span class="quiet">${section.placeholders.length > 0 && `may use ${section.placeholders.map((name) => `\${${name}}`).join(", ")}`}</span>
      <span class="spacer"></span><button class="plain" onClick=${onClose} aria-label="Close the editor"><${Icon} name="cross" /></button></div>
    <div class="panel-body">
      <label class="editor">Text<textarea rows="14" spellcheck="false" value=${text} onInput=${(event) => onDraft(event.target.value)}></textarea></label>
      ${all > 0 && html`<div class="save"><label>Tag <input value=${tag} onInput=${(event) => setTag(event.target.value)} /></label>
        <button class="primary" disabled=${!tag.trim()} onClick=${save}>${all > 1 ? `Save all ${all} drafts` : "Save the draft"} as an override</button>
        ${draft !== undefined && html`<button onClick=${() => onDraft(null)}>Discard</button>`}</div>`}
      <p role="status" class="quiet">${visible(told)}</p>
      <h3 class="divider"><span>Difference</span></h3>
      <div class="diff">${diff(lines(original.current), lines(text)).flatMap((run) => run.items.map((line) => html`<div class=${`line ${run.kind}`}><span class="sign">${{ same: "", gone: "−", new: "+" }[run.kind]}</span><span class="text">${visible(line)}</span></div>`))}</div>
    </div>
  </section>`;
}

function drafted(all, section, text) {
  const { [section.key]: _, ...others } = all;
  return text === null ? others : { ...others, [section.key]: text };
}

function Params({ about, params, missing, onChange }) {
  if (!about.params.length) return null;
  return html`<div class="panel-body params"><h2>Params</h2>${about.params.map(({ type, fields }) => html`<fieldset key=${type}><legend>${visible(type)}</legend>
    <${Fields} fields=${fields} state=${params[type]} missing=${missing} onChange=${(value) => onChange(type, value)} /></fieldset>`)}</div>`;
}

function Runner({ about, from, wanted, missing: empty, adapter, onAdapter, message, onMessage }) {
  const [name, , model] = split(adapter, about);
  const chosen = about.adapters.find((one) => one.name === name) ?? about.adapters[0];
  const [told, setTold] = useState("");
  const [goesOn, setGoesOn] = useState(false);
  const { run: of, turn, on } = route.value.params;
  useEffect(() => setGoesOn(Boolean(on)), [of, turn, on]);
  const id = running.value;
  useEffect(() => {
    if (!id) return undefined;
    const timer = setInterval(async () => {
      const found = await api.live(id).catch((error) => ({ done: true, error: error.message }));
      live.value = found;
      if (found.done) {
        setTold(found.error || "");
        running.value = "";
      }
    }, 250);
    return () => clearInterval(timer);
  }, [id]);
  const start = async () => {
    setTold("");
    try {
      const { run_id: id } = await api.act("run", { ...wanted, ...(from && goesOn ? from : {}), message });
      running.value = id;
      go(link("run", [id], { play: "1" }));
      setTimeout(() => document.querySelector(".page.run")?.scrollIntoView({ behavior: "smooth" }), 300);
    } catch (error) {
      setTold(error.message);
    }
  };
  const lacking = chosen?.requires_model && !model && !name.includes(":") ? "name a model" : chosen?.problem || (empty.length ? `fill in ${empty.join(", ")}` : "");
  return html`<section class="runner" aria-label="Run">
    <label>Message<small>what the user says, optional</small><textarea rows="2" value=${message} onInput=${(event) => onMessage(event.target.value)}></textarea></label>
    <div class="model"><label>Adapter<select value=${name} onChange=${(event) => onAdapter(named(about.adapters.find((one) => one.name === event.target.value)))}>
      ${about.adapters.map((one) => html`<option value=${one.name}>${visible(one.name)}${missing(one) ? ` (${missing(one)})` : ""}</option>`)}</select></label>
    ${chosen && !chosen.name.includes(":") && html`<label>Model<input list="models" value=${model} placeholder=${chosen.requires_model ? "required" : "its own"} onInput=${(event) => onAdapter(event.target.value ? `${name}:${event.target.value}` : name)} />
      <datalist id="models">${chosen.models.map((one) => html`<option value=${one}></option>`)}</datalist></label>`}</div>
    ${from && html`<label class="goes-on"><input type="checkbox" checked=${goesOn} onChange=${(event) => setGoesOn(event.target.checked)} /><span>Continue the conversation of run ${visible(from.from_run)} from turn ${from.from_turn}<small>otherwise a new one begins, with the sections as they were there</small></span></label>`}
    <div class="save"><button class="primary" disabled=${Boolean(lacking) || Boolean(id)} onClick=${start} title=${lacking || "Run it as it is shown; it is recorded"}>Run</button>
      ${id && html`<button onClick=${() => api.act("stop", { run_id: id })}>Stop</button>`}
      <span role="status" class=${told ? "bad" : "quiet"}>${visible(told || (id ? "running, see below" : lacking || ""))}</span></div>
  </section>`;
}

// What an adapter lacks; of one without known models, the key depends on the model too.
const missing = (choice) => choice.problem || (choice.requires_model && !choice.models.length ? "name a model" : "");

const named = (choice) => (choice ? (choice.requires_model && choice.models.length ? `${choice.name}:${choice.models[0]}` : choice.name) : "");

// An adapter that was given on the command line may have colons of its own.
function split(adapter, about) {
  if (about.adapters.some((one) => one.name === adapter)) return [adapter, "", ""];
  const at = adapter.indexOf(":");
  return at < 0 ? [adapter, "", ""] : [adapter.slice(0, at), ":", adapter.slice(at + 1)];
}

// The values that the form stands for; what cannot be read yet is sent as it is, and refused with a reason.
function filled(about, params) {
  return Object.fromEntries(about.params.map(({ type, fields }) => [type, Object.fromEntries(fields.map((field) => [field.name, valueOf(field, params[type][field.name])]))]));
}
