// Markdown as elements, never as HTML: what models write is text, and only http links lead anywhere.

import { raw, route } from "wink/state.js";
import { Json, Text, isJson, visible } from "wink/text.js";
import { html } from "wink/view.js";

// Beyond this, laying a text out takes longer than reading it as it is.
const LONGEST = 40_000;
// Quotes and lists inside each other, deeper than anybody writes them; the rest is shown as it is. Thousands would
// overflow the stack, and a turn could hide behind them.
const DEEPEST = 8;
const INLINE = /(`[^`\n]{1,400}`)|\*\*([^*\n]{1,600})\*\*|(?<![\w*])\*([^*\s][^*\n]{0,300})\*(?!\w)|\[([^\]\n]{1,300})\]\((https?:\/\/[^\s)]{1,800})\)|(https?:\/\/[^\s<>"'`)\]]{1,800})/g;

// Text as its author meant it; the switch, a search and JSON show it to the letter.
// In a prompt a single line break is a space; with `breaks`, as people type them in a chat, it stays one.
export function Prose({ value, first, breaks = false }) {
  if (isJson(value)) return html`<${Json} text=${value} />`;
  if (raw.value || value.length > LONGEST || route.value.params.find) return html`<${Text} value=${value} first=${first} />`;
  return html`<div class="prose">${blocks(visible(value).split("\n"), 0, breaks)}</div>`;
}

// What a tool gave, to the letter: its columns and line breaks mean something. JSON is indented.
export function Result({ value, first }) {
  return isJson(value) ? html`<${Json} text=${value} />` : html`<${Text} value=${value} first=${first} />`;
}

export function RawSwitch() {
  return html`<button class="plain raw" aria-pressed=${raw.value} title="Markdown or raw text (m)" onClick=${() => (raw.value = !raw.value)}>${raw.value ? "Raw" : "Markdown"}</button>`;
}

export function Link({ href, children }) {
  return html`<a class="out" href=${href} target="_blank" rel="noopener noreferrer">${children}</a>`;
}

function inline(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, code, bold, italic, label, href, bare] = match;
    parts.push(text.slice(from, match.index));
    if (code) parts.push(html`<code>${code.slice(1, -1)}</code>`);
    else if (bold) parts.push(html`<strong>${inline(bold)}</strong>`);
    else if (italic) parts.push(html`<em>${inline(italic)}</em>`);
    else if (href) parts.push(html`<${Link} href=${href}>${label}<//>`);
    else parts.push(html`<${Link} href=${bare}>${bare}<//>`);
    from = match.index + all.length;
  }
  return [...parts, text.slice(from)];
}

const FENCE = /^\s*(```+|~~~+)(.*)$/;
const LANGUAGE = /^[\w+#.-]{0,20}$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;
const CELLS = /^\s*\|.*\|\s*$/;

function blocks(lines, depth = 0, breaks = false) {
  if (depth > DEEPEST) return html`<${Text} value=${lines.join("\n")} />`;
  const found = [];
  let at = 0;
  const take = (fits) => {
    const start = at;
    while (at < lines.length && fits(lines[at])) at += 1;
    return lines.slice(start, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) at += 1;
    else if (FENCE.test(line)) {
      const [, fence, info] = line.match(FENCE);
      at += 1;
      // The name of a language is left out; anything else that stands beside a fence is text.
      const beside = LANGUAGE.test(info.trim()) ? [] : [info.trim()];
      found.push(html`<pre class="code">${[...beside, ...take((one) => !(one.trim().startsWith(fence) && /^\s*[`~]+\s*$/.test(one)))].join("\n")}</pre>`);
      at += 1;
    } else if (HEADING.test(line)) {
      const [, marks, words] = line.match(HEADING);
      at += 1;
      found.push(html`<p class=${`heading h${marks.length}`}>${inline(words)}</p>`);
    } else if (RULE.test(line)) {
      at += 1;
      found.push(html`<hr />`);
    } else if (CELLS.test(line)) found.push(table(take((one) => CELLS.test(one))));
    else if (line.startsWith(">")) found.push(html`<blockquote>${blocks(take((one) => one.startsWith(">")).map((one) => one.replace(/^> ?/, "")), depth + 1, breaks)}</blockquote>`);
    else if (ITEM.test(line)) found.push(list(take((one) => ITEM.test(one) || /^\s+\S/.test(one)), depth + 1, breaks));
    else {
      const words = take((one) => one.trim() && !FENCE.test(one) && !HEADING.test(one) && !ITEM.test(one) && !CELLS.test(one) && !one.startsWith(">"));
      const apart = (index) => (index ? (breaks || /( {2}|\\)$/.test(words[index - 1]) ? [html`<br />`] : [" "]) : []);
      found.push(html`<p>${words.flatMap((one, index) => [...apart(index), ...inline(one.trim().replace(/\\$/, ""))])}</p>`);
    }
  }
  return found;
}

function list(lines, depth, breaks) {
  const indent = lines[0].match(ITEM)[1].length;
  const items = [];
  for (const line of lines) {
    const item = line.match(ITEM);
    if (item && item[1].length <= indent) items.push({ number: item[2], words: item[3], inside: [] });
    else items.at(-1).inside.push(line.slice(Math.min(indent + 2, line.length - line.trimStart().length)));
  }
  const inside = items.map((item) => html`<li>${inline(item.words)}${item.inside.length > 0 && blocks(item.inside, depth, breaks)}</li>`);
  return items[0].number ? html`<ol start=${items[0].number}>${inside}</ol>` : html`<ul>${inside}</ul>`;
}

function table(lines) {
  const rows = lines.filter((line) => !/^[\s|:-]+$/.test(line)).map((line) => line.trim().slice(1, -1).split("|"));
  return html`<table><tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell.trim())}</td>`)}</tr>`)}</tbody></table>`;
}
