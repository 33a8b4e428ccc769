"""Logs from Python: `scalerl.read(...)` returns `Runs`, whose methods answer as the commands do."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, options_as_arguments, python_call
from scalerl.forecast.curves import Value
from scalerl.forecast.logs import Selection, Series, read
from scalerl.forecast.logs.written import number_and_unit
from scalerl.forecast.report.analyse import analyse_backtest, analyse_compare, analyse_fit, analyse_forecast
from scalerl.forecast.report.options import (
    FitOptions,
    changed_options,
    each_typed,
    one_typed,
    share_given,
)
from scalerl.forecast.report.result_json import result_json
from scalerl.forecast.report.results import CurveResult, Result, fits_of
from scalerl.forecast.report.sections import answer_text

WIDTH = 140
Amount = float | str
"""A number in the unit of the log, or one with its unit: 500, "60B", "65%"."""
Amounts = Amount | Sequence[Amount]


class Values(dict[str, Any]):
    """Values of `--json`, as keys and as attributes: `curve.ceiling.low` is `curve["ceiling"]["low"]`."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def __dir__(self) -> list[str]:
        return sorted(self)

    def __str__(self) -> str:
        is_value = self.keys() == {"value", "low", "high"} and None not in self.values()
        if is_value:
            return str(Value(value=self["value"], low=self["low"], high=self["high"]))
        return repr(self)

    def __repr__(self) -> str:
        shown: list[str] = []
        for key, value in self.items():
            is_short = isinstance(value, int | float | str)
            shown.append(f"{key}={value!r}" if is_short else key)
        return f"Values({', '.join(shown)})"


class Answer(Values):
    """What a method of `Runs` found: the values of `--json`; it prints, and shows in a notebook, as the command does.

    `answer.curves[0].ceiling.value`, `answer.curves[0].state`, `answer.pairs[0].winner`. `answer.fits` has the fitted
    curves by name, for `scalerl.forecast.curves`.
    """

    @options_as_arguments()
    def __init__(self, result: Result) -> None:
        super().__init__(json.loads(json.dumps(result_json(result)), object_hook=Values))
        self._result = result

    @property
    def fits(self) -> dict[str, Any]:
        return fits_of(self._result.curves)

    def explain(self) -> str:
        """Return the parameters, the noise, the reasons, and what was decided about the log."""
        return self._text(explain=True)

    def to_frame(self, rows: str = "curves") -> Any:
        """Return a pandas DataFrame with one row for each of the `curves`, or of the `pairs`."""
        tables = [name for name, values in self.items() if isinstance(values, list)]
        if rows not in tables:
            raise InputError(f"to_frame() has no rows {rows!r}: choose one of {', '.join(tables)}.")
        return _pandas().json_normalize(self[rows])

    @options_as_arguments()
    def plot(self, path: str | Path | None = None) -> Any:
        """Return the picture as a matplotlib figure; with a path, write it as .png or .svg."""
        from scalerl.forecast.report.picture import draw, picture

        if path is not None:
            draw(self._result, Path(path))
        return picture(self._result)

    def __str__(self) -> str:
        return self._text().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        code = "<pre style='line-height:1.4'>{code}</pre>"
        return self._printed().export_html(inline_styles=True, code_format=code)

    def _text(self, *, explain: bool = False) -> str:
        printed = self._printed(explain).export_text()
        return "\n".join(line.rstrip() for line in printed.splitlines())

    @options_as_arguments()
    def _printed(self, explain: bool = False) -> Any:
        """Return a console of the terminal's library that has recorded the answer."""
        from rich.console import Console

        console = Console(record=True, width=WIDTH, file=io.StringIO())
        console.print(answer_text(self._result, explain), highlight=False)
        return console


