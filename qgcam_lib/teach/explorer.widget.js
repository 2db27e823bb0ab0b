export default {render({model, el}) {
  el.innerHTML = model.get("_body");
  const facts = JSON.parse(model.get("_facts")), names = Object.keys(facts.start);
  let timer = null, sending = false;
  const page = wake(el.querySelector(".explorer"), facts, state => { clearTimeout(timer); timer = setTimeout(() => {
    sending = true; for (const name of names) model.set(name, state[name]);
    sending = false; timer = null; model.save_changes(); }, 60); });
  const put = () => { if (!sending && timer === null)
    page.put(Object.fromEntries(names.map(name => [name, model.get(name)]))); };
  const answer = () => page.answer(model.get("_answer"));
  put(); answer();
  for (const name of names) model.on("change:" + name, put);
  model.on("change:_answer", answer);
  return () => { for (const name of names) model.off("change:" + name, put); model.off("change:_answer", answer); };
}};
