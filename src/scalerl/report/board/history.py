"""How the forecasts of a run moved while it went on: each as it was made then, and the alarm where one proved wrong."""

import math
from collections.abc import Iterator

import numpy as np

from scalerl.curves import Value
from scalerl.report.alarms import moved_alarms
from scalerl.report.analyse import fitted_curve
from scalerl.report.document import Blocks, Curves, Document, Drawn, Level, Line, say, sections, table
from scalerl.report.figures import dots_of
from scalerl.report.options import FitOptions
from scalerl.report.outlook import FIRST_FIT, with_end
from scalerl.report.results import CurveResult, Result
from scalerl.report.run_sections import alarm_says
from scalerl.report.sections import titled

PLACES = sorted({round(FIRST_FIT * 2 ** (quarter / 4)) for quarter in range(60)})
"""Numbers of points after which a forecast is kept: four to a doubling."""


def history(result: Result) -> Document:
    """Return how the forecast of each curve moved: for the end of its budget, or else of its ceiling."""
    return sections(
        *(
            (f"history/{curve.evaluation_set}/{curve.name}", titled("How the forecast moved", curve.evaluation_set),
             _moved(curve, place, result.options))
            for place, curve in enumerate(result.curves)
        )
    )  # fmt: skip


def _moved(curve: CurveResult, colour: int, options: FitOptions) -> Blocks:
    forecasts = [*_forecasts(curve, options)]
    if len(forecasts) < 2:
        return
    subject = "the ceiling" if curve.at_end is None else "the end of the budget"
    for alarm in moved_alarms(forecasts, subject):
        yield from alarm_says(alarm, "", curve.unit)
    compute = np.array([compute for _, compute, _ in forecasts])
    low, middle, high = np.array([(value.low, value.value, value.high) for *_, value in forecasts]).T
    line = Line(compute=compute, reward=middle, first=compute[0], last=compute[-1], band=(low, high))
    drawn = Drawn(name=curve.name, dots=dots_of(curve.series), line=line, colour=colour)
    note = say("history_note", subject=subject)
    yield Curves(key=f"history/{curve.name}", drawn=(drawn,), x_label=curve.unit, y_label=curve.y, note=note)
    columns = {"evaluations": "{num}", curve.unit: "{compute:c}", subject: "{value:r}"}
    rows = [({"num": num, "compute": at, "value": value}, curve) for num, at, value in reversed(forecasts)]
    yield table("history", columns, rows, left=0, level=Level.DETAIL)


def _forecasts(curve: CurveResult, options: FitOptions) -> Iterator[tuple[int, float, Value]]:
    """Yield (number of points, their compute, forecast): of the first points of a curve, and of all of them."""
    series, end = curve.series, None if curve.at_end is None else curve.at_end.compute
    order = np.argsort(series.compute, kind="stable")
    early = (fitted_curve(series.take(np.sort(order[:num])), options) for num in PLACES if num < len(order))
    for each in (*early, curve):
        at_end = with_end(each, end).at_end
        value = each.ceiling if at_end is None else at_end.reward
        if value is not None and math.isfinite(value.low) and math.isfinite(value.high):
            yield len(each.series.compute), float(each.series.compute.max()), value
