"""Alarms of a run that trains, as values and in words."""

from scalerl.config import load_recipe, remedies
from scalerl.report.outlook import LiveForecast
from scalerl.report.signals import ALARM_STEPS, REPORTED, SIGNALS, Alarm, AlarmNews, alarms, signal_alarms
from scalerl.report.words import alarm_text, past_alarm_text


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


def test_signals_raise_alarms_above_their_limits():
    assert alarms(steps(), {}) == []
    (truncated,) = alarms(steps(rollout__truncated_frac=0.12), {})
    assert (truncated.kind, truncated.limit) == ("truncated", 0.1)
    assert alarm_text(truncated).startswith("12% of completions reach their length limit and are cut off")
    (mismatch,) = alarms(steps(loss__kl=0.5), {})
    assert mismatch == Alarm(kind="mismatch", value=0.5, limit=0.2)
    assert "KL of 0.5" in alarm_text(mismatch)
    (ungraded,) = alarms(steps(batch__no_verdict_frac=0.3), {})
    assert ungraded.kind == "no_verdict"
    assert alarm_text(ungraded).startswith("the grader has no verdict on 30% of completions")


def test_a_mismatch_at_equal_weights_names_the_papers_remedy():
    first = {"rollout/lag_max": 0.0, "loss/kl": 0.03, "loss/ratio_max": 7.5, "batch/effective": 60.0}
    later = {"rollout/lag_max": 4.0, "loss/kl": 0.05, "loss/ratio_max": 90.0, "batch/effective": 60.0}
    (alarm,) = alarms([first, *[later] * 40], {}, remedies=remedies(load_recipe("base")))
    assert (alarm.kind, alarm.value, alarm.limit, alarm.ratio) == ("backend", 0.03, 0.01, 7.5)
    assert alarm_text(alarm) == (
        "generator and learner differ by a KL of 0.03 at equal weights (largest ratio 7.5), so their arithmetic "
        'differs: set model.fp32_head = "both"; the paper\'s remedy is an FP32 head at both ends (model.fp32_head)'
    )
    assert alarms([first | {"loss/kl": 1e-6}, *[later] * 40], {}) == []
    assert remedies(load_recipe("scalerl"))["backend"] == ('model.dtype = "float32"',)
    quantised = load_recipe("scalerl", ["rollout.engine=vllm", "rollout.vllm.quantisation=fp8"])
    assert remedies(quantised)["backend"] == ('rollout.vllm.quantisation = ""',)


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
    assert alarm.value is not None
    text = (
        f"the reward on hard has fallen by {alarm.value:.2g} since its peak: its best checkpoint is the one at the peak"
    )
    assert alarm_text(alarm) == text


def test_a_report_words_the_same_alarm_as_the_past():
    (alarm,) = signal_alarms({"rollout/truncated_frac": 0.25, "loss/entropy": 9.0})
    assert past_alarm_text("a-seed0", alarm) == "a-seed0: truncated answers at 0.25 over the last steps, above 0.1."


def test_every_limit_has_an_alarm():
    assert all((signal.limit is None) == (signal.alarm is None) for signal in SIGNALS)
    assert {signal.key for signal in REPORTED} < {signal.key for signal in SIGNALS}


def test_steps_without_an_update_are_an_alarm():
    (alarm,) = alarms(steps(optim__skipped=1.0), {})
    assert (alarm.kind, alarm.value) == ("skipped", 1.0)
    assert "100% of the last steps changed no weight" in alarm_text(alarm)
    assert "optimizer.lr" in alarm_text(alarm)


def test_empty_batches_are_an_alarm_with_their_cause():
    (wrong,) = alarms(steps(batch__effective=0.0, reward__correct_frac=0.0), {})
    assert (wrong.kind, wrong.cause) == ("empty", "all_wrong")
    assert "scalerl sft" in alarm_text(wrong)
    (right,) = alarms(steps(batch__effective=0.0, reward__correct_frac=1.0), {})
    assert right.cause == "all_right"
    assert "harder problems" in alarm_text(right)
    (unjudged,) = alarms(steps(batch__effective=0.0, reward__correct_frac=None), {})
    assert unjudged.cause == "no_verdict"
    assert "the grader gave no verdict on any answer" in alarm_text(unjudged)


def test_a_task_that_has_few_problems_left_is_an_alarm():
    settings = remedies(load_recipe("scalerl"))
    assert alarms(steps(curriculum__retired_frac=0.7), {}, remedies=settings) == []
    (alarm,) = alarms(steps(curriculum__retired_frac=0.9), {}, remedies=settings)
    assert alarm.kind == "retired"
    assert alarm_text(alarm) == (
        "90% of a task's training problems are solved and no longer asked; with few of them left, the reward can fall: "
        'take more problems, or ask all of them (curriculum = "uniform")'
    )


def test_of_several_tasks_the_one_with_few_problems_is_named():
    shares = {"curriculum/retired_frac/math": 0.2, "curriculum/retired_frac/code": 0.9}
    (alarm,) = alarms([{**row, **shares} for row in steps(curriculum__retired_frac=0.9)], {})
    assert alarm_text(alarm).startswith("90% of the training problems of code are solved and no longer asked; with few")


def test_entropy_near_zero_is_an_alarm():
    (alarm,) = alarms(steps(loss__entropy=0.001), {})
    assert (alarm.kind, alarm.below) == ("entropy", True)
    assert past_alarm_text("a", alarm) == "a: entropy at 0.001 over the last steps, below 0.003."


def test_missing_verdicts_name_their_reason():
    (alarm,) = alarms(steps(batch__no_verdict_frac=0.3, grader__timeout=9, grader__error=2), {})
    assert alarm.cause == "timeout"
    assert "grading.timeout_s" in alarm_text(alarm)


def test_truncation_names_the_settings_of_the_recipe():
    rows = steps(rollout__truncated_frac=0.2)
    for length, names in {
        "interruption": ("length.answer_budget", "length.thinking_max", "filter.drop_truncated = false"),
        # There the paper's rule makes it worse: what is cut teaches nothing, and nothing else limits the length.
        "none": ("filter.drop_truncated = false", "length.max_length"),
    }.items():
        change = [] if length == "interruption" else ['length={name="none", max_length=40}']
        (alarm,) = alarms(rows, {}, remedies=remedies(load_recipe("tiny-cpu", change)))
        assert alarm.remedies == names
        assert all(name in alarm_text(alarm) for name in names)
        assert ("nothing else makes answers shorter" in alarm_text(alarm)) == (length == "none")
    kept = load_recipe("tiny-cpu", ["filter.drop_truncated=false"])
    assert "filter.drop_truncated = false" not in remedies(kept)["truncated"]


def test_an_alarm_is_reported_once_and_then_its_changes():
    news, at = AlarmNews(), lambda value: alarms(steps(rollout__truncated_frac=value), {})
    assert [alarm.state for alarm in news.update(at(0.12))] == ["new"]
    assert news.update(at(0.13)) == []
    (changed,) = news.update(at(0.30))
    assert changed.state == "changed"
    assert alarm_text(changed).endswith("are cut off now, after 12%")
    (over,) = news.update(at(0.05))
    assert over.state == "over"
    assert news.update(at(0.05)) == []
    assert [alarm.state for alarm in news.update(at(0.12))] == ["new"]
