// Finds sections that have all words, those with the words in their title first.
const input = document.getElementById("search");
const found = document.getElementById("found");
const menu = document.getElementById("menu");
const texts = sections.map((s) => ({ title: s.Title.toLowerCase(), all: (s.Title + " " + s.Text).toLowerCase() }));

function show() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.replaceChildren();
  found.hidden = words.length === 0;
  menu.hidden = words.length > 0;
  if (words.length === 0) return;
  const hits = [];
  texts.forEach((t, i) => {
    if (words.every((w) => t.all.includes(w))) {
      hits.push({ i, rank: words.filter((w) => t.title.includes(w)).length });
    }
  });
  hits.sort((a, b) => b.rank - a.rank || a.i - b.i);
  for (const { i } of hits.slice(0, 30)) {
    const s = sections[i];
    const link = document.createElement("a");
    link.href = s.Page + (s.Anchor ? "#" + s.Anchor : "");
    link.textContent = s.Title;
    const at = Math.max(0, s.Text.toLowerCase().indexOf(words[0]) - 30);
    const text = document.createElement("small");
    text.textContent = (at > 0 ? "…" : "") + s.Text.slice(at, at + 90) + "…";
    link.append(text);
    const item = document.createElement("li");
    item.append(link);
    found.append(item);
  }
  if (hits.length === 0) {
    const item = document.createElement("li");
    item.textContent = "nothing found";
    found.append(item);
  }
}

input.addEventListener("input", show);
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && document.activeElement !== input) {
    e.preventDefault();
    input.focus();
  } else if (e.key === "Escape") {
    input.value = "";
    show();
  }
});
