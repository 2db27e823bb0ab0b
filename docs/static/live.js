// The page "Try it" and the end of two lessons: small models answer in the browser, beside what Python stored. Data and models: docs/live_model.py.
const root = document.querySelector("#live"), folder = root.dataset.folder;
const html = (tag, more = {}, ...inside) => {
  const e = Object.assign(document.createElement(tag), more); e.append(...inside); return e; };

const script = html("script", {src: folder + "facts.js"});
script.onload = () => start(window.qgcamFacts, window.qgcamScores);
script.onerror = () => { root.querySelector(".wait").textContent =
  "These pages were built without the model. In a clone: make live, then make docs."; };
document.head.append(script);

// BLIP: word pieces, as BERT's uncased tokenizer makes them of a cleaned phrase. CLIP's mini: a token a word.
function tokenize(phrase, facts, ids) {
  const found = [facts.first];
  if (!facts.signs) {
    for (const word of phrase.toLowerCase().match(/[\p{L}\p{N}]+/gu) || []) found.push(ids.get(word) ?? facts.unknown);
    return [...found.slice(0, facts.length - 1), facts.last];
  }
  const clean = phrase.toLowerCase().replace(new RegExp(facts.signs, "g"), " ").normalize("NFD").replace(/\p{Mn}/gu, "");
  const words = clean.split(/\s+/).filter(Boolean).slice(0, 50).join(" ").match(/[^\s\p{P}\p{S}]+|[\p{P}\p{S}]/gu) || [];
  for (const word of words) {
    const pieces = [];
    for (let from = 0, to; from < word.length; from = to) {
      for (to = word.length; to > from && !ids.has((from ? "##" : "") + word.slice(from, to)); to -= 1);
      if (to === from) { pieces.splice(0, Infinity, facts.unknown); break; }
      pieces.push(ids.get((from ? "##" : "") + word.slice(from, to)));
    }
    found.push(...pieces);
  }
  return [...found.slice(0, facts.length - 1), facts.last];
}

