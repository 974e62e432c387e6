// All turns of a run in one strip: how much each sent, what was cached, and where something happened.

import { count, plural } from "wink/format.js";
import { Icon, NumberField, html, useWidth } from "wink/view.js";

const HEIGHT = 46;
const FOOT = 14;
const NARROWEST = 4;

export function Scrubber({ turns, marks = [], undone = null, pending, at, running, follow, onFollow, onMove }) {
  const [place, width] = useWidth();
  const total = turns.n.length + (pending ? 1 : 0);
  return html`<div class="scrubber">
    <div class="steps">
      <button onClick=${() => onMove(at - 1)} disabled=${at <= 1} aria-label="Previous turn" title="Previous turn (k, ←)"><${Icon} name="back" /></button>
      <label>Turn <${NumberField} value=${at} max=${total} label="Turn" onPick=${onMove} /> of ${count(total)}</label>
      <button onClick=${() => onMove(at + 1)} disabled=${at >= total} aria-label="Next turn" title="Next turn (j, →)"><${Icon} name="next" /></button>
      ${running && html`<button class=${`follow ${follow ? "on" : ""}`} aria-pressed=${follow} onClick=${() => onFollow(!follow)} title="Follow (f)">Follow</button>`}
    </div>
    <div class="strip" ref=${place}>${width > 0 && html`<${Strip} turns=${turns} marks=${marks} undone=${undone} pending=${pending} at=${at} width=${width} onMove=${onMove} />`}</div>
  </div>`;
}

// What happened besides turns: the kind decides the shape that marks it above its turn.
const SHAPES = { compacted: "M-3.5 -3h7l-3.5 6Z", rewound: "M3 -3.5v7l-6 -3.5Z", restored: "M-3 -3.5v7l6 -3.5Z", asked: "M0 -4 4 0 0 4 -4 0Z", decided: "M0 -4 4 0 0 4 -4 0Z", inside: "M-3 -3h6v6h-6Z" };

function Strip({ turns, marks, undone, pending, at, width, onMove }) {
  const total = turns.n.length;
  const bins = binned(turns, Math.min(total, Math.max(1, Math.floor(width / NARROWEST))));
  if (pending) bins.push({ first: total + 1, last: total + 1, input: 0, cached: 0, opened: 0, failed: 0, calls: 0, pending });
  const wide = Math.min(120, width / bins.length);
  const most = Math.max(1, ...bins.map((bin) => bin.input));
  const tall = (tokens) => (HEIGHT - 10) * (tokens / most);
  const turnAt = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const bin = bins[Math.max(0, Math.min(bins.length - 1, Math.floor((event.clientX - box.left) / wide)))];
    return bin.first;
  };
  const drag = (event) => event.buttons === 1 && turnAt(event) !== at && onMove(turnAt(event));
  return html`<svg class="turns" width=${width} height=${HEIGHT + FOOT} role="slider" aria-label="Turns" aria-valuemin="1"
      aria-valuemax=${total + (pending ? 1 : 0)} aria-valuenow=${at} onPointerDown=${(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        onMove(turnAt(event));
      }} onPointerMove=${drag}>
    ${bins.map((bin, index) => {
      const x = index * wide;
      const here = at >= bin.first && at <= bin.last;
      const gap = wide > 8 ? 2 : wide > 3 ? 1 : 0;
      return html`<g class=${`turn ${here ? "here" : ""}`} key=${bin.first}>
        <title>${describe(bin)}</title>
        ${here && html`<rect class="shade" x=${x} y="0" width=${wide} height=${HEIGHT + FOOT} rx="3" />`}
        <rect class="reach" x=${x} y="0" width=${wide} height=${HEIGHT + FOOT} />
        <rect class="sent" x=${x + gap / 2} y=${HEIGHT - tall(bin.input)} width=${Math.max(1, wide - gap)} height=${tall(bin.input)} rx="1.5" />
        <rect class="cached" x=${x + gap / 2} y=${HEIGHT - tall(bin.cached)} width=${Math.max(1, wide - gap)} height=${tall(bin.cached)} rx="1.5" />
        ${bin.pending && html`<rect class="waiting" x=${x + gap / 2 + 0.5} y=${HEIGHT - 12} width=${Math.max(1, wide - gap - 1)} height="11.5" rx="2" />`}
        ${bin.restart && index > 0 && html`<line class="restart" x1=${x} x2=${x} y1="0" y2=${HEIGHT} />`}
        ${bin.opened > 0 && html`<circle class="opened" cx=${x + wide / 2 - (bin.failed ? 4 : 0)} cy="4" r="2.5" />`}
        ${bin.failed > 0 && html`<circle class="failed" cx=${x + wide / 2 + (bin.opened ? 4 : 0)} cy="4" r="2.5" />`}
        ${undone != null && bin.last >= undone && html`<rect class="undone-turns" x=${x} y="0" width=${wide} height=${HEIGHT}><title>Undone: the conversation went back to before this turn</title></rect>`}
        ${marks.filter((mark) => Math.max(1, mark.turn) >= bin.first && Math.max(1, mark.turn) <= bin.last).slice(0, 3).map((mark, nth) => html`<path class=${`mark ${mark.kind}`} transform=${`translate(${x + wide - 6 - 9 * nth} 5)`} d=${SHAPES[mark.kind]}><title>${mark.kind === "compacted" ? `Shortened the conversation ${mark.text}` : mark.text}</title></path>`)}
        ${labelled(index, bins.length, wide) && html`<text x=${Math.max(8, Math.min(width - 12, x + wide / 2))} y=${HEIGHT + 11}>${bin.first}</text>`}
      </g>`;
    })}
  </svg>`;
}

function labelled(index, total, wide) {
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((step) => step * wide >= 26) ?? 1000;
  return every === 1 || index === 0 || (index + 1) % every === 0;
}

function binned(turns, amount) {
  const total = turns.n.length;
  const bins = [];
  for (let index = 0; index < amount; index += 1) {
    const from = Math.floor((index * total) / amount);
    const to = Math.max(from + 1, Math.floor(((index + 1) * total) / amount));
    const bin = { first: from + 1, last: to, input: 0, cached: 0, opened: 0, failed: 0, calls: 0, restart: false };
    for (let turn = from; turn < to; turn += 1) {
      bin.input = Math.max(bin.input, turns.input[turn]);
      bin.cached = Math.max(bin.cached, turns.cached[turn]);
      for (const name of ["opened", "failed", "calls"]) bin[name] += turns[name][turn];
      bin.restart ||= turn > 0 && turns.attempt[turn] !== turns.attempt[turn - 1];
    }
    bins.push(bin);
  }
  return bins;
}

function describe(bin) {
  if (bin.pending) return `Turn ${bin.first}: a request without a reply`;
  const name = bin.first === bin.last ? `Turn ${bin.first}` : `Turns ${bin.first} to ${bin.last}`;
  const parts = [`${count(bin.input)} tokens sent, ${count(bin.cached)} cached`, plural(bin.calls, "tool call")];
  if (bin.opened) parts.push(`${bin.opened} opened`);
  if (bin.failed) parts.push(`${bin.failed} failed`);
  if (bin.restart) parts.push("after a restart");
  return `${name}: ${parts.join(", ")}`;
}
