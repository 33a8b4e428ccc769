"""Seal forecasts and score them later. A sealed file holds the forecast, digests of its data, the date, the version of
the package, the model's name and a digest of the whole file. Scoring uses only these numbers, whatever model made them.

The digest detects a file that was changed by accident or by hand. It does not protect against someone who writes a new
file: for that, keep the file (or its digest) where its date can be checked, such as a commit.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.forecast.curves.decide import decide
from scalerl.forecast.curves.draws import Value
from scalerl.forecast.curves.fit import Fit
from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.model import MODEL
from scalerl.runfolder.json_text import parse_json

FORMAT = "scalerl-forecast-1"
LEVELS = (0.5, 0.8, 0.9)
NUM_PLACES = 33  # number of computes of a written forecast; between them it is interpolated
NEAR = 0.05  # an evaluation within this share of a compute counts as measured there
REACH = 4.0  # a forecast extends to this multiple of the data, or to the largest requested compute


@dataclass(frozen=True, slots=True, kw_only=True)
class AtScore:
    """The forecast at one requested compute, and the mean reward measured near it (None if nothing was measured)."""

    compute: float
    reward: Value
    measured: float | None

    @property
    def inside(self) -> bool | None:
        return None if self.measured is None else self.reward.low <= self.measured <= self.reward.high


@dataclass(frozen=True, slots=True, kw_only=True)
class SealScore:
    """The errors of one sealed curve on the evaluations made after it was sealed."""

    name: str
    num_new: int
    rmse: float
    bias: float
    coverage: Mapping[float, float]
    """Share of the new evaluations inside the interval of each level."""
    level: float
    at: tuple[AtScore, ...]
    data_changed: bool
    """Whether the log no longer contains the data that the forecast was made from."""
    beyond: int
    """Number of new evaluations beyond the largest compute in the sealed forecast."""

    @property
    def num_scored(self) -> int:
        return self.num_new - self.beyond


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content without its own `digest` entry."""
    plain = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def data_digest(compute: Array, reward: Array) -> str:
    """Return the SHA-256 of a curve's points, sorted by compute and rounded to ten digits."""
    order = np.lexsort((reward, compute))
    rows = ";".join(f"{c:.10g},{r:.10g}" for c, r in zip(compute[order], reward[order], strict=True))
    return hashlib.sha256(rows.encode()).hexdigest()


def sealed_curve(name: str, fit: Fit, at: Sequence[float], compute: Array, reward: Array) -> dict[str, Any]:
    """Return the forecast of one curve as JSON types; `compute` and `reward` are its data."""
    places = np.geomspace(fit.scale, max(REACH * fit.scale, *at), NUM_PLACES)
    paths = {f"{level:g}": fit.new_interval(places, level) for level in LEVELS}
    low, high = fit.interval("ceiling")
    asked = fit.new_interval(np.asarray(at, dtype=float)) if len(at) else (np.empty(0), np.empty(0))
    return {
        "name": name,
        "num_points": len(compute),
        "largest_compute": float(np.max(compute)),
        "data": data_digest(compute, reward),
        "form": fit.form,
        "state": str(decide(fit).state),
        "pooled": fit.alone is not None,
        "level": fit.level,
        "ceiling": _value(fit.params["ceiling"], low, high),
        "at": [
            {"compute": float(c), "reward": _value(float(fit.predict(c)), float(a), float(b))}
            for c, a, b in zip(at, *asked, strict=True)
        ],
        "path": {
            "compute": places.tolist(),
            "value": fit.predict(places).tolist(),
            "intervals": {level: {"low": low.tolist(), "high": high.tolist()} for level, (low, high) in paths.items()},
        },
    }


def _value(*numbers: float) -> dict[str, float | None]:
    named = zip(("value", "low", "high"), numbers, strict=True)
    return {key: number if math.isfinite(number) else None for key, number in named}


def seal(curves: Sequence[Mapping[str, Any]], *, version: str, date: str, **origin: Any) -> dict[str, Any]:
    """Return the content of a sealed file; `origin` has the logs and options of the forecast."""
    content = {"format": FORMAT, "model": MODEL, "version": version, "date": date, **origin, "curves": list(curves)}
    return {**content, "digest": digest(content)}


def opened(text: str | bytes, name: str) -> dict[str, Any]:
    """Parse the text of a sealed file; InputError if it is not a sealed forecast or was changed."""
    try:
        content = parse_json(text)
        is_sealed = content["format"] == FORMAT and isinstance(content["curves"], list) and "digest" in content
    except (ValueError, LookupError, TypeError):
        is_sealed, content = False, {}
    if not is_sealed:
        raise InputError(f"{name} is not a sealed forecast: make one with scalerl forecast LOG --seal FILE")
    if digest(content) != content["digest"]:
        raise InputError(f"{name} was changed after it was sealed: its digest does not match, so it is not scored")
    return content


def score_sealed(curve: Mapping[str, Any], compute: Array, reward: Array) -> SealScore:
    """Score a sealed curve against all points that the log has now."""
    last = float(curve["largest_compute"])
    is_new = compute > last * (1 + 1e-9)
    path = curve["path"]
    places = np.log(np.asarray(path["compute"]))
    is_covered = is_new & (np.log(compute) <= places[-1] + 1e-9)
    at, seen = np.log(compute[is_covered]), reward[is_covered]
    error = np.interp(at, places, path["value"]) - seen
    coverage = {
        float(level): _inside(at, seen, places, ends["low"], ends["high"]) for level, ends in path["intervals"].items()
    }
    return SealScore(
        name=str(curve["name"]),
        num_new=int(is_new.sum()),
        rmse=float(np.sqrt(np.mean(error**2))) if len(error) else math.nan,
        bias=float(np.mean(error)) if len(error) else math.nan,
        coverage=coverage,
        level=float(curve["level"]),
        at=tuple(_at_score(row, compute[is_new], reward[is_new]) for row in curve["at"]),
        data_changed=data_digest(compute[~is_new], reward[~is_new]) != curve["data"],
        beyond=int((is_new & ~is_covered).sum()),
    )


def _inside(at: Array, seen: Array, places: Array, low: Sequence[float], high: Sequence[float]) -> float:
    if not len(at):
        return math.nan
    return float(np.mean((seen >= np.interp(at, places, low)) & (seen <= np.interp(at, places, high))))


def _at_score(row: Mapping[str, Any], compute: Array, reward: Array) -> AtScore:
    near = np.abs(compute / row["compute"] - 1) <= NEAR
    return AtScore(
        compute=float(row["compute"]),
        reward=Value(**row["reward"]),
        measured=float(reward[near].mean()) if near.any() else None,
    )
