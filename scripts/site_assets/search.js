/* The search of the documentation. It takes the place of the theme's worker, with the same messages: 0 brings the index,
   1 says that it is ready, 2 asks, 3 answers, 4 says that something failed.

   Sections are ranked by BM25 over title, path and text. Words that every question has do not count, words of one
   meaning count as one (search_words.json), a guide comes before the API reference, and a page before its parts. */
"use strict";

const WORDS = /* words */ { stop: [], synonyms: [] };

const WEIGHTS = { title: 5, path: 2.5, text: 1 };
const SATURATION = 1.2;
const LENGTH = 0.6;
const REFERENCE = 0.2;  // What an entry of the API reference counts, unless its name is typed.
const INDEX = 0.5;      // The list of pages, where the page itself is what is looked for.
const ELSEWHERE = 0.5;  // A word of the question that stands in another part of the same page.
const COMMANDS = 0.6;   // An entry of the command line, likewise.
const WHOLE_PAGE = 1.25;
const PREFIX = 0.6;     // A word that only begins with what was typed, while it is typed.
const TYPO = 0.4;
const PER_PAGE = 3;     // The parts of one page among the results.
const PAGE_SIZE = 10;

const STOP = new Set(WORDS.stop);
let sections = [];
let postings = new Map(); // word -> Map(section -> {title, path, text} counts)
let lengths = { title: 1, path: 1, text: 1 };
let meaning = new Map();
let phrases = [];
let wordsOfPage = new Map(); // page -> Set(word); a guide is one text, each entry of the reference another

/* The folder of the site: the theme sends whole addresses, or places relative to the site. */
function siteOf(items) {
  let site = items.length ? items[0].location : "";
  for (const { location } of items) {
    while (!location.startsWith(site)) site = site.slice(0, -1);
  }
  return site.slice(0, site.lastIndexOf("/") + 1);
}

function stem(word) {
  if (word.length > 4 && word.endsWith("ies")) return `${word.slice(0, -3)}y`;
  for (const ending of ["ing", "ed"]) {
    if (word.length > ending.length + 3 && word.endsWith(ending)) {
      const root = word.slice(0, -ending.length);
      return /(.)\1$/.test(root) && !/(ll|ss)$/.test(root) ? root.slice(0, -1) : root;
    }
  }
  if (word.length > 4 && /(s|x|ch|sh)es$/.test(word)) return word.slice(0, -2);
  if (word.length > 3 && word.endsWith("s") && !/(ss|us|is)$/.test(word)) return word.slice(0, -1);
  return word;
}

function canonical(word) {
  const root = stem(word).replace(/(.{3,})e$/, "$1");
  return meaning.get(root) || root;
}

