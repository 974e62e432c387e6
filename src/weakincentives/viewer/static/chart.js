// Lines over turns, drawn as SVG; the values under the pointer are read out beside it.

import { useState } from "preact/hooks";
import { classes, count, short } from "wink/format.js";
import { html, useWidth } from "wink/view.js";

const HEIGHT = 260;
const LEFT = 52;
const RIGHT = 22;
const TOP = 12;
const BOTTOM = 26;
const MOST_POINTS = 1_500;

export function Chart({ lines, label, onPick }) {
  const [place, width] = useWidth();
  const [at, setAt] = useState(null);
  const total = lines[0].values.length;
  const top = nice(Math.max(1, ...lines.map((line) => line.values.reduce((most, value) => Math.max(most, value ?? 0), 0))));
  const x = (index) => LEFT + (total === 1 ? 0.5 : index / (total - 1)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const nearest = (event) => {
    const left = event.clientX - event.currentTarget.getBoundingClientRect().left;
    return Math.max(0, Math.min(total - 1, Math.round(((left - LEFT) / Math.max(1, width - LEFT - RIGHT)) * (total - 1))));
  };
  const ticks = Array.from({ length: 5 }, (_, index) => (top * index) / 4);
  return html`<div class="chart" ref=${place}>
    <div class="keys">${lines.map((line) => html`<span class=${`key-line ${line.kind}`}><i></i>${line.name}</span>`)}</div>
    ${width > 0 && html`<svg width=${width} height=${HEIGHT} onPointerMove=${(event) => setAt(nearest(event))} onPointerLeave=${() => setAt(null)}
        onClick=${(event) => onPick?.(nearest(event))}>
      ${ticks.map((tick) => html`<line class="grid" x1=${LEFT} x2=${width - RIGHT} y1=${y(tick)} y2=${y(tick)} /><text class="tick y" x=${LEFT - 8} y=${y(tick) + 4}>${short(tick)}</text>`)}
      ${marks(total).map((index) => html`<text class="tick" x=${x(index)} y=${HEIGHT - 6}>${count(index + 1)}</text>`)}
      ${lines.map((line) => {
        const path = drawn(line.values, x, y);
        return html`<g class=${`line ${line.kind}`}>
          ${line.area && html`<path class="area" d=${`${path}L${x(total - 1)} ${y(0)}L${x(0)} ${y(0)}Z`} />`}
          <path class=${classes("stroke", line.dashed && "dashed")} d=${path} />
          ${total <= 60 && line.values.map((value, index) => value != null && html`<circle cx=${x(index)} cy=${y(value)} r="2.5" />`)}
        </g>`;
      })}
      ${at !== null && html`<line class="cross" x1=${x(at)} x2=${x(at)} y1=${TOP} y2=${HEIGHT - BOTTOM} />`}
      ${at !== null && lines.map((line) => line.values[at] != null && html`<circle class=${`point ${line.kind}`} cx=${x(at)} cy=${y(line.values[at])} r="4" />`)}
    </svg>`}
    ${at !== null && html`<div class="tip" style=${{ left: `${Math.min(x(at) + 12, width - 170)}px` }}>
      <strong>${label} ${count(at + 1)}</strong>
      ${lines.map((line) => html`<span class=${`key-line ${line.kind}`}><i></i>${line.name}<b>${line.values[at] == null ? "no turn" : count(line.values[at])}</b></span>`)}
    </div>`}
  </div>`;
}

// A line through the values; where there are more than can be seen, the highest of each stretch.
function drawn(values, x, y) {
  const stretch = Math.max(1, Math.ceil(values.length / MOST_POINTS));
  let path = "";
  for (let from = 0; from < values.length; from += stretch) {
    let best = null;
    for (let index = from; index < Math.min(values.length, from + stretch); index += 1) {
      if (values[index] != null && (best === null || values[index] > values[best])) best = index;
    }
    if (best !== null) path += `${path ? "L" : "M"}${x(best).toFixed(1)} ${y(values[best]).toFixed(1)}`;
  }
  return path || "M0 0";
}

function marks(total) {
  if (total <= 12) return Array.from({ length: total }, (_, index) => index);
  return Array.from({ length: 8 }, (_, index) => Math.round((index * (total - 1)) / 7));
}

function nice(most) {
  const size = 10 ** Math.floor(Math.log10(most));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10].map((step) => step * size).find((step) => step >= most);
}
