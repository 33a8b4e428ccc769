"use strict";
// Charts of the board, with the report's frame, axes and tooltips.

const byId = (id) => document.getElementById(id);
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

function nearest(points, gap) {
  let best = null;
  points.compute.forEach((c, i) => { const found = gap(c, i); if (!best || found < best.gap) best = { i, gap: found }; });
  return best;
}

// How the forecast moved: for each moment, what the points until then foretold, with the interval it gave itself.
function drawHistory(host, history, points, unit, hasEnd) {
  const { width, height } = sized(host, 240, 290);
  const rows = history.map((row) => ({ ...row, told: hasEnd ? row.end : row.ceiling })).filter((row) => row.told && isNumber(row.told.value) && row.compute > 0);
  if (rows.length < 2) return host.replaceChildren(element("p", { className: "sub" }, "The history begins with the second forecast."));
  const measured = points.compute.map((c, i) => [c, points.reward[i]]).filter(([c]) => c >= rows[0].compute * 0.999);
  const values = rows.map((row) => row.told.value), [low, high] = span(values.concat(measured.map(([, y]) => y))), room = 0.7 * (high - low) + 0.02;
  const hold = (y) => Math.min(Math.max(isNumber(y) ? y : 0, low - room), high + room);
  const chart = new Chart({ width, height, xRange: [rows[0].compute / 1.1, rows[rows.length - 1].compute * 1.1], yRange: padded(...span(values.concat([low, high], rows.flatMap((row) => [hold(row.told.low), hold(row.told.high)])))), xLog: true,
    xLabel: `${unit} when the forecast was made`, label: `History of ${rows.length} forecasts of ${hasEnd ? "the end of the budget" : "the ceiling"}: first ${rewardText(values[0])}, now ${rewardText(values[values.length - 1])}` });
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
