"""Alarms of a run: as values, with when they began and ended, and in words."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from scalerl.forecast.report.alarms import (
    ALARM_STEPS,
    SIGNALS,
    Alarm,
    AlarmKind,
    AlarmNews,
    alarms,
    alarms_to_show,
    signal_alarms,
    with_remedies,
)
from scalerl.forecast.report.metrics import number_columns
from scalerl.forecast.report.pass_at_k import pass_at, pass_curves
from scalerl.forecast.report.words import ALARMS
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import remedies


def steps(**values: float | None) -> list[dict[str, float | None]]:
    calm: dict[str, float | None] = {
        "rollout/truncated_frac": 0.0,
        "loss/kl": 0.001,
        "batch/no_verdict_frac": 0.01,
        "batch/effective": 60.0,
        "optim/skipped": 0.0,
        "loss/entropy": 0.2,
        "reward/correct_frac": 0.5,
    }
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return [calm] * 100 + [calm | named] * ALARM_STEPS


def present(
    rows: Sequence[Mapping[str, Any]], remedies: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> list[Alarm]:
    lasting = [alarm for alarm in alarms(number_columns(rows)) if alarm.ended is None]
    return with_remedies(lasting, remedies)


def test_signals_within_their_limits_raise_no_alarm():
    assert present(steps()) == []
    assert present(steps(curriculum__solved_frac=0.7)) == []
    # Only the last steps count, and not fewer than five.
    assert present(steps(loss__kl=0.5) + steps()) == []
    assert present(steps(loss__kl=0.5)[-4:]) == []
    assert len(present(steps(loss__kl=0.5)[-5:])) == 1


@pytest.mark.parametrize(
    "values, kind, limit, cause, subject",
    [
        ({"rollout__truncated_frac": 0.12}, "truncated", 0.1, None, ""),
        ({"loss__kl": 0.5}, "mismatch", 0.2, None, ""),
        ({"batch__no_verdict_frac": 0.3}, "no_verdict", 0.05, None, ""),
        ({"batch__no_verdict_frac": 0.3, "grader__timeout": 9, "grader__error": 2},
         "no_verdict", 0.05, "grader/timeout", ""),
        ({"batch__no_verdict_frac": 0.3, "environment__timeout": 9, "grader__error": 2},
         "no_verdict", 0.05, "environment/timeout", ""),
        ({"optim__skipped": 1.0}, "skipped", 0.05, None, ""),
        ({"loss__entropy": 0.001}, "entropy", 0.003, None, ""),
        ({"batch__effective": 0.0, "reward__correct_frac": 0.0}, "empty", 0.2, "all_wrong", ""),
        ({"batch__effective": 0.0, "reward__correct_frac": 1.0}, "empty", 0.2, "all_right", ""),
        ({"batch__effective": 0.0, "reward__correct_frac": None}, "empty", 0.2, "no_verdict", ""),
        ({"curriculum__solved_frac": 0.9}, "solved", 0.8, None, ""),
        ({"curriculum__solved_frac": 0.9, "curriculum__solved_frac__code": 0.9}, "solved", 0.8, None, "code"),
    ],
)  # fmt: skip
def test_signals_beyond_their_limits_raise_an_alarm_with_its_cause(
    values: dict, kind: str, limit: float, cause: str | None, subject: str
):
    known = remedies(load_recipe("scalerl"))
    (alarm,) = present(steps(**values), remedies=known)
    assert (alarm.kind, alarm.limit, alarm.cause, alarm.subject) == (kind, limit, cause, subject)
    assert alarm.remedies == tuple(known.get(kind, ()))
    assert alarm.say().kind == f"alarm_{kind}"


def test_a_mismatch_at_equal_weights_names_the_papers_remedy():
    first = {"rollout/lag_max": 0.0, "loss/kl": 0.03, "loss/ratio_max": 7.5, "batch/effective": 60.0}
    later = {"rollout/lag_max": 4.0, "loss/kl": 0.05, "loss/ratio_max": 90.0, "batch/effective": 60.0}
    (alarm,) = present([first, *[later] * 40], remedies=remedies(load_recipe("base")))
    assert (alarm.kind, alarm.value, alarm.limit, alarm.ratio) == (AlarmKind.BACKEND, 0.03, 0.01, 7.5)
    assert alarm.remedies == ('model.fp32_head = "both"', 'correction = "band"')
    assert all(name in alarm.text for name in alarm.remedies)
    assert present([first | {"loss/kl": 1e-6}, *[later] * 40]) == []
    assert remedies(load_recipe("scalerl"))["backend"] == ('model.dtype = "float32"', 'correction = "band"')
    quantised = load_recipe("scalerl", ["rollout.engine=vllm", "rollout.vllm.quantisation=fp8"])
    assert remedies(quantised)["backend"] == ('rollout.vllm.quantisation = ""', 'correction = "band"')


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), ('correction = "band"', "pipeline.max_lag = 4")),
        (("correction=sequence_mask",), ("pipeline.max_lag = 4",)),
        (("pipeline.max_lag=0",), ('correction = "band"',)),
    ],
)
def test_mismatch_names_what_the_recipe_does_not_do_yet(changes: tuple[str, ...], expected: tuple[str, ...]):
    (alarm,) = present(steps(loss__kl=0.5), remedies=remedies(load_recipe("scalerl", changes)))
    assert alarm.remedies == expected
    assert all(each in alarm.text for each in expected)


def test_every_limit_has_an_alarm_and_every_alarm_has_words():
    assert {signal.alarm for signal in SIGNALS} <= set(AlarmKind)
    assert set(ALARMS) == set(AlarmKind)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([0.5] * 40 + [2.0] * 40 + [0.1] * 40, [0.1 / 2.0]),
        ([2.0] * 60 + [1.0] * 60, []),
        # One that never called anything has nothing to lose.
        ([0.05] * 60 + [0.0] * 60, []),
        ([None] * 60, []),
    ],
)
def test_agent_that_stops_calling_its_tools_is_an_alarm(calls: list[float | None], expected: list[float]):
    found = present([{"rollout/tool_calls_mean": value} for value in calls], remedies=remedies(load_recipe("scalerl")))
    assert [alarm.kind for alarm in found] == ["unused_tools"] * len(expected)
    assert [alarm.value for alarm in found] == pytest.approx(expected)


def test_truncation_names_the_settings_of_the_recipe():
    rows = steps(rollout__truncated_frac=0.2)
    for length, names in {
        "interruption": ("length.answer_budget", "length.thinking_max", "filter.drop_truncated = false"),
        # There the paper's rule makes it worse: what is cut teaches nothing, and nothing else limits the length.
        "none": ("filter.drop_truncated = false", "length.max_length"),
    }.items():
        change = [] if length == "interruption" else ['length={name="none", max_length=40}']
        (alarm,) = present(rows, remedies=remedies(load_recipe("tiny-cpu", change)))
        assert alarm.remedies == names
        assert all(name in alarm.text for name in names)
    kept = load_recipe("tiny-cpu", ["filter.drop_truncated=false"])
    (alarm,) = present(rows, remedies=remedies(kept))
    assert alarm.remedies == ("length.answer_budget", "length.thinking_max")


def test_an_alarm_is_reported_once_and_when_it_is_over():
    news, at = AlarmNews(), lambda value: present(steps(rollout__truncated_frac=value))
    assert [alarm.state for alarm in news.update(at(0.12))] == ["new"]
    assert news.update(at(0.13)) == []
    assert news.update(at(0.30)) == []
    (over,) = news.update(at(0.05))
    assert over.state == "over"
    assert news.update(at(0.05)) == []
    assert [alarm.state for alarm in news.update(at(0.12))] == ["new"]


# When they began and ended


def columns(**values: Any) -> dict[str, np.ndarray]:
    num = len(next(iter(values.values())))
    named = {name.replace("__", "/"): np.asarray(each, dtype=float) for name, each in values.items()}
    return {"step": np.arange(1.0, num + 1), **named}


EPISODES: list[tuple[dict[str, list[float]], float | None, list[tuple[str, float, float | None]]]] = [
    # columns, the lag that the recipe allows, and (kind, first step, last step) of each alarm
    ({"rollout__truncated_frac": [0.02] * 40 + [0.3] * 30}, None, [("truncated", 46, None)]),
    ({"loss__kl": [0.01] * 20 + [2.0] * 5 + [0.01] * 60}, None, [("mismatch", 22, 43)]),
    ({"loss__entropy": [0.4] * 10 + [0.0001] * 40}, None, [("entropy", 30, None)]),
    ({"rollout__lag_max": [7.0] * 10 + [30.0] * 30}, 8, [("lag", 11, None)]),
    ({"rollout__lag_max": [7.0] * 10 + [30.0] * 30}, 40, []),
    ({"rollout__truncated_frac": [0.9] * 4}, None, []),
]  # fmt: skip


@pytest.mark.parametrize(("values", "max_lag", "expected"), EPISODES)
def test_alarms_begin_and_end_where_their_mean_passes_the_limit(
    values: Any, max_lag: float | None, expected: list[Any]
):
    found = signal_alarms(columns(**values), max_lag)
    assert [(alarm.kind, alarm.began, alarm.ended) for alarm in found] == expected


# pass@k


def test_pass_at_k_draws_without_replacement():
    assert pass_at(np.array([0.0, 1.0, 2.0, 4.0]), 4, 2).tolist() == pytest.approx([0, 0.5, 5 / 6, 1])
    assert pass_at(np.array([3.0]), 8, 1).tolist() == pytest.approx([3 / 8])


def evaluations(rates: list[float], spread: list[float], num: int = 200, samples: int = 16) -> list[dict[str, Any]]:
    """Evaluations with this mean pass rate, and this share of problems that are solved at all."""
    rng = np.random.default_rng(0)
    order = rng.random(num)
    return [
        {"step": step, "set": "main", "prompts_hash": "h", "num_samples": num * samples,
         "num_correct": [int(rng.binomial(samples, min(rate / share, 1))) if at < share else 0 for at in order]}
        for step, (rate, share) in enumerate(zip(rates, spread, strict=True))
    ]  # fmt: skip


def test_pass_at_1_may_rise_while_pass_at_k_falls():
    rising = np.linspace(0.2, 0.5, 12).tolist()
    rows = evaluations(rising, np.linspace(0.9, 0.6, 12).tolist())
    numbers, curves = pass_curves(rows)
    assert numbers == list(range(12))
    assert list(curves) == [1, 2, 4, 8, 16]
    assert curves[1][0] == pytest.approx(sum(rows[0]["num_correct"]) / 3200)
    assert curves[1][-1] > curves[1][0]
    assert curves[16][-1] < curves[16][0]


def test_list_has_lasting_alarms_first():
    data = columns(loss__kl=[0.01] * 20 + [2.0] * 5 + [0.01] * 60, rollout__truncated_frac=[0.5] * 85)
    assert [each.ended is None for each in alarms_to_show(signal_alarms(data, None))] == [True, False]
