// The playground: sections on the left, what the model would see in the middle, what it costs on the right, runs below.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, live, play, running } from "wink/api.js";
import { diff, lines } from "wink/diff.js";
import { classes, count, money, percent, plural } from "wink/format.js";
import { RawSwitch } from "wink/markdown.js";
import { Offered, Piece } from "wink/request.js";
import { entitle, go, link, route } from "wink/state.js";
import { visible } from "wink/text.js";
import { Disc, Icon, Loading, Problem, Share, html, useDocument } from "wink/view.js";

const WORDS = { full: "in full", summary: "summary", hidden: "inside a summary", absent: "hidden" };

export function Play() {
  const about = useDocument(() => api.play(), []);
  useEffect(() => entitle("Playground"), []);
  if (about.error) return html`<${Problem} text=${about.error} />`;
  if (!about.document) return html`<${Loading} />`;
  return html`<${Ground} about=${play.value ?? about.document} />`;
}

function Ground({ about }) {
  const [states, setStates] = useState({});
  const [params, setParams] = useState(() => Object.fromEntries(about.params.map(({ type, fields }) => [type, Object.fromEntries(fields.map((field) => [field.name, begin(field)]))])));
  const [drafts, setDrafts] = useState({});
  const [tag, setTag] = useState("");
  const [adapter, setAdapter] = useState(() => named(about.adapters[0]));
  const [message, setMessage] = useState("");
  const [editing, setEditing] = useState("");
  const [side, setSide] = useState("text");
  const wanted = { states, params: filled(about, params), drafts, tag, adapter };
  const shown = useShown(wanted);
  const { document: now, before, error } = shown;
  const { run: fromRun, turn: fromTurn } = route.value.params;
  useStatesOfTurn(setStates);
  const cycle = (section) => {
    setStates((all) => {
      const state = all[section.key] ?? (section.is_hidden ? "hidden" : section.state);
      return { ...all, [section.key]: section.choices[(section.choices.indexOf(state) + 1) % section.choices.length] };
    });
  };
  const reset = () => (setStates({}), setDrafts({}), setTag(""));
  const touched = Object.keys(states).length + Object.keys(drafts).length > 0 || tag;
  const edited = now?.sections.find((section) => section.key === editing);
  return html`<section class=${`page play shows-${side}`} aria-label="Playground">
    <div class="page-head">
      <h1>${visible(about.name)}</h1><span class="quiet">${visible(about.prompt)}</span>
      <div class="spacer"></div>
      <div class="segments play-sides" role="group" aria-label="Column">
        ${[["sections", "Sections"], ["text", "Text"], ["cost", "Cost and run"]].map(([name, label]) => html`<button class=${side === name ? "on" : ""} aria-pressed=${side === name} onClick=${() => setSide(name)}>${label}</button>`)}
      </div>
      ${about.tags.length > 0 && html`<label>Override <select value=${tag} onChange=${(event) => setTag(event.target.value)}><option value="">none</option>${about.tags.map((one) => html`<option value=${one}>${visible(one)}</option>`)}</select></label>`}
      <button disabled=${!touched} onClick=${reset}>As declared</button>
    </div>
    ${error && html`<div class="banner bad play-error" role="alert"><${Icon} name="alert" /><span>${visible(error)}</span></div>`}
    ${!now ? !error && html`<${Loading} label="Rendering" />` : html`<div class="play-columns">
      <${Sections} now=${now} editing=${editing} drafts=${drafts} onCycle=${cycle} onEdit=${(key) => (setEditing(key === editing ? "" : key), setSide("text"))} />
      ${edited
        ? html`<${Editor} key=${edited.key} section=${edited} about=${about} draft=${drafts[edited.key]} drafts=${drafts}
            onDraft=${(text) => setDrafts((all) => drafted(all, edited, text))} onClose=${() => setEditing("")} onSaved=${(saved) => (setTag(saved), setDrafts({}))} />`
        : html`<${Shown} now=${now} before=${before} />`}
      <aside class="panel cost" aria-label="Cost and run">
        <div class="panel-body">
          <${Cost} now=${now} />
          <${Params} about=${about} params=${params} onChange=${(type, name, value) => setParams((all) => ({ ...all, [type]: { ...all[type], [name]: value } }))} />
          <${Runner} about=${about} from=${fromRun && { from_run: fromRun, from_turn: Number(fromTurn) || 1 }} wanted=${wanted} adapter=${adapter} onAdapter=${setAdapter} message=${message} onMessage=${setMessage} />
        </div>
      </aside>
    </div>`}
  </section>`;
}

