"use strict";
// The page of a run, a log or a study: a report on it that is brought up to date, and what only a live page has.

class Page {
  constructor(kind, key) {
    this.kind = kind; this.key = key; this.path = `/api/${kind === "run" ? "runs" : "studies"}/${key}`;
    this.shown = null; this.told = null; this.data = null; this.known = null; this.filter = "";
    this.node = element("article", {}, byId("report-template").content.cloneNode(true));
    this.head = element("p", { className: "head" });
    this.problem = element("div", {});
    this.part("meta").after(this.head, this.problem);
    if (kind === "study") return this.part("of-curves").before(element("section", {}, element("h2", {}, "Arms"), element("div", { id: "arms" })));
    this.samples = new Samples(key); this.charts = new Charts(key);
    this.part("time-section").before(element("section", { id: "history", hidden: true }, element("h2", {}, "How the forecast moved"), element("div", { className: "segments", role: "group", "aria-label": "Forecast of" }), element("figure", {}), element("p", { className: "caption" }), element("details", {}, element("summary", {}, "As numbers"), element("div", {}))));
    this.part("signals-section").replaceWith(this.charts.section);
    this.part("samples-section").replaceWith(this.samples.section, this.settings());
  }
  part(id) { return this.node.querySelector(`#${id}`); }
  show(data) {
    if (!data) return;
    this.data = data;
    this.part("title").textContent = data.name;
    this.problem.replaceChildren(...[...(data.faults || []), data.problem].filter(Boolean).map((fault) => element("p", { className: "problem" }, fault)));
    this.part("of-curves").hidden = !data.report;
    const before = this.shown && this.shown.state;
    this.shown = null; // the history is drawn below, and whenever a choice changes after that
    if (data.report) this.shown = showReport(data.report, this.node, { before, end: data.end_compute, drawn: () => this.shown && this.showHistory() });
    else if (data.run) drawRuns(this.node, [data.run]);
    if (this.kind === "study") return this.showArms(state.list ? state.list.runs : []);
    this.showHead(data); this.announce(data.run.alarms); this.showHistory(); this.showSettings();
    this.charts.show(data.run.signals, data.counted);
    this.samples.update(data.num_samples);
  }
  showHead(data) {
    const words = [element("span", { className: `state ${data.status}`, "aria-hidden": "true" }), data.status === "log" ? data.kind.replaceAll("_", " ") : data.status + (data.reason ? `: ${data.reason}` : "")];
    if (isNumber(data.step)) words.push(element("span", {}, `${data.counted} ${data.step.toLocaleString("en")}`));
    words.push(agoOf(data.updated_at));
    this.head.replaceChildren(...words);
  }
  announce(alarms) {
    const active = alarms.filter((alarm) => alarm.ended === null), added = this.known === null ? [] : active.filter((alarm) => !this.known.has(alarm.kind));
    this.known = new Set(active.map((alarm) => alarm.kind));
    if (added.length) announce(`New alarm: ${added.map((alarm) => alarm.text).join("; ")}`);
  }
  // Of the first curve that is shown.
  showHistory() {
    const host = this.part("history"), { report, history } = this.data, set = report && this.shown.state.set;
    const curve = report && this.shown.theView().curves.find((each) => !this.shown.state.hidden.has(each.name) && (history[`${set}/${each.name}`] || []).length);
    host.hidden = !curve;
    if (!curve) return;
    const rows = history[`${set}/${curve.name}`], unit = report.axes[0].label, figure = host.querySelector("figure");
    // An early forecast of a far end is not made, while a ceiling always is: its history may be the longer one.
    const ends = rows.filter((row) => row.end).length, hasEnd = this.told ? this.told === "end" && ends > 0 : ends >= 4, choice = host.querySelector(".segments");
    choice.hidden = !ends;
    choices(choice, [["end", "End of the budget"], ["ceiling", "Ceiling"]], hasEnd ? "end" : "ceiling", (value) => { this.told = value; this.showHistory(); });
    drawHistory(figure, rows, this.shown.theSet().points[report.axes[0].key][curve.name], unit, hasEnd);
    host.querySelector(".caption").textContent = `Each circle is the forecast of ${hasEnd ? "the reward at the end of the budget" : "the ceiling"} from the evaluations until then, with the interval it gave itself; dots are what was measured. A line that leaves its own earlier band says that the bands are too narrow for this run.`;
    const text = (value) => (value && isNumber(value.value) ? [rewardText(value.value), rangeText(value)].filter(Boolean).join(", ") : "\u2013");
    host.querySelector("details > div").replaceChildren(tableOf([{ text: "evaluations", n: 1 }, { text: unit, n: 1 }, { text: "end of budget", n: 1 }, { text: "ceiling", n: 1 }, { text: "verdict" }],
      rows.map((row) => [row.num, computeText(row.compute), text(row.end), text(row.ceiling), row.verdict]).reverse()));
  }
  settings() {
    const input = element("input", { type: "search", placeholder: "Filter the settings", autocomplete: "off", "aria-label": "Filter the settings" });
    input.addEventListener("input", () => { this.filter = input.value.toLowerCase(); this.showSettings(); });
    return element("section", { id: "settings", hidden: true }, element("h2", {}, "Settings"), element("form", { className: "search", onsubmit: (event) => event.preventDefault() }, input), element("div", {}));
  }
  showSettings() {
    const rows = Object.entries(this.data.settings).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]), host = this.part("settings");
    host.hidden = !rows.length;
    host.lastChild.replaceChildren(tableOf([{ text: "setting" }, { text: "value" }], rows.filter((row) => row.join(" ").toLowerCase().includes(this.filter)).map((row) => row.map((text) => element("code", {}, text)))));
  }
  showArms(listed) {
    if (!this.data) return;
    const runs = listed.filter((run) => run.study === this.key), num = (status) => runs.filter((run) => run.status === status).length;
    this.head.textContent = [this.data.report ? "" : this.data.description, `${num("done")} of ${runs.length} runs are done, ${num("running")} are running.`, this.data.report ? "" : "The arms are compared when they have curves."].filter(Boolean).join(" ");
    const rows = [...new Set(runs.map((run) => run.arm))].map((arm) => {
      const own = runs.filter((run) => run.arm === arm), rewards = own.map((run) => run.reward).filter(isNumber);
      const links = element("span", {}, ...own.flatMap((run, i) => [i ? ", " : "", element("a", { href: `#run/${run.key}` }, `seed ${run.seed === null ? "?" : run.seed}`), ` ${run.status}${run.num_alarms ? ` (${run.num_alarms} alarms)` : ""}`]));
      return [arm, links, rewards.length ? rewardText(rewards.reduce((a, b) => a + b, 0) / rewards.length) : "\u2013"];
    });
    this.part("arms").replaceChildren(tableOf([{ text: "arm" }, { text: "runs" }, { text: "reward", n: 1 }], rows, "stacks"));
  }
}

