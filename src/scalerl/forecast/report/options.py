"""`FitOptions`: the options of a fit that all commands share, checked against each series."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from scalerl.errors import InputError, option, unknown_argument
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
from scalerl.forecast.curves.fit import compute_of
from scalerl.forecast.logs.series import Series
from scalerl.forecast.logs.typed import compute_typed, difference_typed, reward_typed, rewards_seen
from scalerl.forecast.logs.written import Typed, argument, number_and_unit, positive_typed
from scalerl.forecast.report.axes import on_own_axis

GRID_STEP = 0.005
"""Step of the paper's grid of ceilings, as a share of the scale."""


# What a caller gave --------------------------------------------------------------------------------------------------


def each_typed(given: Any, name: str) -> list[Typed]:
    """Return one number or several, as they were given, in a list; InputError for anything that is no number."""
    if isinstance(given, list | tuple | np.ndarray):
        several = given
    else:
        several = (given,)
    made: list[Typed] = []
    for each in several:
        is_number = isinstance(each, int | float | np.number) and not isinstance(each, bool)
        typed = each
        if is_number:
            typed = float(each)
        if not isinstance(typed, float | str):
            raise InputError(f"{argument(name)} takes numbers such as 500, or texts such as '60B', not {each!r}.")
        number_and_unit(typed, name)
        made.append(typed)
    return made


def one_typed(given: Any, name: str) -> Typed:
    """Return one number as it was given."""
    several = each_typed(given, name)
    if len(several) != 1:
        raise InputError(f"{argument(name)} takes one number, not {given!r}.")
    return several[0]


def share_given(given: Any, name: str) -> float:
    """Return a number between 0 and 1, also given as per cent."""
    try:
        value, unit = number_and_unit(one_typed(given, name), name)
    except InputError:
        raise InputError(f"{argument(name)} takes a share such as 0.5 or 50%, not {given!r}.") from None
    share = value
    if unit == "%":
        share = value / 100
    if unit not in ("", "%") or not 0 < share < 1:
        raise InputError(f"{argument(name)} must lie between 0 and 1, not {given}.")
    return share


def flag(given: Any, name: str) -> bool:
    if not isinstance(given, bool):
        raise InputError(f"{name} is True or False, not {given!r}.")
    return given


def one_of(*choices: str) -> Callable[[Any, str], str]:
    def check(given: Any, name: str) -> str:
        if given not in choices:
            raise InputError(f"{argument(name)} must be {', '.join(choices[:-1])} or {choices[-1]}, not {given!r}.")
        return given

    return check


# In the unit of the log -----------------------------------------------------------------------------------------------


def rewards_typed(typed: Iterable[Typed], name: str, series: Sequence[Series]) -> tuple[float, ...]:
    """Return rewards in the unit of the log, whose scale is that of its first curve."""
    bounds = next((each.bounds for each in series if not each.problem), None)
    return tuple(reward_typed(each, name, bounds, rewards_seen(series)) for each in typed)


def skip_typed(typed: Typed, name: str, series: Sequence[Series]) -> float | str:
    """Return a compute from which points are fitted; a share, such as 10%, unchanged."""
    value, unit = number_and_unit(typed, name)
    if value < 0:
        raise InputError(f"{option:skip-before} must not be negative, but is {typed}.")
    if unit == "%" or value == 0:
        return f"{value:g}%"
    return compute_typed(typed, "skip-before", series)


def _price(given: Any, name: str) -> float:
    return number_and_unit(positive_typed(one_typed(given, name), name), name)[0]


def _compute_or_share(given: Any) -> Typed:
    """Return a compute, or a share of the run such as 10%, as it was given."""
    try:
        return one_typed(given, "skip-before")
    except InputError:
        expected = "a compute, or a share such as 10%"
        raise InputError(f"{argument('skip-before')} takes {expected}, not {given!r}.") from None


def _ends(given: Any) -> list[Typed]:
    """Return one ceiling as it was given, or the two ends of the paper's grid."""
    ceilings = each_typed(given, "ceiling")
    sizes = [number_and_unit(each, "ceiling")[0] for each in ceilings]
    if not 0 < len(sizes) <= 2 or sizes != sorted(set(sizes)):
        raise InputError(
            f"{argument('ceiling')} takes one number, or the two ends of the grid of {option:method paper}, the lower "
            "one first."
        )
    return ceilings


OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "form": one_of(*FORMS),
    "method": one_of("posterior", "paper"),
    "level": share_given,
    "price": _price,
    "alone": flag,
}
"""The options that are not in the unit of the log, each with its check."""


