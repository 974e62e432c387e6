// Documents from the server, or from the page itself when it is an exported file.

import { signal } from "@preact/signals";
import { read, write } from "wink/state.js";

const holder = document.getElementById("data");
const KEPT = 400;

export const exported = holder !== null;
const unpacked = exported ? unpack(holder.textContent) : null;

// An exported file carries its data compressed.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const data = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  holder.remove();
  for (const turn of Object.values(data.turns)) Object.assign(turn, data.states[turn.state]);
  return data;
}
// Counts up when something was recorded: "none" until the first word from the server.
export const changes = signal(0);
// Why nothing new arrives: empty, or a short reason.
export const cutOff = signal("");
// The prompt that this server has a playground for, if it has one.
export const play = signal(null);
// What a run that was started in the playground is saying.
export const live = signal(null);
// The run of the playground that goes on, if one does.
export const running = signal("");
// The server's address has a token, without which it answers nothing; kept for reloads, other tabs and bookmarks. The
// storage belongs to this host and port; a cookie would be sent to every other port of this machine as well.
const token = exported ? "" : tokenOfServer();

function tokenOfServer() {
  const given = new URLSearchParams(location.search).get("token");
  if (!given) return read("wink-token") ?? "";
  write("wink-token", given);
  history.replaceState(null, "", location.pathname + location.hash);
  return given;
}

async function fetched(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== "") query.append(name, one);
  }
  return answered(await fetch(`/api/${path}${query.size ? `?${query}` : ""}`, { headers: { "x-wink-token": token } }));
}

async function answered(answer) {
  const text = await answer.text();
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    if (answer.status === 403) throw new Error(text);
    throw new Error(`The server answered ${answer.status} without a document: ${text.slice(0, 300) || answer.statusText}`);
  }
  if (!answer.ok || (document.error && !("done" in document))) throw Object.assign(new Error(document.error), { status: answer.status });
  return document;
}

const cache = new Map();

// Documents that can no longer change are kept.
async function kept(key, make) {
  if (!cache.has(key)) {
    cache.set(key, make());
    cache.get(key).catch(() => cache.delete(key));
    if (cache.size > KEPT) cache.delete(cache.keys().next().value);
  }
  return cache.get(key);
}

const at = (run) => `runs/${encodeURIComponent(run)}`;

const remote = {
  runs: (params) => fetched("runs", params),
  conversation: (id, offset) => fetched(`conversations/${encodeURIComponent(id)}`, { offset }),
  groups: (params) => fetched("groups", params),
  script: (run) => fetched(`${at(run)}/script`),
  run: (run) => fetched(at(run)),
  turn: (run, n, last) => {
    const make = () => fetched(`${at(run)}/turns/${n}`);
    return last ? make() : kept(`turn ${run} ${n}`, make);
  },
  prompt: (run, seq) => kept(`prompt ${run} ${seq}`, () => fetched(`${at(run)}/prompts/${seq}`)),
  messages: (run, start, stop) =>
    kept(`messages ${run} ${start} ${stop}`, () => fetched(`${at(run)}/messages`, { start, stop })),
  events: (run, params) => fetched(`${at(run)}/events`, params),
  event: (run, seq) => kept(`event ${run} ${seq}`, () => fetched(`${at(run)}/events/${seq}`)),
  search: (words, run = "") => fetched("search", { q: words, run }),
  parting: (a, b) => kept(`parting ${a} ${b}`, () => fetched("parting", { a, b })),
  report: () => fetched("report"),
  evals: () => fetched("evals"),
  evaluation: (id) => fetched("evals/one", { id }),
  comparison: (a, b) => fetched("evals/compare", { a, b }),
  play: () => fetched("play"),
  live: (run) => fetched("play/live", { run }),
  work: (run) => fetched("work", { run }),
  // What a playground may do besides looking: render, save, run.
  act: async (what, body, where = "play") =>
    answered(await fetch(`/api/${where}/${what}`, { method: "POST", headers: { "content-type": "application/json", "x-wink-token": token }, body: JSON.stringify(body) })),
};

