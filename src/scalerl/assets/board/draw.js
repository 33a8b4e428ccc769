"use strict";
// Charts of the board, with the report's frame, axes and tooltips.

const byId = (id) => document.getElementById(id);
const rangeText = (value) => (value && isNumber(value.low) ? `${rewardText(value.low)} to ${rewardText(value.high)}` : "");

// Buttons of which one is pressed; they stay the same while their texts do, so that focus stays where it is.
function choices(host, options, chosen, pick) {
  if (host.textContent !== options.map(([, text]) => text).join("")) host.replaceChildren(...options.map(([, text]) => element("button", { type: "button" }, text)));
  options.forEach(([value], i) => { host.children[i].onclick = () => pick(value); host.children[i].setAttribute("aria-pressed", String(value === chosen)); });
}

function padded(low, high, share = 0.06) {
  const pad = share * (high - low) || Math.abs(high) * 0.05 || 0.05;
  return [low - pad, high + pad];
}

function tableOf(heads, rows, className = "", sortBy = null) {
  const cell = (value, i) => {
    const made = element("td", { className: i && heads[i].n ? "n" : "" }, value instanceof Node ? value : String(value));
    made.dataset.head = heads[i].text;
    return made;
  };
  return element("div", { className: "scroll", tabIndex: 0 }, element("table", { className },
    element("thead", {}, element("tr", {}, ...heads.map((head, i) => element("th", { scope: "col", className: head.n ? "n" : "" }, sortBy ? element("button", { type: "button", className: "head-sort", onclick: () => sortBy(i) }, head.text) : head.text)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell))))));
}

// The curve: points, fitted line with its bands, and the forecast at the end of the budget.
function drawCurve(host, curve) {
  const { width, height, isPhone } = sized(host, 280, 400), { points, fit } = curve, line = fit && fit.line;
  const computes = points.compute.filter((c) => c > 0);
  if (!computes.length) return host.replaceChildren(element("p", { className: "sub" }, curve.problem || "No point to draw yet."));
  const [first, last] = span(computes), target = fit && fit.end_compute > last ? fit.end_compute : null;
  const reach = line ? Math.min(Math.max(last * 2, target ? target * 1.15 : 0), line.compute[line.compute.length - 1] * 1.0001) : last;
  const end = Math.max(reach, target && target < 40 * last ? target * 1.15 : 0, last * 1.1);
  const inside = line ? line.compute.map((c, i) => i).filter((i) => line.compute[i] <= end) : [];
  const tips = line ? inside.map((i) => line.reward[i]) : [], [low, high] = span(points.reward.concat(tips)), room = 0.5 * (high - low);
  // Bands are shown whole unless they are far wider than what they are about.
  const edges = [...(fit && fit.end ? [fit.end.low, fit.end.high] : []), ...(line && line.band ? inside.flatMap((i) => [line.band[0][i], line.band[1][i]]) : [])];
  const limits = edges.filter(isNumber).map((y) => Math.min(Math.max(y, low - room), high + room));
  const chart = new Chart({ width, height, xRange: [first / 1.08, end * 1.02], yRange: padded(...span([low, high, ...limits])), xLog: true, left: isPhone ? 38 : 46, right: 14,
    xLabel: curve.x_label, yLabel: curve.y_label, label: `${curve.y_label} against ${curve.x_label}: ${curve.num_points} points, the latest ${rewardText(points.reward[points.reward.length - 1])}${fit && fit.end ? `; forecast for the end ${rewardText(fit.end.value)}, ${rangeText(fit.end)}` : ""}` });
  for (const [band, opacity] of line && line.band ? [[line.new_band, 0.09], [line.band, 0.2]] : []) chart.bandOf(line, band, line.compute[0], end, { fill: "var(--c0)", "fill-opacity": opacity });
  const many = points.compute.length > 150 || isPhone;
  points.compute.forEach((c, i) => { if (c > 0) chart.mark(c, points.reward[i], points.run[i], { r: many ? 2 : 3.2, fill: "var(--c0)", "fill-opacity": many ? 0.6 : 0.9 }); });
  if (line) chart.lineOf(line, line.first, end, { stroke: "var(--c0)" });
  if (target && target <= end) {
    const x = chart.x(target);
    chart.svg.append(node("line", { class: "target", x1: x, x2: x, y1: chart.top, y2: chart.height - chart.bottom }));
    if (!isPhone) chart.svg.append(node("text", { x: x - 6, y: chart.top + 10, "text-anchor": "end" }, "end of the budget"));
    if (fit.end) {
      chart.line([[target, fit.end.low], [target, fit.end.high]], { stroke: "var(--c1)", "stroke-width": 3 });
      chart.mark(target, fit.end.value, 0, { r: 4.5, fill: "var(--raised)", stroke: "var(--c1)", "stroke-width": 2.4 });
    }
  }
  host.replaceChildren(chart.svg);
  withTip(host, chart, (compute, px, py) => {
    const near = nearest(points, (c, i) => Math.hypot(chart.x(c) - px, chart.y(points.reward[i]) - py));
    if (near && near.gap < 12) return [element("div", {}, `measured at ${computeText(points.compute[near.i], 4)} ${curve.x_label}`), tipRow(0, "reward", rewardText(points.reward[near.i], 4))];
    const at = line ? nearest({ compute: line.compute }, (c) => Math.abs(Math.log(c / compute))) : null;
    return at ? [element("div", {}, `curve at ${computeText(compute)} ${curve.x_label}`), tipRow(0, compute > line.last ? "forecast" : "fit", rewardText(line.reward[at.i])),
      ...(line.new_band ? [element("div", {}, `${rewardText(line.new_band[0][at.i])} to ${rewardText(line.new_band[1][at.i])} for a new evaluation`)] : [])] : null;
  });
}

