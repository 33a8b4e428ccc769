"""Every sentence, once: tests/golden/sentences.txt has a line for each kind and for each of its variants.

A change of words changes that line, and nothing else in the tests. After one:
python tests/forecast/report/test_words.py
"""

from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from scalerl.forecast.curves import Action, Answer, Fall, State, Value
from scalerl.forecast.report import words
from scalerl.forecast.report.words import ALARMS, NO_VERDICT, WHY_EMPTY, WORDS

GOLDEN = Path(__file__).parents[2] / "golden" / "sentences.txt"
VALUE = Value(value=0.612, low=0.59, high=0.634)
BY_SPEC = {
    "r": VALUE, "+r": Value(value=0.021, low=-0.002, high=0.05), "c": 16000.0, "p": 0.93, "or": ("one", "two", "three"),
    "%": Value(value=0.87, low=0.71, high=0.97), "$": 22500.0, "g": 4.0, ".0%": 0.25, ",.0f": 320.0, ".1%": 0.015,
}  # fmt: skip
BY_NAME = {
    "name": "run", "names": ("one", "two"), "unit": "GPU-hours", "worth": 0.01, "num": 12, "total": 300, "most": 40,
    "a": "one", "b": "two", "size": 1.5, "hours": "GPU-hours", "level": 0.9, "reward": VALUE, "of_set": " of main",
    "paths": ("runs",), "subject": "the ceiling", "share": Value(value=0.87, low=0.71, high=0.97), "inside": 0.1,
}  # fmt: skip
ALARM = {
    "value": 0.15, "limit": 0.1, "subject": "main", "detail": "8", "ratio": 1.5, "state": "new",
    "cause": None, "remedies": ("filter.truncated",), "num_answers": 384, "answers": (("4", "four"),),
}  # fmt: skip
COMPARED = {"names": ("one", "two"), "at": 64000.0, "unit": "GPU-hours", "worth": 0.01, "probability": 0.95}
GAIN = {
    "name": "run",
    "first": 0.3,
    "last": 0.31,
    "low": -0.02,
    "high": 0.04,
    "num_last": 3,
    "num_steps": 24,
    "num_skipped": 4,
    "num_empty": 20,
}
FORECAST = {"state": "rising", "to_do": "go on", "ceiling": VALUE, "doubling": None, "end": VALUE, "num": 12}
WHEN = {"run": "arm-seed0", "began": 10.0, "ended": 30.0}
FALL = Fall(drop=VALUE, peak=0.7, now=0.088, last_good=80.0, num_after=12, probability=0.99)
TO_DO = {"state": State.RISING, "action": Action.OPEN, "settled_at": 2.0}
PAST = {"state": State.PAST_PEAK, "action": Action.STOP, "fall": FALL, "unit": "GPU-hours", "checkpoint": 320.0}
COLUMN = {"column": "hours", "rule": "named", "others": ("step", "tokens"), "too_few": {"flops": 3}}
OPEN = {"at": 4e15, "unit": "FLOPs", "name": "one", "p_best": 0.49, "loss": VALUE, "worth": 0.01}
NEEDED = {"compute": BY_SPEC["%"], "level": 0.9, "p_never": 0.99}
DOUBLING = {"doubling": BY_SPEC["+r"], "worth": 0.01, "p_worth": 0.6}
GIVEN: dict[str, Mapping[str, Any]] = {
    "too_early_points": {"name": "run", "num": 4, "needed": 6, "num_left_out": 3, "has_start": True},
    "doubling": {**DOUBLING, "action": "go on", "price": 22500.0},
    "settle": {"a": "one", "b": "two", "times": 2.0, "p_times": 0.45, "seeds": 3, "p_seeds": 0.7},
    "either": COMPARED,
    "to_do": {**TO_DO, "settled_at": None},
    "column": COLUMN,
    "columns": {"compute": ("hours",), "reward": ("score",), "detected": ("x", "y")},
    "open": OPEN,
    "ceiling_or_peak": {"ceiling": VALUE, "fall": None},
    "needed": NEEDED,
    "advice": {"answer": Answer.EITHER, "winner": None},
    "chart_note": {"level": 0.9, "has_bands": True, "has_cut_bands": True, "has_bars": True, "has_marks": True},
    "picture_note": {"level": 0.9, "more": 3},
    **dict.fromkeys(("gain_rose", "gain_fell", "gain_within_noise", "gain_no_update"), GAIN),
    "forecast": {**FORECAST, "is_training": False},
    "repeated": {"run": "arm", "num_steps": 3, "gpu_hours": 0.5, "hours": "GPU-hours", "share": 0.015},
    "plan_continue": {"arms": ("one to 8,000",), "cost": 8000.0, "unit": "GPU-hours", "money": 20000.0},
    **{f"alarm_{kind}": ALARM for kind in ALARMS},
}


