"use strict";
// The curves on their grids, and how numbers are written; nothing is fitted here.

// Between the neighbours of a compute on a grid, in the logarithm of compute.
function between(computes, values, compute) {
  const found = computes.findIndex((c) => c >= compute), after = found < 0 ? computes.length - 1 : Math.max(found, 1);
  const part = Math.min(Math.max(Math.log(compute / computes[after - 1]) / Math.log(computes[after] / computes[after - 1]), 0), 1);
  return (1 - part) * values[after - 1] + part * values[after];
}
const onGrid = (line, from, to) => [from, ...line.compute.filter((c) => c > from && c < to), to];
const valueAt = (curve, compute) => between(curve.line.compute, curve.line.reward, compute);

// Where the recipe's own curve lies.
const curveInterval = (curve, compute) => curve.line.band.map((ends) => between(curve.line.compute, ends, compute));

// The curve, and where one new evaluation should fall.
function forecastAt(curve, compute) {
  const [low, high] = curve.line.new_band.map((ends) => between(curve.line.compute, ends, compute));
  return { value: valueAt(curve, compute), low, high };
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

// Three decimals, or as many fewer as there are digits: 0.612, 64.2, 1234.
function rewardText(value, digits = null) {
  if (value === null || value === undefined || !isFinite(value)) return "\u2013";
  const usual = 3 - Math.max(0, Math.ceil(Math.log10(Math.abs(value) || 1)));
  return value.toFixed(digits === null ? Math.max(0, usual) : digits).replace("-", "\u2212");
}

// An interval: "0.59 to 0.63", "more than 299" where it has no end.
function rangeText(value, text = rewardText) {
  if (!value || !isNumber(value.low)) return "";
  return isNumber(value.high) ? `${text(value.low)} to ${text(value.high)}` : `more than ${text(value.low)}`;
}

// An error or a difference: 0.0123, +1.23.
const errorText = (value, plus = "") => (value === null ? "\u2013" : `${value < 0 ? "\u2212" : plus}${computeText(Math.abs(value))}`);

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