// What is wanted now, rendered; what was shown before stays to compare with, and while a form is half filled in.
function useShown(wanted) {
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
  }, [key]);
  return state;
}

// Begin with the sections as they were at a turn of a recorded run.
function useStatesOfTurn(setStates) {
  const { run, turn } = route.value.params;
  useEffect(() => {
    if (!run || route.value.page !== "play") return;
    api.turn(run, Number(turn) || 1).then(
      ({ sections }) => setStates(Object.fromEntries(sections.filter((one) => ["prompt", "conversation", "summary"].includes(one.seen) && one.visibility !== "hidden").map((one) => [one.key, one.seen === "summary" ? "summary" : "full"]))),
      () => {},
    );
  }, [run, turn]);
}

function Sections({ now, editing, drafts, onCycle, onEdit }) {
  const { tokens } = now;
  const largest = Math.max(1, ...now.sections.map((one) => one.full_tokens + one.tool_tokens));
  return html`<aside class="panel tree play-tree" aria-label="Sections">
    <div class="panel-head"><h2>Sections</h2><span class="quiet">${count(tokens.total)} of ${count(tokens.full)} tokens</span>
      <div class="meter"><i style=${{ width: `${Math.min(100, (100 * tokens.total) / Math.max(1, tokens.full))}%` }}></i></div></div>
    <div class="nodes panel-body" tabindex="0" role="group" aria-label="Sections and what they show">
      ${now.sections.map((section) => {
        const depth = section.path.length - 1;
        const state = section.is_hidden || section.state === "absent" ? "hidden" : section.state;
        const spent = section.shown_tokens + (section.offered ? section.tool_tokens : 0);
        return html`<div key=${section.key} class=${classes("node", state, editing === section.key && "selected")} data-section=${section.key}>
          <div class="row" style=${{ paddingLeft: `${12 + depth * 18}px` }}>
            <button class="cycle" onClick=${() => onCycle(section)} title=${section.opening || `${WORDS[section.state]}; click for ${section.choices.join(", ")}`}>
              <${Disc} state=${state} /><span class="label">${visible(section.title)}</span>
              <small class=${classes("state-word", section.state !== section.declared && "changed-word")}>${section.is_hidden ? "hidden" : WORDS[section.state]}</small></button>
            ${section.tools.length > 0 && html`<span class=${classes("tools", section.offered && "on")} title=${`${section.tools.join(", ")}: ${section.offered ? "can be called" : "not offered"}`}><${Icon} name="tool" />${section.tools.length}</span>`}
            <span class="tokens" title="Tokens shown, and in full, tools included">${count(spent)}<small>${count(section.full_tokens + section.tool_tokens)}</small></span>
            <button class=${classes("edit", section.key in drafts && "drafted")} disabled=${!section.editable} onClick=${() => onEdit(section.key)} title=${section.editable ? "Write other words for it" : "This section does not accept overrides"} aria-label=${`Edit ${section.title}`}>${section.key in drafts ? "draft" : "edit"}</button>
          </div>
          <div class="weight" style=${{ marginLeft: `${34 + depth * 18}px` }}><i class="shown" style=${{ width: `${(100 * spent) / largest}%` }}></i></div>
        </div>`;
      })}
    </div>
  </aside>`;
}