function nearest(points, gap) {
  let best = null;
  points.compute.forEach((c, i) => { const found = gap(c, i); if (!best || found < best.gap) best = { i, gap: found }; });
  return best;
}

// How the forecast moved: for each moment, what the points until then foretold, with the interval it gave itself.
function drawHistory(host, curve, hasEnd) {
  const { width, height } = sized(host, 240, 290);
  const rows = curve.history.map((row) => ({ ...row, told: hasEnd ? row.end : row.ceiling })).filter((row) => row.told && isNumber(row.told.value) && row.compute > 0);
  if (rows.length < 2) return host.replaceChildren(element("p", { className: "sub" }, "The history begins with the second forecast."));
  const measured = curve.points.compute.map((c, i) => [c, curve.points.reward[i]]).filter(([c]) => c >= rows[0].compute * 0.999);
  const values = rows.map((row) => row.told.value), [low, high] = span(values.concat(measured.map(([, y]) => y))), room = 0.7 * (high - low) + 0.02;
  const hold = (y) => Math.min(Math.max(isNumber(y) ? y : 0, low - room), high + room);
  const chart = new Chart({ width, height, xRange: [rows[0].compute / 1.1, rows[rows.length - 1].compute * 1.1], yRange: padded(...span(values.concat([low, high], rows.flatMap((row) => [hold(row.told.low), hold(row.told.high)])))), xLog: true,
    xLabel: `${curve.x_label} when the forecast was made`, label: `History of ${rows.length} forecasts of ${hasEnd ? "the end of the budget" : "the ceiling"}: first ${rewardText(values[0])}, now ${rewardText(values[values.length - 1])}` });
  chart.band(rows.map((row) => [row.compute, hold(row.told.low), hold(row.told.high)]), { fill: "var(--c1)", "fill-opacity": 0.16 });
  for (const [c, y] of measured) chart.mark(c, y, 0, { r: 1.8, fill: "var(--c0)", "fill-opacity": 0.55 });
  chart.line(rows.map((row) => [row.compute, row.told.value]), { stroke: "var(--c1)", "stroke-width": 2.2 });
  for (const row of rows) chart.mark(row.compute, row.told.value, 0, { r: 3, fill: "var(--raised)", stroke: "var(--c1)", "stroke-width": 1.8 });
  host.replaceChildren(chart.svg);
  withTip(host, chart, (compute) => {
    const near = nearest({ compute: rows.map((row) => row.compute) }, (c) => Math.abs(Math.log(c / compute))), row = rows[near.i];
    return [element("div", {}, `after ${row.num} evaluations`), tipRow(1, hasEnd ? "forecast for the end" : "ceiling", rewardText(row.told.value)), element("div", {}, rangeText(row.told))];
  });
}

