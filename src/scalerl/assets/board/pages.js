"use strict";
// The pages of the board: the document of a run, a log or a study, and the overview, brought up to date.

const byId = (id) => document.getElementById(id);

class Page {
  constructor(kind, key) {
    this.kind = kind; this.key = key; this.path = `/api/${kind === "run" ? "runs" : "studies"}/${key}`;
    this.data = null; this.known = null; this.view = undefined;
    this.title = element("h1", {}); this.head = element("p", { className: "head" }); this.body = element("div", {});
    this.node = element("article", {}, this.title, this.head, this.body);
    if (kind === "study") return;
    this.samples = new Samples(key); this.charts = new Charts(key); this.settings = element("details", { hidden: true }, element("summary", {}, "Settings"), element("div", {}));
    this.node.append(this.charts.section, this.samples.section, this.settings);
  }
  show(data = this.data) {
    if (!data) return;
    this.data = data;
    this.title.textContent = data.name;
    this.view = showDocument(this.body, data.sections, this.view);
    this.announce(data.sections);
    if (this.kind === "study") return;
    this.head.replaceChildren(element("span", { className: `state ${data.status}`, "aria-hidden": "true" }), element("span", {}, [data.status === "log" ? data.format : data.status, data.reason].filter(Boolean).join(": ")), element("span", {}, data.step), element("time", {}, timeText(data.updated_at)));
    this.charts.show(data.columns);
    this.samples.update(data.num_samples);
    const rows = Object.entries(data.settings).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]);
    this.settings.hidden = !rows.length;
    this.settings.lastChild.replaceChildren(gridOf({ key: "settings", title: "", heads: ["setting", "value"], rows, left: 2, right: 0, links: [], colours: [] }));
  }
  // A new warning is read out.
  announce(sections) {
    const warnings = sections.flatMap((section) => section.blocks).filter((block) => block.type === "say" && block.level === "warning");
    const added = this.known === null ? [] : warnings.filter((each) => !this.known.has(each.kind));
    this.known = new Set(warnings.map((each) => each.kind));
    if (added.length) announce(added.map((each) => each.text).join(" "));
  }
}
const timeText = (at) => (at ? new Date(1000 * at).toLocaleTimeString() : "");

// Everything that is watched.
class Overview {
  constructor() {
    this.body = element("div", {}); this.view = undefined;
    this.search = element("input", { type: "search", id: "run-filter", placeholder: "Filter the runs", autocomplete: "off", "aria-label": "Filter the runs" });
    this.search.addEventListener("input", () => this.filter());
    this.node = element("article", {}, this.search, this.body);
  }
  show(list) {
    if (!list) return;
    this.search.hidden = list.runs.length < 8;
    this.view = showDocument(this.body, list.sections, this.view);
    for (const head of this.body.querySelectorAll("[data-key=overview] th")) head.addEventListener("click", () => this.sort(head));
    this.filter();
  }
  rows() { return [...this.body.querySelectorAll("[data-key=overview] tbody tr")]; }
  filter() { for (const row of this.rows()) row.hidden = !row.textContent.toLowerCase().includes(this.search.value.toLowerCase()); }
  // A click on a head sorts by it, another one the other way round.
  sort(head) {
    const place = head.cellIndex, up = head.dataset.order !== "up", text = (row) => row.children[place].textContent;
    head.dataset.order = up ? "up" : "down";
    head.closest("table").tBodies[0].append(...this.rows().sort((a, b) => (up ? 1 : -1) * text(a).localeCompare(text(b), "en", { numeric: true })));
  }
}
