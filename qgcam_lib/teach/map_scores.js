function scores({map: A, box, delta, ...high}) {
  const threshold = Math.fround(high.threshold), tau = Math.fround(high.tau);
  const h = A.length, w = A[0].length, [x0, y0, x1, y1] = box, s = 1e-3;
  const inBox = (i, j) => j + .5 >= x0 && j + .5 < x1 && i + .5 >= y0 && i + .5 < y1;
  const far = (i, j) => Math.max(0, y0 - i, i - y1, x0 - j, j - x1);
  function sums(f) {
    let all = 0, inside = 0, area = 0, pay = 0;
    for (let i = 0; i < h; i++) for (let j = 0; j < w; j++) {
      const a = f(A[i][j]); all += a; pay += a * far(i, j);
      if (inBox(i, j)) { inside += a; area += 1; }
    }
    return {all, inside, area, pay};
  }
  const iou = q => (q.inside + s) / (q.all + q.area - q.inside + s);
  const dice = q => 2 * (q.inside + s) / (q.all + q.area + s);
  const wdp = q => { if (q.all === 0) return NaN; const r = q.pay / (q.all + 1e-6); return r / (1 + r); };
  const soft = sums(a => a), hard = sums(a => a > threshold ? 1 : 0);
  let top = -Infinity, peaks = [];
  for (const row of A) for (const a of row) top = Math.max(top, a);
  let ties = 0, hits = 0;
  for (let i = 0; i < h; i++) for (let j = 0; j < w; j++) {
    const a = A[i][j];
    if (a === top) { ties += 1; hits += inBox(i, j) ? 1 : 0; }
    let highest = a > tau;
    for (let di = -1; di <= 1; di++) for (let dj = -1; dj <= 1; dj++) {
      const row = A[i + di]; if (row && row[j + dj] !== undefined && row[j + dj] > a) highest = false;
    }
    if (highest) peaks.push({i, j, a, inside: inBox(i, j)});
  }
  peaks.sort((p, q) => q.a - p.a);
  const kept = [];
  for (const p of peaks) if (kept.every(k => Math.hypot(k.i - p.i, k.j - p.j) > delta)) kept.push(p);
  const first = kept.filter(k => k.a === kept[0].a);
  const uncertain = first.some(k => k.inside) && first.some(k => !k.inside);
  return {values: {iou_soft: iou(soft), iou_binary: iou(hard), dice_soft: dice(soft), dice_binary: dice(hard),
    wdp_soft: wdp(soft), wdp_binary: wdp(hard), io_ratio: soft.all ? soft.inside / soft.all : NaN,
    pg_hit: hits / ties, pg_uncertain: uncertain ? 1 : 0}, peaks: kept};
}

