// The order of search results: pages whose title has the words first, then pages whose text has them. Names of the
// reference come where the whole name is searched for, parts of names last.
var Scorer = {
  objNameMatch: 1, objPartialMatch: 0, objPrio: {0: 0, 1: 0, 2: 0}, objPrioDefault: 0,
  title: 15, partialTitle: 4, term: 5, partialTerm: 1,
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const words = (text) => text.toLowerCase().match(/[\p{Letter}\p{Number}_]+/gu) || [];
    const same = (a, b) => a === b || a + "s" === b || b + "s" === a;
    const query = words(new URLSearchParams(window.location.search).get("q") || "");
    const little = new Set(["a", "an", "the", "my", "your", "own", "of", "to", "how", "do", "i", "is", "in", "for", "with", "and"]);
    const asked = query.filter((word) => !little.has(word));
    if (anchor.toLowerCase() === `#term-${query.join("-")}`) return 45; // a word of the glossary
    if (kind === "object" || kind === "index") {
      const whole = kind === "object" && words(title.split(".").pop()).join(" ") === query.join(" ");
      return whole ? 40 : -10 + score / 100;
    }
    const places = [["generated/lessons/solutions/", -20], ["generated/lessons/", 6], ["generated/by_paper/", 5],
      ["generated/guide", 5], ["generated/papers/", 4], ["glossary", 3], ["generated/api/", -8], ["changelog", -3]];
    const place = anchor ? -10 : (places.find(([start]) => docname.startsWith(start)) || ["", 0])[1];
    const section = anchor && docname.startsWith("generated/lib/") ? -15 : 0; // of a page of the library
    const has = words(title), found = asked.filter((word) => has.some((one) => same(one, word))).length;
    const whole = found && found === asked.length ? 50 + (10 * found) / has.length : (10 * found) / (asked.length || 1);
    return score + whole + place + section;
  },
};