// Everything that is watched.
class Overview {
  constructor() {
    this.node = element("article", {}, element("h1", {}, "Everything watched"), element("p", { className: "sub", id: "watched" }), element("div", { className: "segments", id: "units", role: "group", "aria-label": "Compute in", hidden: true }), element("figure", { id: "together" }), element("p", { className: "caption" }, "Each run over its own compute; dashed lines are forecasts up to twice the compute."), this.search = element("input", { type: "search", id: "run-filter", placeholder: "Filter the runs", autocomplete: "off", "aria-label": "Filter the runs" }), element("div", { id: "overview" }), element("details", { id: "differing", hidden: true }, element("summary", {}, "Settings that differ between the runs"), element("div", {})));
    this.search.addEventListener("input", () => this.show(this.list));
    this.sort = [0, 0];
  }
  // A click on a head sorts by it, another one the other way round.
  ordered(rows) {
    const [column, direction] = this.sort, key = (row) => { const text = row[column] instanceof Node ? row[column].textContent : String(row[column]), number = parseFloat(text.replaceAll(",", "")); return isNaN(number) ? text : number; };
    if (!direction) return rows;
    return [...rows].sort((a, b) => { const [x, y] = [key(a), key(b)]; return direction * (typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1); });
  }
  show(list) {
    if (!list) return;
    this.list = list;
    this.node.querySelector("#watched").textContent = [`${list.runs.length} runs and logs in ${list.paths.join(", ")}.`, ...list.notes].join(" ");
    // Runs that count compute in different units cannot share an axis: one unit at a time, the commonest first.
    const units = [...new Set(list.runs.map((run) => run.x_label).filter(Boolean))], num = (unit) => list.runs.filter((run) => run.x_label === unit).length;
    units.sort((a, b) => num(b) - num(a));
    if (!units.includes(this.unit)) this.unit = units[0];
    const choice = this.node.querySelector("#units");
    choice.hidden = units.length < 2;
    choices(choice, units.map((unit) => [unit, `${unit} (${num(unit)})`]), this.unit, (unit) => { this.unit = unit; this.show(this.list); });
    drawTogether(this.node.querySelector("#together"), list.runs.map((run, i) => ({ ...run, colour: i })).filter((run) => run.x_label === this.unit), this.unit || "compute");
    const heads = [{ text: "run" }, { text: "status" }, { text: "step", n: 1 }, { text: "reward", n: 1 }, { text: "at the end", n: 1 }, { text: "ceiling", n: 1 }, { text: "verdict" }, { text: "alarms", n: 1 }, { text: "changed" }];
    const text = (value) => (value ? [rewardText(value.value), rangeText(value)].filter(Boolean).join(", ") : "\u2013");
    const names = apart(list.runs.map((run) => run.name));
    const rows = list.runs.map((run, i) => [element("span", { className: "who" }, element("span", { className: "dot", style: `--own:${own(i)}` }), element("a", { href: `#run/${run.key}`, title: run.name }, names[i])), run.status === "log" ? run.kind : run.status, isNumber(run.step) ? `${run.step.toLocaleString("en")}${run.counted === "row" ? " rows" : ""}` : "\u2013",
      rewardText(run.reward), text(run.end), run.is_ok ? text(run.ceiling) : run.ceiling ? rangeText(run.ceiling) : "\u2013", run.verdict || shorten(run.problem || "no curve yet", 70), run.num_alarms ? element("span", { className: "count" }, run.num_alarms) : "0", agoOf(run.updated_at)]);
    const wanted = this.search.value.toLowerCase(), shown = this.ordered(rows.filter((_, i) => list.runs[i].name.toLowerCase().includes(wanted)));
    this.search.hidden = list.runs.length < 8 && !wanted;
    const sortBy = (column) => { this.sort = [column, this.sort[0] === column && this.sort[1] === 1 ? -1 : 1]; this.show(this.list); };
    this.node.querySelector("#overview").replaceChildren(list.runs.length ? tableOf(heads, shown, "stacks", sortBy) : element("p", { className: "sub" }, "No run or log yet: the page shows them as they appear."));
    const { runs, rows: differing } = list.settings, host = this.node.querySelector("#differing"), nameOf = (key) => names[list.runs.findIndex((run) => run.key === key)] || key;
    const cell = (value) => element("code", {}, value === null ? "\u2013" : typeof value === "string" ? value : JSON.stringify(value));
    host.hidden = !Object.keys(differing).length;
    if (!host.hidden) host.lastChild.replaceChildren(tableOf([{ text: "setting" }, ...runs.map((key) => ({ text: nameOf(key) }))], Object.entries(differing).map(([key, values]) => [element("code", {}, key), ...values.map(cell)])));
  }
}