function drawing(svg, facts) {
  const A = facts.start.map, h = A.length, w = A[0].length, c = facts.cell, NS = svg.namespaceURI;
  const add = (tag, o, to = svg) => { const e = document.createElementNS(NS, tag);
    for (const k in o) e.setAttribute(k, o[k]); to.appendChild(e); return e; };
  const set = (e, o) => { for (const k in o) e.setAttribute(k, o[k]); };
  set(svg, {viewBox: `-1 -1 ${w * c + 2} ${h * c + 2}`, width: w * c + 2, height: h * c + 2});
  const photo = add("image", {width: w * c, height: h * c, preserveAspectRatio: "none"});
  const heat = add("g", {}), cells = A.map((row, i) => row.map((_, j) =>
    add("rect", {x: j * c, y: i * c, width: c, height: c, "shape-rendering": "crispEdges"}, heat)));
  const said = cells.map(row => row.map(cell => add("title", {}, cell)));
  const marks = add("g", {"pointer-events": "none"});
  const line = {fill: "none", "pointer-events": "none"};
  const back = add("rect", {...line, stroke: "black", "stroke-width": 6});
  const frame = add("rect", {class: "frame", fill: "transparent", stroke: "white", "stroke-width": 3, tabindex: 0,
    role: "application", "aria-roledescription": "box"});
  const knob = add("rect", {class: "knob", width: 14, height: 14, fill: "white", stroke: "black"});
  const pen = add("rect", {class: "pen", width: c, height: c, fill: "transparent", stroke: "#00e5ff",
    "stroke-width": 3, role: "application", "aria-roledescription": "brush"});
  function draw({map, box: [x0, y0, x1, y1], threshold}, peaks) {
    const high = Math.max(facts.high, ...map.map(row => Math.max(...row)));
    map.forEach((row, i) => row.forEach((a, j) => { const t = a / high, g = Math.round(28 + 215 * t);
      cells[i][j].setAttribute("fill", `rgb(${g},${Math.round(g * (.55 + .4 * t))},${Math.round(70 - 40 * t)})`);
      said[i][j].textContent = `row ${i}, column ${j}: ${a.toFixed(2)}`; }));
    const place = {x: x0 * c, y: y0 * c, width: (x1 - x0) * c, height: (y1 - y0) * c};
    set(frame, {...place, "aria-label": `box: x0 ${x0}, y0 ${y0}, x1 ${x1}, y1 ${y1}`}); set(back, place);
    set(knob, {x: x1 * c - 7, y: y1 * c - 7});
    marks.replaceChildren();
    map.forEach((row, i) => row.forEach((a, j) => { if (a > threshold) add("rect", {...line, x: j * c + 1.5,
      y: i * c + 1.5, width: c - 3, height: c - 3, stroke: "white", "stroke-dasharray": "2 2"}, marks); }));
    for (const p of peaks) { const x = (p.j + .5) * c, y = (p.i + .5) * c, r = Math.max(5, c / 4);
      const cross = `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;
      for (const [stroke, width] of [["black", 5], ["white", 2.5]])
        add(p.inside ? "circle" : "path", {...(p.inside ? {cx: x, cy: y, r} : {d: cross}), ...line, stroke,
          "stroke-width": width}, marks); }
  }
  return {draw, set, photo, heat, frame, knob, pen, cell: e => { const r = svg.getBoundingClientRect();
    return [(e.clientX - r.left) / r.width * w, (e.clientY - r.top) / r.height * h]; }};
}

const arrows = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
const clamp = (v, a, b) => Math.max(a, Math.min(b, v));
function holdBox(pic, h, w, get, set) {
  let grab = null;
  function move(kind, dx, dy, [x0, y0, x1, y1]) {
    if (kind === "size") return set([x0, y0, clamp(x1 + dx, x0 + 1, w), clamp(y1 + dy, y0 + 1, h)]);
    dx = clamp(dx, -x0, w - x1); dy = clamp(dy, -y0, h - y1); set([x0 + dx, y0 + dy, x1 + dx, y1 + dy]);
  }
  for (const [part, kind] of [[pic.frame, "move"], [pic.knob, "size"]]) {
    part.addEventListener("pointerdown", e => { grab = {kind, at: pic.cell(e), from: get()};
      part.setPointerCapture(e.pointerId); });
    part.addEventListener("pointermove", e => { if (grab) { const [x, y] = pic.cell(e);
      move(grab.kind, Math.round(x - grab.at[0]), Math.round(y - grab.at[1]), grab.from); } });
    for (const end of ["pointerup", "pointercancel"]) part.addEventListener(end, () => { grab = null; });
  }
  pic.frame.addEventListener("keydown", e => { const step = arrows[e.key];
    if (step) { e.preventDefault(); e.stopPropagation(); move(e.shiftKey ? "size" : "move", ...step, get()); } });
}

function holdBrush(svg, pic, h, w, painting, get, paint, say) {
  let last = null, at = [0, 0];
  function show() { const c = +pic.pen.getAttribute("width"); pic.set(pic.pen, {x: at[1] * c, y: at[0] * c,
    "aria-label": `brush: row ${at[0]}, column ${at[1]}: ${get()[at[0]][at[1]].toFixed(2)}`}); }
  function stroke(from, to) {
    const n = Math.max(1, Math.abs(to[0] - from[0]), Math.abs(to[1] - from[1])), cells = [];
    for (let k = 0; k <= n; k++) cells.push([0, 1].map(d => Math.round(from[d] + (to[d] - from[d]) * k / n)));
    at = to; paint(cells); show();
  }
  const inside = (i, j) => [clamp(i, 0, h - 1), clamp(j, 0, w - 1)];
  const cell = e => { const [x, y] = pic.cell(e); return inside(Math.floor(y), Math.floor(x)); };
  svg.addEventListener("pointerdown", e => { if (painting()) { last = cell(e); svg.setPointerCapture(e.pointerId);
    stroke(last, last); } });
  svg.addEventListener("pointermove", e => { if (last && painting()) { stroke(last, cell(e)); last = at; } });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { last = null; });
  pic.pen.addEventListener("keydown", e => { const step = arrows[e.key];
    if (!step && e.key !== " " && e.key !== "Enter") return;
    e.preventDefault(); e.stopPropagation();
    if (step) { at = inside(at[0] + step[1], at[1] + step[0]); show(); } else stroke(at, at);
    say(pic.pen.getAttribute("aria-label")); });
  return show;
}

function explorer(root, facts, changed, says) {
  const read = q => root.querySelector(q), svg = read("svg"), pic = drawing(svg, facts);
  const h = facts.start.map.length, w = facts.start.map[0].length, sliders = ["threshold", "tau", "delta"];
  const show = (q, text) => { read(q).textContent = text; };
  const number = v => Number.isFinite(v) ? v.toFixed(3) : "undefined";
  let state = facts.start, tool = "box";
  function draw() {
    const {values, peaks} = scores(state), library = says(state);
    pic.draw(state, peaks); pen();
    for (const s of sliders) { read("." + s).value = state[s]; show(`.${s}-value`, state[s].toFixed(2)); }
    show(".box-value", state.box.map((v, k) => `${["x0", "y0", "x1", "y1"][k]} ${v}`).join(", "));
    for (const name in values) { renew(read(`[data-here="${name}"]`), number(values[name]));
      show(`[data-python="${name}"]`, library ? number(library[name] ?? NaN) : ""); }
    root.state = state; root.dataset.values = JSON.stringify(values); root.dataset.box = JSON.stringify(state.box);
    root.dataset.peaks = peaks.length;
  }
  const change = part => { state = {...state, ...part}; draw(); changed(state); };
  holdBox(pic, h, w, () => state.box, box => change({box}));
  function paint(cells) {
    const value = tool === "erase" ? 0 : Math.fround(read(".ink").value), map = state.map.map(row => row.slice());
    for (const [i, j] of cells) map[i][j] = value;
    change({map});
  }
  const pen = holdBrush(svg, pic, h, w, () => tool !== "box", () => state.map, paint, text => show(".said", text));
  function use(name) {
    tool = name; const box = tool === "box";
    for (const b of root.querySelectorAll("[data-tool]")) b.setAttribute("aria-pressed", b.dataset.tool === tool);
    for (const part of [pic.frame, pic.knob]) part.style.pointerEvents = box ? "all" : "none";
    pic.pen.style.display = box ? "none" : ""; svg.style.touchAction = box ? "" : "none";
    box ? pic.pen.removeAttribute("tabindex") : pic.pen.setAttribute("tabindex", 0);
    svg.style.cursor = box ? "" : "crosshair"; pen();
  }
  for (const b of root.querySelectorAll("[data-tool]")) b.addEventListener("click", () => use(b.dataset.tool));
  for (const s of sliders) read("." + s).addEventListener("input", e => change({[s]: +e.target.value}));
  read(".ink").addEventListener("input", e => show(".ink-value", (+e.target.value).toFixed(2)));
  read(".veil").addEventListener("input", e => { pic.heat.setAttribute("opacity", e.target.value); });
  read(".photo").addEventListener("change", e => { const file = e.target.files[0]; if (!file) return;
    const reader = new FileReader(); reader.onload = () => { pic.photo.setAttribute("href", reader.result);
      read(".veil").value = .6; pic.heat.setAttribute("opacity", .6); }; reader.readAsDataURL(file); });
  read(".again").addEventListener("click", () => change(facts.start));
  use("box"); draw();
  return {put(s) { state = s; draw(); }, draw};
}
