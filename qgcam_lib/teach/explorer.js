function wake(root, facts, changed) {
  root.dataset.live = "";
  for (const e of root.querySelectorAll(".live")) e.removeAttribute("hidden");
  for (const e of root.querySelectorAll(".still")) e.setAttribute("hidden", "");
  const text = JSON.stringify, told = new Map(facts.known.map(([state, scores]) => [text(state), scores]));
  let last = [null, null];
  const page = explorer(root, facts, changed,
    state => told.get(text(state)) ?? (text(state) === text(last[0]) ? last[1] : null));
  return {put: page.put, answer(one) { last = one; page.draw(); }};
}