/* The words of a text with their places; names in camel case count as a whole and by their parts. */
function tokens(text) {
  const found = [];
  for (const match of text.matchAll(/[\p{L}\p{N}_]+/gu)) {
    const start = match.index;
    const whole = match[0].toLowerCase();
    found.push({ word: canonical(whole), start, end: start + whole.length });
    const parts = match[0].match(/[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+/g) || [];
    if (parts.length < 2) continue;
    for (const part of parts) {
      const at = start + match[0].indexOf(part);
      found.push({ word: canonical(part.toLowerCase()), start: at, end: at + part.length });
    }
  }
  return found;
}

/* The same text with blanks in place of its tags, so that places in it stay true. */
const plain = (html) => html.replace(/<[^>]*>|&\w+;/g, (tag) => " ".repeat(tag.length));

function learn({ items }) {
  meaning = new Map();
  phrases = [];
  for (const group of WORDS.synonyms) {
    const [first] = group;
    for (const words of group) {
      if (words.includes(" ")) phrases.push([new RegExp(`\\b${words}\\b`, "g"), first]);
      else meaning.set(stem(words).replace(/(.{3,})e$/, "$1"), stem(first).replace(/(.{3,})e$/, "$1"));
    }
  }
  const site = siteOf(items);
  sections = items.map((item) => {
    const place = item.location.slice(site.length);
    const page = place.startsWith("api/") ? place : place.split("#")[0];
    return { item, place, page, name: plain(item.title).trim().split(/\s/)[0] };
  });
  postings = new Map();
  wordsOfPage = new Map();
  const sums = { title: 0, path: 0, text: 0 };
  items.forEach((item, id) => {
    const fields = { title: plain(item.title), path: (item.path || []).join(" "), text: plain(item.text) };
    sections[id].lengths = {};
    const { page } = sections[id];
    if (!wordsOfPage.has(page)) wordsOfPage.set(page, new Set());
    for (const [field, text] of Object.entries(fields)) {
      const words = tokens(text);
      sections[id].lengths[field] = words.length;
      sums[field] += words.length;
      for (const { word } of words) {
        wordsOfPage.get(page).add(word);
        if (!postings.has(word)) postings.set(word, new Map());
        const places = postings.get(word);
        if (!places.has(id)) places.set(id, { title: 0, path: 0, text: 0 });
        places.get(id)[field] += 1;
      }
    }
  });
  for (const field of Object.keys(sums)) lengths[field] = Math.max(1, sums[field] / items.length);
}

/* The words of a question that mean something, or all of them if none does. */
function questionWords(input) {
  let text = input.toLowerCase();
  for (const [pattern, word] of phrases) text = text.replace(pattern, ` ${word} `);
  const all = (text.match(/[\p{L}\p{N}_]+/gu) || []).map((word) => ({ typed: word, word: canonical(word) }));
  const telling = all.filter(({ typed }) => !STOP.has(typed));
  const last = all.length && !/\s$/.test(input) ? all[all.length - 1].typed : "";
  return { words: telling.length ? telling : all, last };
}

function oneEdit(a, b) {
  if (Math.abs(a.length - b.length) > 1 || a === b) return a === b;
  let at = 0;
  while (at < a.length && a[at] === b[at]) at += 1;
  const [longer, shorter] = a.length >= b.length ? [a, b] : [b, a];
  return longer.slice(at + 1) === shorter.slice(a.length === b.length ? at + 1 : at);
}

/* The words of the index that a typed word stands for, each with what it counts. */
function expanded({ typed, word }, last) {
  const matches = new Map();
  if (postings.has(word)) matches.set(word, 1);
  if (typed === last && typed.length > 1) {
    for (const known of postings.keys()) {
      if (known !== word && known.startsWith(typed)) matches.set(known, PREFIX);
    }
  }
  if (!matches.size && word.length > 3) {
    for (const known of postings.keys()) if (oneEdit(known, word)) matches.set(known, TYPO);
  }
  return matches;
}

function ranked(input) {
  const { words, last } = questionWords(input);
  const scores = new Map();
  const matched = new Map();
  words.forEach((asked, index) => {
    const best = new Map();
    for (const [word, share] of expanded(asked, last)) {
      const places = postings.get(word);
      const rarity = Math.log(1 + (sections.length - places.size + 0.5) / (places.size + 0.5));
      for (const [id, counts] of places) {
        let frequency = 0;
        for (const field of Object.keys(WEIGHTS)) {
          const length = 1 - LENGTH + (LENGTH * sections[id].lengths[field]) / lengths[field];
          frequency += (WEIGHTS[field] * counts[field]) / length;
        }
        const score = (share * rarity * frequency) / (frequency + SATURATION);
        if (score > (best.get(id) || 0)) best.set(id, score);
        if (!matched.has(id)) matched.set(id, { words: new Set(), count: new Set() });
        matched.get(id).words.add(word);
        matched.get(id).count.add(index);
      }
    }
    for (const [id, score] of best) scores.set(id, (scores.get(id) || 0) + score);
  });
  const choices = words.map((asked) => [...expanded(asked, last).keys()]);
  const typedName = input.trim();
  const results = [];
  for (const [id, sum] of scores) {
    const { item, name, place, page } = sections[id];
    const own = matched.get(id).count;
    const inPage = wordsOfPage.get(page);
    const elsewhere = choices.filter((variants, index) => !own.has(index) && variants.some((word) => inPage.has(word)));
    const share = (own.size + ELSEWHERE * elsewhere.length) / words.length;
    let score = sum * share * share;
    const exact = name === typedName && /[A-Z_]/.test(input);
    if (place.startsWith("api/")) score *= exact ? 2 : REFERENCE;
    else if (place.startsWith("reference/cli") && !exact) score *= COMMANDS;
    else if (place.startsWith("index.html")) score *= INDEX;
    if (item.level === 1) score *= WHOLE_PAGE;
    results.push({ id, score, words: matched.get(id).words });
  }
  results.sort((a, b) => b.score - a.score || a.id - b.id);
  const ofPage = new Map();
  return results.filter(({ id }) => {
    const page = sections[id].place.split("#")[0];
    ofPage.set(page, (ofPage.get(page) || 0) + 1);
    return ofPage.get(page) <= PER_PAGE;
  });
}

/* Where the words of a result stand in a field, as ranges of the field's text. */
function highlight(field, text, words) {
  const ranges = [];
  let end = -1;
  for (const token of tokens(plain(text))) {
    if (words.has(token.word) && token.start >= end) {
      ranges.push({ start: token.start, end: token.end, value: token.end - token.start });
      end = token.end;
    }
  }
  return { field, value: { highlight: { ranges } }, score: 0 };
}

function answer(query) {
  const results = query.input.trim() ? ranked(query.input) : [];
  const from = (query.page && query.page.from) || 0;
  const items = results.slice(from, from + PAGE_SIZE).map(({ id, score, words }) => {
    const { item } = sections[id];
    return { id, score, matches: [highlight("title", item.title, words), highlight("text", item.text, words)] };
  });
  const page = { id: Date.now(), size: PAGE_SIZE, from };
  const pagination = { total: results.length };
  if (from) pagination.prev = { ...page, from: Math.max(0, from - PAGE_SIZE) };
  if (from + PAGE_SIZE < results.length) pagination.next = { ...page, from: from + PAGE_SIZE };
  const none = { size: 0, data: {} };
  return { items, query: { select: { documents: none, terms: none }, values: [] }, pagination };
}

self.onmessage = ({ data: { type, data } }) => {
  try {
    if (type === 0) {
      learn(data);
      self.postMessage({ type: 1 });
    } else if (type === 2) {
      self.postMessage({ type: 3, data: answer(data) });
    }
  } catch (error) {
    self.postMessage({ type: 4 });
  }
};