// A running mean that forgets: weight 0 leaves values as they are.
function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    sum = weight * sum + (1 - weight) * value; norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

const durationText = (s) => (s < 1 ? `${Number((1000 * s).toPrecision(2))} ms` : s < 90 ? `${Number(s.toPrecision(2))} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} days`);

// A bar in parts, and the same as words.
function stackOf(parts) {
  const total = parts.reduce((sum, part) => sum + part.seconds, 0);
  return [
    element("div", { className: "stack bars", "aria-hidden": "true" }, ...parts.map((part, i) => element("i", { style: `width:${100 * part.seconds / total}%;background:${own(i)}` }))),
    element("ul", { className: "key" }, ...parts.map((part, i) => element("li", {}, element("span", { className: "dot", style: `--own:${own(i)}` }), `${part.label} ${Math.round(100 * part.seconds / total)}% (${durationText(part.seconds)})`))),
  ];
}

// Names without the folders that all of them share.
function apart(names) {
  const parts = names.map((name) => name.split("/"));
  while (parts.length > 1 && parts.every((part) => part.length > 1 && part[0] === parts[0][0])) parts.forEach((part) => part.shift());
  return parts.map((part) => part.join("/"));
}

// Several curves in one frame: runs of the overview, arms of a study.
function drawTogether(host, items, xLabel) {
  const shown = items.filter((item) => item.points && item.points.compute.some((c) => c > 0));
  if (!shown.length) return host.replaceChildren(element("p", { className: "sub" }, "No evaluation yet."));
  const { width, height, isPhone } = sized(host, 290, 400), computes = shown.flatMap((item) => item.points.compute.filter((c) => c > 0));
  const [first, last] = span(computes), end = last * 2, few = shown.length <= 12, names = apart(shown.map((item) => item.name));
  const tips = shown.flatMap((item) => (item.line ? item.line.reward.filter((_, i) => item.line.compute[i] <= end) : []));
  const longest = isPhone || !few ? 0 : Math.min(Math.max(...names.map((name) => name.length)) * 7.2 + 14, 190);
  const chart = new Chart({ width, height, xRange: [first / 1.08, end], yRange: padded(...span(shown.flatMap((item) => item.points.reward).concat(tips))), xLog: true, right: Math.max(longest, 14), left: isPhone ? 38 : 46, xLabel, label: `${shown.length} curves over ${xLabel}` });
  for (const item of shown) item.points.compute.forEach((c, i) => { if (c > 0) chart.mark(c, item.points.reward[i], 0, { r: few ? 2.4 : 1.6, fill: own(item.colour), "fill-opacity": 0.55 }); });
  const labels = [];
  for (const [place, item] of shown.entries()) {
    const { line } = item, stroke = own(item.colour);
    if (line) chart.lineOf(line, line.compute[0], end, { stroke, "stroke-width": 2 });
    labels.push({ y: line ? between(line.compute, line.reward, end) : item.points.reward[item.points.reward.length - 1], text: shorten(names[place], 24), colour: stroke });
  }
  if (longest) chart.labels(labels);
  host.replaceChildren(chart.svg);
  withTip(host, chart, (compute, px, py) => {
    let best = null;
    for (const item of shown) { const near = nearest(item.points, (c, i) => Math.hypot(chart.x(c) - px, chart.y(item.points.reward[i]) - py)); if (near && near.gap < 14 && (!best || near.gap < best.near.gap)) best = { item, near }; }
    return best ? [element("div", {}, `at ${computeText(best.item.points.compute[best.near.i])} ${xLabel}`), tipRow(best.item.colour, shorten(best.item.name, 26), rewardText(best.item.points.reward[best.near.i], 4))] : null;
  });
}
