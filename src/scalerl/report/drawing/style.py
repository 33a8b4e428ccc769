"""Colours, markers, ticks and words of a figure."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scalerl.report.figures import Array, CurveData, FigureData
from scalerl.report.numbers import interval_text, number_text, short_compute_text

# Okabe and Ito's colours without the yellow that white swallows, then Paul Tol's muted ones.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#661100", "#555555",
)  # fmt: skip
WARNING = "#B00020"
GREY = "#666666"
MOST_RANKED = 8  # bars of the probability to be best
MOST_SLOPES = 6  # exponents given beside the linearised comparison
MOST_RIMMED = 100  # points of one run that stand apart with a white rim; the rims of more would hide the curve


def legend_text(curve: CurveData) -> str:
    """Return the name, the ceiling with its interval or the peak, and the verdict; a doubtful one is marked."""
    parts = [cut(curve.label, 60), curve.verdict if curve.is_ok else f"(!) {curve.verdict}"]
    if curve.peak is not None:
        parts.insert(1, f"peak {number_text(curve.peak[1])} at {short_compute_text(curve.peak[0])}")
    elif curve.ceiling is not None:
        parts.insert(1, interval_text(curve.ceiling))
    return "  ".join(parts)


def cut(text: str, most: int) -> str:
    """Return a long name without its middle: names mostly differ at the ends."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[-(most // 2 - 2) :]}"


def headroom(data: FigureData) -> float:
    """Return the top of the linearised panel, with room for the slopes in its upper left corner."""
    low, high = data.straight_range
    share = 0.05 * min(len(data.straights), MOST_SLOPES + 1)
    return high + (high - low) * share / (1 - share)


def straight_title(data: FigureData) -> str:
    return f"linearised at the ceiling {number_text(data.shared_ceiling or 0.0)}: slope = exponent"


def ranking_title(data: FigureData) -> str:
    what = "the highest ceiling" if data.target is None else f"the best reward at {short_compute_text(data.target)}"
    return f"probability of {what}" + (", within each set" if data.num_sets > 1 else "")


def compute_ticks(low: float, high: float, most: int = 10) -> list[float]:
    """Return round numbers as ticks, each at least 1 / `most` of the axis from the next."""
    apart = math.log(high / low) / most
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if all(math.log(after / tick) >= apart for tick, after in pairwise(ticks)):
            break
    return ticks[:: math.ceil(len(ticks) / most)] if len(ticks) > 1 else [low, high]


def colour(curve: int) -> str:
    return COLOURS[curve % len(COLOURS)]


def marker(signs: Sequence[str], curve: int, run: int) -> str:
    """Return a marker that differs between runs, and between curves of the same colour."""
    return signs[(curve // len(COLOURS) + run) % len(signs)]


def clipped(residual: Array, limit: float) -> tuple[Array, NDArray[np.bool_]]:
    """Return the residuals clipped to their panel, and which of them lie outside it."""
    return np.clip(residual, -0.93 * limit, 0.93 * limit), np.abs(residual) > limit
