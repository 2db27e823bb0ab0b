function precisionRecall(rows, n) {
  let found = 0;
  return rows.map((hit, k) => { found += hit; return {hit, precision: found / (k + 1), recall: n ? found / n : NaN}; });
}
function envelope(curve) {
  let best = 0;
  return curve.map((_, k) => best = Math.max(best, curve[curve.length - 1 - k].precision)).reverse();
}
function averagePrecision(hits, n, points) {
  const curve = precisionRecall(hits, n), high = envelope(curve);
  if (!n) return NaN;
  return points.map(r => { const k = curve.findIndex(p => p.recall >= r); return k < 0 ? 0 : high[k]; })
    .reduce((a, b) => a + b, 0) / points.length;
}
function judged(boxes, {asked, shift}) {
  return boxes.filter(b => b.truth || asked[b.pair]).map(b => ({...b, score: b.score + (b.truth ? 0 : shift)}))
    .sort((a, b) => b.score - a.score);
}

function explorer(root, facts, changed, says) {
  const read = q => root.querySelector(q), all = q => [...root.querySelectorAll(q)], NS = "http://www.w3.org/2000/svg";
  const show = (q, text) => { read(q).textContent = text; };
  const number = v => !Number.isFinite(v) ? "undefined" : Number.isInteger(v) && v > 1 ? String(v) : v.toFixed(3);
  let state = facts.start;
  function element(tag, given, title) {
    const e = document.createElementNS(NS, tag);
    for (const k in given) e.setAttribute(k, given[k]);
    if (title) { const t = document.createElementNS(NS, "title"); t.textContent = title; e.append(t); }
    return e;
  }
  function plot(curve, rows, last) {
    const svg = read(".curve"), x = r => 34 + 250 * r, y = p => 168 - 156 * p, high = envelope(curve);
    const text = (tx, ty, s, end = "middle") => { const e = element("text", {x: tx, y: ty, "text-anchor": end});
      e.textContent = s; return e; };
    const steps = curve.map((p, k) => `${k ? "" : `M${x(0)} ${y(high[0])}`}V${y(high[k])}H${x(p.recall)}`).join("");
    svg.replaceChildren(element("path", {class: "axis", d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}`}),
      text(28, y(1) + 4, "1", "end"), text(28, y(0) + 4, "0", "end"), text(x(1), 182, "1"), text(x(.5), 182, "recall"),
      text(40, 160, "precision ↑", "start"), element("path", {class: "steps", d: steps}),
      ...curve.map((p, k) => element("circle", {cx: x(p.recall), cy: y(p.precision), r: k === last ? 7 : 4,
        class: (p.hit ? "hit" : "miss") + (k === last ? " now" : "") + (k > last ? " below" : "")},
        `score ${rows[k].score.toFixed(2)}, ${p.hit ? "hit" : "no hit"}: precision ${number(p.precision)}, ` +
        `recall ${number(p.recall)}`)));
  }
  function draw() {
    const {threshold, iou} = state, level = facts.levels.indexOf(iou), rows = judged(facts.boxes, state);
    const hits = rows.map(b => b.hits[level]), curve = precisionRecall(hits, facts.n_truth), library = says(state);
    const last = rows.filter(b => b.score >= threshold).length - 1, aps = facts.levels.map((_, k) =>
      averagePrecision(rows.map(b => b.hits[k]), facts.n_truth, facts.points));
    const kept = rows.slice(0, last + 1);
    const values = {AP: aps.reduce((a, b) => a + b, 0) / aps.length, AP50: aps[0],
      precision: last < 0 ? NaN : curve[last].precision, recall: last < 0 ? 0 : curve[last].recall,
      false_alarms: kept.filter(b => !b.truth).length};
    for (const name in values) { renew(read(`[data-here="${name}"]`), number(values[name]));
      show(`[data-python="${name}"]`, library ? number(library[name] ?? NaN) : ""); }
    read(".threshold").value = threshold; show(".threshold-value", threshold.toFixed(2));
    read(".shift").value = state.shift; show(".shift-value", state.shift.toFixed(2));
    read(".iou").value = level;
    all("[data-asked]").forEach(e => { e.checked = state.asked[e.dataset.asked]; });
    all("[data-pair]").forEach(svg => { const pair = facts.pairs[svg.dataset.pair];
      const mine = facts.boxes.filter(b => b.pair === pair.id), place = ([x0, y0, x1, y1]) =>
        ({x: x0, y: y0, width: x1 - x0, height: y1 - y0});
      const out = !pair.truth && !state.asked[pair.id];
      svg.style.opacity = out ? .3 : 1;
      svg.replaceChildren(element("image", {width: pair.size[1], height: pair.size[0],
        href: facts.pictures[pair.side]}),
        ...pair.boxes.map(box => element("rect", {...place(box), class: "truth"})),
        ...(out ? [] : mine.map(b => { const score = b.score + (pair.truth ? 0 : state.shift);
          return element("rect", {...place(b.box), class: (b.hits[level] ? "hit" : "miss") +
            (score >= threshold ? "" : " below")}, `${b.text}: ${score.toFixed(2)}`); }))); });
    plot(curve, rows, last);
    root.state = state; root.dataset.values = JSON.stringify(values);
  }
  const change = part => { state = {...state, ...part}; draw(); changed(state); };
  read(".threshold").addEventListener("input", e => change({threshold: +e.target.value}));
  read(".shift").addEventListener("input", e => change({shift: +e.target.value}));
  read(".iou").addEventListener("input", e => change({iou: facts.levels[+e.target.value]}));
  all("[data-asked]").forEach(e => e.addEventListener("input", () =>
    change({asked: {...state.asked, [e.dataset.asked]: e.checked}})));
  read(".again").addEventListener("click", () => change(facts.start));
  draw();
  return {put(s) { state = s; draw(); }, draw};
}
