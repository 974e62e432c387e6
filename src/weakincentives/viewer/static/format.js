// Numbers, times and names as people read them.

const whole = new Intl.NumberFormat("en-US");

export const count = (n) => (n == null ? "–" : whole.format(Math.round(n)));

export function short(n) {
  if (n == null) return "–";
  const size = Math.abs(n);
  if (size < 10_000) return count(n);
  if (size < 1_000_000) return `${trimmed(n / 1_000, size < 100_000 ? 1 : 0)}k`;
  return `${trimmed(n / 1_000_000, size < 10_000_000 ? 2 : 1)}M`;
}

const trimmed = (n, digits) => String(Number(n.toFixed(digits)));

export function money(n) {
  if (n == null) return "–";
  if (n === 0) return "$0";
  if (Math.abs(n) < 0.00005) return "<$0.0001";
  if (n < 1) return `$${n.toFixed(4)}`;
  return `$${n.toFixed(n < 10 ? 3 : 2)}`;
}

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.001) return "<1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} m`;
}

export function bytes(n) {
  if (n < 1_000) return `${n} characters`;
  if (n < 1_000_000) return `${(n / 1_000).toFixed(0)} k characters`;
  return `${(n / 1_000_000).toFixed(1)} M characters`;
}

export const clock = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function moment(seconds) {
  const then = new Date(seconds * 1000);
  const today = new Date();
  const time = then.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (then.toDateString() === today.toDateString()) return `today ${time}`;
  const day = then.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return then.getFullYear() === today.getFullYear() ? `${day} ${time}` : `${day} ${then.getFullYear()} ${time}`;
}

// A text in a line of a list: without the marks of Markdown, and of JSON the words.
export function oneLine(text) {
  const media = [...text.matchAll(MEDIA)].map(([, name]) => name);
  const rest = media.length ? `${text.replace(MEDIA, " ")} (${media.join(", ")})` : text;
  const words = /^\s*[{[]/.test(rest) ? told(rest) : rest;
  return words.replace(/\*\*|`|^#+\s+/gm, "").replace(/\s+/g, " ").trim();
}

// Media in a question, as words.
const MEDIA = /\[?(?:image|document|audio) ([^\s(]+) \([^)\n]*bytes\)\]?/g;

// The fields of a JSON text as words; what is cut off at its end is left as it is.
function told(text) {
  try {
    const flat = (value) => (Array.isArray(value) ? value.map(flat).join(", ") : value && typeof value === "object" ? Object.entries(value).map(([key, item]) => `${key}: ${String(flat(item)).replace(/[.;]$/, "")}`).join("; ") : value);
    return String(flat(JSON.parse(text)));
  } catch {
    return text.replace(/[{}[\]]/g, " ").replace(/\.?"\s*,\s*"(\w+)"\s*:\s*/g, "; $1: ").replace(/"\s*:\s*/g, ": ").replace(/"\s*,\s*"/g, ", ").replaceAll('"', "");
  }
}

export const plural = (n, word, many = `${word}s`) => `${count(n)} ${n === 1 ? word : many}`;

export const percent = (part, all) => (all ? `${Math.round((100 * part) / all)}%`.replace("-", "−") : "–");

export const signed = (n) => (n > 0 ? `+${count(n)}` : n < 0 ? `−${count(-n)}` : "0");

export const classes = (...names) => names.filter(Boolean).join(" ");
