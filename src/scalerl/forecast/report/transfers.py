"""Make a transfer between sizes from analysed curves, and present it as sentences, a table and JSON."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.forecast.curves import State
from scalerl.forecast.logs.series import Series, in_shares
from scalerl.forecast.logs.typed import reward_typed
from scalerl.forecast.logs.written import Typed, amount_text
from scalerl.forecast.report.axes import check_one_axis
from scalerl.forecast.report.document import Document, Json, Say, say, sections, table
from scalerl.forecast.report.json_values import picked
from scalerl.forecast.report.results import CurveResult
from scalerl.forecast.several.transfer import LEAST_SIBLINGS, Sibling, Transfer, first_reward, sibling, transfer

UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
SIZE = re.compile(r"\s*(\d*\.?\d+(?:e[+-]?\d+)?)\s*([kmbt]?)\s*", re.IGNORECASE | re.ASCII)
UNUSABLE = (State.PAST_PEAK, State.FLAT, State.TOO_EARLY)
PER_SAMPLE = ("step", "token", "sample", "epoch")  # axes on which larger models do not need more
MODEL_SIZE = 1e6  # parameters; smaller numbers are a batch size, a context length or generations per prompt


def parse_size(text: str, where: str) -> float:
    """Parse a size such as 0.5B, 72B, 7e9 or 768."""
    match = SIZE.fullmatch(text)
    if not match or not float(match[1]) > 0:
        raise InputError(f"{where} holds {text!r}, which is not a size: write it as 0.5B, 72B or 7e9")
    return float(match[1]) * UNITS[match[2].lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A curve that the forecast is not made from."""

    name: str
    reason: Literal["not_smaller", "state", "form"]
    detail: str = ""
    """Where it stands, or the form that fits it."""


def in_one_scale(typed: Typed, series: Sequence[Series]) -> tuple[float, list[Series]]:
    """Return the start and the curves as shares: the law is one of shares."""
    scales = {each.bounds for each in series if not each.problem}
    limits = next(iter(scales))
    if len(scales) > 1 or limits is None:
        raise InputError("a transfer needs rewards with limits, all of one scale: name it with --y-scale")
    low, high = limits
    start = reward_typed(typed, "start", limits)
    if not low < start < high:
        raise InputError(f"--start {start:g} is not between {low:g} and {high:g}: give it in the unit of the log")
    return (start - low) / (high - low), [in_shares(each) for each in series]


def find_siblings(curves: Sequence[CurveResult], column: str, size: float) -> tuple[list[Sibling], list[LeftOut]]:
    """Return the usable smaller siblings, and the curves left out."""
    check_one_axis([curve.series for curve in curves], "siblings must be on one axis of compute")
    members = []
    left_out = []
    for curve in curves:
        series = curve.series
        fit = curve.fit
        own = parse_size(dict(series.key)[column], f"--size {column}")
        if own >= size * (1 - 1e-9):
            left_out.append(LeftOut(name=curve.name, reason="not_smaller"))
        elif fit.form != "sigmoid":
            left_out.append(LeftOut(name=curve.name, reason="form", detail=fit.form))
        elif curve.state in UNUSABLE:
            left_out.append(LeftOut(name=curve.name, reason="state", detail=str(curve.state)))
        else:
            if series.start is None:
                start = first_reward(series.compute, series.reward)
            else:
                start = series.start
            members.append(sibling(curve.name.replace(f"{column}=", ""), own, fit, start=start))
    num_sizes = len({own.size for own in members})
    if num_sizes < LEAST_SIBLINGS:
        raise InputError(
            f"too few siblings: {num_sizes} sizes below {size:g} have a curve and {LEAST_SIBLINGS} or more are needed"
        )
    return sorted(members, key=lambda own: own.size), left_out


def make_transfer(
    curves: Sequence[CurveResult], column: str, size: float, start: float, at: Sequence[float], level: float
) -> tuple[Transfer, list[LeftOut]]:
    """Return the forecast of a size from the smaller ones, and the curves left out."""
    members, left_out = find_siblings(curves, column, size)
    is_per_sample = any(word in curves[0].axis.lower() for word in PER_SAMPLE)
    slope = 1.0
    if size < MODEL_SIZE:
        slope = 0.5
    elif is_per_sample:
        slope = 0.0
    return transfer(members, size, start, at, midpoint_slope=slope, level=level), left_out


def transfer_says(done: Transfer, left_out: Sequence[LeftOut]) -> Iterator[Say]:
    """Yield the forecast first, then what it was learnt from."""
    yield say("transfer", done, size=amount_text(done.size))
    for compute, value in done.at:
        yield say("transfer_at", compute=compute, reward=value)
    yield say("transfer_learnt", done, names=tuple(own.name for own in done.siblings))
    if done.kind == "far_size":
        yield say("transfer_far")
    for each in left_out:
        yield say(f"transfer_{each.reason}", each, detail=each.detail)


def transfer_json(done: Transfer, left_out: Sequence[LeftOut]) -> Json:
    """Return the forecast as JSON types."""
    given = {
        "target": picked(("size", "start"), done),
        "at": [{"compute": compute, "reward": value} for compute, value in done.at],
        "siblings": [own.name for own in done.siblings],
        "left_out": left_out,
    }
    names = ("target", "ceiling", "exponent", "midpoint", "kind", "scatter", "at", "siblings", "left_out")
    return picked(names, given, done)


def transfer_document(done: Transfer, left_out: Sequence[LeftOut]) -> Document:
    """Return the forecast, and a table of the siblings and the target."""
    rows: list[tuple[Any, ...]] = []
    for own in done.siblings:
        params = {"exponent": math.exp(own.log_exponent[0]), "midpoint": math.exp(own.log_midpoint[0])}
        rows.append(({"ceiling": own.ceiling[0], "size_text": amount_text(own.size), **params}, own))
    rows.append(({"name": "target", "size_text": amount_text(done.size)}, done))
    blocks = [*transfer_says(done, left_out), table("transfer", TRANSFER_COLUMNS, rows)]
    return sections(("transfer", "Transfer", blocks))


TRANSFER_COLUMNS = {
    "run": "{name}",
    "size": "{size_text}",
    "start": "{start:a}",
    "ceiling": "{ceiling:a}",
    "exponent": "{exponent:.2f}",
    "midpoint": "{midpoint:c}",
}
