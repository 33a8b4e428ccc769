"""Every sentence, once: tests/golden/sentences.txt has a line for each kind. A change of words changes one line."""

from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from scalerl.curves import Value
from scalerl.report import words
from scalerl.report.words import ALARMS, WORDS

GOLDEN = Path(__file__).parents[1] / "golden" / "sentences.txt"
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
    "value": 0.15, "limit": 0.1, "subject": "main", "detail": "8", "ratio": 1.5, "before": 0.1, "state": "new",
    "cause": None, "remedies": ("filter.truncated",), "num_answers": 384, "answers": (("4", "four"),),
}  # fmt: skip
COMPARED = {"names": ("one", "two"), "at": 64000.0, "unit": "GPU-hours", "worth": 0.01, "probability": 0.95}
GAIN = {"name": "run", "first": 0.3, "last": 0.31, "num_last": 3, "num_steps": 24, "num_skipped": 4, "num_empty": 20}
FORECAST = {"state": "rising", "to_do": "go on", "ceiling": VALUE, "doubling": None, "end": VALUE, "num": 12}
WHEN = {"run": "arm-seed0", "began": 10.0, "ended": 30.0, "began_compute": None, "unit": "steps"}
DOUBLING = {"doubling": BY_SPEC["+r"], "worth": 0.01, "p_worth": 0.6}
GIVEN: dict[str, Mapping[str, Any]] = {
    "too_early_points": {"name": "run", "num": 4, "needed": 6, "num_left_out": 3, "has_start": True},
    "doubling": {**DOUBLING, "action": "go on", "price": 22500.0},
    "settle": {"a": "one", "b": "two", "times": 2.0, "seeds": 3},
    "either": COMPARED,
    "chart_note": {"level": 0.9, "has_bands": True},
    "picture_note": {"level": 0.9, "more": 3},
    "alarm_when": WHEN,
    "gain_no_update": GAIN,
    "forecast": {**FORECAST, "is_training": False},
    "replayed": {"rule": "p_worth < 0.1", "num": 3, "num_stopped": 1, "saved": 0.2, "lost": 0.01},
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
    return {name: BY_NAME.get(name, BY_SPEC.get(spec, 2.0 if spec else "x")) for name, spec in fields}


def sentences() -> list[str]:
    return [f"{kind}: {words.text(kind, example(kind))}" for kind in WORDS]


def test_sentences_are_the_golden_ones():
    """After a change of words: python tests/report/test_words.py"""
    assert GOLDEN.read_text(encoding="utf-8").splitlines() == sentences()


@pytest.mark.parametrize("kind", WORDS)
def test_every_sentence_is_complete(kind: str):
    text = words.text(kind, example(kind))
    assert "{" not in text
    assert "  " not in text
    assert text == text.strip()


@pytest.mark.parametrize(
    "kind, changed, part",
    [
        ("doubling", {**DOUBLING, "action": "stop", "price": None}, "Stop"),
        ("settle", {"a": "one", "b": "two", "times": None, "seeds": None}, "Neither"),
        ("either", {**COMPARED, "names": ("one", "two", "three")}, "Any of"),
        ("alarm_when", {**WHEN, "ended": None}, "since step 10"),
        ("alarm_when", {**WHEN, "began": None, "ended": None, "began_compute": 2e4}, "since 20,000"),
        ("alarm_truncated", {**ALARM, "state": "over"}, "Over"),
        ("alarm_truncated", {**ALARM, "state": "changed"}, "now, after 10%"),
        ("alarm_empty", {**ALARM, "cause": "unrewarded"}, "'4' for 'four'"),
        ("alarm_empty", {**ALARM, "cause": "all_wrong"}, "scalerl sft"),
        ("alarm_empty", {**ALARM, "cause": "all_right"}, "harder problems"),
        ("alarm_empty", {**ALARM, "cause": "no_verdict"}, "gave no verdict on any answer"),
        ("alarm_no_verdict", {**ALARM, "cause": "grader/timeout"}, "grading.timeout_s"),
        ("alarm_no_verdict", {**ALARM, "cause": "environment/timeout"}, "task.environment.step_s"),
        ("alarm_solved", {**ALARM, "subject": ""}, "a task's training problems"),
    ],
)
def test_variants(kind: str, changed: Mapping[str, Any], part: str):
    assert part in words.text(kind, changed)


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("\n".join(sentences()) + "\n", encoding="utf-8")
