"""Grids of cells over the shape parameters (a box, or a range of its own for each row), and how fine they are."""

import math
from dataclasses import dataclass

import numpy as np

from scalerl.curves.forms import Array

NUM_DRAWS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """How finely the posterior is computed."""

    rows: int
    columns: int
    """Cells over two shape parameters: rows of the first, columns of the second."""
    levels: int
    gains: int
    gains_alone: int
    """Nodes of the gain where the level is known."""
    zoom: int = 24
    """Cells along each of two shape parameters while the grid is searched for."""
    passes: int = 3
    """Times that the ranges of the rows are narrowed."""
    draws: int = NUM_DRAWS


ONE_RUN = Resolution(rows=40, columns=30, levels=12, gains=18, gains_alone=28)
# Here each cell is there ten times, once for each spread between the runs.
SEVERAL_RUNS = Resolution(rows=24, columns=18, levels=10, gains=15, gains_alone=28)
# For one of several ways to fit, whose draws are mixed.
MIXED = Resolution(rows=24, columns=18, levels=8, gains=12, gains_alone=20, zoom=16, passes=2)
# For a score, which is an average over all draws and not a quantile of them.
COARSE = Resolution(rows=16, columns=12, levels=6, gains=9, gains_alone=14, zoom=16, passes=2, draws=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells over the shape parameters: centres and widths (0 for a fixed one), one array each, which broadcast."""

    logs: list[Array]
    widths: list[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(log.shape for log in self.logs))

    @property
    def num(self) -> int:
        return math.prod(self.shape)

    @property
    def log_volume(self) -> Array:
        return sum((np.log(np.where(width > 0, width, 1.0)) for width in self.widths), np.zeros(self.shape))

    def take(self, cells: np.ndarray) -> tuple[list[Array], list[Array]]:
        """Return the centres and widths of some cells by their index in the flattened order."""
        pick = lambda values: np.broadcast_to(values, self.shape).ravel()[cells]  # noqa: E731
        return [pick(log) for log in self.logs], [pick(width) for width in self.widths]


def rectangle(box: Array, num: int) -> Grid:
    """Return equal cells over a box; a parameter without width gets one cell."""
    sizes = [num if high > low else 1 for low, high in box]
    widths = [(high - low) / size for (low, high), size in zip(box, sizes, strict=True)]
    axes = [
        low + width * (np.arange(size) + 0.5) if width > 0 else np.array([low])
        for (low, _), width, size in zip(box, widths, sizes, strict=True)
    ]
    return Grid(logs=list(np.ix_(*axes)), widths=[np.full((1,) * len(axes), width) for width in widths])


def rows(first: Array, low: Array, high: Array, num_columns: int) -> Grid:
    """Return equal cells of the first parameter, and for each of them even cells of the second within its own range."""
    num_rows = len(low)
    height = (first[1] - first[0]) / num_rows
    width = (high - low)[:, None] / num_columns
    along = first[0] + height * (np.arange(num_rows)[:, None] + 0.5)
    across = low[:, None] + width * (np.arange(num_columns) + 0.5)
    return Grid(logs=[along, across], widths=[np.full((1, 1), height), width])


def middles(num: int) -> Array:
    """Return the middles of equal parts of the unit interval."""
    return (np.arange(num) + 0.5) / num
