"""How the forecasts of a run moved while it went on: each as it was made then, and the alarm where one proved wrong."""

import math
from collections.abc import Sequence

import numpy as np

from scalerl.curves import Value
from scalerl.report.alarms import moved_alarms
from scalerl.report.build import Fitted
from scalerl.report.document import Blocks, Curves, Document, Drawn, Level, Line, say, sections, table
from scalerl.report.figures import dots_of
from scalerl.report.outlook import FIRST_FIT, with_end
from scalerl.report.results import CurveResult, Result
from scalerl.report.run_sections import alarm_says
from scalerl.report.sections import titled

PLACES = sorted({round(FIRST_FIT * 2 ** (quarter / 4)) for quarter in range(60)})
"""Numbers of points after which a forecast is kept: four to a doubling."""


def history(result: Result, end: float | None, fitted: Fitted) -> Document:
    """Return how the forecasts moved: what each was after some numbers of points, by `fitted`, and now."""
    parts = []
    for place, curve in enumerate(result.curves):
        series, forecasts = curve.series, list[tuple[int, float, Value]]()
        order = np.argsort(series.compute, kind="stable")
        earlier = [series.take(np.sort(order[:num])) for num in PLACES if num < len(order)]
        for each in [*(fitted(data, result.options) for data in earlier), curve]:
            if (value := _forecast(each, end)) is not None:
                forecasts.append((len(each.series.compute), float(each.series.compute.max()), value))
        if len(forecasts) > 1:
            has_end = end is not None and end > curve.fit.scale
            subject = "the end of the budget" if has_end else "the ceiling"
            title = titled("How the forecast moved", curve.evaluation_set)
            blocks = _history_blocks(curve, forecasts, subject, place)
            parts.append((f"history/{curve.evaluation_set}/{curve.name}", title, blocks))
    return sections(*parts)


def _forecast(curve: CurveResult, end: float | None) -> Value | None:
    """Return the forecast for the end of the budget; where that is not known, the ceiling."""
    at_end = with_end(curve, end).at_end if end is not None else None
    value = curve.ceiling if at_end is None else at_end.reward
    return value if value is not None and math.isfinite(value.low) and math.isfinite(value.high) else None


def _history_blocks(
    curve: CurveResult, forecasts: Sequence[tuple[int, float, Value]], subject: str, colour: int
) -> Blocks:
    for alarm in moved_alarms(forecasts, subject):
        yield from alarm_says(alarm, "", curve.unit)
    compute = np.array([compute for _, compute, _ in forecasts])
    low, middle, high = (
        np.array([getattr(value, end) for _, _, value in forecasts]) for end in ("low", "value", "high")
    )
    line = Line(compute=np.array(compute), reward=middle, first=compute[0], last=compute[-1], band=(low, high))
    drawn = Drawn(name=curve.name, dots=dots_of(curve.series), line=line, colour=colour)
    note = say("history_note", subject=subject)
    yield Curves(key=f"history/{curve.name}", drawn=(drawn,), x_label=curve.unit, y_label=curve.y, note=note)
    columns = {"evaluations": "{num}", curve.unit: "{compute:c}", subject: "{value:r}"}
    rows = [({"num": num, "compute": at, "value": value}, curve) for num, at, value in reversed(forecasts)]
    yield table("history", columns, rows, left=0, level=Level.DETAIL)