function Shown({ now, before }) {
  const old = new Map((before?.pieces ?? []).map((piece) => [piece.section, piece.text]));
  const had = new Set((before?.tools ?? []).map((tool) => tool.name));
  const states = Object.fromEntries(now.sections.map((section) => [section.key, { ...section, seen: { full: "prompt", summary: "summary" }[section.state] ?? "none" }]));
  const gone = before ? before.pieces.filter((piece) => piece.section && !now.pieces.some((one) => one.section === piece.section)) : [];
  const first = useRef(null);
  useEffect(() => first.current?.querySelector(".piece.fresh-piece")?.scrollIntoView({ block: "nearest" }), [now]);
  return html`<section class="panel play-text" aria-label="What the model would see">
    <div class="panel-head"><h2>What the model would see</h2><span class="spacer"></span><${RawSwitch} /></div>
    <div class="panel-body" tabindex="0" role="group" aria-label="Prompt text" ref=${first}>
      ${gone.map((piece) => html`<p class="gone-piece">${visible(piece.section)} is no longer shown</p>`)}
      ${now.pieces.map((piece, index) => html`<${Piece} key=${index} piece=${piece} section=${states[piece.section]} mark=${before && unnumbered(old.get(piece.section)) !== unnumbered(piece.text) ? "fresh-piece" : ""} onSelect=${() => {}} />`)}
      <h3 class="divider"><span>Tools</span><small>${plural(now.tools.length, "tool")} can be called</small></h3>
      <div class="offers">${now.tools.map((tool) => html`<${Offered} key=${tool.name} tool=${{ ...tool, initial: !before || had.has(tool.name) }} selected="" />`)}</div>
    </div>
  </section>`;
}

