"""Draw an Analysis with matplotlib, as .png or .svg. What is drawn is decided in figures.py.

rewards   | linearised     compute is shared downwards; the right-hand panel is there for a comparison
residuals |
"""

import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.atomic_files import new_file
from scalerl.errors import InputError, StoreError
from scalerl.report.figures import MOST_BANDS, CurveData, Dots, FigureData, figure_data
from scalerl.report.numbers import interval_text, number_text, short_compute_text, two_decimals
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
MOST_SLOPES = 6  # exponents given beside the linearised comparison
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


def draw(analysis: Analysis, path: Path) -> None:
    """Write the figure of an analysis; the suffix of `path` chooses the kind."""
    draw_figure(figure_data(analysis), path)


def draw_figure(data: FigureData, path: Path) -> None:
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
    names = [legend_text(curve) for curve in data.curves[:MOST_NAMED]]
    columns = 1 if len(names) < 4 or max(map(len, names)) > 60 else 2
    width = 12.2 if data.straights else 7.8
    figure = new_figure(width, 5.6 + 0.16 * (2 + math.ceil(len(names) / columns)))
    grid = figure.add_gridspec(
        2, 2 if data.straights else 1, height_ratios=[3.2, 1.0], width_ratios=[3, 2] if data.straights else None
    )
    main = figure.add_subplot(grid[0, 0])
    _main_panel(main, data)
    _residual_panel(figure.add_subplot(grid[1, 0], sharex=main), data)
    if data.straights:
        _straight_panel(figure.add_subplot(grid[:, 1]), data)
    handles = [
        _handle(colour(place), "-", marker(place, 0) if curve.dots else "")
        for place, curve in enumerate(data.curves[:MOST_NAMED])
    ]
    more = len(data.curves) - len(names)
    legend = figure.legend(
        handles, names, loc="outside lower left", ncols=columns, fontsize=7.5, frameon=False, alignment="left",
        title=_legend_title(data) + (f"; {more} more have no name here" if more else ""), title_fontsize=7.5,
    )  # fmt: skip
    for curve, text in zip(data.curves, legend.get_texts(), strict=False):
        text.set_color("black" if curve.is_ok else WARNING)
    return figure


def _legend_title(data: FigureData) -> str:
    level = f"{100 * data.level:g}%"
    parts = [f"ceiling [{level} interval], verdict", f"bands: {level} of the curve, and of a new evaluation"]
    roles = {dots.role for curve in data.curves for dots in curve.dots}
    signs = {"left out": "faint points are left out of the fit", "held out": "hollow points are held out"}
    return "; ".join([*parts, *(text for role, text in signs.items() if role in roles)])