def example(kind: str) -> Mapping[str, Any]:
    """Return values for a kind: those that its template names."""
    template = WORDS[kind]
    if kind in GIVEN or callable(template):
        return GIVEN[kind]
    fields = [(name, spec or "") for _, name, spec, _ in Formatter().parse(template) if name]
    # What is given to an option may be a value too: {option:by {column}}.
    fields += [(name, "") for _, spec in fields for _, name, _, _ in Formatter().parse(spec) if name]
    return {name: BY_NAME.get(name, BY_SPEC.get(spec, 2.0 if spec else "x")) for name, spec in fields}


# What is said instead where some values are others.
VARIANTS: dict[str, Mapping[str, Any]] = {
    "too_early_points/without start": {**GIVEN["too_early_points"], "num_left_out": 0, "has_start": False},
    "doubling/stop": {**DOUBLING, "action": "stop", "price": None},
    "doubling/open": {**DOUBLING, "action": "open", "price": None},
    "settle/never": {"a": "one", "b": "two", "times": None, "p_times": 0.02, "seeds": None, "p_seeds": 0.05},
    "either/three": {**COMPARED, "names": ("one", "two", "three")},
    "to_do/settled": TO_DO,
    "to_do/go on": {**TO_DO, "action": Action.GO_ON},
    "to_do/stop": {**TO_DO, "action": Action.STOP},
    "to_do/too early": {**TO_DO, "state": State.TOO_EARLY},
    "to_do/too early and over": {**TO_DO, "state": State.TOO_EARLY, "is_over": True},
    "to_do/flat": {**TO_DO, "state": State.FLAT},
    "to_do/checkpoint": PAST,
    "to_do/checkpoint by compute": {**PAST, "checkpoint": None},
    "column/named": {**COLUMN, "rule": "option"},
    "column/counted": {**COLUMN, "rule": "counted"},
    "columns/named": {"compute": ("hours",), "reward": ("score",), "detected": ()},
    "columns/one": {"compute": ("hours",), "reward": ("score",), "detected": ("y",)},
    "open/regret": {**OPEN, "p_best": 0.93},
    "advice/open": {"answer": Answer.OPEN, "winner": None},
    "column/built": {**COLUMN, "rule": "clock"},
    "ceiling_or_peak/fallen": {"fall": FALL},
    "needed/never": {**NEEDED, "compute": None},
    "needed/not known": {**NEEDED, "compute": None, "p_never": 0.6},
    "advice/one": {"answer": Answer.TAKE, "winner": "one"},
    "chart_note/without bands": {
        "level": 0.9,
        "has_bands": False,
        "has_cut_bands": False,
        "has_bars": False,
        "has_marks": False,
    },
    "alarm_truncated/over on a page": {**ALARM, **WHEN},
    "alarm_truncated/lasts": {**ALARM, **WHEN, "ended": None},
    "alarm_truncated/throughout": {**ALARM, **WHEN, "began": None, "ended": None, "run": ""},
    "alarm_truncated/over": {**ALARM, "state": "over"},
    **{f"alarm_empty/{cause}": {**ALARM, "cause": cause} for cause in WHY_EMPTY if cause != "mixed"},
    **{f"alarm_no_verdict/{cause}": {**ALARM, "cause": cause} for cause in NO_VERDICT},
    "gain_fell/broke down": {**GAIN, "num_last": 1},
    "alarm_solved/one task": {**ALARM, "subject": ""},
    "forecast/flat": {**FORECAST, "is_training": True, "state": State.FLAT, "noticed": 0.02, "ceiling": None},
    "forecast/too early": {**FORECAST, "is_training": False, "state": State.TOO_EARLY, "ceiling": None, "end": None},
}


def sentences() -> list[str]:
    own = [f"{kind}: {words.text(kind, example(kind))}" for kind in WORDS]
    return own + [f"{name}: {words.text(name.partition('/')[0], values)}" for name, values in VARIANTS.items()]


def test_sentences_are_the_golden_ones():
    assert GOLDEN.read_text(encoding="utf-8").splitlines() == sentences()


@pytest.mark.parametrize("line", sentences())
def test_every_sentence_is_complete(line: str):
    assert "{" not in line
    assert "  " not in line
    assert line == line.strip()
    assert not line.endswith(":") or line.startswith(("holds_for", "in_set"))


def test_levels_are_those_of_sentences_that_exist():
    assert {kind for kinds in words.LEVELS.values() for kind in kinds} <= WORDS.keys()


def test_every_variant_says_something_else():
    assert all(words.text(kind, example(kind)) != words.text(kind, values)
               for kind, values in ((name.partition("/")[0], each) for name, each in VARIANTS.items()))  # fmt: skip


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("\n".join(sentences()) + "\n", encoding="utf-8")
