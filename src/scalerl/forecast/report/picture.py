"""Draw results with matplotlib, as .png or .svg. Nothing is fitted or decided here.

It is the chart of the page, drawn for papers and chats, which take no page: strokes are the same, and the legend has
the parameters.
"""

import math
import textwrap
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, StoreError, option
from scalerl.forecast.curves import Comparison
from scalerl.forecast.logs.written import amount_text
from scalerl.forecast.report.document import Curves, Stroke, say, strokes_of
from scalerl.forecast.report.figures import MOST_BANDS, chart, compute_ticks, short_names
from scalerl.forecast.report.results import CurveResult, Result
from scalerl.runfolder.atomic_files import new_file

SUFFIXES = (".png", ".svg")
DPI = 160
WIDTH = 7.8
HEIGHT = 5.6
LEGEND_LINE = 0.16  # height of a line of the legend, in inches as the others
NUM_PLACES = 120  # computes at which a curve is drawn
TICK_INCHES = 0.5  # width of a tick's text, such as 1.5e14
MOST_NAMED = 60  # curves in the legend
MOST_IN_A_COLUMN = 3
HALF_A_LINE = 62  # characters of a name beside which another one has room
LEGEND = {"loc": "outside lower left", "frameon": False, "alignment": "left", "fontsize": 7.5, "title_fontsize": 7.5}
# Okabe and Ito's colours without the yellow that white swallows, then Paul Tol's muted ones.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#661100", "#555555",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
GREY = "#666666"
DASHED = (0, (4, 2.2))
MANY_POINTS = 100  # more points of one run lie behind the curve, without rims that would hide it
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a name may hold dollars
    "svg.hashsalt": "scalerl",  # the same figure is the same file
    "font.size": 9,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "axes.xmargin": 0.025,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
}


def colour(curve: int) -> str:
    return COLOURS[curve % len(COLOURS)]


