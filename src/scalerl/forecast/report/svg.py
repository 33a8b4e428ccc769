"""Charts of the page as SVG, from the same values as the pictures of `picture.py`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scalerl.forecast.curves.forms import Array
from scalerl.forecast.logs.written import amount_text
from scalerl.forecast.report.document import Curves, Drawn, Lines, Stroke
from scalerl.forecast.report.figures import Range, compute_ticks, even_ticks, limits_of, strokes
from scalerl.forecast.report.markup import Markup, tag
from scalerl.forecast.report.numbers import number_text

NUM_COLOURS = 12
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 24, 40
WIDE, SMALL = (820, 400), (400, 190)
"""Width and height of a chart of curves, and of one of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The frame of a chart: where data lies on it."""

    size: tuple[int, int]
    limits: tuple[Range, Range]
    is_log: bool = True

    def x(self, values: ArrayLike) -> Array:
        low, high, places = (np.log(each) if self.is_log else np.asarray(each) for each in (*self.limits[0], values))
        return LEFT + (places - low) / (high - low) * (self.size[0] - LEFT - RIGHT)

    def y(self, values: ArrayLike) -> Array:
        low, high = self.limits[1]
        return self.size[1] - BOTTOM - (np.asarray(values) - low) / (high - low) * (self.size[1] - TOP - BOTTOM)

    def path(self, x: Array, y: Array, *inside: Markup, **given: object) -> Markup:
        """Return the line through points."""
        places = [f"{at:.1f} {height:.1f}" for at, height in zip(self.x(x), self.y(y), strict=True)]
        return tag("path", *inside, d=f"M{'L'.join(places)}" if places else None, **given)

    def drawn(self, label: str, x_label: str, y_label: str, *inside: Markup) -> Markup:
        """Return the chart: its axes, and what is drawn inside them."""
        (width, height), right, floor = self.size, self.size[0] - RIGHT, self.size[1] - BOTTOM
        x_limits, y_limits = self.limits
        x_ticks = compute_ticks(*x_limits) if self.is_log else even_ticks(*x_limits, most=5)
        y_ticks = even_ticks(*y_limits, most=height // 48)
        axes = [tag("path", class_="axis", d=f"M{LEFT} {floor}H{right}")]
        for at, tick in zip(self.x(x_ticks), x_ticks, strict=True):
            axes.append(tag("path", class_="axis", d=f"M{at:.1f} {floor}v5"))
            axes.append(_text(amount_text(tick), at, floor + 18, "middle"))
        for at, tick in zip(self.y(y_ticks), y_ticks, strict=True):
            axes.append(tag("path", class_="grid", d=f"M{LEFT} {at:.1f}H{right}"))
            axes.append(_text(amount_text(tick), LEFT - 8, at + 4, "end"))
        axes += [_text(x_label, right, height - 4, "end"), _text(y_label, 0, 12)]
        size = (right - LEFT, floor - TOP)
        clipped = tag("svg", *inside, x=LEFT, y=TOP, width=size[0], height=size[1],
                      viewBox=f"{LEFT} {TOP} {size[0]} {size[1]}")  # fmt: skip
        return tag("svg", *axes, clipped, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def _text(text: str, x: float, y: float, anchor: str = "start") -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def colour_class(colour: int) -> str:
    return f"c{colour % NUM_COLOURS}"


def curves_svg(block: Curves) -> Markup:
    """Return the chart with the names of its curves."""
    frame = Frame(size=WIDE, limits=limits_of(block))
    inside = [tag("g", *_curve(frame, each), class_=f"curve {colour_class(each.colour)}") for each in block.drawn]
    if block.at is not None:
        inside.append(tag("path", class_="target", d=f"M{frame.x(block.at):.1f} {TOP}V{WIDE[1] - BOTTOM}"))
    chart = frame.drawn(block.key, block.x_label, block.y_label.replace("_", " "), *inside)
    note = [] if block.note is None else [tag("figcaption", block.note.text)]
    return tag("figure", chart, *_legend((each.name, each.colour) for each in block.drawn), *note,
               data_key=block.key, class_="curves")  # fmt: skip


def _legend(names: Iterable[tuple[str, int]]) -> list[Markup]:
    """Return the names of lines with their colours; nothing for a single one."""
    chips = [tag("span", tag("span", class_="dot"), name, class_=f"chip {colour_class(colour)}")
             for name, colour in names]  # fmt: skip
    return [tag("div", *chips, class_="chips")] if len(chips) > 1 else []


def _curve(frame: Frame, each: Drawn) -> Iterator[Markup]:
    for stroke in strokes(each, frame.limits[1]):
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
    lines = []
    for name, colour, *columns in block.lines:
        both = np.array(columns, dtype=float)
        lines.append((name, colour, *both[:, np.isfinite(both).all(axis=0)]))
    xs, ys = (np.concatenate([line[place] for line in lines]) for place in (2, 3))
    if not len(xs):
        return Markup()
    low, top, limit = min(float(ys.min()), 0.0), max(float(ys.max()), 0.0), block.limit
    if limit is not None and top > 0.4 * limit:
        top = max(top, 1.1 * limit)
    x_limits, y_limits = (xs.min(), max(xs.max(), xs.min() + 1)), (low, top + 0.08 * (top - low) or 1.0)
    frame = Frame(size=SMALL, limits=(x_limits, y_limits), is_log=False)
    inside = [
        frame.path(x, y, tag("title", name), class_=f"line {colour_class(colour)}") for name, colour, x, y in lines
    ]
    if limit is not None and limit < y_limits[1]:
        inside.append(frame.path(np.array(x_limits), np.full(2, limit), class_="limit"))
    legend = _legend((name, colour) for name, colour, *_ in lines) if block.has_legend else []
    return tag("figure", tag("h3", block.title), frame.drawn(block.title, block.counted, "", *inside), *legend,
               data_key=block.key, class_="lines")  # fmt: skip
