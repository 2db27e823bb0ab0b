function pairScores(S) {
  const [[a, b], [c, d]] = S, sure = x => 1 / (1 + Math.exp(-x));
  const text = a > b && d > c, image = a > c && d > b;
  const ties = [[a, b], [d, c], [a, c], [d, b]].filter(([x, y]) => x === y).length;
  return {text, image, group: text && image, confidence: (sure(a - b) + sure(d - c)) / 2, ties};
}
const rounded = (x, digits) => digits === "" ? x : Math.floor(x * 10 ** digits + .5) / 10 ** digits;

function explorer(root, facts, changed, says) {
  const read = q => root.querySelector(q), all = q => [...root.querySelectorAll(q)];
  const sizes = facts.choices.map(values => values.length), own = Math.random().toString(36).slice(2);
  all("[data-choice]").forEach(e => { e.name = `${own}-${e.dataset.choice}`; });
  const chosen = k => sizes.reduce((at, size, c) => at * size + +read(`[name="${own}-${k}-${c}"]:checked`).value, 0);
  const show = (q, text) => renew(read(q), text);
  const number = x => (Math.abs(x) < 5e-4 ? 0 : x).toFixed(3);
  const text = v => typeof v === "boolean" ? (v ? "yes" : "no") : Number.isInteger(v) ? String(v) : v.toFixed(6);
  let state = facts.start;
  function draw() {
    const {states, prompts, model, digits} = state;
    const S = states.map(s => prompts.map(p => rounded(facts.scores[model][s][p], digits)));
    const truth = states.map(s => prompts.map(p => facts.truth[s][p])), values = pairScores(S), library = says(state);
    states.forEach((s, i) => { read(`.picture${i}`).src = facts.pictures[s];
      prompts.forEach((p, j) => { show(`[data-cell="${i}${j}"]`, number(S[i][j]));
        show(`[data-truth="${i}${j}"]`, truth[i][j] ? "true" : "false"); }); });
    for (const [q, x, y] of facts.comparisons) {
      const one = S[x[0]][x[1]], other = S[y[0]][y[1]];
      show(`[data-sign="${q}"]`, `${number(one)} ${one > other ? ">" : one < other ? "<" : "="} ${number(other)}`);
      show(`[data-right="${q}"]`, one > other ? "right" : one < other ? "wrong" : "a tie: wrong"); }
    show(".fair", facts.fair[+(truth[0][0] && truth[1][1] && !truth[0][1] && !truth[1][0])]);
    for (const name in values) { show(`[data-here="${name}"]`, text(values[name]));
      show(`[data-python="${name}"]`, library ? text(library[name]) : ""); }
    root.dataset.values = JSON.stringify({...values, states, prompts, model});
  }
  function put(s) { state = s;
    [0, 1].forEach(k => { let at = s.states[k];
      for (let c = sizes.length - 1; c >= 0; c--) {
        read(`[name="${own}-${k}-${c}"][value="${at % sizes[c]}"]`).checked = true; at = Math.floor(at / sizes[c]); }
      read(`.prompt${k}`).value = s.prompts[k]; });
    read(".model").value = s.model; read(".digits").value = s.digits; draw(); }
  all("input, select").forEach(e => e.addEventListener("input", () => {
    state = {states: [0, 1].map(chosen), prompts: [0, 1].map(k => +read(`.prompt${k}`).value),
      model: read(".model").value, digits: read(".digits").value}; draw(); changed(state); }));
  read(".again").addEventListener("click", () => { put({...facts.start, model: state.model}); changed(state); });
  put(state);
  return {put, draw};
}
