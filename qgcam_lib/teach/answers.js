const SVG = "http://www.w3.org/2000/svg";
const number = x => x === null ? "undefined" : (Math.abs(x) < 5e-4 ? 0 : x).toFixed(3);

function heatMap(svg, map) {
  const high = Math.max(1e-9, ...map.map(row => Math.max(...row))), c = 20;
  svg.setAttribute("viewBox", `0 0 ${map[0].length * c} ${map.length * c}`);
  svg.replaceChildren(...map.flatMap((row, i) => row.map((a, j) => {
    const cell = document.createElementNS(SVG, "rect"), t = a / high, g = Math.round(28 + 215 * t);
    for (const [k, v] of Object.entries({x: j * c, y: i * c, width: c, height: c, "shape-rendering": "crispEdges",
      fill: `rgb(${g},${Math.round(g * (.55 + .4 * t))},${Math.round(70 - 40 * t)})`})) cell.setAttribute(k, v);
    const said = document.createElementNS(SVG, "title");
    said.textContent = `row ${i}, column ${j}: ${a.toPrecision(3)}`; cell.append(said); return cell;
  })));
}

function lines(svg, facts, state) {
  const {along, axis, series} = facts.curve, W = 300, H = 150, [low, high] = axis;
  const rows = facts.known.filter(([s]) => Object.keys(s).every(k => k === along || s[k] === state[k]))
    .sort(([a], [b]) => a[along] - b[along]);
  if (!rows.length) return svg.replaceChildren();
  const xs = rows.map(([s]) => s[along]), first = Math.min(...xs), last = Math.max(...xs);
  const x = v => 30 + (W - 38) * (v - first) / (last - first || 1);
  const y = v => H - 18 - (H - 26) * (v - low) / (high - low);
  const path = name => "M" + rows.filter(([, a]) => a.numbers[name] !== null)
    .map(([s, a]) => `${x(s[along]).toFixed(1)} ${y(a.numbers[name]).toFixed(1)}`).join("L");
  const text = (tx, ty, s, end) => `<text x="${tx}" y="${ty}" text-anchor="${end}">${s}</text>`;
  svg.innerHTML = `<path class="axis" d="M30 8V${H - 18}H${W - 8}"/>` + text(26, 14, high, "end") +
    text(26, H - 16, low, "end") + text(30, H - 4, first, "middle") + text(W - 8, H - 4, last, "end") +
    series.map((name, k) => `<path class="line${k % 4}" d="${path(name)}"/>`).join("") +
    `<path class="now" d="M${x(state[along])} 8V${H - 18}"/>`;
}

function explorer(root, facts, changed, says) {
  const all = q => [...root.querySelectorAll(q)], read = q => root.querySelector(q);
  let state = facts.start;
  function draw() {
    const found = says(state);
    all("[data-control]").forEach(e => { const name = e.dataset.control, values = facts.controls[name];
      if (values) e.value = values.indexOf(state[name]); else if (document.activeElement !== e) e.value = state[name];
      const shown = read(`[data-value="${name}"]`); if (shown) shown.textContent = state[name]; });
    read(".missing").hidden = !!found; read(".answer").style.opacity = found ? "" : .35;
    if (facts.curve) lines(read(".curve"), facts, state);
    root.dataset.values = JSON.stringify(found && {...state, ...found.numbers});
    if (!found) {
      all("[data-python]").forEach(e => { e.textContent = "–"; });
      return all("[data-bar]").forEach(e => { e.style.width = 0; });
    }
    facts.pictures.forEach((name, k) => { read(`[data-picture="${k}"]`).src = found.pictures[name]; });
    facts.maps.forEach((name, k) => { heatMap(read(`[data-map="${k}"]`), found.maps[name]);
      read(`[data-high="${k}"]`).textContent = Math.max(...found.maps[name].flat()).toPrecision(2); });
    facts.numbers.forEach((name, k) => { const cell = read(`[data-python="${k}"]`), text = number(found.numbers[name]);
      const bar = read(`[data-bar="${k}"]`), [low, high] = facts.range || [0, 1];
      renew(cell, text);
      if (bar) bar.style.width = `${100 * Math.max(0, Math.min(1, (found.numbers[name] - low) / (high - low)))}%`; });
  }
  const change = part => { state = {...state, ...part}; draw(); changed(state); };
  all("[data-control]").forEach(e => e.addEventListener(e.type === "text" ? "change" : "input", () => {
    const values = facts.controls[e.dataset.control];
    change({[e.dataset.control]: values ? values[+e.value] : e.value}); }));
  read(".again").addEventListener("click", () => change(facts.start));
  draw();
  return {put(s) { state = s; draw(); }, draw};
}
