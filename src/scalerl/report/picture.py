"""Draw results with matplotlib, as .png or .svg, from the panels of `panels.py`.

A comparison is drawn as in arXiv 2510.13786: curves, the ladder of recipes, and their efficiency. Any other result has
its residuals below the curves.
"""

import math
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.atomic_files import new_file
from scalerl.curves import Comparison
from scalerl.errors import InputError, StoreError
from scalerl.report.document import Curves
from scalerl.report.figures import FOLDERS, WORDS, chart, short_names, straight_chart
from scalerl.report.numbers import fixed, interval_text, short_compute_text, two_decimals
from scalerl.report.panels import (
    GREY,
    colour,
    curve_panel,
    explain_params,
    ladder_panels,
    marker,
    residual_panel,
    straight_panel,
)
from scalerl.report.results import CurveResult, Result, param_value

SUFFIXES = (".png", ".svg")
DPI = 160
MOST_NAMED = 60  # curves in the legend
LEGEND = {"loc": "outside lower left", "frameon": False, "alignment": "left", "fontsize": 7.5, "title_fontsize": 7.5}
ROLES = {"left out": "faint points are left out of the fit", "held out": "hollow points are held out"}
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a name may hold dollars
    "svg.hashsalt": "scalerl",  # the same figure is the same file
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
}


def check_plot_path(path: Path) -> None:
    """Refuse, before any fit, a figure that could not be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {path} ends in {path.suffix or 'nothing'!r}: choose one of {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}.")
    _check_installed()


def _check_installed() -> None:
    try:
        import_module("matplotlib")
    except ModuleNotFoundError:
        raise InputError('--plot needs the report extra: pip install "scalerl[report]".') from None


def draw(result: Result, path: Path, *, evaluation_set: str | None = None, title: str = "") -> None:
    """Write the picture of a result; the suffix of `path` chooses the kind."""
    data = picture_of(result, evaluation_set, title)
    write_figure(path, lambda: _figure(data))


def picture(result: Result) -> Any:
    """Return the picture of a result as a figure, to show in a notebook."""
    _check_installed()
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return _figure(picture_of(result))


def write_figure(path: Path, make: Callable[[], Any]) -> None:
    """Write the figure that `make` returns; the file appears completely or not at all."""
    path = Path(path)
    check_plot_path(path)
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Names may be in any script; what the font lacks shows as boxes and is not worth a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = make()
        try:
            with new_file(path) as unfinished:
                _save(figure, unfinished, path.suffix.lower().removeprefix("."))
        except StoreError as error:
            raise InputError(f"{error}.") from None


def _save(figure: Any, path: Path, kind: str) -> None:
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(path, format=kind, dpi=DPI, facecolor="white", metadata=metadata)


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


# What is drawn --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is drawn: a chart, its title, what the legend says of each curve, and what stands beside or below."""

    title: str
    curves: tuple[CurveResult, ...]
    chart: Curves
    labels: tuple[str, ...]
    """Short names of the curves."""
    legend: tuple[str, ...]
    comparison: Comparison | None
    """Of a comparison that has an order: drawn beside the curves. Without one, residuals are drawn below them."""

    @property
    def residuals(self) -> list[np.ndarray]:
        pairs = zip(self.curves, self.chart.drawn, strict=True)
        return [each.dots.reward - (curve.fit.predict(each.dots.compute) if curve.usable else np.nan)
                for curve, each in pairs]  # fmt: skip


def picture_of(result: Result, evaluation_set: str | None = None, title: str = "") -> Picture:
    """Return what the picture of a result shows, or of one of its evaluation sets."""
    curves = result.curves if evaluation_set is None else tuple(result.members(evaluation_set))
    compared = result.comparisons.get(curves[0].evaluation_set)
    comparison = compared if isinstance(compared, Comparison) else None
    ranked = comparison if result.command == "compare" and comparison is not None and comparison.standings else None
    drawn = chart(curves, "picture", at=None if comparison is None else comparison.at, num=120)
    shared, labels = short_names([curve.name for curve in curves], FOLDERS if ranked is None else WORDS)
    standings = [each for own in result.comparisons.values() if isinstance(own, Comparison) for each in own.standings]
    p_best = {each.name: each.p_best for each in standings}
    usual = shared or (labels[0] if len(labels) == 1 else f"{drawn.y_label} of {len(labels)} curves")
    return Picture(
        title=title or usual,
        curves=curves,
        chart=drawn,
        labels=tuple(labels),
        legend=tuple(legend_text(curve, label, p_best.get(curve.name))
                     for curve, label in zip(curves, labels, strict=True)),
        comparison=ranked,
    )  # fmt: skip


