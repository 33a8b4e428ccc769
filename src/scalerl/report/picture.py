"""Draw an Analysis with matplotlib, as .png or .svg: rewards, and below them residuals over the same compute.

What is drawn is decided in figures.py.
"""

import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.atomic_files import new_file
from scalerl.errors import InputError, StoreError
from scalerl.report.figures import MOST_BANDS, Drawn, FigureData, figure_data
from scalerl.report.numbers import interval_text, number_text, short_compute_text
from scalerl.report.results import Analysis

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


def picture(analysis: Analysis) -> Any:
    """Return the figure of an analysis, to show in a notebook."""
    _check_installed()
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return _figure(figure_data(analysis))


def draw(analysis: Analysis, path: Path, **changed: Any) -> None:
    """Write the figure of an analysis; the suffix of `path` chooses the kind, `changed` are fields of FigureData."""
    data = replace(figure_data(analysis), **changed)
    write_figure(path, lambda: _figure(data))


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


def _figure(data: FigureData) -> Any:
    named = data.curves[:MOST_NAMED]
    names = [legend_text(curve) for curve in named]
    columns = 1 if len(names) < 4 or max(map(len, names)) > 60 else 2
    figure = new_figure(7.8, 5.6 + 0.16 * (2 + math.ceil(len(names) / columns)))
    main, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
    _main_panel(main, data)
    _residual_panel(below, data)
    handles = [_handle(colour(place), marker(place, 0) if len(curve.points.reward) else "")
               for place, curve in enumerate(named)]  # fmt: skip
    more = len(data.curves) - len(names)
    legend = figure.legend(
        handles, names, loc="outside lower left", ncols=columns, fontsize=7.5, frameon=False, alignment="left",
        title=_legend_title(data) + (f"; {more} more have no name here" if more else ""), title_fontsize=7.5,
    )  # fmt: skip
    for curve, text in zip(named, legend.get_texts(), strict=True):
        text.set_color("black" if curve.is_ok else WARNING)
    return figure


def _legend_title(data: FigureData) -> str:
    level = f"{100 * data.level:g}%"
    parts = [f"ceiling [{level} interval], verdict", f"bands: {level} of the curve, and of a new evaluation"]
    roles = {role for curve in data.curves for role in curve.points.role}
    signs = {"left out": "faint points are left out of the fit", "held out": "hollow points are held out"}
    return "; ".join([*parts, *(text for role, text in signs.items() if role in roles)])


