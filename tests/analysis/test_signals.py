"""Alarms of a run that trains, as values and in words."""

from scalerl.analysis.outlook import LiveForecast
from scalerl.analysis.signals import ALARM_STEPS, REPORTED, SIGNALS, Alarm, alarms, signal_alarms
from scalerl.analysis.words import alarm_text, past_alarm_text


def steps(**values: float) -> list[dict[str, float]]:
    calm = {"rollout/truncated_frac": 0.0, "loss/kl": 0.001, "batch/no_verdict_frac": 0.01}
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return [calm] * 100 + [calm | named] * ALARM_STEPS


def test_signals_raise_alarms_above_their_limits():
    assert alarms(steps(), {}) == []
    (truncated,) = alarms(steps(rollout__truncated_frac=0.12), {})
    assert (truncated.kind, truncated.limit) == ("truncated", 0.1)
    assert alarm_text(truncated) == "12% of completions are truncated: runs beyond 10% have collapsed"
    (mismatch,) = alarms(steps(loss__kl=0.5), {})
    assert mismatch == Alarm(kind="mismatch", value=0.5, limit=0.2)
    assert "KL of 0.5" in alarm_text(mismatch)
    (ungraded,) = alarms(steps(batch__no_verdict_frac=0.3), {})
    assert ungraded.kind == "no_verdict"
    assert alarm_text(ungraded).startswith("the grader has no verdict on 30% of completions")


def test_only_the_last_steps_count():
    assert alarms(steps(loss__kl=0.5) + steps(), {}) == []


def test_few_steps_raise_no_alarm():
    assert alarms(steps(loss__kl=0.5)[-4:], {}) == []
    assert len(alarms(steps(loss__kl=0.5)[-5:], {})) == 1


def test_a_run_that_falls_below_its_curve_is_an_alarm():
    rows = [{"gpu_hours": 0.0, "reward": 0.2, "num_samples": 1000}]
    rows += [
        {"gpu_hours": float(n), "reward": 0.2 + 0.6 / (1 + (3.0 / n) ** 1.5), "num_samples": 1000} for n in range(1, 21)
    ]
    fallen = rows[:-5] + [row | {"reward": 0.3} for row in rows[-5:]]
    outlooks = {
        "main": LiveForecast.from_rows(rows).outlook(),
        "hard": LiveForecast.from_rows(fallen).outlook(),
        "new": None,
    }
    (alarm,) = alarms([], outlooks)
    assert (alarm.kind, alarm.subject) == ("fall", "hard")
    assert alarm_text(alarm) == "the run falls away from its own curve on hard"


def test_a_report_words_the_same_alarm_as_the_past():
    (alarm,) = signal_alarms({"rollout/truncated_frac": 0.25, "loss/entropy": 9.0})
    assert past_alarm_text("a-seed0", alarm) == "a-seed0: truncated answers at 0.25 over the last steps, above 0.1."


def test_every_limit_has_an_alarm():
    assert all((signal.limit is None) == (signal.alarm is None) for signal in SIGNALS)
    assert {signal.key for signal in REPORTED} < {signal.key for signal in SIGNALS}
