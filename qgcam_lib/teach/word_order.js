function choose(scores, right) {
  const top = Math.max(...scores), best = scores.map((x, k) => k).filter(k => scores[k] === top);
  return {predicted: best[0], correct: right[best[0]], ties: best.length - 1,
    by_lot: best.filter(k => right[k]).length / best.length};
}
const place = (scores, k) => 1 + scores.filter(x => x > scores[k]).length;
const share = right => right.filter(x => x).length / right.length;

function wordRow(box, read, changed) {
  let words = [], at = 0;
  const tiles = () => [...box.querySelectorAll("button")];
  function show() {
    while (tiles().length > words.length) box.lastChild.remove();
    while (tiles().length < words.length) box.append(document.createElement("button"));
    tiles().forEach((tile, k) => { const [word, there] = words[k];
      tile.textContent = word; tile.className = there ? "" : "out"; tile.type = "button";
      tile.setAttribute("aria-label", `${word}, word ${k + 1} of ${words.length}${there ? "" : ", left out"}`);
      tile.setAttribute("aria-current", k === at); });
    read(".out-button").textContent = words[at][1] ? "leave out" : "put back";
    changed(words.filter(w => w[1]).map(w => w[0]).join(" "));
  }
  function move(step, focus) {
    const to = at + step;
    if (to < 0 || to >= words.length) return;
    [words[at], words[to]] = [words[to], words[at]]; at = to; show(); if (focus) tiles()[at].focus();
  }
  function toggle() { if (!words[at][1] || words.filter(w => w[1]).length > 1) words[at][1] = !words[at][1]; show(); }
  const select = e => { const k = tiles().indexOf(e.target); if (k >= 0 && k !== at) { at = k; show(); } };
  box.addEventListener("focusin", select); box.addEventListener("click", select);
  box.addEventListener("keydown", e => {
    const steps = {ArrowLeft: -1, ArrowRight: 1}, drop = e.key === "Delete" || e.key === "Backspace";
    if (!(e.key in steps) && !drop) return;
    e.preventDefault(); e.stopPropagation(); if (drop) toggle(); else move(steps[e.key], true); });
  read(".earlier").addEventListener("click", () => move(-1)); read(".later").addEventListener("click", () => move(1));
  read(".out-button").addEventListener("click", toggle);
  return text => { words = text.split(" ").map(word => [word, true]); at = 0; show(); };
}

function explorer(root, facts, changed, says) {
  const read = q => root.querySelector(q), all = q => [...root.querySelectorAll(q)];
  const show = (q, text) => renew(read(q), String(text)), number = x => (Math.abs(x) < 5e-4 ? 0 : x).toFixed(3);
  const text = {predicted: k => `box ${k + 1}`, correct: x => x ? "yes" : "no", ties: String, by_lot: number};
  const put = wordRow(read(".words"), read, words => draw({expression: state.expression, text: words}));
  let state = facts.start, draws = 0, quiet = true;
  function draw(now) {
    const one = facts.expressions[now.expression], t = facts.texts.indexOf(now.text), found = {};
    const moved = JSON.stringify(now) !== JSON.stringify(state), library = says(now);
    state = now; read(".said").value = now.expression;
    all("rect").forEach((r, k) => r.setAttribute("class", one.right[k] ? "target" : ""));
    all("[data-box]").forEach((r, k) => { r.className = one.right[k] ? "target" : ""; });
    all("[data-how]").forEach(b => { b.disabled = !one.changes[b.dataset.how].length; });
    show(".how", now.text === one.text ? "as said" : "changed by hand");
    show(".text", now.text); show(".outcome", facts.outcome_words[one.outcomes[t]]);
    show(".random", one.random);
    facts.rankers.forEach((name, r) => {
      const scores = facts.scores[r][t], low = Math.min(...scores), width = Math.max(...scores) - low;
      scores.forEach((x, k) => { const q = `[data-score="${r} ${k}"]`, first = place(scores, k);
        read(`${q} i`).style.width = `${width ? 100 * (x - low) / width : 100}%`;
        show(`${q} b`, number(x)); show(`${q} em`, `${first}.`); read(q).className = first === 1 ? "first" : ""; });
      found[name] = choose(scores, one.right);
      for (const what in text) { show(`[data-here="${r} ${what}"]`, text[what](found[name][what]));
        show(`[data-python="${r} ${what}"]`, library ? text[what](library[name][what]) : ""); } });
    root.dataset.values = JSON.stringify({text: now.text, expression: one.text, random: share(one.right),
      rankers: found});
    if (moved && !quiet) changed(state);
  }
  function hear(s) { quiet = true; draws = 0; draw(s); put(s.text); quiet = false; }
  function say(k) { hear({expression: k, text: facts.expressions[k].text}); changed(state); }
  all("[data-how]").forEach(b => b.addEventListener("click", () => { const how = b.dataset.how;
    const texts = facts.expressions[state.expression].changes[how];
    const k = how === "shuffle" ? draws++ % texts.length : 0;
    put(texts[k]);
    show(".how", how === "shuffle" ? `shuffled, seed ${k}` : b.textContent); }));
  read(".said").addEventListener("input", e => say(+e.target.value));
  read(".again").addEventListener("click", () => say(state.expression));
  hear(state);
  return {put: hear, draw: () => draw(state)};
}
