"use strict";
// A document: sections of sentences, tables, curves, lines and samples, drawn as they are given. It words nothing.

// `view` is what a reader has chosen: hidden curves and the scale of compute; `again` draws anew when it changes.
function showDocument(host, sections, view = { hidden: new Set(), isLinear: false }) {
  const again = () => showDocument(host, sections, view);
  const open = new Set([...host.querySelectorAll("details[open]")].map((each) => each.dataset.key));
  host.replaceChildren(...sections.map((section) => {
    const made = (wanted) => grouped(section.blocks.filter((block) => (block.level === "detail") === wanted));
    const details = made(true), more = details.length ? element("details", { open: open.has(section.key) }, element("summary", {}, "Details"), ...details) : null;
    if (more) more.dataset.key = section.key;
    const node = element("section", { id: `section-${section.key}` }, section.title ? element("h2", {}, section.title) : null, ...made(false), more);
    return node;
  }));
  // Charts are drawn when their place has a width.
  for (const place of host.querySelectorAll("[data-chart]")) place.draw(place, view, again);
  for (const details of host.querySelectorAll("details")) details.addEventListener("toggle", () => { for (const place of details.querySelectorAll("[data-chart]")) place.draw(place, view, again); });
  return view;
}

// Blocks one after the other; small charts side by side.
function grouped(blocks) {
  const made = [];
  for (const block of blocks) {
    const node = BLOCKS[block.type](block), last = made[made.length - 1];
    if (block.type !== "lines") made.push(node);
    else if (last && last.className === "small") last.append(node);
    else made.push(element("div", { className: "small" }, node));
  }
  return made;
}

const BLOCKS = { say: sayOf, grid: gridOf, curves: curvesOf, lines: linesOf, samples: samplesOf };

function sayOf({ kind, level, text }) {
  const made = element("p", { className: `say ${level}` }, text);
  made.dataset.kind = kind;
  return made;
}

