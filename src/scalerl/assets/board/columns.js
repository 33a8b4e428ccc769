"use strict";
// Charts over the steps: the usual columns and any other that was logged, smoothed, with other runs drawn over them.

class Charts {
  constructor(key) {
    this.key = key; this.added = []; this.others = []; this.weight = 0; this.fetched = new Map(); this.asked = 0;
    this.names = element("datalist", { id: "column-names" });
    this.pick = element("input", { type: "search", id: "column-pick", placeholder: "Add a column that was logged", autocomplete: "off", spellcheck: false });
    this.pick.setAttribute("list", "column-names");
    this.slider = element("input", { type: "range", id: "smooth", min: 0, max: 0.98, step: 0.02, value: 0 });
    this.over = element("select", { id: "overlay", "aria-label": "Draw another run over it" });
    this.chips = element("div", { className: "chips" });
    this.host = element("div", { className: "small" });
    const form = element("form", { className: "search" }, element("label", { htmlFor: "column-pick", className: "unseen" }, "Add a column"), this.pick, this.names, this.over,
      element("label", { htmlFor: "smooth", className: "sub" }, "Smoothing"), this.slider);
    form.addEventListener("submit", (event) => { event.preventDefault(); this.add(); });
    this.pick.addEventListener("change", () => this.add());
    this.slider.addEventListener("input", () => { this.weight = Number(this.slider.value); this.draw(); });
    this.over.addEventListener("change", () => { const run = this.over.value; this.over.value = ""; if (run && !this.others.includes(run)) { this.others.push(run); this.load(); } });
    this.section = element("section", { id: "signals", hidden: true }, element("h2", {}, "Over the steps"), form, this.chips, this.host);
  }
  add() {
    const name = this.pick.value.trim();
    if (!this.signals || !this.signals.columns.includes(name) || this.added.includes(name)) return;
    this.added.push(name);
    this.pick.value = "";
    this.load();
  }
  show(signals, counted) {
    this.signals = signals; this.counted = counted;
    this.section.hidden = !signals.lines.length && !signals.columns.length;
    if (this.names.children.length !== signals.columns.length) this.names.replaceChildren(...signals.columns.map((name) => element("option", { value: name })));
    const runs = (state.list ? state.list.runs : []).filter((run) => run.key !== this.key && !this.others.includes(run.key));
    this.over.hidden = !runs.length;
    if (this.over.options.length !== runs.length + 1) this.over.replaceChildren(element("option", { value: "" }, "Draw another run over it"), ...runs.map((run) => element("option", { value: run.key }, shorten(run.name, 40))));
    if (this.added.length || this.others.length) this.load(); else this.draw();
  }
  async load() {
    const asked = ++this.asked, usual = this.signals.lines.map((line) => line.key);
    const wanted = [[this.key, this.added], ...this.others.map((run) => [run, [...usual, ...this.added]])].filter(([, names]) => names.length);
    const answers = await Promise.all(wanted.map(([run, names]) => ask(`/api/runs/${run}/columns`, { names: names.join("\n") })));
    if (asked !== this.asked) return;
    this.fetched = new Map(wanted.map(([run], i) => [run, answers[i]]).filter(([, answer]) => answer));
    this.draw();
  }
  nameOf(run) { const found = state.list && state.list.runs.find((each) => each.key === run); return found ? found.name : run; }
  draw() {
    const chip = (text, colour, drop) => element("button", { type: "button", className: "chip", title: "Remove", onclick: drop }, colour === null ? null : element("span", { className: "dot", style: `--own:${own(colour)}` }), `${shorten(text, 40)} \u00d7`);
    this.chips.replaceChildren(...this.others.map((run, i) => chip(this.nameOf(run), i + 1, () => { this.others = this.others.filter((each) => each !== run); this.load(); })),
      ...this.added.map((name) => chip(name, null, () => { this.added = this.added.filter((each) => each !== name); this.draw(); })));
    const mine = this.fetched.get(this.key), added = this.added.filter((name) => mine && mine.columns[name]).map((name) => ({ key: name, label: name, limit: null, values: mine.columns[name], step: mine.step, last: null }));
    const lines = [...added, ...this.signals.lines.map((line) => ({ ...line, step: this.signals.step }))];
    const before = new Map([...this.host.children].map((figure) => [figure.dataset.key, figure]));
    this.host.replaceChildren(...lines.map((line) => {
      const figure = before.get(line.key) || element("figure", {}, element("h3", {}), element("div", {}));
      figure.dataset.key = line.key;
      figure.firstChild.textContent = `${line.label}${isNumber(line.last) ? `: ${computeText(line.last)}` : ""}`;
      return figure;
    }));
    const text = (value) => (value < 0 ? `\u2212${computeText(-value)}` : computeText(value));
    lines.forEach((line, i) => {
      const sets = [{ label: "this run", steps: line.step, values: smoothed(line.values, this.weight), colour: 0 }];
      this.others.forEach((run, place) => {
        const answer = this.fetched.get(run);
        if (answer && answer.columns[line.key]) sets.push({ label: this.nameOf(run), steps: answer.step, values: smoothed(answer.columns[line.key], this.weight), colour: place + 1 });
      });
      drawLines(this.host.children[i].lastChild, sets, `${line.label} over the steps, now ${isNumber(line.last) ? computeText(line.last) : "not known"}`, { limit: line.limit, text, counted: this.counted });
    });
  }
}
