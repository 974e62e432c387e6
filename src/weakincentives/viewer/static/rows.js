// A list of which only the rows in sight exist; pages are fetched as they come into sight.

import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "wink/view.js";

const MARGIN = 12;

// `version` changes when rows may have changed; those shown are then read again.
export function Rows({ total, height, page, load, row, version = 0, selected = -1, role = "rowgroup", label }) {
  const place = useRef(null);
  const [range, setRange] = useState([0, 40]);
  const [pages, setPages] = useState({});
  const fresh = useRef({});

  useEffect(() => {
    const box = place.current;
    const look = () => {
      // In a low window the page scrolls, and the list with it.
      const above = Math.max(0, -box.getBoundingClientRect().top);
      const from = Math.max(0, Math.floor((box.scrollTop + above) / height) - MARGIN);
      const seen = Math.min(box.clientHeight, innerHeight);
      setRange([from, Math.min(total, from + Math.ceil(seen / height) + 2 * MARGIN)]);
    };
    look();
    document.addEventListener("scroll", look, { passive: true, capture: true });
    const watcher = new ResizeObserver(look);
    watcher.observe(box);
    return () => {
      document.removeEventListener("scroll", look, { capture: true });
      watcher.disconnect();
    };
  }, [total, height]);

  useEffect(() => {
    for (let at = Math.floor(range[0] / page); at * page < range[1]; at += 1) {
      if (fresh.current[at] === version) continue;
      fresh.current[at] = version;
      load(at * page).then(
        (rows) => setPages((before) => ({ ...before, [at]: rows })),
        () => delete fresh.current[at],
      );
    }
  }, [Math.floor(range[0] / page), Math.floor((range[1] - 1) / page), version, total]);

  useEffect(() => {
    const box = place.current;
    if (selected < 0) return;
    if (box.scrollHeight <= box.clientHeight) {
      box.querySelector(".selected, .marked")?.scrollIntoView({ block: "nearest" });
      return;
    }
    if (selected * height < box.scrollTop) box.scrollTop = selected * height;
    const bottom = (selected + 1) * height - box.clientHeight;
    if (bottom > box.scrollTop) box.scrollTop = bottom;
  }, [selected]);

  const rows = [];
  for (let index = range[0]; index < Math.min(range[1], total); index += 1) {
    const item = pages[Math.floor(index / page)]?.[index % page];
    rows.push(html`<div key=${index} class="slot" style=${{ transform: `translateY(${index * height}px)`, height: `${height}px` }}>
      ${item ? row(item, index) : html`<div class="ghost"></div>`}
    </div>`);
  }
  return html`<div class="rows" ref=${place} tabindex="0" role=${role} aria-label=${label}><div class="extent" style=${{ height: `${total * height}px` }}>${rows}</div></div>`;
}
