"use strict";
// Charts as inline SVG: a frame with axes, and what is drawn into it. Nothing is computed here but places on the screen.

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
    const step = yTicks.length > 1 ? Number((yTicks[1] - yTicks[0]).toPrecision(2)) : 1, digits = [0, 1, 2, 3, 4, 5].find((n) => Number(step.toFixed(n)) === step) ?? 6;
    for (const tick of yTicks) {
      const y = this.y(tick);
      svg.append(node("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
      svg.append(node("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, yText(tick, digits)));
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

// Buttons of which one is pressed; they stay the same while their texts do, so that focus stays where it is.
function choices(host, options, chosen, pick) {
  if (host.textContent !== options.map(([, text]) => text).join("")) host.replaceChildren(...options.map(([, text]) => element("button", { type: "button" }, text)));
  options.forEach(([value], i) => { host.children[i].onclick = () => pick(value); host.children[i].setAttribute("aria-pressed", String(value === chosen)); });
}

// Numbers on axes and under the pointer ------------------------------------------------------------------------------

const RAISED = { "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074", 5: "\u2075", 6: "\u2076", 7: "\u2077", 8: "\u2078", 9: "\u2079" };

function computeText(value, digits = 3) {
  if (value === 0) return "0";
  if (value === null || !isFinite(value)) return "\u2013";
  const plain = (number) => String(Number(number.toPrecision(digits)));
  if (value >= 1e-3 && value < 1e3) return plain(value);
  if (value >= 1e3 && value < 1e6) return plain(value / 1e3) + "k";
  if (value >= 1e6 && value < 1e9) return plain(value / 1e6) + "M";
  const [front, power] = value.toExponential(digits - 1).split("e"), times = Number(front) === 1 ? "" : `${Number(front)}\u00d7`;
  return `${times}10${[...String(Number(power))].map((c) => RAISED[c]).join("")}`;
}

// Three decimals, or as many fewer as there are digits: 0.612, 64.2, 1234.
function rewardText(value, digits = null) {
  if (value === null || value === undefined || !isFinite(value)) return "\u2013";
  const usual = 3 - Math.max(0, Math.ceil(Math.log10(Math.abs(value) || 1)));
  return value.toFixed(digits === null ? Math.max(0, usual) : digits).replace("-", "\u2212");
}

function niceTicks(low, high, most) {
  const raw = (high - low) / most, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) ticks.push(Number(at.toPrecision(12)));
  return ticks;
}

// Round numbers on a logarithmic axis that stand apart by a share 1 / most of it.
function logTicks(low, high, most) {
  const apart = Math.log(high / low) / most;
  for (const digits of [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++)
      for (const digit of digits) ticks.push(digit * Math.pow(10, decade));
    const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    if (inside.length < 2) return [low, high];
    if (inside.every((tick, i) => !i || Math.log(tick / inside[i - 1]) >= apart)) return inside;
    if (digits.length === 1) return inside.filter((_, i) => i % Math.ceil(inside.length / most) === 0);
  }
  return [low, high];
}
