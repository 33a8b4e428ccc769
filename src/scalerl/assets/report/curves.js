"use strict";
// The closed forms, evaluated; nothing is fitted here. What each function gives is what scalerl.curves gives.

const RISING = { sigmoid: true, exponential: true, power: false, "log-linear": false };

// The part of the way from start to ceiling (rising forms), or of the shortfall that is left.
function shapeAt(form, compute, exponent, midpoint, scale) {
  if (form === "sigmoid") return 1 / (1 + Math.pow(midpoint / compute, exponent));
  if (form === "exponential") return 1 - Math.pow(2, -compute / midpoint);
  return Math.pow(compute / scale, -exponent);
}

function curveAt(form, compute, p, scale) {
  const shape = shapeAt(form, compute, p.exponent, p.midpoint, scale);
  return RISING[form] ? p.start + (p.ceiling - p.start) * shape : p.ceiling - p.shortfall * shape;
}

// Between the neighbours of a compute on a grid, in the logarithm of compute.
function between(line, key, compute) {
  const at = line.compute, found = at.findIndex((c) => c >= compute), after = found < 0 ? at.length - 1 : Math.max(found, 1);
  const part = Math.min(Math.max(Math.log(compute / at[after - 1]) / Math.log(at[after] / at[after - 1]), 0), 1);
  return (1 - part) * line[key][after - 1] + part * line[key][after];
}

// The curve of a fit: its closed form, or where several forms are averaged their median on a grid.
function valueAt(curve, compute) {
  return curve.line ? between(curve.line, "value", compute) : curveAt(curve.form, compute, curve.params, curve.last);
}

// numpy's quantile, linear between neighbours; sorts in place.
function quantiles(values, level) {
  values.sort((a, b) => a - b);
  return [0.5 - level / 2, 0.5 + level / 2].map((share) => {
    const place = share * (values.length - 1), below = Math.floor(place), above = Math.min(below + 1, values.length - 1);
    return values[below] + (values[above] - values[below]) * (place - below);
  });
}

function drawAt(curve, i) {
  const d = curve.draws;
  return {
    ceiling: d.ceiling[i], start: d.start && d.start[i], shortfall: d.shortfall && d.shortfall[i],
    exponent: d.exponent && d.exponent[i], midpoint: d.midpoint && d.midpoint[i],
  };
}

// Where the recipe's own curve lies.
function curveInterval(report, curve, compute) {
  if (curve.line) return [between(curve.line, "low", compute), between(curve.line, "high", compute)];
  const values = curve.draws.ceiling.map((_, i) => curveAt(curve.form, compute, drawAt(curve, i), curve.last));
  return quantiles(values, report.level);
}

// The curve, and where one new evaluation should fall: as far off it as told at the computes on either side.
function forecastAt(curve, compute) {
  const rows = curve.expected, value = valueAt(curve, compute);
  const found = rows.findIndex((row) => row.compute >= compute), after = found < 0 ? rows.length - 1 : Math.max(found, 1), [a, b] = [rows[after - 1], rows[after]];
  const part = Math.log(compute / a.compute) / Math.log(b.compute / a.compute);
  const [least, most] = curve.bounds, hold = (end) => Math.min(Math.max(end, least), most);
  const off = (end) => (1 - part) * (a[end] - a.value) + part * (b[end] - b.value);
  return { value, low: hold(value + off("low")), high: hold(value + off("high")) };
}

// Numbers ------------------------------------------------------------------------------------------------------------

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

function rewardText(value, digits = 3) {
  return value === null || value === undefined || !isFinite(value) ? "\u2013" : value.toFixed(digits).replace("-", "\u2212");
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
