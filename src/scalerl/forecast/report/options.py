"""`FitOptions`: the options of a fit that all commands share, checked against each series; and names of axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.curves import (
    FORMS,
    PAPER_MARGIN,
    Comparison,
    Fit,
    Grid,
    PaperComparison,
    compare,
    compare_by_paper,
)
from scalerl.forecast.logs.columns import has_role
from scalerl.forecast.logs.series import Series

GRID_STEP = 0.005
"""Step of the paper's grid of ceilings, as a share of the scale."""
AXIS_LABELS = {
    "gpu_hours": "GPU-hours", "flops": "FLOPs", "tokens": "tokens", "step": "steps", "hours": "hours", "cost": "cost",
}  # fmt: skip


def axis_label(column: str) -> str:
    """Return the name of an axis of compute for people."""
    return next((label for role, label in AXIS_LABELS.items() if column == role or has_role(column, role)), column)


def unit_of(series: Series, axis: str = "") -> str:
    """Return what compute is counted in on an axis of a curve, unless named its own: hours may be those of CPUs."""
    label, is_cpu = axis_label(axis or series.x_label), any(each.kind == "cpu_time" for each in series.facts)
    return "CPU-hours" if is_cpu and label == AXIS_LABELS["gpu_hours"] else label


def check_one_axis(series: Sequence[Series], need: str) -> None:
    """Raise InputError unless all series count compute in one column and one unit; `need` begins its sentence."""
    columns = {data.x_label for data in series}
    units = {unit_of(data) for data in series}
    axes = max(columns, units, key=len)
    if len(axes) > 1:
        raise InputError(f"{need}, and these are on {' and '.join(sorted(axes))}: name one with {option:x COLUMN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Options of a fit that the commands share."""

    form: str = "sigmoid"
    level: float = 0.9
    worth: float | None = None
    """The smallest difference of reward that matters. None: 1 % of a bounded scale, 3 % of the range seen."""
    run_sd: float | None = None
    """Spread between runs of a recipe that was run once. None: a share of the gain."""
    ceiling: tuple[float, ...] = ()
    """One value holds the ceiling fixed; two are the ends of the paper's grid."""
    skip_before: float | str | None = None
    fit_until: float | None = None
    method: Literal["posterior", "paper"] = "posterior"
    """"paper": the grid procedure of arXiv 2510.13786, which has no intervals."""
    alone: bool = False
    """Whether each curve is fitted by itself, even if others have the same model and task."""
    price: float | None = None
    """Price of a GPU-hour."""
    at: float | None = None
    """Compute at which recipes are compared. None: 4 times the largest one measured."""

    def of(self, series: Series) -> dict[str, Any]:
        """Return the keyword arguments of `fit` for one series; raise InputError for an option that does not fit it."""
        if series.bounds is None and FORMS[self.form].ceiling is not None:
            raise InputError(
                f"{option:form {self.form}} needs rewards with limits, and those of {series.name} have none"
            )
        low, high = series.bounds or (-np.inf, np.inf)
        for ceiling in self.ceiling:
            if not low <= ceiling <= high:
                raise InputError(
                    f"{option:ceiling {ceiling:g}} is not between {low:g} and {high:g}: give it in the unit of "
                    f"{series.name}"
                )
        given = {name: getattr(self, name) for name in ("form", "level", "skip_before", "fit_until")}
        given |= {
            name: getattr(series, name) for name in ("bounds", "start", "start_sd", "run", "num_samples", "evaluation")
        }
        if self.method == "paper":
            if series.start is None:
                raise InputError(
                    f"{option:method paper} needs the reward before training, and {series.name} has no row of it: add "
                    f"{option:start VALUE}."
                )
            return given | {"method": "paper", "grid": self.grid(series)}
        if len(self.ceiling) > 1:
            raise InputError(f"two ceilings are the ends of the paper's grid, and need {option:method paper}")
        return given | {"fixed": {"ceiling": self.ceiling[0]} if self.ceiling else None}

    def grid(self, series: Series) -> Grid | None:
        """Return the ceilings that the paper's procedure tries; None for its own, scaled to the data."""
        if not self.ceiling:
            return None
        low, high = min(self.ceiling), max(self.ceiling)
        least, most = series.bounds or (low, high)
        num = round((high - low) / (GRID_STEP * (most - least))) + 1 if high > low else 1
        return Grid(ceilings=np.linspace(low, high, num))

    def compare(self, fits: Mapping[str, Fit], at: float | None = None) -> Comparison | PaperComparison:
        """Compare fits made with these options."""
        if self.method == "paper":
            low, high = next((each.bounds for each in fits.values() if each.bounds), (0.0, 1.0))
            return compare_by_paper(fits, margin=PAPER_MARGIN * (high - low) if self.worth is None else self.worth)
        return compare(fits, at=at, worth=self.worth, run_sd=self.run_sd)
