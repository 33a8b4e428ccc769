"""The legends of a figure drawn by matplotlib: the signs it uses, and the names of its curves."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scalerl.report.drawing.style import GREY, WARNING, colour, cut, legend_text, marker
from scalerl.report.figures import MOST_BANDS, FigureData

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
MOST_NAMED = 60  # curves in the legend


class Legends:
    """The key of signs and the names of the curves, below the panels; their height is known before they are drawn."""

    def __init__(self, data: FigureData, width: float) -> None:
        self.data, self.width = data, width
        self.named = data.curves[:MOST_NAMED]
        self.size = 8.0 if len(self.named) <= MOST_BANDS else 7.2
        self.texts = [legend_text(curve) for curve in self.named]
        self.key = _key(data)
        self.columns = self._columns(self.texts, 4)
        self.key_columns = self._columns([text for _, text in self.key], 9)
        # In inches: a row takes 1.35 times the font's size.
        self.row = 1.35 * self.size / 72
        self.key_height = self.row * -(-len(self.key) // self.key_columns) + 0.12
        self.height = self.key_height + self.row * (1 + -(-len(self.texts) // self.columns)) + 0.2

    def _columns(self, texts: Sequence[str], most: int) -> int:
        """Return how many entries fit side by side: a letter is half the font size wide, a marker half an inch."""
        for columns in range(min(most, len(texts)), 1, -1):
            longest = [max(map(len, part)) for part in np.array_split(texts, columns)]
            if sum(0.5 * num * self.size / 72 + 0.5 for num in longest) < self.width - 0.4:
                return columns
        return 1

    def draw(self, figure: Any) -> None:
        look = {"loc": "upper left", "fontsize": self.size, "frameon": False, "borderaxespad": 0.0, "labelspacing": 0.3,
                "alignment": "left", "columnspacing": 1.5, "borderpad": 0.0}  # fmt: skip
        left = 0.35 / self.width
        figure.legend(*zip(*self.key, strict=True), ncols=self.key_columns, bbox_to_anchor=(left, 1.0), **look)
        data, more = self.data, len(self.data.curves) - len(self.named)
        handles = [
            handle(colour(place), "-", marker(MARKERS, place, 0) if curve.dots else "")
            for place, curve in enumerate(self.named)
        ]
        title = f"ceiling [{100 * data.level:g}% interval], verdict" + (
            f"; {more} more have no name here" if more else ""
        )
        names = figure.legend(
            handles, self.texts, ncols=self.columns, bbox_to_anchor=(left, 1 - self.key_height / self.height),
            title=title, title_fontsize=self.size, **look,
        )  # fmt: skip
        for curve, text in zip(self.named, names.get_texts(), strict=True):
            text.set_color("black" if curve.is_ok else WARNING)


def handle(shade: str, line: Any, sign: str, **more: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=shade, linestyle=line, marker=sign, markersize=4.6, linewidth=1.6, **more)


def _key(data: FigureData) -> list[tuple[Any, str]]:
    """Return the signs that this figure uses."""
    from matplotlib.patches import Patch

    roles = {dots.role for curve in data.curves for dots in curve.dots}
    runs = dict(
        sorted({dots.run: dots.run_label for curve in data.curves for dots in curve.dots if dots.run_label}.items())
    )
    level = f"{100 * data.level:g}%"
    key = [(handle(GREY, "", "o"), "fitted")] if "fitted" in roles or not roles else []
    if runs and len(data.curves) == 1:
        key = [(handle(GREY, "", marker(MARKERS, 0, run)), cut(label, 30)) for run, label in runs.items()]
    elif runs:
        key.append((handle(GREY, "", "s"), "another run of the same curve"))
    if any(dots.error is not None for curve in data.curves for dots in curve.dots):
        key.append((handle(GREY, "", "|"), "mean of a bin, with its standard error"))
    if "left out" in roles:
        key.append((handle(GREY, "", "o", alpha=0.3), "left out of the fit"))
    if any(curve.peak for curve in data.curves):
        key.append((handle(GREY, "", "v"), "peak"))
    if "held out" in roles:
        key.append((handle(GREY, "", "o", markerfacecolor="white"), "held out"))
    lines = [curve.line for curve in data.curves if curve.line is not None]
    if any(not within for line in lines for within, _ in line.pieces):
        key.append((handle(GREY, (0, (3, 1.5)), ""), "outside what was fitted"))
    if any(curve.line is not None and curve.line.band is not None for curve in data.curves):
        key.append((Patch(color=GREY, alpha=0.35, linewidth=0), f"{level} of the curve"))
        key.append((Patch(color=GREY, alpha=0.13, linewidth=0), f"{level} of a new evaluation"))
    if any(curve.marks for curve in data.curves):
        key.append((handle(GREY, "", "*"), "asked for"))
    if data.crossings and len(data.curves) <= MOST_BANDS:
        key.append((handle("black", "", "x"), "curves cross"))
    return key