@dataclass(frozen=True, slots=True, repr=False)
class Runs:
    """The curves of logs. Iterate over them, or ask: fit, forecast, compare, backtest, plot, to_frame."""

    series: tuple[Series, ...]
    options: FitOptions

    @python_call
    def fit(self, *, at: Amounts = (), **options: Any) -> Answer:
        """Fit every curve: where it stands, its ceiling, what doubling the compute brings, and what to do.

        `options` are those of `FitOptions`, such as level=0.8, worth="1%" or alone=True; here and below.
        """
        given = self._options("fit()", options, "at")
        return Answer(analyse_fit(self.series, given, each_typed(at, "at")))

    @python_call
    def forecast(self, at: Amounts = (), *, reach: Amounts = (), **options: Any) -> Answer:
        """Forecast the reward at computes, and the compute that reaches rewards; unasked at 2 and 4 times the data.

        Numbers are in the unit of the log; another one can be written, as in "100B" or "65%".
        """
        given = self._options("forecast()", options, "at", "reach")
        return Answer(analyse_forecast(self.series, given, each_typed(at, "at"), each_typed(reach, "reach")))

    @python_call
    def compare(self, at: Amount | None = None, **options: Any) -> Answer:
        """Say which curve to choose at a compute: 4 times the largest one measured, unless `at` names another."""
        given = self._options("compare()", options, "at")
        budget = None
        if at is not None:
            budget = one_typed(at, "at")
        return Answer(analyse_compare(self.series, given, budget))

    @python_call
    def backtest(self, fractions: Amounts = (0.25, 0.5, 0.75), **options: Any) -> Answer:
        """Fit the part before each share of the compute and score the forecast of the rest."""
        given = self._options("backtest()", options, "fractions")
        shares = [share_given(each, "fractions") for each in each_typed(fractions, "fractions")]
        return Answer(analyse_backtest(self.series, given, shares))

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a matplotlib figure of the fitted curves; with a path, write it."""
        return self.fit().plot(path)

    def to_frame(self) -> Any:
        """Return the points as a pandas DataFrame: curve, run, compute, reward."""
        pandas = _pandas()
        parts = []
        for data in self.series:
            named = {"curve": data.name, "run": "" if data.run is None else data.run}
            parts.append(pandas.DataFrame({**named, data.x_label: data.compute, data.y_label: data.reward}))
        return pandas.concat(parts, ignore_index=True)

    def __len__(self) -> int:
        return len(self.series)

    def __iter__(self) -> Iterator[Series]:
        return iter(self.series)

    def __repr__(self) -> str:
        curves = [f"{data.name}: {data.problem or f'{len(data.compute)} points'}" for data in self.series]
        axes = sorted({f"{data.y_label} over {data.x_label}" for data in self.series})
        return f"Runs({', '.join(axes)}; {'; '.join(curves)})"

    def _options(self, caller: str, given: Mapping[str, Any], *own: str) -> FitOptions:
        """Return the options that a method was given by name, in the unit of the log."""
        return changed_options(self.options, given, caller, own).in_unit_of(self.series)


def read_runs(path: Any, columns: Mapping[str, Any], **given: Any) -> Runs:
    """Read logs into curves; InputError if nothing can be used, or a value is not one that its argument takes.

    `columns` are the arguments that name columns: each a text, or several texts for `by`.
    """
    paths = _paths_given(path)
    selection = Selection(**_columns_given(columns), **_numbers_given(given))
    return Runs(tuple(read(paths, selection)), FitOptions())


def _paths_given(path: Any) -> list[str]:
    paths = path
    if isinstance(path, str | PathLike):
        paths = [path]
    if not isinstance(paths, list | tuple) or not all(isinstance(each, str | PathLike) for each in paths):
        raise InputError(f"read() takes a path or a list of paths, not {path!r}.")
    return [str(each) for each in paths]


def _columns_given(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that name columns, checked, with `by` as a tuple."""
    for name, column in columns.items():
        if name == "by" and isinstance(column, list | tuple):
            several = column
        else:
            several = [column]
        if not all(each is None or isinstance(each, str) for each in several):
            raise InputError(f"{name} takes the name of a column, not {column!r}.")
    by = columns["by"]
    if isinstance(by, str):
        by = (by,)
    return {**columns, "by": tuple(by or ())}


def _numbers_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other arguments; a start or a number of GPUs may be a text, such as "40%"."""
    numbers = dict(given)
    start = given["start"]
    if start is not None and start not in ("first", "fit"):
        numbers["start"] = one_typed(start, "start")
    if given["gpus"] is not None:
        numbers["gpus"], _ = number_and_unit(one_typed(given["gpus"], "gpus"), "gpus")
    return numbers


@options_as_arguments()
def fit_one(path: str, evaluation_set: str) -> CurveResult:
    """Fit the curve of one run or log; of several evaluation sets the one that is named, else the first."""
    first_of_set: dict[str, Series] = {}
    for data in read([path], Selection()):
        # A curve that says no set is of the set that is asked for.
        first_of_set.setdefault(data.evaluation_set or evaluation_set, data)
    if evaluation_set and evaluation_set not in first_of_set:
        raise InputError(f'{path} has no evaluation set "{evaluation_set}"; it has {", ".join(first_of_set)}.')
    first, *_ = first_of_set.values()
    chosen = first_of_set.get(evaluation_set, first)
    return analyse_fit([chosen], FitOptions()).curves[0]


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise InputError("to_frame() needs pandas: pip install pandas") from None
    return pandas
