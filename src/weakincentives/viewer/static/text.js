// Model text on the page: always a text node, long ones in portions, and nothing invisible stays so.

import { useState } from "preact/hooks";
import { route } from "wink/state.js";
import { bytes } from "wink/format.js";
import { visible } from "wink/unseen.js";
import { html, reachable } from "wink/view.js";

export { visible };

const PORTION = 6_000;
const MORE = 200_000;
// What a list calls a run: the beginning of a random id; the id of a durable run, which its caller chose.
export function runName(id) {
  if (!id.includes("/")) return visible(id.slice(0, 6));
  return visible(id.length > 40 ? `${id.slice(0, 18)}…${id.slice(-20)}` : id);
}

// `first` is how many characters are shown before asking.
export function Text({ value, first = PORTION, plain = false }) {
  const [shown, setShown] = useState(first);
  const find = route.value.params.find ?? "";
  const hit = find ? value.toLowerCase().indexOf(find.toLowerCase()) : -1;
  let end = Math.min(value.length, Math.max(shown, hit < 0 ? 0 : hit + find.length + 200));
  if (end < value.length && end - first < 400 && shown === first && value.length - end < 400) end = value.length;
  const rest = value.length - end;
  return html`<span class=${plain ? "words" : "text"}>${marked(visible(value.slice(0, end)), find)}</span>${rest > 0 &&
    html`<button class="more" onClick=${(event) => {
      event.stopPropagation();
      setShown(end + MORE);
    }}>Show ${rest > MORE ? `the next ${bytes(MORE)}` : `the rest`} (${bytes(rest)} more)</button>`}`;
}

export function marked(text, words) {
  if (!words) return text;
  const parts = [];
  const lower = text.toLowerCase();
  const wanted = words.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0 && parts.length < 400; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), html`<mark>${text.slice(at, at + words.length)}</mark>`);
    from = at + words.length;
  }
  return [...parts, text.slice(from)];
}

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;

// A value or a JSON text, indented, its parts told apart by colour.
export function Json({ value, text }) {
  if (text === undefined && value === undefined) return html`<span class="quiet">nothing</span>`;
  const source = indented(text ?? JSON.stringify(value));
  if (source.length > 20_000 || route.value.params.find) return html`<div class="code" ...${reachable(source, "JSON")}><${Text} value=${source} /></div>`;
  const parts = [];
  let from = 0;
  for (const match of source.matchAll(TOKEN)) {
    const [all, string, colon, word, number] = match;
    parts.push(source.slice(from, match.index));
    const kind = string ? (colon ? "key" : "string") : word ? "word" : number ? "number" : "";
    const token = string ?? all;
    parts.push(html`<span class=${`json-${kind}`}>${visible(readable(token, kind))}</span>`, colon ?? "");
    from = match.index + all.length;
  }
  parts.push(visible(source.slice(from)));
  return html`<div class="code" ...${reachable(source, "JSON")}><span class="text">${parts}</span></div>`;
}

// Line breaks inside a string are shown as such: these texts are mostly read by people.
function readable(token, kind) {
  return kind === "string" ? token.replace(/(?<!\\)((?:\\\\)*)\\n/g, "$1\n") : token;
}

function indented(text) {
  try {
    const wide = JSON.stringify(JSON.parse(text), null, 2);
    // The indentation of thousands of levels would be thousands of times the text.
    return wide.length > 20 * text.length + 1_000 ? text : wide;
  } catch {
    return text;
  }
}

export function isJson(text) {
  const start = text.trimStart()[0];
  if (start !== "{" && start !== "[") return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