function gridOf({ key, title, heads, rows, left, right, links, colours }) {
  const isNumber = (place) => place >= left && place < heads.length - right;
  const cell = (row, text, place) => {
    const dot = place === 0 && colours.length > row ? element("span", { className: "dot", style: `--own:${own(colours[row])}` }) : null;
    const shown = place === 0 && links[row] ? element("a", { href: links[row] }, text) : text;
    const made = element("td", { className: isNumber(place) ? "n" : "" }, ...(dot ? [element("span", { className: "who" }, dot, shown)] : [shown]));
    made.dataset.head = heads[place];
    return made;
  };
  const table = element("table", { className: "stacks" }, element("thead", {}, element("tr", {}, ...heads.map((head, place) => element("th", { className: isNumber(place) ? "n" : "", scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row, at) => element("tr", {}, ...row.map((text, place) => cell(at, text, place))))));
  const made = element("div", { className: "scroll", tabIndex: 0 }, title ? element("h3", {}, title) : null, table);
  made.dataset.key = key;
  return made;
}

// Curves --------------------------------------------------------------------------------------------------------------

function curvesOf(block) {
  const place = element("div", { className: "chart" });
  place.dataset.chart = block.key;
  place.draw = (host, view, again) => drawCurves(host, block, view, again);
  return place;
}

function drawCurves(host, block, view, again) {
  if (!host.clientWidth) return;
  const several = block.drawn.length > 1, shown = block.drawn.filter((each) => !several || !view.hidden.has(each.name));
  const isLog = !view.isLinear, figure = element("figure", {}), { width, height, isPhone } = sized(host, 300, 430);
  const dots = shown.flatMap(({ dots }) => dots.compute.map((c, i) => [c, dots.reward[i]])).filter(([c]) => !isLog || c > 0);
  const lines = shown.filter((each) => each.line), ends = lines.flatMap(({ line }) => line.compute.map((c, i) => [c, line.reward[i]])), all = dots.concat(ends);
  if (all.length) {
    const xs = dots.length ? span(dots.map(([c]) => c)) : span(ends.map(([c]) => c)), last = Math.max(xs[1], ...ends.map(([c]) => c));
    const [low, high] = span(all.map(([, y]) => y)), pad = 0.06 * (high - low) || 0.05, names = lines.length <= 24 && several && !isPhone;
    const longest = names ? Math.min(Math.max(...lines.map((each) => each.name.length)) * 7.2 + 14, 190) : 12;
    const chart = new Chart({ width, height, xRange: isLog ? [xs[0] / 1.08, last] : [0, last], yRange: [low - pad, high + pad], xLog: isLog, right: longest, left: isPhone ? 38 : 46, xLabel: block.x_label, yLabel: block.y_label.replaceAll("_", " "), label: block.key });
    for (const { line, colour } of lines) if (line.band) chart.band(line.compute.map((c, i) => [c, line.band[0][i], line.band[1][i]]), { fill: own(colour), "fill-opacity": "var(--band)" });
    for (const { dots, colour } of shown) drawDots(chart, dots, own(colour));
    for (const { line, colour } of lines) {
      const part = (from, to, more) => chart.line(line.compute.map((c, i) => [c, line.reward[i]]).filter(([c]) => c >= from && c <= to), { stroke: own(colour), "stroke-width": 2.2, ...more });
      part(-Infinity, line.first, { "stroke-dasharray": "5 5", opacity: .7 });
      part(line.first, line.last, {});
      part(line.last, Infinity, { "stroke-dasharray": "6 5", class: "forecast-line" });
    }
    for (const { marks, colour } of shown) for (const [c, y] of marks) chart.mark(c, y, 0, { r: 4.4, fill: "var(--raised)", stroke: own(colour), "stroke-width": 2 });
    if (block.at) { const x = chart.x(block.at); chart.svg.append(node("line", { class: "target", x1: x, x2: x, y1: chart.top, y2: chart.height - chart.bottom })); }
    if (names) chart.labels(lines.map(({ name, line, colour }) => ({ y: line.reward[line.reward.length - 1], text: shorten(name, 24), colour: own(colour) })));
    figure.append(chart.svg);
    withTip(figure, chart, (compute, px, py) => curveTip(chart, shown, compute, px, py));
  }
  const scale = element("div", { className: "segments", role: "group", "aria-label": "Scale of compute" });
  choices(scale, [["log", "log"], ["linear", "linear"]], isLog ? "log" : "linear", (value) => { view.isLinear = value === "linear"; again(); });
  const note = block.note ? [element("p", { className: "caption" }, block.note.text)] : [];
  host.replaceChildren(element("div", { className: "controls" }, scale, several ? chipsOf(block.drawn, view, again) : null), figure, ...note);
}

function drawDots(chart, dots, fill) {
  const many = dots.compute.length > 120 || chart.width < 520;
  dots.compute.forEach((compute, i) => {
    const error = dots.error[i], reward = dots.reward[i], isFitted = dots.role[i] === "fitted";
    if (chart.xLog && !(compute > 0)) return;
    if (error !== null) chart.line([[compute, reward - error], [compute, reward + error]], { stroke: fill, "stroke-width": 1, opacity: .5 });
    chart.mark(compute, reward, dots.run[i], { r: many ? 2 : 3, ...(isFitted ? { fill, "fill-opacity": many ? .55 : .9 } : { fill: "var(--paper)", stroke: fill, "stroke-width": 1.3 }) });
  });
}

function chipsOf(drawn, view, again) {
  return element("div", { className: "chips", role: "group", "aria-label": "Curves to show" }, ...drawn.map(({ name, colour }) => {
    const chip = element("button", { type: "button", className: "chip", onclick: () => { if (!view.hidden.delete(name)) view.hidden.add(name); again(); } }, element("span", { className: "dot", style: `--own:${own(colour)}` }), name);
    chip.setAttribute("aria-pressed", String(!view.hidden.has(name)));
    return chip;
  }));
}

// The nearest point; away from points the lines at the nearest place of their grids.
function curveTip(chart, shown, compute, px, py) {
  let best = null;
  for (const { name, dots, colour } of shown) dots.compute.forEach((c, i) => {
    const gap = Math.hypot(chart.x(c) - px, chart.y(dots.reward[i]) - py);
    if (gap < 11 && (!best || gap < best.gap)) best = { gap, c, colour, reward: dots.reward[i], name: dots.runs[dots.run[i]] || name };
  });
  if (best) return [element("div", {}, computeText(best.c, 4)), tipRow(best.colour, shorten(best.name, 26), rewardText(best.reward, 4))];
  const rows = shown.filter((each) => each.line).slice(0, 10).map(({ name, line, colour }) => {
    const at = line.compute.reduce((least, c, i) => (Math.abs(chart.place(c) - chart.place(compute)) < Math.abs(chart.place(line.compute[least]) - chart.place(compute)) ? i : least), 0);
    return tipRow(colour, shorten(name, 20), rewardText(line.reward[at]) + (line.band ? ` [${rewardText(line.band[0][at])}, ${rewardText(line.band[1][at])}]` : ""));
  });
  return rows.length ? [element("div", {}, computeText(compute)), ...rows] : null;
}

// Lines over the steps ------------------------------------------------------------------------------------------------

function linesOf(block) {
  const place = element("div", {});
  place.dataset.chart = block.key;
  place.draw = (host, view) => drawLines(host, block.lines.filter(([name]) => !view.hidden.has(name)), block);
  return element("figure", {}, element("h3", {}, block.title), place);
}

function drawLines(host, lines, { title, limit = null, counted = "step" }) {
  if (!host.clientWidth) return;
  const { width } = sized(host, 176, 176);
  const sets = lines.map(([name, colour, steps, values]) => ({ name, colour, points: steps.map((x, at) => [x, values[at]]).filter(([x, y]) => isNumber(x) && isNumber(y)) })).filter((set) => set.points.length);
  if (!sets.length) return host.replaceChildren();
  const ys = sets.flatMap((set) => set.points.map(([, y]) => y)), [from, to] = span(sets.flatMap((set) => set.points.map(([x]) => x)));
  const top = Math.max(...ys), [low, high] = [Math.min(0, ...ys), Math.max(top, isNumber(limit) && top > 0.4 * limit ? limit * 1.1 : 0)];
  const chart = new Chart({ width, height: 176, xRange: [from, to > from ? to : from + 1], yRange: [low, high + 0.08 * (high - low) || 1], xLog: false, xLabel: counted, left: 44, yText: (value) => numberText(value), label: title });
  if (isNumber(limit) && limit < chart.yRange[1]) chart.line([[from, limit], [to, limit]], { class: "limit", "stroke-width": 1.3 });
  for (const { points, colour } of sets) chart.line(points, { stroke: own(colour), "stroke-width": 1.7 });
  const figure = element("div", { className: "frame" }, chart.svg);
  host.replaceChildren(figure);
  withTip(figure, chart, (x) => [element("div", {}, computeText(x, 4)), ...sets.slice(0, 12).map(({ name, colour, points }) => tipRow(colour, shorten(name, 26), numberText(points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a))[1])))]);
}
const numberText = (value) => (value < 0 ? `\u2212${computeText(-value)}` : computeText(value));

// Samples -------------------------------------------------------------------------------------------------------------

function samplesOf({ rows }) {
  return element("div", {}, ...rows.map((sample) => element("details", { className: "sample" }, element("summary", {}, ...sampleHead(sample)), ...sampleTexts(sample))));
}

function sampleHead(sample) {
  const part = (text, className = "") => (text === null || text === undefined || text === "" ? null : element("span", { className }, String(text)));
  return [part(sample.run), part(isNumber(sample.step) ? `step ${sample.step}` : null), part(sample.label, `verdict-${sample.verdict}`), part(sample.reward_text), part(sample.answer_text)];
}

// What was asked, what the model said, what its environment said, set apart, and the graders' words.
function sampleTexts(sample) {
  return sample.texts.filter(([, text]) => text).flatMap(([name, text, by]) => [element("h4", {}, name), element("pre", { tabIndex: text.length > 800 ? 0 : -1, className: by === "environment" ? "observed" : "" }, text)]);
}
