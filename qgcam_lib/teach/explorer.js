function renew(cell, text) { // the text of a cell, which flashes where it changes
  if (cell.textContent === text) return;
  const fresh = cell.textContent.trim();
  cell.textContent = text; cell.classList.remove("new");
  if (fresh) { void cell.offsetWidth; cell.classList.add("new"); }
}
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
