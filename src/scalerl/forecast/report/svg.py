"""Charts of the page as SVG, from the same values as the pictures of `picture.py`."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scalerl.forecast.curves.forms import Array
from scalerl.forecast.logs.written import amount_text
from scalerl.forecast.report.document import Curves, Lines, Range, Stroke
from scalerl.forecast.report.figures import compute_ticks, even_ticks
from scalerl.forecast.report.markup import Markup, tag
from scalerl.forecast.report.wording import number_text

NUM_COLOURS = 12
LEFT = 52
RIGHT = 12
TOP = 24
BOTTOM = 40
WIDE = (820, 400)
SMALL = (400, 190)
"""Width and height of a chart of curves, and of one of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The frame of a chart: where data lies on it."""

    size: tuple[int, int]
    limits: tuple[Range, Range]
    is_log: bool = True

    def x(self, values: ArrayLike) -> Array:
        low, high = self.limits[0]
        places = np.asarray(values)
        if self.is_log:
            low = math.log(low)
            high = math.log(high)
            places = np.log(places)
        return LEFT + (places - low) / (high - low) * (self.size[0] - LEFT - RIGHT)

    def y(self, values: ArrayLike) -> Array:
        low, high = self.limits[1]
        share = (np.asarray(values) - low) / (high - low)
        return self.size[1] - BOTTOM - share * (self.size[1] - TOP - BOTTOM)

    def path(self, x: Array, y: Array, *inside: Markup, **given: object) -> Markup:
        """Return the line through points."""
        places = [f"{at:.1f} {height:.1f}" for at, height in zip(self.x(x), self.y(y), strict=True)]
        line = None
        if places:
            line = f"M{'L'.join(places)}"
        return tag("path", *inside, d=line, **given)

    def drawn(self, label: str, x_label: str, y_label: str, *inside: Markup) -> Markup:
        """Return the chart: its axes, and what is drawn inside them."""
        width, height = self.size
        right = width - RIGHT
        floor = height - BOTTOM
        x_limits, y_limits = self.limits
        if self.is_log:
            x_ticks = compute_ticks(*x_limits)
        else:
            x_ticks = even_ticks(*x_limits, most=5)
        y_ticks = even_ticks(*y_limits, most=height // 48)
        axes = [tag("path", class_="axis", d=f"M{LEFT} {floor}H{right}")]
        for at, tick in zip(self.x(x_ticks), x_ticks, strict=True):
            axes.append(tag("path", class_="axis", d=f"M{at:.1f} {floor}v5"))
            axes.append(_text(amount_text(tick), at, floor + 18, "middle"))
        for at, tick in zip(self.y(y_ticks), y_ticks, strict=True):
            axes.append(tag("path", class_="grid", d=f"M{LEFT} {at:.1f}H{right}"))
            axes.append(_text(amount_text(tick), LEFT - 8, at + 4, "end"))
        axes.append(_text(x_label, right, height - 4, "end"))
        axes.append(_text(y_label, 0, 12))
        # What is drawn is clipped at the axes: an svg within the svg shows nothing beyond its own view.
        across = right - LEFT
        down = floor - TOP
        view = f"{LEFT} {TOP} {across} {down}"
        clipped = tag("svg", *inside, x=LEFT, y=TOP, width=across, height=down, viewBox=view)
        return tag("svg", *axes, clipped, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def _text(text: str, x: float, y: float, anchor: str = "start") -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def colour_class(colour: int) -> str:
    return f"c{colour % NUM_COLOURS}"


def curves_svg(block: Curves) -> Markup:
    """Return the chart with the names of its curves."""
    frame = Frame(size=WIDE, limits=block.limits)
    inside: list[Markup] = []
    for each in block.drawn:
        inside.append(tag("g", *_curve(frame, each.strokes), class_=f"curve {colour_class(each.colour)}"))
    if block.at is not None:
        inside.append(tag("path", class_="target", d=f"M{frame.x(block.at):.1f} {TOP}V{WIDE[1] - BOTTOM}"))
    parts = [frame.drawn(block.key, block.x_label, block.y_label.replace("_", " "), *inside)]
    parts += _legend((each.name, each.colour) for each in block.drawn)
    if block.note is not None:
        parts.append(tag("figcaption", block.note.text))
    return tag("figure", *parts, data_key=block.key, class_="curves")


def _legend(names: Iterable[tuple[str, int]]) -> list[Markup]:
    """Return the names of lines with their colours; nothing for a single one."""
    chips: list[Markup] = []
    for name, colour in names:
        dot = tag("span", class_="dot")
        chips.append(tag("span", dot, name, class_=f"chip {colour_class(colour)}"))
    if len(chips) > 1:
        return [tag("div", *chips, class_="chips")]
    return []


def _curve(frame: Frame, strokes: Iterable[Stroke]) -> Iterator[Markup]:
    for stroke in strokes:
        if stroke.shape == "points":
            yield from _points(frame, stroke)
        else:
            yield frame.path(stroke.compute, stroke.reward, class_=stroke.kind)


def _points(frame: Frame, stroke: Stroke) -> Iterator[Markup]:
    """Yield the points with their numbers, which show under the pointer."""
    places = zip(frame.x(stroke.compute), frame.y(stroke.reward), stroke.compute, stroke.reward, strict=True)
    for x, y, compute, reward in places:
        tip = tag("title", f"{stroke.name}, {amount_text(compute)}: {number_text(reward)}")
        if stroke.kind in SIGNS:
            yield tag("path", tip, d=f"M{x:.1f} {y:.1f}{SIGNS[stroke.kind]}", class_=stroke.kind)
        else:
            yield tag("circle", tip, cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, class_=stroke.kind)


SIGNS = {
    "mark": "m0 -7l7 7l-7 7l-7 -7z",
    "level": "m-4 0h8",
    "above": "m0 1l5 8h-10z",
    "below": "m0 -1l5 -8h-10z",
}
"""Signs that are no circles, drawn from their place: a diamond, a dash, and arrows that point beyond the axis."""


def lines_svg(block: Lines) -> Markup:
    """Return the small chart of a column, a line for each run."""
    lines: list[tuple[str, int, Array, Array]] = []
    for name, colour, steps, values in block.lines:
        x = np.array(steps, dtype=float)
        y = np.array(values, dtype=float)
        is_known = np.isfinite(x) & np.isfinite(y)
        lines.append((name, colour, x[is_known], y[is_known]))
    every_x = np.concatenate([x for _, _, x, _ in lines])
    every_y = np.concatenate([y for _, _, _, y in lines])
    if not len(every_x):
        return Markup()
    x_limits = (every_x.min(), max(every_x.max(), every_x.min() + 1))
    low = min(float(every_y.min()), 0.0)
    high = max(float(every_y.max()), 0.0)
    limit = block.limit
    if limit is not None and high > 0.4 * limit:
        high = max(high, 1.1 * limit)
    high = high + 0.08 * (high - low) or 1.0
    frame = Frame(size=SMALL, limits=(x_limits, (low, high)), is_log=False)
    inside: list[Markup] = []
    for name, colour, x, y in lines:
        inside.append(frame.path(x, y, tag("title", name), class_=f"line {colour_class(colour)}"))
    if limit is not None and limit < high:
        inside.append(frame.path(np.array(x_limits), np.full(2, limit), class_="limit"))
    parts = [tag("h3", block.title), frame.drawn(block.title, block.counted, "", *inside)]
    if block.has_legend:
        parts += _legend((name, colour) for name, colour, *_ in lines)
    return tag("figure", *parts, data_key=block.key, class_="lines")