def changed_options(options: "FitOptions", given: Mapping[str, Any], caller: str, own: Sequence[str]) -> "FitOptions":
    """Return options changed by those that a caller gave by name; InputError for a wrong name or value.

    `caller` is the name of the function, and `own` are its arguments besides the options.
    """
    changes = {}
    typed = dict(options.typed)
    for name, value in given.items():
        if value is None:
            changes[name] = None
        elif name in OPTIONS:
            changes[name] = OPTIONS[name](value, name)
        elif name == "ceiling":
            typed[name] = _ends(value)
        elif name == "skip_before":
            typed[name] = _compute_or_share(value)
        elif name in IN_UNIT and name != "at":
            if name == "run_sd":
                spelt = "run-spread"
            else:
                spelt = name.replace("_", "-")
            typed[name] = positive_typed(one_typed(value, spelt), spelt)
        else:
            known = [*own, *OPTIONS, *(name for name in IN_UNIT if name != "at")]
            raise InputError(unknown_argument(name, caller, known))
    return replace(options, typed=typed, **changes)


IN_UNIT: dict[str, Callable[[Any, str, Sequence[Series]], Any]] = {
    "at": compute_typed,
    "fit_until": lambda typed, _, series: compute_typed(typed, "fit-until", series),
    "skip_before": skip_typed,
    "worth": difference_typed,
    "run_sd": lambda typed, _, series: difference_typed(typed, "run-spread", series),
    "ceiling": rewards_typed,
}
"""The options that are in the unit of the log."""


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
    skip_axis: str | None = None
    """The axis of `skip_before` as an amount; None, and for a share: that of the curve."""
    fit_until: float | None = None
    method: Literal["posterior", "paper"] = "posterior"
    """"paper": the grid procedure of arXiv 2510.13786, which has no intervals."""
    alone: bool = False
    """Whether each curve is fitted by itself, even if others have the same model and task."""
    price: float | None = None
    """Price of a GPU-hour."""
    at: float | None = None
    """Compute at which recipes are compared. None: 4 times the largest one measured."""
    typed: Mapping[str, Any] = field(default_factory=dict)
    """Options as the user typed them, by name: `in_unit_of` makes numbers of them once the log is read."""

    def __post_init__(self) -> None:
        ceilings = self.typed.get("ceiling", self.ceiling)
        if self.method == "paper" and self.form != "sigmoid":
            raise InputError(f"{option:method paper} fits the sigmoid, not {option:form {self.form}}.")
        if self.method != "paper" and len(ceilings) > 1:
            raise InputError(
                f"{argument('ceiling')} takes one number; two are the ends of the grid of {option:method paper}."
            )

    def in_unit_of(self, series: Sequence[Series]) -> "FitOptions":
        """Return the options with what was typed as numbers in the unit of the log."""
        made = {name: IN_UNIT[name](value, name, series) for name, value in self.typed.items()}
        return replace(self, typed={}, **made)

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
        skip_before = None
        if self.skip_before is not None:
            # A share is of the whole run, and a back-test fits a part of it.
            whole = max(series.compute.max(initial=0.0), series.holdout_compute.max(initial=0.0))
            amount = compute_of(self.skip_before, float(whole))
            skip_before = on_own_axis(series, amount, self.skip_axis, "first")
        given: dict[str, Any] = {
            "form": self.form,
            "level": self.level,
            "skip_before": skip_before,
            "fit_until": self.fit_until,
            "bounds": series.bounds,
            "start": series.start,
            "start_sd": series.start_sd,
            "run": series.run,
            "num_samples": series.num_samples,
            "evaluation": series.evaluation,
        }
        if self.method == "paper":
            if series.start is None:
                raise InputError(
                    f"{option:method paper} needs the reward before training, and {series.name} has no row of it: add "
                    f"{option:start VALUE}."
                )
            return given | {"method": "paper", "grid": self.grid(series)}
        return given | {"fixed": {"ceiling": self.ceiling[0]} if self.ceiling else None}

    def grid(self, series: Series) -> Grid | None:
        """Return the ceilings that the paper's procedure tries; None for its own, scaled to the data."""
        if not self.ceiling:
            return None
        low = min(self.ceiling)
        high = max(self.ceiling)
        least, most = series.bounds or (low, high)
        num = 1
        if high > low:
            num = round((high - low) / (GRID_STEP * (most - least))) + 1
        return Grid(ceilings=np.linspace(low, high, num))

    def compare(self, fits: Mapping[str, Fit], at: float | None = None) -> Comparison | PaperComparison:
        """Compare fits made with these options."""
        if self.method == "paper":
            low, high = next((each.bounds for each in fits.values() if each.bounds), (0.0, 1.0))
            return compare_by_paper(fits, margin=PAPER_MARGIN * (high - low) if self.worth is None else self.worth)
        return compare(fits, at=at, worth=self.worth, run_sd=self.run_sd)