def _main_panel(axes: Any, data: FigureData) -> None:
    compute_axis(axes, *data.x_range)
    axes.set_ylim(*data.y_range)
    axes.set_ylabel(data.y_label)
    axes.tick_params(labelbottom=False)
    axes.set_title(textwrap.fill(data.title, 76), fontsize=11, fontweight="bold")
    few = len(data.curves) <= MOST_BANDS
    if len(data.curves) == 1 and data.curves[0].line is not None:
        axes.axvspan(data.curves[0].line.last, data.x_range[1], color="black", alpha=0.035, linewidth=0)
    if data.target is not None:
        axes.axvline(data.target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    for place, curve in enumerate(data.curves):
        _draw_line(axes, curve, colour(place), few, data.x_range[1])
        for dots in curve.dots:
            axes.plot(dots.compute, dots.reward, **_dot_style(place, dots, few))
            _error_bars(axes, place, dots, dots.reward)
        if curve.peak is not None:
            # Just above the points, so that it hides none.
            axes.annotate(
                "", (curve.peak[0], curve.peak[1] + 2 * curve.noise_sd), xytext=(0, 14),
                textcoords="offset points", zorder=7,
                arrowprops={"arrowstyle": "-|>", "color": colour(place), "linewidth": 1.2},
            )  # fmt: skip
        for mark in curve.marks:
            axes.errorbar(
                mark.compute.value, mark.reward.value, fmt="*", color=colour(place), markersize=9,
                xerr=_error(mark.compute), yerr=_error(mark.reward), capsize=3, linewidth=1.2,
                markeredgecolor="white", markeredgewidth=0.6, zorder=6,
            )  # fmt: skip
    if few and data.crossings:
        where = zip(*data.crossings, strict=True)
        axes.plot(*where, linestyle="", marker="x", color="black", markersize=6, markeredgewidth=1.1, zorder=7)


def _draw_line(axes: Any, curve: CurveData, shade: str, few: bool, end: float) -> None:
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
    for within, mask in line.pieces:
        axes.plot(
            line.compute[mask], line.reward[mask], color=shade, linestyle="-" if within else (0, (4, 2.2)),
            linewidth=1.7 if few else 1.1, alpha=1.0 if within else 0.8, zorder=4,
        )  # fmt: skip


def _dot_style(place: int, dots: Dots, few: bool) -> dict[str, Any]:
    size = 4.6 if few else 3.0
    style: dict[str, Any] = {
        "linestyle": "", "marker": marker(place, dots.run), "markersize": size, "color": colour(place),
        "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.9 if few else 0.55, "zorder": 5,
    }  # fmt: skip
    if len(dots.reward) > MOST_RIMMED:
        # Behind the curve, and without rims.
        style.update(markeredgewidth=0.0, markersize=0.7 * size, alpha=0.5, zorder=3.5)
    if dots.role == "left out":
        style.update(alpha=0.28, zorder=3)
    if dots.role == "held out":
        style.update(markerfacecolor="white", markeredgecolor=colour(place), markeredgewidth=1.0, alpha=1.0)
    return style


def _error_bars(axes: Any, place: int, dots: Dots, at: Any) -> None:
    if dots.error is not None:
        faint = 0.2 if dots.role == "left out" else 0.5
        axes.vlines(dots.compute, at - dots.error, at + dots.error, color=colour(place), linewidth=0.7, alpha=faint)


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
        for dots in curve.dots if curve.line is not None else ():
            if dots.role != "left out":
                shown = np.clip(dots.residual, -0.93 * limit, 0.93 * limit)
                axes.plot(dots.compute, shown, **(_dot_style(place, dots, few) | {"markersize": 3.6 if few else 2.4}))
                _error_bars(axes, place, dots, shown)


def _straight_panel(axes: Any, data: FigureData) -> None:
    ends = np.concatenate([straight.line_compute for straight in data.straights])
    compute_axis(axes, ends.min() / 1.06, ends.max() * 1.06, most=8, label=data.x_label)
    low, high = data.straight_range
    axes.set_ylim(low, high + 0.06 * min(len(data.straights), MOST_SLOPES) * (high - low))
    axes.set_ylabel("log10 F(reward)")
    axes.set_title(f"at one ceiling of {number_text(data.shared_ceiling or 0.0)} the slope is the exponent")
    few = len(data.curves) <= MOST_BANDS
    handles, texts = [], []
    for straight in data.straights:
        curve, shade = data.curves[straight.curve], colour(straight.curve)
        axes.plot(straight.compute, straight.log_f, **(_dot_style(straight.curve, curve.dots[0], few) | {"alpha": 0.7}))
        axes.plot(straight.line_compute, straight.line_log_f, color=shade, linewidth=1.5)
        handles.append(_handle(shade, "-", ""))
        texts.append(f"{cut(curve.label, 30)}  {interval_text(straight.exponent, two_decimals)}")
    axes.legend(handles[:MOST_SLOPES], texts[:MOST_SLOPES], loc="upper left", fontsize=7.5, frameon=False)


# Words, colours and ticks


def legend_text(curve: CurveData) -> str:
    """Return the name, P(best), the ceiling with its interval or the peak, and the verdict, marked where doubtful."""
    parts = [cut(curve.label, 60)]
    if curve.p_best is not None:
        parts.append(f"P(best) {curve.p_best:.2f}")
    if curve.peak is not None:
        parts.append(f"peak {number_text(curve.peak[1])} at {short_compute_text(curve.peak[0])}")
    elif curve.ceiling is not None:
        parts.append(interval_text(curve.ceiling))
    return "  ".join([*parts, curve.verdict if curve.is_ok else f"(!) {curve.verdict}"])


def cut(text: str, most: int) -> str:
    """Return a long name without its middle: names mostly differ at the ends."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[-(most // 2 - 2) :]}"


def colour(curve: int) -> str:
    return COLOURS[curve % len(COLOURS)]


def marker(curve: int, run: int) -> str:
    """Return a marker that differs between runs, and between curves of the same colour."""
    return MARKERS[(curve // len(COLOURS) + run) % len(MARKERS)]


def _handle(shade: str, line: Any, sign: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=shade, linestyle=line, marker=sign, markersize=4.6, linewidth=1.6)


def compute_axis(axes: Any, low: float, high: float, *, most: int = 12, label: str = "") -> None:
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    log_ticks(axes.xaxis, low, high, most=most)
    axes.set_xlabel(label)
    axes.grid(True)


def log_ticks(
    axis: Any, low: float, high: float, show: Callable[[float], str] = short_compute_text, most: int = 6
) -> None:
    """Put ticks at round numbers on a logarithmic axis from `low` to `high`."""
    ticks = compute_ticks(low, high, most)
    axis.set_ticks(ticks, [show(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


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
