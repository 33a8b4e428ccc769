"use strict";
// Charts as inline SVG: a frame with axes, and what is drawn into it.

const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "style") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const own = (index) => `var(--c${index % 12})`;

// Light or dark, against what the system says; remembered where the browser allows it.
function themeButton(button) {
  const kept = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const apply = (theme) => { document.documentElement.style.colorScheme = theme || ""; };
  apply(kept());
  button.addEventListener("click", () => {
    const isDark = getComputedStyle(document.documentElement).colorScheme === "dark" || (!kept() && matchMedia("(prefers-color-scheme: dark)").matches);
    const theme = isDark ? "light" : "dark";
    try { localStorage.setItem("theme", theme); } catch { /* a page from disk may not remember */ }
    apply(theme);
  });
}

// A chart's frame. `x` and `y` map data to pixels; xLog says that x is logarithmic.
class Chart {
  constructor({ width, height, xRange, yRange, xLog, xWhole = false, xLabel, yLabel, right = 14, left = 46, yText = rewardText, label }) {
    Object.assign(this, { width, height, xRange, yRange, xLog, right, left, top: 20, bottom: 40 });
    this.svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    this.place = xLog ? Math.log : (value) => value;
    this._axes(xLabel, yLabel, yText, xWhole);
    const id = `clip-${Chart.count = (Chart.count || 0) + 1}`;
    this.svg.append(node("clipPath", { id }, node("rect", { x: left, y: this.top, width: width - left - right, height: height - this.top - this.bottom })));
    this.inside = node("g", { "clip-path": `url(#${id})` });
    this.svg.append(this.inside);
  }
  x(value) {
    const [low, high] = this.xRange.map(this.place);
    return this.left + (this.place(value) - low) / (high - low) * (this.width - this.left - this.right);
  }
  y(value) {
    const [low, high] = this.yRange;
    return this.height - this.bottom - (value - low) / (high - low) * (this.height - this.top - this.bottom);
  }
  computeAt(pixel) {
    const [low, high] = this.xRange.map(this.place);
    const at = low + (pixel - this.left) / (this.width - this.left - this.right) * (high - low);
    return this.xLog ? Math.exp(at) : at;
  }
  _axes(xLabel, yLabel, yText, xWhole) {
    const { svg, width, height, left, right, top, bottom } = this;
    const yTicks = niceTicks(...this.yRange, Math.max(3, Math.round((height - 50) / 48)));
    const digits = Math.min(Math.max(0, -Math.floor(Math.log10(yTicks.length > 1 ? yTicks[1] - yTicks[0] : 1) + 1e-9)), 6);
    for (const tick of yTicks) {
      const y = this.y(tick);
      svg.append(node("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
      svg.append(node("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, yText(tick, Math.max(digits, tick % 1 && digits < 1 ? 1 : digits))));
    }
    const most = Math.max(3, Math.floor((width - left - right) / 62));
    const xTicks = this.xLog ? logTicks(...this.xRange, most) : niceTicks(...this.xRange, most).filter((tick) => !xWhole || Number.isInteger(tick));
    for (const tick of xTicks) {
      const x = this.x(tick);
      svg.append(node("line", { class: "axis", x1: x, x2: x, y1: height - bottom, y2: height - bottom + 5 }));
      svg.append(node("text", { x, y: height - bottom + 18, "text-anchor": "middle" }, computeText(tick)));
    }
    svg.append(node("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
    if (xLabel) svg.append(node("text", { x: width - right, y: height - 4, "text-anchor": "end" }, xLabel));
    if (yLabel) svg.append(node("text", { x: 0, y: top - 10, "text-anchor": "start" }, yLabel));
  }
  line(points, attributes) {
    const path = points.map(([x, y], i) => `${i ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("");
    this.inside.append(node("path", { d: path, fill: "none", "stroke-linejoin": "round", "stroke-linecap": "round", ...attributes }));
  }
  band(points, attributes) {
    const side = (list) => list.map(([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("L");
    const low = points.map(([x, l]) => [x, l]), high = points.map(([x, , h]) => [x, h]).reverse();
    this.inside.append(node("path", { d: `M${side(low)}L${side(high)}Z`, stroke: "none", ...attributes }));
  }
  mark(x, y, run, attributes) {
    const cx = this.x(x), cy = this.y(y), r = attributes.r || 3;
    const kind = run % 3;
    if (kind === 0) this.inside.append(node("circle", { cx, cy, ...attributes, r }));
    else if (kind === 1) this.inside.append(node("rect", { x: cx - r * .9, y: cy - r * .9, width: r * 1.8, height: r * 1.8, ...attributes, r: undefined }));
    else this.inside.append(node("path", { d: `M${cx} ${cy - r * 1.25}L${cx + r * 1.2} ${cy + r * .9}L${cx - r * 1.2} ${cy + r * .9}Z`, ...attributes, r: undefined }));
  }
  // A fitted curve between two computes: one of its bands; its line, solid within what was fitted and dashed elsewhere.
  bandOf(line, [low, high], from, to, attributes) {
    this.band(onGrid(line, from, to).map((c) => [c, between(line.compute, low, c), between(line.compute, high, c)]), attributes);
  }
  lineOf(line, from, to, attributes) {
    const part = (begin, end, more) => { if (end > begin) this.line(onGrid(line, begin, end).map((c) => [c, between(line.compute, line.reward, c)]), { "stroke-width": 2.2, ...attributes, ...more }); };
    part(from, Math.min(line.first, to), { "stroke-dasharray": "5 5", opacity: .7 });
    part(Math.max(line.first, from), Math.min(line.last, to), {});
    part(Math.max(line.last, from), to, { "stroke-dasharray": "6 5", class: "forecast-line" });
  }
  // Names at the right end, moved apart where they would cover each other.
  labels(items) {
    const step = 15, sorted = items.map((item) => ({ ...item, at: this.y(item.y) })).sort((a, b) => a.at - b.at);
    for (let i = 1; i < sorted.length; i++) sorted[i].at = Math.max(sorted[i].at, sorted[i - 1].at + step);
    const over = sorted.length ? sorted[sorted.length - 1].at - (this.height - this.bottom) : 0;
    if (over > 0) sorted.forEach((item) => { item.at -= over; });
    for (const item of sorted) this.svg.append(node("text", { class: "label", x: this.width - this.right + 7, y: item.at + 4, style: `fill:${item.colour}` }, item.text));
  }
}

// A tooltip that follows the pointer; `say(chart, px, py)` gives the rows to show, or null.
function withTip(figure, chart, say, pick) {
  const tip = figure.querySelector(".tip") || figure.appendChild(element("div", { className: "tip" }));
  const rule = node("line", { class: "axis", y1: chart.top, y2: chart.height - chart.bottom, visibility: "hidden" });
  chart.svg.append(rule);
  const hide = () => { tip.style.display = "none"; rule.setAttribute("visibility", "hidden"); };
  const spot = (event) => {
    const box = chart.svg.getBoundingClientRect(), scale = chart.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale, box];
  };
  chart.svg.addEventListener("pointermove", (event) => {
    const [px, py, box] = spot(event);
    const told = px < chart.left || px > chart.width - chart.right ? null : say(chart.computeAt(px), px, py);
    if (!told) return hide();
    tip.replaceChildren(...told);
    tip.style.display = "block";
    const left = event.clientX - box.left, wide = tip.offsetWidth;
    tip.style.left = `${Math.max(0, left + wide + 24 > box.width ? left - wide - 14 : left + 14)}px`;
    tip.style.top = `${Math.max(0, event.clientY - box.top - 20)}px`;
    rule.setAttribute("x1", px); rule.setAttribute("x2", px); rule.setAttribute("visibility", "visible");
  });
  chart.svg.addEventListener("pointerleave", hide);
  if (pick) chart.svg.addEventListener("click", (event) => {
    const [px] = spot(event);
    if (px >= chart.left && px <= chart.width - chart.right) pick(chart.computeAt(px));
  });
}

function tipRow(index, name, value) {
  return element("div", { className: "row" }, element("span", { className: "dot", style: `--own:${own(index)}` }), element("span", {}, name), element("b", {}, value));
}

const span = (values) => [Math.min(...values), Math.max(...values)];
const isNumber = (value) => typeof value === "number" && isFinite(value);
const shorten = (text, most) => (text.length > most ? `${text.slice(0, Math.ceil(most / 2) - 1)}\u2026${text.slice(-Math.floor(most / 2))}` : text);

// Drawn with the width of its place; a place that is not laid out yet has a usual one.
function sized(host, phone, wide) {
  const width = Math.max(host.clientWidth || 640, 280);
  return { width, height: width < 520 ? phone : wide, isPhone: width < 520 };
}

// Lines over the steps in one frame: `sets` have a label, steps, values and a colour.
function drawLines(host, sets, label, { limit = null, text = computeText, counted = "step" } = {}) {
  const { width } = sized(host, 170, 170);
  sets = sets.map((set) => ({ ...set, points: set.steps.map((x, at) => [x, set.values[at]]).filter(([x, y]) => isNumber(x) && isNumber(y)) })).filter((set) => set.points.length);
  if (!sets.length) return host.replaceChildren(element("p", { className: "sub" }, "No number yet."));
  const xs = sets.flatMap((set) => set.points.map(([x]) => x)), ys = sets.flatMap((set) => set.points.map(([, y]) => y));
  const top = Math.max(...ys), [low, high] = [Math.min(0, ...ys), Math.max(top, isNumber(limit) && top > 0.4 * limit ? limit * 1.1 : 0)];
  const [from, to] = span(xs);
  const chart = new Chart({ width, height: 176, xRange: [from, to > from ? to : from + 1], yRange: [low, high + 0.08 * (high - low) || 1], xLog: false, xLabel: `${counted}s`, left: 44, yText: (value) => text(value), label });
  if (isNumber(limit) && limit < chart.yRange[1]) chart.line([[from, limit], [to, limit]], { class: "limit", "stroke-width": 1.3 });
  for (const set of sets) chart.line(set.points, { stroke: own(set.colour), "stroke-width": 1.7 });
  host.replaceChildren(chart.svg);
  withTip(host, chart, (x) => [element("div", {}, `${counted} ${computeText(x, 4)}`), ...sets.slice(0, 12).map((set) => tipRow(set.colour, shorten(set.label, 26), text(set.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a))[1])))]);
}

// Buttons of which one is pressed; they stay the same while their texts do, so that focus stays where it is.
function choices(host, options, chosen, pick) {
  if (host.textContent !== options.map(([, text]) => text).join("")) host.replaceChildren(...options.map(([, text]) => element("button", { type: "button" }, text)));
  options.forEach(([value], i) => { host.children[i].onclick = () => pick(value); host.children[i].setAttribute("aria-pressed", String(value === chosen)); });
}

const durationText = (s) => (s < 1 ? `${Number((1000 * s).toPrecision(2))} ms` : s < 90 ? `${Number(s.toPrecision(2))} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} days`);

// A bar in parts, and the same as words.
function stackOf(title, parts) {
  const total = parts.reduce((sum, part) => sum + part.seconds, 0);
  return !parts.length ? [] : [
    element("h3", {}, title),
    element("div", { className: "stack bars", "aria-hidden": "true" }, ...parts.map((part, i) => element("i", { style: `width:${100 * part.seconds / total}%;background:${own(i)}` }))),
    element("ul", { className: "key" }, ...parts.map((part, i) => element("li", {}, element("span", { className: "dot", style: `--own:${own(i)}` }), `${part.label} ${Math.round(100 * part.seconds / total)}% (${durationText(part.seconds)})`))),
  ];
}

// What runs show besides their curves: alarms, pass@k and, of a single run, where the time goes.
function drawRuns(host, runs, unit = "") {
  const $ = (id) => host.querySelector(`#${id}`), several = runs.length > 1;
  const when = (alarm) => alarm.ended !== null ? `from step ${alarm.began} to step ${alarm.ended}` : isNumber(alarm.began) ? `since step ${alarm.began}` : isNumber(alarm.began_compute) ? `since ${computeText(alarm.began_compute)} ${unit}` : "throughout the run";
  const row = (run, alarm) => { const made = element("li", { className: alarm.ended === null ? "active" : "past" }, element("b", {}, alarm.title), ` ${several ? `of ${run.name} ` : ""}${when(alarm)}`, element("small", {}, `${alarm.text}.`)); made.dataset.kind = alarm.kind; return made; };
  const alarms = runs.flatMap((run) => run.alarms.map((alarm) => row(run, alarm)));
  $("alarms-section").hidden = !alarms.length;
  $("alarms").replaceChildren(...alarms);
  const { step, total, throughput } = runs.length === 1 ? runs[0].times : { step: [], total: [], throughput: null };
  $("time-section").hidden = !(throughput || step.length || total.length);
  const figure = element("figure", {}), pace = throughput ? [element("div", {}, element("h3", {}, `Tokens per second: ${computeText(throughput.last)} now`), figure)] : [];
  $("time").replaceChildren(...pace, element("div", {}, ...stackOf("One step, over the last steps", step), ...stackOf("The whole run", total)));
  if (throughput) drawLines(figure, [{ label: "tokens per second", steps: throughput.step, values: throughput.values, colour: 0 }], "Tokens per second over the steps");
  const passes = runs.flatMap((run) => run.passes.map((each) => ({ ...each, run: run.name })));
  $("passes-section").hidden = !passes.length;
  drawPasses($("passes"), passes, (each) => (several ? `${each.run}, ${each.set}` : each.set));
}

// pass@k over the steps: a frame for each evaluation set.
function drawPasses(host, passes, nameOf = (each) => each.set) {
  host.replaceChildren(...passes.map((each) => element("figure", {}, element("h3", {}, nameOf(each)), element("div", {}))));
  passes.forEach((each, i) => {
    const sets = Object.entries(each.pass).map(([k, values], colour) => ({ label: `pass@${k}`, steps: each.step, values, colour }));
    drawLines(host.children[i].lastChild, sets, `pass@k on ${nameOf(each)}`, { text: (value) => rewardText(value, 2) });
    host.children[i].append(element("ul", { className: "key" }, ...sets.map((set) => element("li", {}, element("span", { className: "dot", style: `--own:${own(set.colour)}` }), `${set.label}: ${rewardText(set.values[set.values.length - 1])}`))));
  });
}
