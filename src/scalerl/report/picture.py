"""Draw results with matplotlib, as .png or .svg: rewards, and below them residuals over the same compute."""

import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.atomic_files import new_file
from scalerl.curves import Comparison
from scalerl.errors import InputError, StoreError
from scalerl.report.document import Curves, Drawn
from scalerl.report.figures import MOST_BANDS, chart, short_names
from scalerl.report.numbers import fixed, interval_text, short_compute_text
from scalerl.report.paper_figures import Shown, figure
from scalerl.report.results import CurveResult, Result

# Okabe and Ito's colours without the yellow that white swallows, then Paul Tol's muted ones.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#661100", "#555555",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
WARNING, GREY = "#B00020", "#666666"
SUFFIXES = (".png", ".svg")
DPI = 160
MOST_NAMED = 60  # curves in the legend
MOST_RIMMED = 100  # points of one run that stand apart with a white rim; the rims of more would hide the curve
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What is drawn: a chart, its title, and what the legend says of each curve."""

    title: str
    chart: Curves
    legend: tuple[str, ...]
    residuals: tuple[np.ndarray, ...]
    level: float

    @property
    def x_range(self) -> tuple[float, float]:
        parts = [each.line.compute for each in self.chart.drawn if each.line is not None]
        places = np.concatenate([[], *parts, *(each.dots.compute for each in self.chart.drawn)])
        low, high = (places.min(), places.max()) if len(places) else (1.0, 10.0)
        pad = max(high / low, 1.5) ** 0.025
        return float(low / pad), float(high * pad)

    @property
    def y_range(self) -> tuple[float, float]:
        """The range of rewards to show: all points, and curves unless far above; no bands."""
        points = np.concatenate([[], *(each.dots.reward for each in self.chart.drawn)])
        low, top = (float(points.min()), float(points.max())) if len(points) else (0.0, 1.0)
        span = max(top - low, 0.02 * abs(top), 1e-9)
        tips = [float(each.line.reward[-1]) for each in self.chart.drawn if each.line is not None]
        high = max(tip for tip in (top, *tips) if tip <= top + 1.5 * span)
        pad = 0.05 * (high - low) if high > low else span
        return low - pad, high + pad

    def left(self, role: str) -> np.ndarray:
        """Return the residuals of the points with a role."""
        pairs = zip(self.residuals, self.chart.drawn, strict=True)
        found = np.concatenate([[], *(left[each.dots.role == role] for left, each in pairs)])
        return found[np.isfinite(found)]


def figure_of(result: Result, evaluation_set: str | None = None, title: str = "") -> Figure:
    """Return what the picture of a result shows, or of one of its evaluation sets."""
    curves = list(result.curves) if evaluation_set is None else result.members(evaluation_set)
    comparison = result.comparison(curves[0].evaluation_set)
    at = comparison.at if isinstance(comparison, Comparison) and not comparison.is_default_budget else None
    drawn = chart(curves, "picture", at=at, num=120)
    prefix, labels = short_names([curve.name for curve in curves])
    p_best = {}
    for each in result.comparisons.values():
        p_best |= {row.name: row.p_best for row in each.standings} if isinstance(each, Comparison) else {}
    usual = prefix or (labels[0] if len(labels) == 1 else f"{drawn.y_label} of {len(labels)} curves")
    return Figure(
        title=title or usual,
        chart=drawn,
        legend=tuple(legend_text(curve, label, p_best.get(curve.name))
                     for curve, label in zip(curves, labels, strict=True)),
        residuals=tuple(each.dots.reward - (curve.fit.predict(each.dots.compute) if curve.usable else np.nan)
                        for curve, each in zip(curves, drawn.drawn, strict=True)),
        level=curves[0].fit.level,
    )  # fmt: skip


def picture(result: Result) -> Any:
    """Return the figure of a result, to show in a notebook."""
    _check_installed()
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return _figure(figure_of(result))


def draw(result: Result, path: Path, *, evaluation_set: str | None = None, title: str = "") -> None:
    """Write the figure of a result; the suffix of `path` chooses the kind."""
    curves = list(result.curves) if evaluation_set is None else result.members(evaluation_set)
    comparison = result.comparison(curves[0].evaluation_set)
    if result.command == "compare" and isinstance(comparison, Comparison):
        write_figure(path, lambda: paper_figure(curves, comparison, title))
    else:
        data = figure_of(result, evaluation_set, title)
        write_figure(path, lambda: _figure(data))


def paper_figure(curves: Sequence[CurveResult], comparison: Comparison, title: str) -> Any:
    """Return the pictures of the paper for these curves."""
    shown = [
        Shown(name=curve.name, fit=curve.fit, held_out=(curve.series.holdout_compute, curve.series.holdout_reward))
        for curve in curves
    ]
    return figure(shown, comparison, x_label=curves[0].unit, y_label=curves[0].y, title=title)


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


def _figure(data: Figure) -> Any:
    named = data.chart.drawn[:MOST_NAMED]
    names = list(data.legend[:MOST_NAMED])
    columns = 1 if len(names) < 4 or max(map(len, names)) > 60 else 2
    figure = new_figure(7.8, 5.6 + 0.16 * (2 + math.ceil(len(names) / columns)))
    main, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
    _main_panel(main, data)
    _residual_panel(below, data)
    handles = [_handle(colour(place), marker(place, 0) if len(each.dots.reward) else "")
               for place, each in enumerate(named)]  # fmt: skip
    more = len(data.chart.drawn) - len(names)
    figure.legend(
        handles, names, loc="outside lower left", ncols=columns, fontsize=7.5, frameon=False, alignment="left",
        title=_legend_title(data) + (f"; {more} more have no name here" if more else ""), title_fontsize=7.5,
    )  # fmt: skip
    return figure


def _legend_title(data: Figure) -> str:
    level = f"{100 * data.level:g}%"
    parts = [f"ceiling [{level} interval], state", f"bands: {level} of the curve, and of a new evaluation"]
    roles = {role for each in data.chart.drawn for role in each.dots.role}
    signs = {"left out": "faint points are left out of the fit", "held out": "hollow points are held out"}
    return "; ".join([*parts, *(text for role, text in signs.items() if role in roles)])


def _main_panel(axes: Any, data: Figure) -> None:
    compute_axis(axes, *data.x_range)
    axes.set_ylim(*data.y_range)
    axes.set_ylabel(data.chart.y_label)
    axes.set_title(textwrap.fill(data.title, 76), fontsize=11, fontweight="bold")
    drawn = data.chart.drawn
    few = len(drawn) <= MOST_BANDS
    if len(drawn) == 1 and drawn[0].line is not None:
        axes.axvspan(drawn[0].line.last, data.x_range[1], color="black", alpha=0.035, linewidth=0)
    if data.chart.at is not None:
        axes.axvline(data.chart.at, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    for place, each in enumerate(drawn):
        _draw_line(axes, each, colour(place), few)
        _draw_points(axes, place, each, each.dots.reward, few)
        if each.marks:
            where = zip(*each.marks, strict=True)
            axes.plot(*where, linestyle="", marker="*", color=colour(place), markersize=9, markeredgecolor="white",
                      markeredgewidth=0.6, zorder=6)  # fmt: skip


def _draw_line(axes: Any, each: Drawn, shade: str, few: bool) -> None:
    line = each.line
    if line is None:
        return
    if line.band is not None and line.new_band is not None:
        axes.fill_between(line.compute, *line.new_band, color=shade, alpha=0.07, linewidth=0)
        axes.fill_between(line.compute, *line.band, color=shade, alpha=0.17, linewidth=0)
    before, after = line.compute <= line.first, line.compute >= line.last
    within = (line.compute >= line.first) & (line.compute <= line.last)
    for mask, style in ((before, (0, (4, 2.2))), (within, "-"), (after, (0, (4, 2.2)))):
        axes.plot(
            line.compute[mask], line.reward[mask], color=shade, linestyle=style, linewidth=1.7 if few else 1.1,
            alpha=1.0 if mask is within else 0.8, zorder=4,
        )  # fmt: skip


def _draw_points(axes: Any, place: int, each: Drawn, at: Any, few: bool, size: float = 4.6) -> None:
    """Draw the points of a curve at these heights, runs by their signs and roles by their looks."""
    points, shade = each.dots, colour(place)
    size *= 1.0 if few else 0.65
    many = len(points.reward) > MOST_RIMMED
    # Many points lie behind the curve, and have no rims.
    fitted = {"markeredgewidth": 0.0, "markersize": 0.7 * size, "alpha": 0.5, "zorder": 3.5} if many else {}
    styles = {
        "left out": {**fitted, "alpha": 0.28, "zorder": 3},
        "fitted": fitted,
        "held out": {"markerfacecolor": "white", "markeredgecolor": shade, "markeredgewidth": 1.0, "alpha": 1.0},
    }
    for run, (role, own) in product(range(len(points.runs)), styles.items()):
        which = (points.run == run) & (points.role == role)
        style = {
            "linestyle": "", "marker": marker(place, run), "markersize": size, "color": shade, "zorder": 5,
            "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.9 if few else 0.55,
        }  # fmt: skip
        axes.plot(points.compute[which], at[which], **(style | own))
        means = which & np.isfinite(points.error)
        ends = at[means] - points.error[means], at[means] + points.error[means]
        axes.vlines(points.compute[means], *ends, color=shade, linewidth=0.7, alpha=0.2 if role == "left out" else 0.5)


def _residual_panel(axes: Any, data: Figure) -> None:
    compute_axis(axes, *data.x_range, label=data.chart.x_label)
    fitted, held = data.left("fitted"), data.left("held out")
    noise = float(fitted.std()) if len(fitted) else 0.0
    far = min(float(np.abs(held).max(initial=0.0)), 8 * noise)
    limit = 1.15 * max(3 * noise, float(np.abs(fitted).max(initial=0.0)), far) or 0.01
    axes.set_ylim(-limit, limit)
    axes.set_ylabel("residual")
    axes.axhspan(-2 * noise, 2 * noise, color="black", alpha=0.05, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    few = len(data.chart.drawn) <= MOST_BANDS
    for place, (each, left) in enumerate(zip(data.chart.drawn, data.residuals, strict=True)):
        if each.line is not None:
            shown = np.clip(left, -0.93 * limit, 0.93 * limit)
            shown[each.dots.role == "left out"] = np.nan
            _draw_points(axes, place, each, shown, few, size=3.6)


# Words, colours and ticks


def legend_text(curve: CurveResult, label: str, p_best: float | None = None) -> str:
    """Return the name, P(best), the ceiling with its interval or the peak, and the state."""
    fall, show = None if curve.decision is None else curve.decision.fall, fixed(curve.decimals)
    parts = [cut(label, 60)]
    parts += [] if p_best is None else [f"P(best) {p_best:.2f}"]
    if fall is not None:
        parts.append(f"peak {show(fall.peak)} at {short_compute_text(fall.last_good)}")
    elif curve.ceiling is not None:
        parts.append(interval_text(curve.ceiling, show))
    return "  ".join([*parts, "" if curve.state is None else str(curve.state)]).rstrip()


def cut(text: str, most: int) -> str:
    """Return a long name without its middle: names mostly differ at the ends."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[-(most // 2 - 2) :]}"


def colour(curve: int) -> str:
    return COLOURS[curve % len(COLOURS)]


def marker(curve: int, run: int) -> str:
    """Return a marker that differs between runs, and between curves of the same colour."""
    return MARKERS[(curve // len(COLOURS) + run) % len(MARKERS)]


def _handle(shade: str, sign: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=shade, marker=sign, markersize=4.6, linewidth=1.6)


def compute_axis(axes: Any, low: float, high: float, label: str = "") -> None:
    """Make the axis of compute logarithmic, with ticks at round numbers."""
    ticks = compute_ticks(low, high, 12)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_ticks(ticks, [short_compute_text(tick) for tick in ticks])
    axes.xaxis.set_ticks([], minor=True)
    axes.set_xlabel(label)
    axes.grid(True)


def compute_ticks(low: float, high: float, most: int = 10) -> list[float]:
    """Return round numbers as ticks, each at least 1 / `most` of the axis from the next."""
    apart = math.log(high / low) / most
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: Sequence[float] = ()
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if all(math.log(after / tick) >= apart for tick, after in pairwise(ticks)):
            break
    return list(ticks[:: math.ceil(len(ticks) / most)]) if len(ticks) > 1 else [low, high]
