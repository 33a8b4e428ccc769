"""Whether every arm can begin, told before the first run."""

import pytest
from small_study import STUDY, command_of, plan_of, run

from scalerl.errors import StudyError
from scalerl.study.failure_reason import failure_reason, last_error
from scalerl.study.ready import check_arms, untried

OTHERS = """
[arms.model]
model.path = "models/other"
[arms.task]
task = { name = "countdown" }
[arms.own]
loss = { name = "package.module:function" }
[arms.plain]
weights = "token"
"""


def test_arms_that_import_something_are_tried(tmp_path):
    plan = plan_of(tmp_path, STUDY + OTHERS)
    assert [arm.name for arm in untried(plan, tmp_path / "out")] == ["model", "task", "own"]
    run(tmp_path, {"model-seed1": "fail"}, text=STUDY + OTHERS)
    assert untried(plan, tmp_path / "out") == []


def test_arms_that_cannot_be_set_up_are_named(tmp_path):
    arms = untried(plan_of(tmp_path, STUDY + OTHERS), tmp_path / "out")
    check_arms(arms, command_of(tmp_path, {}))
    with pytest.raises(StudyError) as caught:
        check_arms(arms, command_of(tmp_path, {"run": "crash"}))
    assert caught.value.problems == tuple(
        f"the arm {name} cannot be run here: it cannot be" for name in ("model", "task", "own")
    )


@pytest.mark.parametrize(
    "printed, said",
    [
        ("starting\nerror: the first\nthe second\n\n", "the first; the second"),
        ("error: old\nTraceback (most recent call last):\n  File ...\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("one\ntwo\n", "two"),
        ("", ""),
    ],
)
def test_the_last_error_of_a_command_or_its_last_line(printed, said):
    assert last_error(printed) == said


@pytest.mark.parametrize(
    "printed, code, step, why",
    [
        ("step 4  0.01 GPU-h  0.312\n", -9, 4, "killed by SIGKILL after step 4"),
        ("step 4  0.01 GPU-h  0.312\n", -15, 4, "killed by SIGTERM after step 4"),
        ("a model of 2M parameters\n", -9, None, "killed by SIGKILL"),
        ("terminate called: out of range\n", -6, 4, "terminate called: out of range (killed by SIGABRT after step 4)"),
        ("step 4  0.01 GPU-h\nerror: no room\n", 2, 4, "no room (exit code 2)"),
        ("", 1, None, "exit code 1"),
    ],
)
def test_killed_run_reports_the_signal(printed, code, step, why):
    assert failure_reason(printed, code, step) == why
