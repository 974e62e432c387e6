// Inputs for params: the texts and ticks of a form, and the values that they stand for.

import { count, plural } from "wink/format.js";
import { visible } from "wink/text.js";
import { Icon, html } from "wink/view.js";

const INPUTS = { date: "date", "date and time": "datetime-local", time: "time" };
// What such an input can show; a time with an offset is written as text.
const SHOWN = { date: /^$|^\d{4}-\d\d-\d\d$/, "date and time": /^$|^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?$/, time: /^$|^\d\d:\d\d(:\d\d)?$/ };
const KINDS = { text: "text", "whole number": "whole number", number: "number", date: "date", "date and time": "date and time", time: "time", json: "JSON" };

// What the form begins with.
export function begin({ kind, value, fields, item, choices, optional, required }) {
  if (kind === "yes or no") return Boolean(value);
  if (kind === "choice") return String(value ?? (optional || !required ? "" : choices[0]));
  if (kind === "group") return optional && value == null ? null : Object.fromEntries(fields.map((field) => [field.name, begin(field)]));
  if (kind === "list") return (value ?? []).map((one) => begin({ ...withValue(item, one), value: one }));
  if (kind === "json") return value == null ? "" : JSON.stringify(value);
  return value == null ? "" : String(value);
}

// The fields of a group in a list, with the values of one of its items.
function withValue(item, value) {
  if (item.kind !== "group") return item;
  return { ...item, fields: item.fields.map((field) => ({ ...withValue(field, value?.[field.name]), value: value?.[field.name] ?? field.value })) };
}

// The value of an input; undefined if it is empty, so that nothing is sent and the default applies, or is missed.
export function valueOf(field, state) {
  const { kind, optional, required, choices } = field;
  if (state === null || (state === "" && optional)) return null;
  if (kind === "group") return Object.fromEntries(field.fields.map((one) => [one.name, valueOf(one, state[one.name])]));
  if (kind === "list") return state.map((one) => valueOf(field.item, one)).filter((one) => one !== undefined);
  if (state === "" && (required || kind !== "text")) return undefined;
  if (kind.endsWith("number")) return Number(state);
  if (kind === "choice") return choices.find((one) => String(one) === state) ?? state;
  // Inputs leave out seconds that are zero.
  if (SHOWN[kind] && state.length === { "date and time": 16, time: 5 }[kind]) return `${state}:00`;
  if (kind !== "json") return state;
  try {
    return JSON.parse(state);
  } catch {
    return state;
  }
}

// A stored state if it fits the field, or else what the form begins with.
export function restored(field, state) {
  const fresh = begin(field);
  if (state === undefined) return fresh;
  if (field.kind === "group") {
    if (state === null) return field.optional ? null : fresh;
    return typeof state === "object" ? Object.fromEntries(field.fields.map((one) => [one.name, restored(one, state[one.name])])) : fresh;
  }
  if (field.kind === "list") return Array.isArray(state) ? state.map((one) => restored(field.item, one)) : fresh;
  return typeof state === (field.kind === "yes or no" ? "boolean" : "string") ? state : fresh;
}

export function Fields({ fields, state, onChange, missing, prefix = "" }) {
  return fields.map((field) => html`<${Field} key=${field.name} field=${field} name=${prefix + field.name} state=${state[field.name]} missing=${missing}
    onChange=${(value) => onChange({ ...state, [field.name]: value })} />`);
}

function Field({ field, name, state, onChange, missing }) {
  const { kind } = field;
  if (kind === "group") return html`<${Group} field=${field} name=${name} state=${state} onChange=${onChange} missing=${missing} />`;
  if (kind === "list") return html`<${List} field=${field} name=${name} state=${state} onChange=${onChange} missing=${missing} />`;
  const lacks = missing.includes(name);
  if (kind === "yes or no") return html`<label class="field tick"><input type="checkbox" checked=${state} onChange=${(event) => onChange(event.target.checked)} />${visible(field.name)}</label>`;
  return html`<label class=${`field ${lacks ? "lacks" : ""}`}>${visible(field.name)}<small>${lacks ? "required" : note(field)}</small>
    <${Input} field=${field} state=${state} onChange=${onChange} lacks=${lacks} /></label>`;
}

const note = ({ kind, optional }) => [kind === "text" ? "" : KINDS[kind], optional ? "optional" : ""].filter(Boolean).join(", ");

function Input({ field, state, onChange, label, lacks }) {
  const { kind } = field;
  const shared = { value: state, onInput: (event) => onChange(event.target.value), "aria-label": label, "aria-invalid": lacks ? "true" : undefined };
  if (kind === "choice") return html`<select ...${shared} onChange=${shared.onInput}>${(field.optional || !field.required) && html`<option value=""></option>`}${field.choices.map((one) => html`<option value=${String(one)}>${visible(String(one))}</option>`)}</select>`;
  if (kind.endsWith("number")) return html`<input type="number" step=${kind === "number" ? "any" : "1"} ...${shared} />`;
  if (INPUTS[kind] && SHOWN[kind].test(state)) return html`<input type=${INPUTS[kind]} ...${shared} />`;
  // One element whatever the length, so that the cursor stays where it is; it grows with its text.
  const lines = state.split("\n").length + Math.floor(state.length / 38);
  return html`<textarea class=${kind} rows=${Math.min(8, Math.max(kind === "json" ? 2 : 1, lines))} spellcheck="false" ...${shared}></textarea>`;
}

function Group({ field, name, state, onChange, missing }) {
  const { optional, value, fields } = field;
  return html`<fieldset class="group"><legend>${optional
      ? html`<label class="tick"><input type="checkbox" checked=${state !== null} onChange=${(event) => onChange(event.target.checked ? begin({ ...field, optional: false, value: value ?? {} }) : null)} />${visible(field.name)}</label>`
      : visible(field.name)}</legend>
    ${state !== null && html`<${Fields} fields=${fields} state=${state} onChange=${onChange} missing=${missing} prefix=${`${name}.`} />`}</fieldset>`;
}

function List({ field, name, state, onChange, missing }) {
  const { item } = field;
  const put = (at, value) => onChange(state.map((one, index) => (index === at ? value : one)));
  return html`<fieldset class="list"><legend>${visible(field.name)}<small>${state.length ? plural(state.length, "item") : "empty"}</small></legend>
    ${state.map((one, at) => html`<div class="item" key=${at}>
      ${["group", "list", "yes or no"].includes(item.kind)
        ? html`<${Field} field=${{ ...item, name: `${field.name} ${at + 1}` }} name=${`${name}.${at}`} state=${one} onChange=${(value) => put(at, value)} missing=${missing} />`
        : html`<${Input} field=${item} state=${one} onChange=${(value) => put(at, value)} label=${`${field.name} ${count(at + 1)}`} />`}
      <button type="button" class="plain" aria-label=${`Remove ${field.name} ${at + 1}`} onClick=${() => onChange(state.filter((_, index) => index !== at))}><${Icon} name="cross" /></button></div>`)}
    <button type="button" class="add" onClick=${() => onChange([...state, begin(item)])} aria-label=${`Add to ${field.name}`}>+ Add</button></fieldset>`;
}
