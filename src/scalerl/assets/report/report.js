"use strict";
// A report: what is chosen, and everything drawn anew when a choice changes. The offline page and the live one show it so.

// What was asked, what the model said, what its environment said, set apart, and the graders' words.
function sampleTexts(sample) {
  const said = sample.conversation ? sample.conversation.map(({ by, text }) => [by === "model" ? "Model" : "Environment", text]) : [["Answer", sample.completion]];
  return [["Prompt", sample.prompt], ...said, ...Object.entries(sample.words)].filter(([, text]) => text).flatMap(([name, text]) =>
    [element("h4", {}, name), element("pre", { tabIndex: text.length > 800 ? 0 : -1, className: name === "Environment" ? "observed" : "" }, text)]);
}
const ADVICE = {
  too_early: "Too early to tell", falling: "Falling since its peak: take the checkpoint from there", flat: "No rise seen so far", levelled_off: "Levelled off: another doubling hardly pays",
  rising: "Still rising: more compute pays", unclear: "Whether more compute pays is not clear yet",
};
// Draw a report into a copy of report.html; `before` is what a reader had chosen of an earlier version of it, `end` the
// end of a budget, and `drawn` is called whenever a choice has changed.
function showReport(report, host, { before = null, end = null, drawn: after = () => {} } = {}) {
const $ = (id) => host.querySelector(`#${id}`);
const state = {
  set: report.sets[0].name, axis: report.axes[0].key, window: report.window, target: null, hidden: new Set(), moved: false,
};
const REACH = 4;

const theSet = () => report.sets.find((one) => one.name === state.set);
const theView = (window = state.window) => report.views.find((v) => v.set === state.set && v.axis === state.axis && v.window === window);
const thePoints = (name) => theSet().points[state.axis][name];
const axisLabel = () => report.axes.find((axis) => axis.key === state.axis).label;
const colourOf = (name) => theSet().curves.findIndex((curve) => curve.name === name);
const labelOf = (name) => (theSet().curves.find((curve) => curve.name === name) || { label: name }).label;
const isShown = (curve) => !state.hidden.has(labelOf(curve.name));
const isHeldOut = (points, i) => state.window === "held-out" && (points.held_out || []).includes(i);
const isDrawn = (curve) => curve.line !== null && isShown(curve);

function dataRange() {
  const found = Object.values(theSet().points[state.axis]).flatMap((points) => points.compute).filter((c) => c > 0);
  return span(found);
}
const targetRange = () => { const [low, high] = dataRange(); return [Math.max(low, high / 20), high * 16]; };

// Words and tables ---------------------------------------------------------------------------------------------------

function who(name, badge, more = null) {
  const own_ = element("span", { className: "who" }, element("span", { className: "dot", style: `--own:${own(colourOf(name))}` }), labelOf(name));
  return element("td", {}, own_, badge ? element("div", {}, badge) : null, more);
}
function badge(curve) {
  return element("span", { className: `badge ${curve.is_known ? "ok" : curve.line ? "warn" : "bad"}` }, curve.is_known ? "ceiling known" : curve.verdict_text);
}
function numberCell(value, text) {
  if (!value || value.value === null) return element("td", { className: "n" }, "\u2013");
  const range = value.low === null || value.low === value.high ? null : element("small", {}, rangeText(value, text));
  return element("td", { className: "n" }, text(value.value), range);
}
function table(heads, rows) {
  const head = element("tr", {}, ...heads.map(([text, n]) => element("th", { className: n ? "n" : "", scope: "col" }, text)));
  return element("div", { className: "scroll", tabIndex: 0 }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}
const plain = (text, n = false) => element("td", { className: n ? "n" : "" }, text);
const share = (value) => value === null || value === undefined ? "\u2013" : value > 0.995 ? ">0.99" : value < 0.005 ? "<0.01" : value.toFixed(2);
const signed = (value, digits = null) => (value < 0 ? "" : "+") + rewardText(value, digits);
const ratioText = (value) => `${Number(value.toPrecision(value < 10 ? 2 : 3))}\u00d7`;

// A pair as seen from its first curve, turned round where it was made the other way.
function pairWith(view, a, b) {
  const found = view.pairs.find((pair) => (pair.a === a && pair.b === b) || (pair.a === b && pair.b === a));
  if (!found || found.a === a) return found || null;
  const turn = (p) => (p === null ? null : 1 - p), over = (value) => (value === null ? 0 : value ? 1 / value : null);
  const inverse = (ratio) => ({ value: over(ratio.value), low: over(ratio.high), high: over(ratio.low) });
  return { ...found, p_higher_ceiling: turn(found.p_higher_ceiling), p_larger_exponent: turn(found.p_larger_exponent),
    target: found.target && { ...found.target, compute_ratio: inverse(found.target.compute_ratio) } };
}
function ratioCell(pair) {
  const cell = numberCell(pair && pair.target && pair.target.compute_ratio, ratioText);
  if (pair && pair.target) cell.append(element("small", {}, `for ${rewardText(pair.target.reward)}`));
  return cell;
}
function verdictCell(pair, text) {
  const decide = pair && pair.to_decide ? element("small", {}, pair.to_decide) : null;
  return element("td", { className: `verdict${!pair || pair.winner === null ? " none" : ""}` }, text, decide);
}

function drawResults() {
  const view = theView(), reference = theSet().reference, hasShared = view.shared_ceiling !== null, several = view.curves.length > 1;
  const two = (value) => rewardText(value, 2), compute = (value) => computeText(value);
  const order = [...view.curves].sort((a, b) => (b.ceiling ? b.ceiling.value : -1) - (a.ceiling ? a.ceiling.value : -1));
  const rows = order.map((curve) => {
    const pair = curve.name === reference ? null : pairWith(view, curve.name, reference);
    const verdict = curve.name === reference ? "reference" : pair ? pair.text : "\u2013";
    const row = element("tr", { className: isShown(curve) ? "" : "off" },
      who(curve.name, badge(curve), several ? element("div", { className: "on-phone" }, verdict) : null), numberCell(curve.ceiling, rewardText), numberCell(curve.exponent, two), numberCell(curve.midpoint, compute),
      hasShared ? numberCell(view.shared_exponents[curve.name], two) : null,
      ...(several ? [plain(share(pair && pair.p_higher_ceiling), true), ratioCell(pair), verdictCell(pair, verdict)] : []));
    row.title = curve.text;
    return row;
  });
  const heads = [["curve"], ["ceiling A", 1], ["exponent B", 1], [`C_mid, ${axisLabel()}`, 1], ...(hasShared ? [[`B at A = ${rewardText(view.shared_ceiling)}`, 1]] : []),
    ...(several ? [["P(higher A)", 1], ["compute ratio", 1], [`against ${shorten(labelOf(reference), 28)}`]] : [])];
  $("results").replaceChildren(table(heads, rows));
  const held = `Intervals hold ${Math.round(100 * report.level)}%.`;
  $("results-note").textContent = !several ? held : view.compared
    ? `${held} Probabilities and the compute for a reward are those of the row's curve against ${labelOf(reference)}.`
    : "With this many curves verdicts are given only in the view that is shown first.";
  const pairs = view.pairs.map((pair) => element("tr", {}, plain(labelOf(pair.a)), plain(labelOf(pair.b)), plain(share(pair.p_higher_ceiling), true), numberCell(pair.ceiling_difference, signed), ratioCell(pair),
    plain(share(pair.p_larger_exponent), true), verdictCell(pair, pair.text), plain(pair.crossing === null ? "\u2013" : computeText(pair.crossing), true)));
  $("pairs").hidden = !pairs.length;
  if (pairs.length) $("pairs-table").replaceChildren(table([["a"], ["b"], ["P(a higher A)", 1], ["A of a less b", 1], ["compute of a / b", 1], ["P(a larger B)", 1], ["verdict"], ["curves cross at", 1]], pairs));
}

// One curve in four numbers.
function drawTiles() {
  const { curves } = theView(), [curve] = curves, tile = (what, value, range) => element("div", { className: "tile" }, element("p", { className: "what" }, what), element("div", { className: "value" }, value), element("div", { className: "range" }, range));
  $("tiles").hidden = curves.length !== 1;
  if (curves.length !== 1) return;
  const points = thePoints(curve.name), { ceiling, doubling } = curve, told = curve.line ? forecastAt(curve, state.target) : null;
  $("tiles").replaceChildren(
    tile(`Reward now (${points.num_points} evaluations)`, rewardText(points.reward.length ? points.reward[points.reward.length - 1] : null), curve.start ? `${rewardText(curve.start.value)} before training` : ""),
    tile(state.target === end ? "Forecast for the end" : `Forecast at ${computeText(state.target)} ${axisLabel()}`, told ? rewardText(told.value) : "\u2013", told ? rangeText(told) : "no forecast yet"),
    tile("Ceiling", curve.is_known && ceiling ? rewardText(ceiling.value) : "\u2013", [rangeText(ceiling), curve.is_known ? "" : curve.verdict_text].filter(Boolean).join("; ")),
    tile("One more doubling brings", doubling ? signed(doubling.value) : "\u2013", rangeText(doubling, signed) || ADVICE[curve.advice]));
}

function drawForecast() {
  const view = theView(), box = $("forecast");
  const drawn = view.curves.filter(isDrawn).map((curve) => ({ curve, ...forecastAt(curve, state.target) })).sort((a, b) => b.value - a.value);
  const items = drawn.map(({ curve, value, low, high }) => element("li", {},
    element("div", { className: "who" }, element("span", { className: "dot", style: `--own:${own(colourOf(curve.name))}` }), element("span", { title: labelOf(curve.name) }, labelOf(curve.name)), element("span", { className: "value" }, rewardText(value))),
    element("div", { className: "range" }, element("span", {}, `${rewardText(low)} to ${rewardText(high)}`), element("span", {}, state.target > curve.line.last ? `${computeText(state.target / curve.line.last, 2)}\u00d7 what was fitted` : "within what was fitted"))));
  items.forEach((item, i) => { item.dataset.curve = labelOf(drawn[i].curve.name); });
  box.replaceChildren(element("h3", {}, `Forecast at ${computeText(state.target)} ${axisLabel()}`),
    element("ol", {}, ...items), element("p", { className: "note" }, items.length ? `A new evaluation there should fall in the range with ${Math.round(100 * report.level)}% probability.` : "No curve to forecast from."));
}

function drawScores() {
  const early = report.windows.filter((window) => window.key !== "all");
  const groups = early.map((window) => ({ window, scored: (theView(window.key)?.curves ?? []).filter((curve) => curve.holdout) })).filter(({ scored }) => scored.length);
  $("scores-section").hidden = !groups.length;
  const row = (curve) => element("tr", { className: isShown(curve) ? "" : "off" }, who(curve.name), plain(curve.holdout.num_points, true), plain(errorText(curve.holdout.rmse), true),
    plain(errorText(curve.holdout.bias, "+"), true), plain(curve.holdout.coverage === null ? "\u2013" : `${Math.round(100 * curve.holdout.coverage)}%`, true));
  const rows = groups.flatMap(({ window, scored }) => [element("tr", {}, element("th", { colSpan: 5, className: "group", scope: "rowgroup" }, `Fitted on: ${window.label}`)), ...scored.map(row)]);
  $("scores").replaceChildren(table([["curve"], ["points", 1], ["RMSE", 1], ["bias", 1], [`inside ${Math.round(100 * report.level)}%`, 1]], rows));
}

// Charts -------------------------------------------------------------------------------------------------------------

function widthOf(id) { return Math.max($(id).clientWidth, 300); }

function drawCurves() {
  const view = theView(), shown = view.curves.filter(isShown), drawn = view.curves.filter(isDrawn);
  const [first, last] = dataRange(), end = Math.max(REACH * last, state.target * 1.15);
  const width = widthOf("curves"), isPhone = width < 520;
  const measured = shown.flatMap((curve) => thePoints(curve.name).reward), told = drawn.map((curve) => forecastAt(curve, state.target));
  const [low, high] = rewardRange(measured, drawn, told, end), pad = 0.05 * (high - low) || 0.05;
  const longest = isPhone ? 0 : Math.min(Math.max(0, ...drawn.map((curve) => labelOf(curve.name).length)) * 7.2 + 14, 190);
  const chart = new Chart({ width, height: isPhone ? 300 : 440, xRange: [first / 1.08, end], yRange: [low - pad, high + pad], xLog: true, right: Math.max(longest, 12), left: isPhone ? 38 : 46,
    xLabel: axisLabel(), yLabel: report.y_label.replaceAll("_", " "), label: `Reward against ${axisLabel()}, ${shown.length} curves` });
  for (const curve of drawn.length <= 12 ? drawn : []) chart.bandOf(curve.line, curve.line.band, first, end, { fill: own(colourOf(curve.name)), "fill-opacity": "var(--band)" });
  for (const curve of shown) drawDots(chart, curve);
  for (const curve of drawn) chart.lineOf(curve.line, first, end, { stroke: own(colourOf(curve.name)) });
  const x = chart.x(state.target);
  chart.svg.append(node("line", { class: "target", x1: x, x2: x, y1: chart.top, y2: chart.height - chart.bottom }));
  drawn.forEach((curve, i) => {
    // Side by side, since intervals at one compute would cover each other.
    const beside = chart.computeAt(x + 7 * (i - (drawn.length - 1) / 2)), { value, low: least, high: most } = told[i], stroke = own(colourOf(curve.name));
    if (drawn.length <= 8) chart.line([[beside, least], [beside, most]], { stroke, "stroke-width": 2.4, opacity: .85 });
    chart.mark(drawn.length <= 8 ? beside : state.target, value, 0, { r: 3.6, fill: "var(--raised)", stroke, "stroke-width": 2 });
  });
  if (!isPhone) chart.labels(drawn.slice(0, 24).map((curve) => ({ y: valueAt(curve, end), text: shorten(labelOf(curve.name), 24), colour: own(colourOf(curve.name)) })));
  $("curves").replaceChildren(chart.svg);
  drawResiduals(chart.xRange, chart.right);
  withTip($("curves"), chart, (compute, px, py) => curveTip(chart, shown, drawn, compute, px, py), setTarget);
}
// Room for the points, the lines, and intervals that do not dwarf them.
function rewardRange(measured, drawn, told, end) {
  const lines = drawn.map((curve) => valueAt(curve, end)), all = measured.concat(lines);
  if (!all.length) return [0, 1];
  const [low, high] = span(all), room = 0.25 * (high - low);
  const ends = told.flatMap(({ low: least, high: most }) => [Math.max(least, low - room), Math.min(most, high + room)]);
  return span(all.concat(ends));
}

const isFitted = (curve, points, i) => curve.line !== null && points.compute[i] <= curve.line.last * (1 + 1e-5) && points.compute[i] >= curve.line.first * (1 - 1e-5) && !isHeldOut(points, i);
const dotStyle = (fill, fitted, many) => (fitted ? { fill, "fill-opacity": many ? .55 : .9 } : { fill: "var(--paper)", stroke: fill, "stroke-width": 1.3 });

function drawDots(chart, curve) {
  const points = thePoints(curve.name), fill = own(colourOf(curve.name)), many = points.compute.length > 120 || chart.width < 520;
  points.compute.forEach((compute, i) => {
    const error = points.error ? points.error[i] : null, reward = points.reward[i];
    if (error !== null) chart.line([[compute, reward - error], [compute, reward + error]], { stroke: fill, "stroke-width": 1, opacity: .5 });
    chart.mark(compute, reward, points.run[i], { r: many ? 2 : 3, ...dotStyle(fill, isFitted(curve, points, i), many) });
  });
}

// Residuals: what a curve leaves of its points.
function drawResiduals(xRange, right) {
  const drawn = theView().curves.filter(isDrawn), width = widthOf("residuals"), isPhone = width < 520;
  $("residuals-part").hidden = !drawn.length;
  if (!drawn.length) return $("residuals").replaceChildren();
  const sets = drawn.map((curve) => {
    const points = thePoints(curve.name);
    return { curve, points, left: points.compute.map((c, i) => points.reward[i] - valueAt(curve, c)) };
  });
  const sizes = sets.flatMap(({ curve, points, left }) => left.filter((_, i) => isFitted(curve, points, i)).map(Math.abs)).sort((a, b) => a - b);
  const limit = 1.25 * (sizes[Math.floor(.99 * (sizes.length - 1))] || 0.01), hold = (value) => Math.min(Math.max(value, -.96 * limit), .96 * limit);
  const chart = new Chart({ width, height: isPhone ? 150 : 180, xRange, yRange: [-limit, limit], xLog: true, right, left: isPhone ? 38 : 46, xLabel: axisLabel(), yLabel: "residual", label: "Residuals" });
  chart.line([[xRange[0], 0], [xRange[1], 0]], { stroke: "var(--faint)", "stroke-width": 1 });
  for (const { curve, points, left } of sets) {
    const fill = own(colourOf(curve.name)), many = drawn.length > 3 || points.compute.length > 120 || isPhone;
    left.forEach((value, i) => chart.mark(points.compute[i], hold(value), points.run[i], { r: many ? 1.8 : 2.6, ...dotStyle(fill, isFitted(curve, points, i), many) }));
  }
  $("residuals").replaceChildren(chart.svg);
}

function curveTip(chart, shown, drawn, compute, px, py) {
  let best = null;
  for (const curve of shown) {
    const points = thePoints(curve.name);
    points.compute.forEach((c, i) => {
      const gap = Math.hypot(chart.x(c) - px, chart.y(points.reward[i]) - py);
      if (gap < 11 && (!best || gap < best.gap)) best = { gap, curve, c, reward: points.reward[i], run: points.runs[points.run[i]] };
    });
  }
  const rows = [element("div", { className: "row" }, element("span", {}, best ? `measured at ${computeText(best.c, 4)}` : `curves at ${computeText(compute)} ${axisLabel()}`))];
  if (best) rows.push(tipRow(colourOf(best.curve.name), best.run || labelOf(best.curve.name), rewardText(best.reward, 4)));
  else for (const curve of drawn.slice(0, 10)) {
    const [low, high] = curveInterval(curve, compute);
    rows.push(tipRow(colourOf(curve.name), shorten(labelOf(curve.name), 18), `${rewardText(valueAt(curve, compute))} [${rewardText(low)}, ${rewardText(high)}]`));
  }
  return rows;
}

// log F against log C at the shared ceiling: a straight line of slope B where the sigmoid holds.
function drawStraight() {
  const view = theView(), names = Object.keys(view.straight).filter((name) => !state.hidden.has(labelOf(name)));
  $("straight-section").hidden = Object.keys(view.straight).length < 2;
  if (!names.length) return $("straight").replaceChildren();
  const sets = names.map((name) => {
    const p = view.straight[name], points = thePoints(name);
    const dots = points.compute.map((c, i) => [c, points.reward[i], points.run[i]]).filter(([c, r], i) => c >= p.first * .999 && c <= p.last * 1.001 && r > p.start && r < p.ceiling && !isHeldOut(points, i))
      .map(([c, r, run]) => [c, (p.exponent * Math.log(p.midpoint) - Math.log((p.ceiling - p.start) / (r - p.start) - 1)) / Math.LN10, run]);
    return { name, p, dots, ends: [p.first, p.last].map((c) => [c, p.exponent * Math.log10(c)]) };
  });
  const heights = sets.flatMap(({ dots, ends }) => [...dots, ...ends].map(([, y]) => y)).sort((a, b) => a - b);
  const cut = (share_) => heights[Math.round(share_ * (heights.length - 1))], lows = sets.flatMap(({ ends }) => ends.map(([, y]) => y));
  const low = Math.min(cut(.02), ...lows), high = Math.max(cut(.98), ...lows), pad = .06 * (high - low);
  const width = widthOf("straight"), [first, last] = span(sets.flatMap(({ p }) => [p.first, p.last]));
  const chart = new Chart({ width, height: width < 520 ? 280 : 330, xRange: [first / 1.06, last * 1.06], yRange: [low - pad, high + pad], xLog: true, xLabel: axisLabel(), yLabel: "log\u2081\u2080 F", right: width < 520 ? 12 : 170,
    yText: (value, digits) => rewardText(value, Math.min(digits, 2)), label: "Linearised comparison" });
  for (const { name, dots, ends } of sets) {
    for (const [c, y, run] of dots) chart.mark(c, y, run, { r: 2.6, fill: own(colourOf(name)), "fill-opacity": .6 });
    chart.line(ends, { stroke: own(colourOf(name)), "stroke-width": 2.2 });
  }
  if (width >= 520) chart.labels(sets.map(({ name, p, ends }) => ({ y: ends[1][1], text: `${shorten(labelOf(name), 15)}  B ${rewardText(p.exponent, 2)}`, colour: own(colourOf(name)) })));
  $("straight").replaceChildren(chart.svg);
  $("straight-note").textContent = `Refitted with one ceiling of ${rewardText(view.shared_ceiling)}. F = C_mid^B / ((A \u2212 R\u2080)/(R \u2212 R\u2080) \u2212 1) equals C^B on the curve, so the slope is the exponent: the steeper, the more efficient. Curves whose ceiling is lower or unsure are not here.`;
}

function drawSignals() {
  const arms = theSet().curves.map((curve) => curve.label), runs = report.runs.filter((run) => !state.hidden.has(run.arm)), kinds = new Map();
  for (const run of runs) for (const line of run.signals.lines) {
    if (!kinds.has(line.key)) kinds.set(line.key, { line, sets: [] });
    kinds.get(line.key).sets.push({ label: run.name, steps: run.signals.step, values: line.values, colour: Math.max(arms.indexOf(run.arm), 0) });
  }
  if (!$("signals-section")) return drawRuns(host, runs, axisLabel()); // a live page has its own
  const drawn = [...kinds.values()].map(({ line, sets }) => ({ line, sets, host: element("figure", {}, element("h3", {}, line.label), element("div", {})) }));
  $("signals").replaceChildren(...drawn.map(({ host }) => host));
  for (const { line, sets, host } of drawn) drawLines(host.lastChild, sets, `${line.label} over the steps`, { limit: line.limit });
  drawRuns(host, runs, axisLabel());
}

// Choices ------------------------------------------------------------------------------------------------------------

function press() {
  choices($("set"), report.sets.map((one) => [one.name, one.name || "evaluation"]), state.set, (value) => choose("set", value));
  choices($("axis"), report.axes.map((axis) => [axis.key, axis.label]), state.axis, (value) => choose("axis", value));
  choices($("window"), report.windows.map((window) => [window.key, window.label]), state.window, (value) => choose("window", value));
  // Of many curves, other windows are fitted on the first axis only.
  report.windows.forEach((window, i) => { $("window").children[i].disabled = !theView(window.key); });
}
function choose(key, value) {
  if (state[key] === value) return;
  if (key === "axis") {
    // The same multiple of the data on the new axis.
    const times = state.target / dataRange()[1];
    state.axis = value;
    state.target = times * dataRange()[1];
  } else state[key] = value;
  if (!theView()) state.window = report.window;
  if (key === "set") { drawWords(); drawChips(); state.target = 2 * dataRange()[1]; }
  drawAll();
}
function setTarget(compute) {
  const [low, high] = targetRange();
  state.target = Math.min(Math.max(compute, low), high);
  state.moved = true;
  drawTarget(); drawTiles(); drawForecast(); drawCurves();
}
function drawTarget() {
  const [low, high] = targetRange(), slider = $("target");
  slider.value = 1000 * Math.log(state.target / low) / Math.log(high / low);
  const text = `${computeText(state.target)} ${axisLabel()}`;
  $("target-text").textContent = `${text} \u00b7 ${computeText(state.target / dataRange()[1], 2)}\u00d7 the data`;
  slider.setAttribute("aria-valuetext", text);
  const set = report.sets.length > 1 ? `Evaluation set: ${state.set}. ` : "", fitted = report.windows.find((window) => window.key === state.window).label;
  $("shown").textContent = `${set}Compute in ${axisLabel()}, fitted on: ${fitted}, forecasts at ${$("target-text").textContent}.`;
}
function drawChips() {
  $("chips").replaceChildren(...theSet().curves.map((curve, i) => {
    const chip = element("button", { type: "button", className: "chip" }, element("span", { className: "dot", style: `--own:${own(i)}` }), curve.label);
    chip.setAttribute("aria-pressed", String(!state.hidden.has(curve.label)));
    chip.dataset.curve = curve.label;
    chip.onclick = () => {
      if (!state.hidden.delete(curve.label)) state.hidden.add(curve.label);
      chip.setAttribute("aria-pressed", String(!state.hidden.has(curve.label)));
      drawAll();
    };
    return chip;
  }));
}
function drawWords() {
  const [first, ...rest] = report.summary[state.set];
  $("summary").replaceChildren(element("b", {}, first), ` ${rest.join(" ")}`);
  const open = report.open[state.set];
  $("open").closest("section").hidden = !open.length;
  $("open").replaceChildren(...open.map((text) => element("li", {}, text)));
}
function drawAll() {
  $("several-runs").hidden = !Object.values(theSet().points[state.axis]).some((points) => points.runs.length > 1);
  $("in-bins").hidden = !Object.values(theSet().points[state.axis]).some((points) => points.error);
  press(); drawTarget(); drawTiles(); drawCurves(); drawForecast(); drawResults(); drawStraight(); drawScores();
  drawSignals(); after();
}

// What is the same in every view ---------------------------------------------------------------------------------------

function drawFacts() {
  const counted = (num, word) => `${num} ${word}${num === 1 ? "" : "s"}`;
  $("title").textContent = report.title;
  $("meta").textContent = [report.description, counted(report.sets[0].curves.length, "curve"), report.runs.length ? counted(report.runs.length, "run") : "", `${report.form} fits`].filter(Boolean).join(" \u00b7 ");
  $("warnings").hidden = !report.warnings.length;
  $("warnings").lastElementChild.replaceChildren(...report.warnings.map((text) => element("li", {}, text)));
  $("notes").replaceChildren(...report.notes.map((text) => element("p", { className: "note" }, text)));
  $("level").textContent = `${Math.round(100 * report.level)}%`;
  $("formula").textContent = `${report.formula}.`;
  if ($("signals-section")) { // a live page has its own
    const samples = report.samples || [];
    $("signals-section").hidden = !report.runs.some((run) => run.signals.lines.length);
    $("samples-section").hidden = !samples.length;
    $("samples").replaceChildren(...samples.map(sampleCard));
  }
  $("tables").replaceChildren(...report.tables.map((each) => {
    const isNumber = (at) => at >= each.heads.length - each.numbers;
    const rows = each.rows.map((row) => element("tr", {}, ...row.map((cell, at) => plain(at && !isNumber(at) && ["differences", "environment"].includes(each.key) ? element("code", {}, cell) : cell, isNumber(at)))));
    const drawn = each.key === "decisions" ? timeline() : null;
    return element("section", { id: `table-${each.key}` }, element("h2", {}, each.title), drawn, table(each.heads.map((head, at) => [head, isNumber(at)]), rows));
  }));
}
function sampleCard(sample) {
  const verdict = { correct: "correct", wrong: "wrong", none: "no verdict" }[sample.verdict];
  const expected = sample.answer === undefined ? "" : `, expected ${shorten(sample.answer, 60)}`, cut = sample.cut ? `, ${computeText(sample.cut)} characters left out` : "";
  return element("details", { className: "sample" }, element("summary", {}, `${sample.run}, step ${sample.step === null ? "?" : sample.step}: ${verdict}${expected}${cut}`),
    ...sampleTexts(sample));
}
// One bar for each arm, divided where it was paused; parts show the numbers of the decisions.
function timeline() {
  const rows = report.decisions.filter((row) => row.arm), arms = [...new Set(rows.map((row) => row.arm))], reached = new Map(arms.map((arm) => [arm, 0]));
  const svg = node("svg", { viewBox: `0 0 670 ${22 * arms.length}`, role: "img", "aria-label": "which arm got which part of its budget" });
  arms.forEach((arm, at) => svg.append(node("text", { x: 0, y: 22 * at + 13 }, shorten(arm, 20))));
  for (const row of rows) {
    const left = 140 + 520 * reached.get(row.arm), y = 22 * arms.indexOf(row.arm);
    svg.append(node("rect", { x: left, y, width: Math.max(520 * (row.until - reached.get(row.arm)) - 1, 1), height: 18, fill: "var(--c0)", opacity: .35 }), node("text", { x: left + 3, y: y + 13 }, String(row.decision)));
    reached.set(row.arm, row.until);
  }
  return svg;
}

$("set-control").hidden = report.sets.length < 2;
$("axis-control").hidden = report.axes.length < 2;
$("window-control").hidden = report.windows.length < 2;
state.target = end && end > dataRange()[0] ? end : 2 * dataRange()[1];
if (before) {
  state.hidden = before.hidden;
  if (before.moved) Object.assign(state, { target: before.target, moved: true });
  if (report.sets.some((one) => one.name === before.set)) state.set = before.set;
  if (theView(before.window)) state.window = before.window;
}
$("target").oninput = (event) => {
  const [low, high] = targetRange();
  setTarget(low * Math.pow(high / low, event.target.value / 1000));
};
drawFacts(); drawWords(); drawChips(); drawAll();
return { state, drawAll, theSet, theView, pairWith };
}
