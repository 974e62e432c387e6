// The difference of two lists: the shortest way from one to the other (Myers), in runs of same, gone and new.

const FARTHEST = 1_500;

export function diff(before, after, same = (a, b) => a === b) {
  let start = 0;
  while (start < before.length && start < after.length && same(before[start], after[start])) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start && same(before.at(-1 - end), after.at(-1 - end))) end += 1;
  const middle = path(before.slice(start, before.length - end), after.slice(start, after.length - end), same);
  return joined([
    ["same", before.slice(0, start)],
    ...middle,
    ["same", before.slice(before.length - end)],
  ]);
}

function path(a, b, same) {
  const reach = Math.min(a.length + b.length, FARTHEST);
  const trail = [];
  let far = { 1: 0 };
  for (let d = 0; d <= reach; d += 1) {
    trail.push({ ...far });
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && far[k - 1] < far[k + 1]) ? far[k + 1] : far[k - 1] + 1;
      let y = x - k;
      while (x < a.length && y < b.length && same(a[x], b[y])) {
        x += 1;
        y += 1;
      }
      far[k] = x;
      if (x >= a.length && y >= b.length) return back(trail, a, b);
    }
  }
  // Too far apart to be worth the search.
  return [["gone", a], ["new", b]];
}

function back(trail, a, b) {
  const steps = [];
  let x = a.length;
  let y = b.length;
  for (let d = trail.length - 1; d >= 0; d -= 1) {
    const far = trail[d];
    const k = x - y;
    const from = k === -d || (k !== d && far[k - 1] < far[k + 1]) ? k + 1 : k - 1;
    const fromX = d === 0 ? 0 : far[from];
    const fromY = d === 0 ? 0 : fromX - from;
    while (x > fromX && y > fromY) {
      steps.push(["same", [a[x - 1]]]);
      x -= 1;
      y -= 1;
    }
    if (d > 0) {
      if (x === fromX) steps.push(["new", [b[y - 1]]]);
      else steps.push(["gone", [a[x - 1]]]);
      x = fromX;
      y = fromY;
    }
  }
  return steps.reverse();
}

function joined(runs) {
  const found = [];
  for (const [kind, items] of runs) {
    if (!items.length) continue;
    if (found.at(-1)?.kind === kind) found.at(-1).items.push(...items);
    else found.push({ kind, items: [...items] });
  }
  return found;
}

export const lines = (text) => text.split("\n");
