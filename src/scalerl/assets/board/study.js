"use strict";
// A study: its arms side by side. And the overview of everything that is watched.

class StudyPage {
  constructor(key) {
    this.key = key; this.path = `/api/studies/${key}`; this.shown = null;
    this.node = element("article", {}, element("h1", {}), element("p", { className: "sub" }), element("div", { id: "study-faults" }), element("section", {}, element("h2", {}, "Arms"), element("div", { id: "arms" })), element("div", { id: "study-report" }));
  }
  show(data) {
    if (!data) return;
    this.data = data;
    this.node.children[0].textContent = data.name;
    this.node.children[2].replaceChildren(...[...data.faults, data.problem].filter(Boolean).map((fault) => element("p", { className: "problem" }, fault)));
    this.showArms(state.list ? state.list.runs : []);
    const host = this.node.querySelector("#study-report");
    if (!data.report) return host.replaceChildren(element("p", { className: "sub" }, "The arms are compared when they have curves."));
    if (!host.querySelector("#curves")) host.replaceChildren(byId("report-template").content.cloneNode(true));
    this.shown = showReport(data.report, host, this.shown && this.shown.state);
  }
  showArms(listed) {
    if (!this.data) return;
    const runs = listed.filter((run) => run.study === this.key), num = (status) => runs.filter((run) => run.status === status).length;
    this.node.children[1].textContent = [this.data.description.trim().replace(/([^.?!])$/, "$1."), `${num("done")} of ${runs.length} runs are done, ${num("running")} are running.`].filter(Boolean).join(" ");
    const rows = [...new Set(runs.map((run) => run.arm))].map((arm) => {
      const own = runs.filter((run) => run.arm === arm), rewards = own.map((run) => run.reward).filter(isNumber);
      const links = element("span", {}, ...own.flatMap((run, i) => [i ? ", " : "", element("a", { href: `#run/${run.key}` }, `seed ${run.seed === null ? "?" : run.seed}`), ` ${run.status}${run.num_alarms ? ` (${run.num_alarms} alarms)` : ""}`]));
      return [arm, links, rewards.length ? rewardText(rewards.reduce((a, b) => a + b, 0) / rewards.length) : "\u2013"];
    });
    this.node.querySelector("#arms").replaceChildren(tableOf([{ text: "arm" }, { text: "runs" }, { text: "reward", n: 1 }], rows, "stacks"));
  }
}

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
    const text = (value) => (value ? `${rewardText(value.value)} [${rewardText(value.low)}, ${rewardText(value.high)}]` : "\u2013");
    const names = apart(list.runs.map((run) => run.name));
    const rows = list.runs.map((run, i) => [element("span", { className: "who" }, element("span", { className: "dot", style: `--own:${own(i)}` }), element("a", { href: `#run/${run.key}`, title: run.name }, names[i])), run.status === "log" ? run.kind : run.status, isNumber(run.step) ? run.step.toLocaleString("en") : "\u2013",
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
