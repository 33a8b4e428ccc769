"use strict";
// The page of one run. Its parts are made once and then brought up to date, so that focus and scrolling stay.

const ADVICE = {
  too_early: "Too early to tell", falling: "Falling since its peak: take the checkpoint from there", flat: "No rise seen so far", levelled_off: "Levelled off: another doubling hardly pays",
  rising: "Still rising: more compute pays", unclear: "Whether more compute pays is not clear yet",
};
class RunPage {
  constructor(key) {
    this.key = key; this.path = `/api/runs/${key}`; this.curve = null; this.told = null; this.data = null; this.known = null;
    this.samples = new Samples(key); this.charts = new Charts(key); this.filter = "";
    const section = (id, title, ...more) => element("section", { id }, element("h2", {}, title), ...more);
    this.title = element("h1", {}); this.head = element("p", { className: "head" }); this.choice = element("select", { "aria-label": "Curve", hidden: true });
    this.choice.addEventListener("change", () => { this.curve = this.choice.value; this.show(this.data); });
    this.node = element("article", {}, this.title, element("div", { className: "head" }, this.head, this.choice),
      element("section", { id: "verdict", "aria-label": "Verdict" }), section("alarms", "Alarms"),
      section("curve", "Curve and forecast", element("figure", {}), element("p", { className: "caption" }), element("details", {}, element("summary", {}, "As numbers"), element("div", {}))),
      section("history", "How the forecast moved", element("div", { className: "segments", role: "group", "aria-label": "Forecast of" }), element("figure", {}), element("p", { className: "caption" }), element("details", {}, element("summary", {}, "As numbers"), element("div", {}))),
      section("time", "Throughput and time", element("div", { className: "two fill" }, element("div", { id: "pace" }), element("div", { id: "parts" }))),
      section("passes", "pass@k", element("div", { className: "small" }), element("p", { className: "caption" }, "The unbiased estimate: the probability that at least one of k answers is right. A pass@k that falls while pass@1 rises means that answers become alike.")),
      this.charts.section, this.samples.section, this.settings());
  }
  settings() {
    const input = element("input", { type: "search", placeholder: "Filter the settings", autocomplete: "off", "aria-label": "Filter the settings" });
    input.addEventListener("input", () => { this.filter = input.value.toLowerCase(); this.showSettings(this.data); });
    return element("section", { id: "settings", hidden: true }, element("h2", {}, "Settings"), element("form", { className: "search", onsubmit: (event) => event.preventDefault() }, input), element("div", {}));
  }
  showSettings({ settings }) {
    const rows = Object.entries(settings).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]);
    this.node.querySelector("#settings").hidden = !rows.length;
    const shown = rows.filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(this.filter));
    this.part("settings", "div").replaceChildren(tableOf([{ text: "setting" }, { text: "value" }], shown.map(([key, value]) => [element("code", {}, key), element("code", {}, value)])));
  }
  showPasses({ passes }) {
    this.node.querySelector("#passes").hidden = !passes.length;
    drawPasses(this.part("passes", ".small"), passes);
  }
  part(id, what) { return this.node.querySelector(`#${id} ${what}`); }
  show(data) {
    if (!data) return;
    this.data = data;
    const curve = data.curves.find((each) => each.name === this.curve) || data.curves.find((each) => !each.problem) || data.curves[0] || null;
    this.title.textContent = data.name;
    this.showHead(data); this.showChoice(data, curve); this.showVerdict(data, curve); this.showAlarms(data, curve);
    this.showCurve(curve); this.showHistory(curve); this.showTime(data); this.showPasses(data); this.charts.show(data.signals); this.showSettings(data);
    this.samples.update(data.num_samples);
  }
  showHead(data) {
    const words = [element("span", { className: `state ${data.status}`, "aria-hidden": "true" }), data.status === "log" ? data.kind.replaceAll("_", " ") : data.status + (data.reason ? `: ${data.reason}` : "")];
    if (isNumber(data.step)) words.push(element("span", {}, `step ${data.step.toLocaleString("en")}`));
    words.push(agoOf(data.updated_at));
    if (data.num_skipped) words.push(element("span", { className: "problem" }, `${data.num_skipped} unreadable lines skipped`));
    this.head.replaceChildren(...words);
  }
  showChoice(data, curve) {
    this.choice.hidden = data.curves.length < 2;
    if (this.choice.options.length !== data.curves.length) this.choice.replaceChildren(...data.curves.map((each) => element("option", { value: each.name }, each.set || each.name)));
    if (curve && this.choice.value !== curve.name) this.choice.value = curve.name;
  }
  showVerdict(data, curve) {
    const fit = curve && curve.fit, host = this.node.querySelector("#verdict");
    if (!curve) return host.replaceChildren(element("p", { className: "said" }, element("span", { className: "advice too_early" }, ADVICE.too_early)), element("p", { className: "note" }, data.problem || "No curve yet."));
    const tile = (what, value, range) => element("div", { className: "tile" }, element("p", { className: "what" }, what), element("div", { className: "value" }, value), element("div", { className: "range" }, range));
    const ceiling = fit && fit.ceiling, last = curve.points.reward[curve.points.reward.length - 1], twice = fit && fit.doubling;
    const signed = (value) => (value < 0 ? "" : "+") + rewardText(value);
    host.replaceChildren(
      element("p", { className: "said" }, element("span", { className: `advice ${fit ? fit.advice : "too_early"}` }, ADVICE[fit ? fit.advice : "too_early"])),
      element("div", { className: "tiles" },
        tile(`Reward now (${curve.num_points} evaluations)`, rewardText(last), curve.start === null ? "" : `${rewardText(curve.start)} before training`),
        tile(fit && fit.end ? "Forecast for the end" : "End of the budget", fit && fit.end ? rewardText(fit.end.value) : "\u2013", fit && fit.end ? rangeText(fit.end) : !data.end_compute ? "not known" : Math.max(...curve.points.compute) >= 0.999 * data.end_compute ? "reached" : "no forecast yet"),
        tile("Ceiling", fit && fit.is_ok && ceiling ? rewardText(ceiling.value) : "\u2013", ceiling ? rangeText(ceiling) + (fit.is_ok ? "" : `; ${fit.verdict}`) : fit ? fit.verdict : ""),
        tile("One more doubling brings", twice ? signed(twice.value) : "\u2013", twice && isNumber(twice.low) ? `${signed(twice.low)} to ${signed(twice.high)}` : "")),
      ...(fit && fit.text ? [element("p", { className: "said", id: "verdict-text" }, fit.text[0].toUpperCase() + fit.text.slice(1))] : []),
      ...(curve.problem ? [element("p", { className: "said problem" }, curve.problem)] : []), ...curve.notes.map((note) => element("p", { className: "note" }, note)));
  }
  showAlarms(data, curve) {
    const host = this.node.querySelector("#alarms"), { alarms } = data, active = alarms.filter((alarm) => alarm.ended === null);
    const when = (alarm) => alarm.ended !== null ? `from step ${alarm.began} to step ${alarm.ended}` : isNumber(alarm.began) ? `since step ${alarm.began}` : isNumber(alarm.began_compute) ? `since ${computeText(alarm.began_compute)} ${curve ? curve.x_label : ""}` : "throughout the run";
    const row = (alarm) => { const made = element("li", { className: alarm.ended === null ? "active" : "past" }, element("b", {}, alarm.title), ` ${when(alarm)}`, element("small", {}, `${alarm.text}.`)); made.dataset.kind = alarm.kind; return made; };
    host.replaceChildren(element("h2", {}, active.length ? `Alarms (${active.length})` : "Alarms"), alarms.length ? element("ul", { className: "alarms" }, ...alarms.map(row)) : element("p", { className: "sub" }, "None."));
    const kinds = new Set(active.map((alarm) => alarm.kind)), added = this.known === null ? [] : active.filter((alarm) => !this.known.has(alarm.kind));
    this.known = kinds;
    if (added.length) announce(`New alarm: ${added.map((alarm) => alarm.text).join("; ")}`);
  }
  showCurve(curve) {
    this.node.querySelector("#curve").hidden = this.node.querySelector("#history").hidden = !curve;
    if (!curve) return;
    drawCurve(this.part("curve", "figure"), curve);
    const level = curve.fit && isNumber(curve.fit.level) ? Math.round(100 * curve.fit.level) : 90;
    this.part("curve", ".caption").textContent = `Points are evaluations; the line is solid within them and dashed beyond. The dark band holds ${level}% of the curve, the light one ${level}% of new evaluations.`;
    const rows = curve.points.compute.map((c, i) => [computeText(c, 4), rewardText(curve.points.reward[i], 4)]).slice(-40).reverse();
    this.part("curve", "details > div").replaceChildren(tableOf([{ text: curve.x_label, n: 1 }, { text: curve.y_label, n: 1 }], rows));
  }
  showHistory(curve) {
    if (!curve) return;
    // An early forecast of a far end is not made, while a ceiling always is: its history may be the longer one.
    const ends = curve.history.filter((row) => row.end).length, hasEnd = this.told ? this.told === "end" && ends > 0 : ends >= 4;
    const choice = this.part("history", ".segments");
    choice.hidden = !ends;
    choices(choice, [["end", "End of the budget"], ["ceiling", "Ceiling"]], hasEnd ? "end" : "ceiling", (value) => { this.told = value; this.showHistory(curve); });
    drawHistory(this.part("history", "figure"), curve, hasEnd);
    this.part("history", ".caption").textContent = `Each circle is the forecast of ${hasEnd ? "the reward at the end of the budget" : "the ceiling"} from the evaluations until then, with the interval it gave itself; dots are what was measured. A line that leaves its own earlier band says that the bands are too narrow for this run.`;
    const text = (value) => (value && isNumber(value.value) ? `${rewardText(value.value)}${isNumber(value.low) ? ` [${rewardText(value.low)}, ${rewardText(value.high)}]` : ""}` : "\u2013");
    this.part("history", "details > div").replaceChildren(tableOf([{ text: "evaluations", n: 1 }, { text: curve.x_label, n: 1 }, { text: "end of budget", n: 1 }, { text: "ceiling", n: 1 }, { text: "verdict" }],
      curve.history.map((row) => [row.num, computeText(row.compute), text(row.end), text(row.ceiling), row.verdict]).reverse()));
  }
  showTime({ times }) {
    const { step, total, throughput } = times, pace = element("div", {});
    this.node.querySelector("#time").hidden = !(throughput || step.length || total.length);
    const figure = element("figure", {});
    this.part("time", "#pace").replaceChildren(pace);
    this.part("time", "#pace").hidden = !throughput;
    this.part("time", "#parts").replaceChildren(...(step.length ? [element("h3", {}, "One step, over the last steps"), ...stackOf(step)] : []), ...(total.length ? [element("h3", {}, "The whole run"), ...stackOf(total)] : []));
    if (throughput) { pace.append(element("h3", {}, `Tokens per second: ${computeText(throughput.last)} now`), figure); drawLines(figure, [{ label: "tokens per second", steps: throughput.step, values: throughput.values, colour: 0 }], "Tokens per second over the steps"); }
  }
}