def _main_panel(axes: Any, data: FigureData) -> None:
    compute_axis(axes, *data.x_range)
    axes.set_ylim(*data.y_range)
    axes.set_ylabel(data.y_label)
    axes.set_title(textwrap.fill(data.title, 76), fontsize=11, fontweight="bold")
    few = len(data.curves) <= MOST_BANDS
    if len(data.curves) == 1 and data.curves[0].line is not None:
        axes.axvspan(data.curves[0].line.last, data.x_range[1], color="black", alpha=0.035, linewidth=0)
    if data.target is not None:
        axes.axvline(data.target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    for place, curve in enumerate(data.curves):
        _draw_line(axes, curve, colour(place), few, data.x_range[1])
        _draw_points(axes, place, curve, curve.points.reward, few)
        if curve.peak is not None:
            # Just above the points, so that it hides none.
            axes.annotate(
                "", curve.peak, xytext=(0, 20), textcoords="offset points", zorder=7,
                arrowprops={"arrowstyle": "-|>", "color": colour(place), "linewidth": 1.2, "shrinkB": 6},
            )  # fmt: skip
        for compute, reward in curve.marks:
            axes.errorbar(
                compute.value, reward.value, fmt="*", color=colour(place), markersize=9, xerr=_error(compute),
                yerr=_error(reward), capsize=3, linewidth=1.2, markeredgecolor="white", markeredgewidth=0.6, zorder=6,
            )  # fmt: skip
    if few and data.crossings:
        where = zip(*data.crossings, strict=True)
        axes.plot(*where, linestyle="", marker="x", color="black", markersize=6, markeredgewidth=1.1, zorder=7)


def _draw_line(axes: Any, curve: Drawn, shade: str, few: bool, end: float) -> None:
    line = curve.line
    if line is None:
        return
    if few and line.band is not None and line.new_band is not None:
        axes.fill_between(line.compute, *line.new_band, color=shade, alpha=0.07, linewidth=0)
        axes.fill_between(line.compute, *line.band, color=shade, alpha=0.17, linewidth=0)
    if few and curve.ceiling is not None:
        look = {"color": shade, "alpha": 1 if curve.is_ok else 0.45}
        axes.axhline(curve.ceiling.value, linewidth=0.9, linestyle=":", **look)
        if np.isfinite(curve.ceiling.low):
            axes.plot([end, end], [curve.ceiling.low, curve.ceiling.high], linewidth=5, solid_capstyle="butt", **look)
    before, after = line.compute <= line.first, line.compute >= line.last
    within = (line.compute >= line.first) & (line.compute <= line.last)
    for mask, style in ((before, (0, (4, 2.2))), (within, "-"), (after, (0, (4, 2.2)))):
        axes.plot(
            line.compute[mask], line.reward[mask], color=shade, linestyle=style, linewidth=1.7 if few else 1.1,
            alpha=1.0 if mask is within else 0.8, zorder=4,
        )  # fmt: skip


def _draw_points(axes: Any, place: int, curve: Drawn, at: Any, few: bool, size: float = 4.6) -> None:
    """Draw the points of a curve at these heights, runs by their signs and roles by their looks."""
    points, shade = curve.points, colour(place)
    size *= 1.0 if few else 0.65
    many = len(points.reward) > MOST_RIMMED
    # Many points lie behind the curve, and have no rims.
    fitted = {"markeredgewidth": 0.0, "markersize": 0.7 * size, "alpha": 0.5, "zorder": 3.5} if many else {}
    looks = {
        "left out": {**fitted, "alpha": 0.28, "zorder": 3},
        "fitted": fitted,
        "held out": {"markerfacecolor": "white", "markeredgecolor": shade, "markeredgewidth": 1.0, "alpha": 1.0},
    }
    for run, (role, look) in product(range(len(points.runs)), looks.items()):
        which = (points.run == run) & (points.role == role)
        style = {
            "linestyle": "", "marker": marker(place, run), "markersize": size, "color": shade, "zorder": 5,
            "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.9 if few else 0.55,
        }  # fmt: skip
        axes.plot(points.compute[which], at[which], **(style | look))
        means = which & np.isfinite(points.error)
        ends = at[means] - points.error[means], at[means] + points.error[means]
        axes.vlines(points.compute[means], *ends, color=shade, linewidth=0.7, alpha=0.2 if role == "left out" else 0.5)


def _error(value: Any) -> list[list[float]]:
    """Return the lengths of the error bar; 0 for an end that is not finite."""
    lengths = [abs(value.value - value.low), abs(value.high - value.value)]
    return [[length if np.isfinite(length) else 0.0] for length in lengths]


def _residual_panel(axes: Any, data: FigureData) -> None:
    compute_axis(axes, *data.x_range, label=data.x_label)
    limit = data.residual_limit
    axes.set_ylim(-limit, limit)
    axes.set_ylabel("residual")
    axes.axhspan(-2 * data.noise_sd, 2 * data.noise_sd, color="black", alpha=0.05, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    few = len(data.curves) <= MOST_BANDS
    for place, curve in enumerate(data.curves):
        if curve.line is not None:
            shown = np.clip(curve.residual, -0.93 * limit, 0.93 * limit)
            shown[curve.points.role == "left out"] = np.nan
            _draw_points(axes, place, curve, shown, few, size=3.6)


# Words, colours and ticks


def legend_text(curve: Drawn) -> str:
    """Return the name, P(best), the ceiling with its interval or the peak, and the verdict, marked where doubtful."""
    parts = [cut(curve.label, 60)]
    if curve.p_best is not None:
        parts.append(f"P(best) {curve.p_best:.2f}")
    if curve.peak is not None:
        parts.append(f"peak {number_text(curve.peak[1])} at {short_compute_text(curve.peak[0])}")
    elif curve.ceiling is not None:
        parts.append(interval_text(curve.ceiling))
    return "  ".join([*parts, curve.result.verdict if curve.is_ok else f"(!) {curve.result.verdict}"])


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