const local = {
  runs: async () => {
    const { file, run } = await unpacked;
    return { file, total: 1, offset: 0, runs: [run.run] };
  },
  run: async () => (await unpacked).run,
  script: async () => (await unpacked).script,
  turn: async (run, n) => (await unpacked).turns[n] ?? missing(`This file has no turn ${n}.`),
  prompt: async (run, seq) => (await unpacked).prompts[seq],
  messages: async (run, start, stop) => ({ start, messages: (await unpacked).messages.slice(start, stop) }),
  events: async (run, { offset = 0, limit = 200, kind = [] }) => {
    const embedded = await unpacked;
    const wanted = embedded.events.filter((line) => !kind.length || kind.includes(line.kind));
    const kinds = {};
    for (const line of embedded.events) kinds[line.kind] = (kinds[line.kind] ?? 0) + 1;
    return { total: wanted.length, offset, kinds, events: wanted.slice(offset, offset + limit) };
  },
  event: async (run, seq) => {
    const embedded = await unpacked;
    const line = embedded.events.find((one) => one.seq === seq) ?? missing(`This file has no event ${seq}.`);
    return { ...line, event: line.event ?? whole(embedded, line) };
  },
  search: async (words) => {
    const embedded = await unpacked;
    const hits = words ? found(embedded, words) : [];
    return { hits, matching: hits.length ? 1 : 0, cut: hits.length === MOST_HITS, runs: { [embedded.run.run.run_id]: embedded.run.run } };
  },
  report: async () => ({ error: "An exported file holds one run; `wink report` advises from all of them." }),
};

export const api = exported ? local : remote;

// The address of recorded media; in an exported file they are inside.
export async function mediaUrl({ digest, type }) {
  if (!exported) return `/api/blobs/${digest}?type=${encodeURIComponent(type)}&token=${encodeURIComponent(token)}`;
  return `data:${type};base64,${(await unpacked).blobs[digest] ?? ""}`;
}

// Messages by their numbers over the run; a page may end early where texts are long.
export async function messagesOf(run, start, stop) {
  const found = [];
  while (start + found.length < stop) {
    const page = await api.messages(run, start + found.length, stop);
    if (!page.messages.length) break;
    found.push(...page.messages);
  }
  return found;
}

export function listen() {
  if (exported) return;
  remote.play().then((found) => (play.value = found), () => {});
  const source = new EventSource(`/api/changes?token=${encodeURIComponent(token)}`);
  source.onmessage = () => {
    cutOff.value = "";
    changes.value += 1;
  };
  // The browser tries again while nobody answers, and gives up when the server refuses: one started anew has another token.
  source.onerror = () => (cutOff.value = source.readyState === EventSource.CLOSED ? "no access" : "server gone");
}

function missing(text) {
  throw new Error(text);
}

function whole(embedded, { kind, seq, turn }) {
  if (kind === "PromptRendered") return embedded.prompts[seq];
  if (kind === "Message") return embedded.messages.find((message) => message.seq === seq && message.run_id === embedded.run.run.run_id);
  if (kind === "ModelCalled") return embedded.turns[turn]?.called;
  return embedded.turns[turn]?.calls.find((call) => call.seq === seq);
}

const MOST_HITS = 60;

function found(embedded, words) {
  const wanted = words.toLowerCase();
  const hits = [];
  for (const line of embedded.events) {
    const event = line.event ?? whole(embedded, line) ?? {};
    for (const [where, text] of texts(event, "")) {
      const start = text.toLowerCase().indexOf(wanted);
      if (start < 0) continue;
      const end = start + words.length;
      hits.push({
        ...line,
        run_id: embedded.run.run.run_id,
        where,
        name: event.name || event.role || "",
        before: text.slice(Math.max(0, start - 60), start),
        match: text.slice(start, end),
        after: text.slice(end, end + 140),
      });
      break;
    }
    if (hits.length === MOST_HITS) break;
  }
  return hits;
}

function* texts(value, where) {
  if (typeof value === "string") yield [where, value];
  else if (Array.isArray(value)) for (const item of value) yield* texts(item, where);
  else if (value && typeof value === "object") {
    for (const [key, item] of Object.entries(value)) {
      if (!["role", "provider", "run_id", "call_id", "id", "response_id"].includes(key)) {
        yield* texts(item, where ? `${where}.${key}` : key);
      }
    }
  }
}
