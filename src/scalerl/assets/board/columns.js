"use strict";
// Any column that was logged over the steps, smoothed, with other runs beside it: the server makes the charts.

class Charts {
  constructor(key) {
    this.key = key; this.added = []; this.others = []; this.asked = 0;
    this.names = element("datalist", { id: "column-names" });
    this.pick = element("input", { type: "search", id: "column-pick", placeholder: "Add a column that was logged", autocomplete: "off", spellcheck: false, "aria-label": "Add a column" });
    this.pick.setAttribute("list", "column-names");
    this.slider = element("input", { type: "range", id: "smooth", min: 0, max: 98, step: 2, value: 0, "aria-label": "Smoothing" });
    this.over = element("select", { id: "overlay", "aria-label": "Draw another run beside it" });
    this.chips = element("div", { className: "chips" });
    this.host = element("div", { className: "small" });
    const form = element("form", { className: "search" }, this.pick, this.names, this.over, this.slider);
    form.addEventListener("submit", (event) => { event.preventDefault(); this.add(); });
    this.pick.addEventListener("change", () => this.add());
    this.slider.addEventListener("input", () => this.load());
    this.over.addEventListener("change", () => { const run = this.over.value; this.over.value = ""; if (run && !this.others.includes(run)) { this.others.push(run); this.load(); } });
    this.section = element("section", { id: "columns", hidden: true }, element("h2", {}, "Columns"), form, this.chips, this.host);
  }
  add() {
    const name = this.pick.value.trim();
    if (!this.columns.includes(name) || this.added.includes(name)) return;
    this.added.push(name);
    this.pick.value = "";
    this.load();
  }
  show(columns) {
    this.columns = columns;
    this.section.hidden = !columns.length;
    if (this.names.children.length !== columns.length) this.names.replaceChildren(...columns.map((name) => element("option", { value: name })));
    const runs = (state.list ? state.list.runs : []).filter((run) => run.key !== this.key && !this.others.includes(run.key));
    this.over.hidden = !runs.length;
    if (this.over.options.length !== runs.length + 1) this.over.replaceChildren(element("option", { value: "" }, "Another run beside it"), ...runs.map((run) => element("option", { value: run.key }, shorten(run.name, 40))));
    if (this.added.length) this.load();
  }
  async load() {
    const asked = ++this.asked, nameOf = (run) => (state.list.runs.find((each) => each.key === run) || { name: run }).name;
    const chip = (text, drop) => element("button", { type: "button", className: "chip", title: "Remove", onclick: () => { drop(); this.load(); } }, `${shorten(text, 40)} \u00d7`);
    this.chips.replaceChildren(...this.others.map((run) => chip(nameOf(run), () => { this.others = this.others.filter((each) => each !== run); })), ...this.added.map((name) => chip(name, () => { this.added = this.added.filter((each) => each !== name); })));
    const charts = this.added.length ? await ask(`/api/runs/${this.key}/columns`, { names: this.added.join("\n"), others: this.others.join(","), smooth: this.slider.value }) : [];
    if (asked !== this.asked || !charts) return;
    this.host.replaceChildren(...charts.map(linesOf));
    for (const place of this.host.querySelectorAll("[data-chart]")) place.draw(place, { hidden: new Set() });
  }
}
