"use strict";
// Samples of a run: searched on the server, shown as text and nothing else.

class Samples {
  constructor(key) {
    this.key = key; this.query = ""; this.verdict = ""; this.problem = null; this.next = null; this.total = 0; this.asked = 0; this.newest = 0;
    this.input = element("input", { type: "search", id: "sample-search", placeholder: "Search prompts, answers and what graders wrote", autocomplete: "off", spellcheck: false });
    this.choice = element("select", { id: "sample-verdict" }, ...[["", "all"], ["correct", "correct"], ["wrong", "wrong"], ["none", "no verdict"], ["error", "tool error"]].map(([value, text]) => element("option", { value }, text)));
    this.turns = element("input", { type: "number", id: "sample-turns", min: 1, placeholder: "turns", "aria-label": "Least number of turns" });
    this.fresh = element("button", { type: "button", className: "plain", hidden: true, onclick: () => this.load() }, "");
    this.status = element("p", { className: "sub", role: "status" });
    this.only = element("p", { className: "sub", hidden: true });
    this.list = element("div", {});
    this.more = element("button", { type: "button", className: "plain", hidden: true, onclick: () => this.load(true) }, "Older samples");
    const form = element("form", { className: "search", role: "search" }, element("label", { htmlFor: "sample-search", className: "unseen" }, "Search the samples"), this.input,
      element("label", { htmlFor: "sample-verdict", className: "unseen" }, "Verdict"), this.choice, this.turns, this.fresh);
    form.addEventListener("submit", (event) => { event.preventDefault(); this.load(); });
    let timer = null;
    this.input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { this.query = this.input.value; this.load(); }, 200); });
    this.turns.addEventListener("change", () => this.load());
    this.choice.addEventListener("change", () => { this.verdict = this.choice.value; this.load(); });
    this.section = element("section", { id: "samples", hidden: true }, element("h2", {}, "Samples"), form, this.only, this.status, this.list, this.more);
  }
  // New samples are offered and not pushed under somebody's eyes.
  update(total) {
    this.section.hidden = total === 0;
    if (total === this.total) return;
    const isFirst = this.total === 0;
    this.total = total;
    if (isFirst && total) return this.load();
    const added = total - this.newest;
    this.fresh.hidden = added <= 0;
    this.fresh.textContent = `+${added}`;
  }
  async load(older = false) {
    const asked = ++this.asked, query = { q: this.query, verdict: this.verdict };
    if (this.turns.value) query.turns = this.turns.value;
    if (this.problem !== null) query.problem = this.problem;
    if (older && this.next !== null) query.before = this.next;
    const answer = await ask(`/api/runs/${this.key}/samples`, query);
    if (!answer || asked !== this.asked) return;
    this.next = answer.next;
    if (!older) { this.newest = answer.total; this.fresh.hidden = true; this.list.replaceChildren(); }
    this.list.append(...answer.samples.map((sample) => this.card(sample)));
    this.more.hidden = answer.next === null;
    this.status.textContent = answer.status;
    this.only.hidden = this.problem === null;
    this.only.replaceChildren(this.problem === null ? "" : `${shorten(this.problem, 120)} `, element("button", { type: "button", className: "plain", onclick: () => { this.problem = null; this.load(); } }, "All prompts"));
  }
  card(sample) {
    const card = element("article", { className: "sample" }, element("header", {}, ...sampleHead(sample),
      sample.problem ? element("button", { type: "button", className: "plain", onclick: () => { this.problem = sample.problem; this.load(); this.section.scrollIntoView(); } }, "This prompt over training") : null,
      sample.cut ? element("button", { type: "button", className: "plain", onclick: async () => { const whole = await ask(`/api/runs/${this.key}/samples`, { number: sample.number }); if (whole) card.replaceWith(this.card({ ...whole, cut: 0 })); } }, "Show all of it") : null));
    card.append(...sampleTexts(sample));
    return card;
  }
}