// A section that only moved up or down has not changed.
const unnumbered = (text) => text?.replace(/^(#+ )[\d.]+ /gm, "$1");

function Editor({ section, about, draft, drafts, onDraft, onClose, onSaved }) {
  const [tag, setTag] = useState(about.tags[0] ?? "latest");
  const [told, setTold] = useState("");
  const text = draft ?? section.source;
  const original = useRef(section.source);
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
    <div class="panel-head"><h2>${visible(section.title)}</h2><span class="quiet">${section.placeholders.length ? `may use ${section.placeholders.map((name) => `\${${name}}`).join(", ")}` : "its own words"}</span>
      <span class="spacer"></span><button class="plain" onClick=${onClose} aria-label="Close the editor"><${Icon} name="cross" /></button></div>
    <div class="panel-body">
      <label class="editor">Text<textarea rows="14" spellcheck="false" value=${text} onInput=${(event) => onDraft(event.target.value)}></textarea></label>
      <div class="save"><label>Tag <input value=${tag} onInput=${(event) => setTag(event.target.value)} /></label>
        <button class="primary" disabled=${!Object.keys(drafts).length || !tag.trim()} onClick=${save}>Save ${plural(Object.keys(drafts).length, "draft")}</button>
        <button disabled=${draft === undefined} onClick=${() => onDraft(null)}>Discard</button>
        <span role="status" class="quiet">${visible(told)}</span></div>
      <h3 class="divider"><span>Difference</span></h3>
      <div class="diff">${diff(lines(original.current), lines(text)).flatMap((run) => run.items.map((line) => html`<div class=${`line ${run.kind}`}><span class="sign">${{ same: "", gone: "−", new: "+" }[run.kind]}</span><span class="text">${visible(line)}</span></div>`))}</div>
    </div>
  </section>`;
}

function drafted(all, section, text) {
  const { [section.key]: _, ...others } = all;
  return text === null ? others : { ...others, [section.key]: text };
}

function Cost({ now }) {
  const { tokens, prices, cache } = now;
  const saved = tokens.full - tokens.total;
  return html`<section class="costs"><h2>Cost</h2>
    <p class="big">${count(tokens.total)} <small>tokens in the first request</small></p>
    <${Share} sent=${tokens.total} full=${tokens.full} label=${`${percent(tokens.total, tokens.full)} of everything open`} />
    <dl class="details">
      <dt>Text</dt><dd>${count(tokens.text)} tokens</dd>
      <dt>Tools</dt><dd>${count(tokens.tools)} tokens, ${plural(now.tools.length, "tool")}</dd>
      <dt>Declared</dt><dd>${tokens.total === tokens.declared ? "as declared" : `${plural(Math.abs(tokens.total - tokens.declared), "token")} ${tokens.total < tokens.declared ? "fewer" : "more"} than declared`}</dd>
      <dt>All open</dt><dd>${count(tokens.full)} tokens, ${saved >= 0 ? `${percent(saved, tokens.full)} less here` : `${percent(-saved, tokens.full)} more here`}</dd>
      <dt>Price</dt><dd>${prices ? html`${money(prices.fresh)} a request, ${money(prices.cached)} from the cache, ${money(prices.full)} with all open` : `not known for ${visible(now.model)}`}</dd>
      <dt>Cache</dt><dd class="cache">${cache.breaks_at ? html`breaks at <code>${visible(cache.breaks_at)}</code>: ${count(cache.tokens)} tokens before it stay cached` : `all ${count(cache.tokens)} tokens are those of the declared prompt and stay cached`}</dd>
      <dt>Opening</dt><dd>${now.route === "restart" ? "a section with tools restarts the run" : `tools appear by ${visible(now.route)}`}</dd>
    </dl></section>`;
}

function Params({ about, params, onChange }) {
  if (!about.params.length) return null;
  return html`<section class="params"><h2>Params</h2>${about.params.map(({ type, fields }) => html`<fieldset><legend>${type}</legend>
    ${fields.map((field) => html`<label>${field.name}<small>${field.kind}${field.optional ? ", optional" : ""}</small>
      <${Field} field=${field} value=${params[type][field.name]} onChange=${(value) => onChange(type, field.name, value)} /></label>`)}</fieldset>`)}</section>`;
}

function Field({ field, value, onChange }) {
  const heard = (event) => onChange(event.target.value);
  if (field.kind === "yes or no") return html`<input type="checkbox" checked=${value} onChange=${(event) => onChange(event.target.checked)} />`;
  if (field.kind === "choice") return html`<select value=${String(value)} onChange=${heard}>${field.optional && html`<option value=""></option>`}${field.choices.map((one) => html`<option value=${String(one)}>${visible(String(one))}</option>`)}</select>`;
  if (field.kind.endsWith("number")) return html`<input type="number" step=${field.kind === "number" ? "any" : "1"} value=${value} onInput=${heard} />`;
  return html`<textarea rows=${Math.min(6, Math.max(2, String(value).split("\n").length))} spellcheck="false" value=${value} onInput=${heard}></textarea>`;
}

function Runner({ about, from, wanted, adapter, onAdapter, message, onMessage }) {
  const [name, , model] = split(adapter, about);
  const chosen = about.adapters.find((one) => one.name === name) ?? about.adapters[0];
  const [told, setTold] = useState("");
  const [goesOn, setGoesOn] = useState(false);
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
  const lacking = chosen?.requires_model && !model && !name.includes(":") ? "name a model" : chosen?.problem;
  return html`<section class="runner"><h2>Run</h2>
    <label>Adapter<select value=${name} onChange=${(event) => onAdapter(named(about.adapters.find((one) => one.name === event.target.value)))}>
      ${about.adapters.map((one) => html`<option value=${one.name}>${visible(one.name)}${missing(one) ? ` (${missing(one)})` : ""}</option>`)}</select></label>
    ${chosen && !chosen.name.includes(":") && html`<label>Model<input list="models" value=${model} placeholder=${chosen.requires_model ? "required" : "its own"} onInput=${(event) => onAdapter(event.target.value ? `${name}:${event.target.value}` : name)} />
      <datalist id="models">${chosen.models.map((one) => html`<option value=${one}></option>`)}</datalist></label>`}
    <label>Message<small>optional: what the user says</small><textarea rows="2" value=${message} onInput=${(event) => onMessage(event.target.value)}></textarea></label>
    ${from && html`<label class="goes-on"><input type="checkbox" checked=${goesOn} onChange=${(event) => setGoesOn(event.target.checked)} />Go on from turn ${from.from_turn} of ${visible(from.from_run)}</label>`}
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

function begin({ kind, value, choices, optional }) {
  if (kind === "yes or no") return Boolean(value);
  if (kind === "choice") return value ?? (optional ? "" : choices[0]);
  if (kind === "json") return value == null ? "" : JSON.stringify(value);
  return value ?? "";
}

// The form's texts as the values that they stand for; what cannot be read yet is sent as it is, and refused with a reason.
function filled(about, params) {
  const read = (field, value) => {
    if (value === "" && field.optional) return null;
    if (field.kind.endsWith("number")) return value === "" ? null : Number(value);
    if (field.kind === "choice") return field.choices.find((one) => String(one) === String(value)) ?? value;
    if (field.kind !== "json") return value;
    try {
      return JSON.parse(value);
    } catch {
      return value;
    }
  };
  return Object.fromEntries(about.params.map(({ type, fields }) => [type, Object.fromEntries(fields.map((field) => [field.name, read(field, params[type][field.name])]))]));
}