function start(facts, scores) {
  const {scenes, size, models} = facts, ids = {}, sessions = {};
  for (const name in models) ids[name] = new Map(models[name].vocabulary.map((word, k) => [word, k]));
  const firstModel = models[root.dataset.model] ? root.dataset.model : Object.keys(models)[0];
  const state = {model: firstModel, scene: 0, text: scenes[0].asked[0].text, words: null, edited: false,
    box: null, block: Object.values(models).find(one => one.blocks).block};
  const modelFacts = () => models[state.model];
  let runtime, answer = null, working = false, again = false;

  const work = html("canvas", {width: size, height: size}), pen = work.getContext("2d", {willReadFrequently: true});
  const view = html("canvas", {width: 4 * size, height: 4 * size, tabIndex: 0, className: "picture"});
  view.setAttribute("role", "img");
  const pictures = html("div", {className: "scenes", role: "group", ariaLabel: "Scenes"});
  const phrase = html("input", {type: "text", maxLength: 120, ariaLabel: "Phrase", autocomplete: "off"});
  const chips = html("div", {className: "chips"}), words = html("div", {className: "chips"});
  const block = html("select", {ariaLabel: "Block of the text encoder"}), model = html("select", {ariaLabel: "Model"});
  for (const name in models) model.append(html("option", {value: name, textContent: `${name} (${models[name].method})`}));
  const most = Math.max(...Object.values(models).map(one => one.blocks || 0));
  for (let k = 0; k < most; k += 1) block.append(html("option", {value: k, textContent: `block ${k}`}));
  const load = html("button", {textContent: "Load the model", className: "load"});
  const recolour = html("button", {textContent: "Recolour what is framed"}), reset = html("button", {textContent: "Reset"});
  const said = html("p", {className: "said"}), table = html("table");
  said.setAttribute("aria-live", "polite");
  root.replaceChildren(pictures, html("div", {className: "side"}, view,
    html("div", {className: "ask"}, html("label", {}, "Model ", model), html("label", {}, "Phrase ", phrase), chips, html("label", {className: "blip"},
      "Explained: ", block), words, html("p", {}, load, " ", recolour, " ", reset), said, table)));

  const storedPhrase = () => !state.edited && scenes[state.scene].asked.find(one => one.text === state.text);
  const isDefault = () => !modelFacts().blocks || state.block === modelFacts().block && !state.words;
  const storedAnswer = () => { const one = storedPhrase(); return one && one.answers[state.model]; };
  const frame = () => state.box || (scenes[state.scene].asked.find(one => one.text === state.text) || scenes[state.scene].asked[0]).box;
  const tokens = () => tokenize(state.text, modelFacts(), ids[state.model]);
  const pressed = n => state.words || [...Array(n).keys()].slice(...modelFacts().tokens === "lavis" ? [1, n - 1] : [0]);

  function current() { // {map, value, where}: of the model if it has answered, else of Python
    const {grid, length, blocks} = modelFacts();
    if (answer && answer.model === state.model && answer.text === state.text && answer.picture === work.dataset.number) {
      if (!blocks) return {map: Array.from({length: grid}, (_, i) => [...answer.maps.slice(i * grid, (i + 1) * grid)]),
        value: answer.value, where: "in this page"};
      const chosen = pressed(answer.tokens.length);
      const map = Array.from({length: grid}, () => Array(grid).fill(0));
      for (const t of chosen) for (let k = 0; k < grid * grid; k += 1)
        map[Math.floor(k / grid)][k % grid] += answer.maps[(state.block * length + t) * grid * grid + k] / chosen.length;
      return {map, value: answer.value, where: "in this page"};
    }
    const known = storedAnswer();
    return known && isDefault() ? {map: known.map, value: known.value, where: "by Python"} : null;
  }

  function draw() {
    const {grid, value, blocks} = modelFacts(), paper = view.getContext("2d"), now = current();
    const box = frame().map(v => v * grid), unit = view.width / grid;
    paper.imageSmoothingEnabled = false;
    paper.drawImage(work, 0, 0, view.width, view.height);
    let values = null;
    if (now) {
      const top = Math.max(...now.map.flat()), low = Math.min(...now.map.flat());
      now.map.forEach((row, i) => row.forEach((a, j) => {
        const t = top > low ? (a - low) / (top - low) : 0;
        paper.fillStyle = `rgba(${Math.round(68 + 187 * t)},${Math.round(1 + 230 * t)},${Math.round(84 - 48 * t)},${.25 + .4 * t})`;
        paper.fillRect(j * unit, i * unit, unit, unit);
      }));
      const shown = now.map.map(row => row.map(a => top ? Math.fround(a / top) : 0));
      values = scores({map: shown, box, threshold: .5, tau: .7, delta: 2}).values;
    }
    for (const [colour, width] of [["black", 5], ["white", 2.5]]) {
      paper.strokeStyle = colour; paper.lineWidth = width;
      paper.strokeRect(box[0] * unit, box[1] * unit, (box[2] - box[0]) * unit, (box[3] - box[1]) * unit);
    }
    view.setAttribute("aria-label", `Scene ${state.scene + 1}, with the map of “${state.text}” and a box`);
    const known = storedAnswer(), beside = known && isDefault() && now && now.where !== "by Python";
    said.textContent = now ? `${value} of “${state.text}”: ${now.value.toFixed(3)}, computed ${now.where}` +
      (beside ? `; by Python ${known.value.toFixed(3)}.` : ".") :
      sessions[state.model] ? "The model is at work …" : "Load the model for this; what Python stored is shown for the listed phrases.";
    table.replaceChildren();
    if (values) {
      table.append(html("caption", {textContent: "Scores of the map on its own grid, for the frame"}), html("tr", {},
        html("th", {textContent: "score"}), html("th", {textContent: now.where}), ...beside ? [html("th", {textContent: "by Python"})] : []));
      for (const name in values) table.append(html("tr", {}, html("td", {}, html("code", {textContent: name})),
        html("td", {textContent: values[name].toFixed(3)}), ...beside ? [html("td", {textContent: known.scores[name].toFixed(3)})] : []));
    }
    const found = tokens(), on = pressed(found.length);
    block.parentNode.hidden = !blocks;
    words.replaceChildren("Words: ", ...found.map((id, t) => {
      const chip = html("button", {textContent: modelFacts().vocabulary[id], disabled: !blocks || !sessions[state.model]});
      chip.setAttribute("aria-pressed", on.includes(t));
      chip.onclick = () => { const next = on.includes(t) ? on.filter(k => k !== t) : [...on, t].sort((a, b) => a - b);
        state.words = next.length ? next : null; draw(); };
      return chip; }));
    root.dataset.state = JSON.stringify({where: now && now.where, value: now && now.value, model: state.model, map: now && now.map, values});
  }

  async function ask() {
    draw();
    const session = sessions[state.model], {length, blocks} = modelFacts();
    if (!session || !state.text.trim()) return;
    if (working) { again = true; return; } // the newest question is asked when the model is free
    const {model, text} = state, picture = work.dataset.number, found = tokens();
    const raw = pen.getImageData(0, 0, size, size).data, pixels = new Float32Array(3 * size * size);
    for (let k = 0; k < size * size; k += 1) for (let c = 0; c < 3; c += 1)
      pixels[c * size * size + k] = (raw[4 * k + c] / 255 - facts.mean[c]) / facts.std[c];
    const {Tensor} = runtime, began = performance.now(), given = {pixels: new Tensor("float32", pixels, [1, 3, size, size]),
      ids: new Tensor("int64", BigInt64Array.from({length}, (_, t) => BigInt(found[t] || 0)), blocks ? [length] : [1, length])};
    if (blocks) given.mask = new Tensor("float32", Float32Array.from({length}, (_, t) => t < found.length ? 1 : 0), [length]);
    working = true;
    const out = await session.run(given).finally(() => { working = false; });
    answer = {model, text, picture, tokens: found, maps: (out.maps || out.map).data,
      value: blocks ? 1 / (1 + Math.exp(out.logits.data[0] - out.logits.data[1])) : out.logit.data[0]};
    root.dataset.milliseconds = Math.round(performance.now() - began);
    draw();
    if (again) { again = false; ask(); }
  }

  let pictureNumber = 0;
  const changed = () => { work.dataset.number = pictureNumber += 1; };
  function show(k) {
    const photo = new Image();
    photo.onload = () => { pen.drawImage(photo, 0, 0, size, size); changed(); ask(); };
    Object.assign(state, {scene: k, text: scenes[k].asked[0].text, words: null, edited: false, box: null});
    phrase.value = state.text;
    [...pictures.children].forEach((one, i) => one.setAttribute("aria-pressed", i === k));
    chips.replaceChildren(...scenes[k].asked.map(one => {
      const chip = html("button", {textContent: one.text});
      chip.onclick = () => { Object.assign(state, {text: one.text, words: null, box: null}); phrase.value = one.text; ask(); };
      return chip; }));
    photo.src = scenes[k].picture;
  }
  scenes.forEach((scene, k) => { const one = html("button", {title: `Scene ${k + 1}`, ariaLabel: `Scene ${k + 1}`});
    one.append(html("img", {src: scene.picture, alt: "", width: 48, height: 48})); one.onclick = () => show(k); pictures.append(one); });
  phrase.oninput = () => { Object.assign(state, {text: phrase.value, words: null}); ask(); };
  model.value = state.model;
  model.onchange = async () => { Object.assign(state, {model: model.value, words: null}); if (runtime) await open(); ask(); };
  block.value = state.block;
  block.onchange = () => { state.block = Number(block.value); draw(); };
  reset.onclick = () => show(state.scene);

  // A small editor: what is framed can be moved, by pointer or arrow keys, and recoloured.
  const cut = () => frame().map(v => Math.round(v * size));
  function edit(change) { change(); state.edited = true; changed(); ask(); }
  function moveBy(dx, dy) {
    const [x0, y0, x1, y1] = cut(), w = x1 - x0, h = y1 - y0;
    const x = Math.min(size - w, Math.max(0, x0 + dx)), y = Math.min(size - h, Math.max(0, y0 + dy));
    if (!w || !h || (x === x0 && y === y0)) return;
    edit(() => {
      const piece = pen.getImageData(x0, y0, w, h), beside = pen.getImageData(x0 > 2 ? x0 - 2 : Math.min(x1 + 1, size - 1), y0, 1, h);
      for (let i = 0; i < h; i += 1) { const [r, g, b] = beside.data.slice(4 * i, 4 * i + 3);
        pen.fillStyle = `rgb(${r},${g},${b})`; pen.fillRect(x0, y0 + i, w, 1); }
      pen.putImageData(piece, x, y);
      state.box = [x, y, x + w, y + h].map(v => v / size);
    });
  }
  recolour.onclick = () => edit(() => {
    const [x0, y0, x1, y1] = cut(), piece = pen.getImageData(x0, y0, x1 - x0, y1 - y0), d = piece.data;
    for (let k = 0; k < d.length; k += 4) [d[k], d[k + 1], d[k + 2]] = [d[k + 1], d[k + 2], d[k]];
    pen.putImageData(piece, x0, y0); });
  let from = null;
  const place = e => [e.offsetX, e.offsetY].map(v => v * size / view.clientWidth);
  view.onpointerdown = e => { from = place(e); view.setPointerCapture(e.pointerId); };
  view.onpointerup = e => { if (from) { const to = place(e); moveBy(Math.round(to[0] - from[0]), Math.round(to[1] - from[1])); } from = null; };
  view.onkeydown = e => { const step = {ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -6], ArrowDown: [0, 6]}[e.key];
    if (step) { e.preventDefault(); moveBy(...step); } };

  const unpacked = async name => new Response((await fetch(`${folder}${name}.gzip`)).body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  async function open() {
    const name = state.model;
    sessions[name] ||= await runtime.InferenceSession.create(await unpacked(`${name}.onnx`));
  }
  load.onclick = async () => {
    load.disabled = true; load.textContent = "Loading …";
    try {
      runtime = await import(new URL(folder + "ort.mjs", document.baseURI));
      runtime.env.wasm.numThreads = 1;
      runtime.env.wasm.wasmBinary = await unpacked("ort.wasm");
      await open(); load.textContent = "The model is loaded"; ask();
    } catch (error) {
      load.textContent = `The model could not be loaded: ${error.message}`;
    }
  };
  if (location.protocol === "file:") { load.disabled = true; load.textContent = "The model needs a web server: python -m http.server in this folder"; }
  show(0);
}