def marker(curve: int, run: int = 0) -> str:
    """Return a marker that differs between runs, and between curves of the same colour."""
    return MARKERS[(curve // len(COLOURS) + run) % len(MARKERS)]


# Files ----------------------------------------------------------------------------------------------------------------


def check_plot_path(path: Path) -> None:
    """Refuse, before any fit, a figure that could not be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{option:plot {path}} ends in {path.suffix or 'nothing'!r}: choose one of {', '.join(SUFFIXES)}."
        )
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}.")
    _check_installed()


def _check_installed() -> None:
    try:
        import_module("matplotlib")
    except ModuleNotFoundError:
        raise InputError(f'{option:plot} needs the report extra: pip install "scalerl[report]".') from None


def draw(result: Result, path: Path) -> None:
    """Write the picture of a result; the suffix of `path` chooses the kind. It appears completely or not at all."""
    path = Path(path)
    check_plot_path(path)
    figure = picture(result)
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Names may be in any script; what the font lacks shows as boxes and is not worth a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        try:
            with new_file(path) as unfinished:
                figure.savefig(unfinished, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else {})
        except StoreError as error:
            raise InputError(f"{error}.") from None


def picture(result: Result) -> Any:
    """Return the picture of a result as a figure to show in a notebook."""
    _check_installed()
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return _figure(picture_of(result))


# What is drawn --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is drawn: a chart with its title and legend."""

    title: str
    chart: Curves
    legend: tuple[str, ...]
    note: str
    """What the legend says of all curves."""


def picture_of(result: Result) -> Picture:
    """Return what the picture of a result shows."""
    curves = result.curves
    at = None
    p_best: dict[str, float] = {}
    for name, comparison in result.comparisons.items():
        if isinstance(comparison, Comparison):
            p_best |= {each.name: each.p_best for each in comparison.standings}
            if name == curves[0].evaluation_set:
                at = comparison.at
    drawn = chart(curves, "picture", at=at, num=NUM_PLACES)
    shared, short = short_names([curve.name for curve in curves])
    if len(short) == 1:
        usual = short[0]
    else:
        usual = f"{drawn.y_label} of {len(short)} curves"
    legend: list[str] = []
    for curve, label in zip(curves[:MOST_NAMED], short, strict=False):
        legend.append(legend_text(curve, label, p_best.get(curve.name)))
    num_unnamed = len(curves) - len(legend)
    return Picture(
        title=shared or usual,
        chart=drawn,
        legend=tuple(legend),
        note=say("picture_note", level=curves[0].fit.level, more=num_unnamed).text,
    )


def legend_text(curve: CurveResult, label: str, p_best: float | None = None) -> str:
    """Return the name, P(best), the parameters with the ceiling's interval or the peak, and the state."""
    parts = [cut(label, 60)]
    if p_best is not None:
        parts.append(say("legend_p_best", p_best=p_best).text)
    if curve.fall is not None:
        parts.append(say("legend_peak", curve.fall, curve).text)
    elif curve.ceiling is not None:
        parts.append(say("legend_curve", {"ceiling": curve.ceiling}, curve.fit.params, curve).text)
    if curve.state is not None:
        parts.append(str(curve.state))
    return "  ".join(parts)


def cut(text: str, most: int) -> str:
    """Return a long name without its middle: names mostly differ at the ends."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2 - 1]}...{text[-(most // 2 - 2) :]}"


# How it is drawn ------------------------------------------------------------------------------------------------------


def _figure(data: Picture) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    longest = max(map(len, data.legend))
    num_columns = 1
    if len(data.legend) > MOST_IN_A_COLUMN and longest < HALF_A_LINE:
        num_columns = 2
    num_lines = 2 + math.ceil(len(data.legend) / num_columns)
    figure = Figure(figsize=(WIDTH, HEIGHT + LEGEND_LINE * num_lines), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    draw_chart(axes, data.chart)
    axes.set_title(textwrap.fill(data.title, 76), fontsize=11, fontweight="bold")
    handles: list[Line2D] = []
    for each in data.chart.drawn[: len(data.legend)]:
        has_points = any(stroke.shape == "points" for stroke in each.strokes)
        sign = ""
        if has_points:
            sign = marker(each.colour)
        handles.append(Line2D([], [], color=colour(each.colour), marker=sign, markersize=4.6, linewidth=1.6))
    figure.legend(handles, data.legend, ncols=num_columns, title=data.note, **LEGEND)
    return figure


def draw_chart(axes: Any, chart: Curves) -> None:
    """Draw points and lines; the budget, if there is one, and where a single curve is a forecast."""
    x_limits, y_limits = chart.limits
    for each in chart.drawn:
        for stroke in each.strokes:
            _draw_stroke(axes, stroke, each.colour, few=len(chart.drawn) <= MOST_BANDS)
    inches = axes.get_position().width * axes.figure.get_figwidth()
    ticks = compute_ticks(*x_limits, most=max(2, int(inches / TICK_INCHES)))
    axes.set(xscale="log", xlabel=chart.x_label, ylabel=chart.y_label, xlim=x_limits, ylim=y_limits)
    axes.set_xticks(ticks, map(amount_text, ticks))
    axes.set_xticks([], minor=True)
    fitted = [stroke.compute[-1] for stroke in strokes_of(chart.drawn) if stroke.kind == "line"]
    if len(chart.drawn) == len(fitted) == 1:
        axes.axvspan(fitted[0], x_limits[1], color="black", alpha=0.035, linewidth=0)
    if chart.at is not None:
        axes.axvline(chart.at, color=GREY, linewidth=0.8, linestyle=":")
        axes.text(chart.at, 0.01, "budget ", transform=axes.get_xaxis_transform(), ha="right", fontsize=7, color=GREY)


def _draw_stroke(axes: Any, stroke: Stroke, curve: int, *, few: bool) -> None:
    """Draw one stroke of a curve; of many curves, and of many points, thinner."""
    x = stroke.compute
    y = stroke.reward
    look = {"color": colour(curve), **LOOKS[stroke.kind]}
    if stroke.shape == "area":
        axes.fill(x, y, linewidth=0, **look)
    elif stroke.shape == "line":
        axes.plot(x, y, **{"linewidth": 1.7 if few else 1.1, **look})
    else:
        is_many = len(x) > MANY_POINTS
        if is_many and stroke.kind == "fitted":
            look |= {"markeredgewidth": 0.0, "zorder": 3.5, "alpha": 0.5}
        usual = {"marker": marker(curve, stroke.run), "markersize": (4.6 if few else 3.0) * (0.7 if is_many else 1.0)}
        axes.errorbar(x, y, stroke.error, elinewidth=0.7, linestyle="", **{**usual, **look})


LOOKS: dict[str, dict[str, Any]] = {
    "new-band": {"alpha": 0.07},
    "band": {"alpha": 0.17},
    "line": {"zorder": 4},
    "forecast": {"zorder": 4, "linestyle": DASHED},
    "left-out": {"zorder": 3, "markerfacecolor": "none", "alpha": 0.6},
    "fitted": {"zorder": 5, "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.9},
    "held-out": {"zorder": 5, "markerfacecolor": "white"},
    "ceiling": {"linewidth": 2.4, "alpha": 0.5},
    "level": {"marker": "_", "markersize": 8, "markeredgewidth": 2},
    "above": {"marker": "^", "markersize": 6, "clip_on": False},
    "below": {"marker": "v", "markersize": 6, "clip_on": False},
    "mark": {"zorder": 6, "marker": "D", "markersize": 7, "markeredgecolor": "black"},
}
"""How each kind of stroke looks, as the classes of report.css say it for the page."""