def legend_text(curve: CurveResult, label: str, p_best: float | None = None) -> str:
    """Return the name, P(best), the parameters with the ceiling's interval or the peak, and the state."""
    fall, show = curve.fall, fixed(curve.decimals)
    parts = [cut(label, 60)]
    parts += [] if p_best is None else [f"P(best) {p_best:.2f}"]
    if fall is not None:
        parts.append(f"peak {show(fall.peak)} at {short_compute_text(fall.last_good)}")
    elif curve.ceiling is not None:
        exponent, midpoint = (param_value(curve.fit, name) for name in ("exponent", "midpoint"))
        parts.append(f"A {interval_text(curve.ceiling, show)}")
        parts += [] if exponent is None else [f"B {two_decimals(exponent.value)}"]
        parts += [] if midpoint is None else [f"C_mid {short_compute_text(float(f'{midpoint.value:.3g}'))}"]
    return "  ".join([*parts, "" if curve.state is None else str(curve.state)]).rstrip()


def cut(text: str, most: int) -> str:
    """Return a long name without its middle: names mostly differ at the ends."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[-(most // 2 - 2) :]}"


# Figures --------------------------------------------------------------------------------------------------------------


def _figure(data: Picture) -> Any:
    from matplotlib.lines import Line2D

    chart, ranked, names = data.chart, data.comparison, data.legend[:MOST_NAMED]
    columns = 1 if len(names) < 4 or max(map(len, names)) > (60 if ranked is None else 90) else 2
    height = 5.6 if ranked is None else max(4.6, 2.2 + 0.24 * len(ranked.standings))
    figure = new_figure(7.8 if ranked is None else 11.5, height + 0.16 * (2 + math.ceil(len(names) / columns)))
    if ranked is None:
        main, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
        curve_panel(main, chart)
        residual_panel(below, chart, data.residuals)
        main.set_xlabel("")
    else:
        main = _compared(figure, data, ranked)
    main.set_title(textwrap.fill(data.title, 76), fontsize=11, fontweight="bold")
    handles = [Line2D([], [], color=colour(each.colour), marker=marker(each.colour) if len(each.dots.reward) else "",
                      markersize=4.6, linewidth=1.6) for each in chart.drawn[:MOST_NAMED]]  # fmt: skip
    figure.legend(handles, names, ncols=columns, title=_legend_title(data), **LEGEND)
    return figure


def _compared(figure: Any, data: Picture, comparison: Comparison) -> Any:
    """Draw the panels of the paper; return that of the curves."""
    grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1.0))
    main, names, unit = figure.add_subplot(grid[:, 0]), [curve.name for curve in data.curves], data.chart.x_label
    curve_panel(main, data.chart)
    place = names.index(comparison.standings[0].name)
    explain_params(main, data.curves[place].fit, colour(place))
    colours, shared = {name: place for place, name in enumerate(names)}, comparison.shared_ceiling
    shades = {name: colour(place) for name, place in colours.items()}
    labels = dict(zip(names, data.labels, strict=True))
    # Without a shared ceiling there are no efficiencies to compare, and the ladder has the whole side.
    ladder_panels(figure, grid[:, 1] if shared is None else grid[0, 1], comparison, labels, shades, unit)
    if shared is not None:
        straight = straight_chart(comparison.shared_fits, colours, unit, shared)
        straight_panel(figure.add_subplot(grid[1, 1]), straight, shared)
    return main


def _legend_title(data: Picture) -> str:
    level, more = f"{100 * data.curves[0].fit.level:g}%", len(data.legend) - MOST_NAMED
    parts = [f"A [{level} interval] how high, B how fast, C_mid when"]
    parts.append(f"bands: {level} of the curve, and of a new evaluation")
    roles = {role for each in data.chart.drawn for role in each.dots.role}
    parts += [text for role, text in ROLES.items() if role in roles]
    return "; ".join([*parts, *([f"{more} more have no name here"] if more > 0 else [])])
