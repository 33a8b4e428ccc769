"""Verdicts, at once or from child processes: what each asker sees, and what a grader that fails costs."""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scalerl.errors import GraderError, GradingStalled
from scalerl.recipe.parts import GraderSettings, GradingSettings, RewardSettings
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.graders.pool import GraderSpec
from scalerl.training.graders.supervisor import ForkLimits
from scalerl.training.graders.values import Score, read_score
from scalerl.training.loop import grading as grading_module
from scalerl.training.loop.grading import (
    GraderRunner,
    GroupGrading,
    Judge,
    Verdict,
    graders_of,
    is_pooled,
    opened_thinking,
)
from scalerl.training.tasks.length import LengthControl
from scalerl.training.tasks.task import Task
from scalerl.training.types import Completion, LengthPlan, Problem, Request

PROBLEM = Problem(id="a", prompt="1+2=", answer="3", task="arithmetic")


OBEDIENT = "own_code:obedient"


def judge(grader: str) -> Judge:
    """Texts travel as one token a character."""
    task = Task(name="arithmetic", training=(PROBLEM,), evaluation=(), grader=grader)
    return Judge(
        graders=graders_of(task), decode_all=lambda completions: ["".join(map(chr, tokens)) for tokens in completions]
    )


def completion(text: str, index: int = 0, group: str = "0/a", problem: Problem = PROBLEM) -> Completion:
    tokens = [ord(character) for character in text]
    request = Request(
        group=group, index=index, problem=problem, prompt_tokens=(1,), seed=index, length=LengthPlan(answer_budget=64)
    )
    return Completion(
        request=request,
        tokens=np.array(tokens, dtype=np.int32),
        log_probs=np.zeros(len(tokens), dtype=np.float32),
        versions=np.zeros(len(tokens), dtype=np.int32),
        forced=np.zeros(len(tokens), dtype=np.bool_),
        finish="stop",
    )


# Nothing here computes for long, but what hangs.
LIMITS = GradingSettings(num_workers=3, cpu_limit_s=0.3)


@pytest.fixture(scope="module")
def graders() -> Iterator[GraderRunner]:
    """One pool for all tests that take all of their verdicts."""
    with closing(GraderRunner(LIMITS)) as one:
        yield one


def wait_for(poll: Callable[..., list], num: int) -> list:
    found: list = []
    deadline = time.monotonic() + 300
    while len(found) < num:
        assert time.monotonic() < deadline
        found += poll(wait=True)
    return found


def verdicts_on(graders: GraderRunner, used: Judge, *texts: str) -> list[Verdict]:
    """Verdicts on answers, in their order."""
    graders.submit([completion(text, index) for index, text in enumerate(texts)], used, "training")
    found = wait_for(functools.partial(graders.poll, "training"), len(texts))
    return sorted(found, key=lambda verdict: verdict.subject.request.index)


def of(marked: Verdict) -> tuple[str, bool | None, str | None]:
    return marked.subject.request.key, marked.correct, marked.reason


def test_only_fast_built_in_graders_run_in_this_process():
    graders = GraderRunner(LIMITS)
    assert {name: is_pooled(judge(name).graders[0].spec) for name in ("exact", "numeric", "math", OBEDIENT)} == {
        "exact": False,
        "numeric": False,
        "math": True,
        OBEDIENT: True,
    }
    graders.check(judge("exact"))
    graders.submit([completion("<think>1</think>3")], judge("exact"), "training")
    assert graders.pids == ()
    (verdict,) = graders.poll("training")
    assert of(verdict) == ("0/a#0", True, None)
    # Columns are for several graders; the value of a single one has a field of its own.
    assert (verdict.value, verdict.scores) == (1.0, {})
    assert graders.poll("training", wait=True) == []


def test_thinking_opened_by_the_prompt_must_end(graders: GraderRunner):
    for opening, expected in (("", [True, True, False]), ("<think>", [False, True, False])):
        opened = dataclasses.replace(judge("exact"), opening=opening)
        verdicts = verdicts_on(graders, opened, "3", "it is 1+2, so</think>3", "it is 3")
        assert [one.correct for one in verdicts] == expected


@pytest.mark.parametrize(
    "prompt, start, end, opening",
    [
        ("1+2=<think>\n", "<think>", "</think>", "<think>"),
        ("1+2=<think>\n", "<think>\n", "</think>", "<think>\n"),
        ("1+2=<think>", "<think>", "", ""),  # what never ends is no thinking
        ("1+2=", "", "</think>", ""),
        ("think within <think>", "[", "]", ""),
    ],
)
def test_thinking_opened_by_the_prompt_is_added_to_the_answer(prompt: str, start: str, end: str, opening: str):
    answer = AnswerFormat(thinking_start=start, thinking_end=end)
    task = Task(name="a", training=(), evaluation=(), grader="exact", answer=answer)
    assert opened_thinking(prompt, task) == opening
    # The grader gets the end of thinking.
    assert graders_of(task)[0].spec == GraderSpec(name="exact", settings=dataclasses.asdict(answer))


def test_training_and_evaluation_share_a_pool(graders: GraderRunner):
    pooled, quick = judge(OBEDIENT), judge("exact")
    graders.check(pooled)
    with pytest.raises(GraderError, match='own_code has no "obedint"'):
        graders.check(judge("own_code:obedint"))
    for index, text in enumerate(("late", "4")):
        graders.submit([completion(text, index)], pooled, "training")
        # The same keys: problems of both may go by one name.
        graders.submit([completion("4" if text == "late" else "3", index)], pooled, "evaluation")
    graders.submit([completion("3", 2)], quick, "evaluation")
    # What is there is not held up by what is still being graded.
    evaluated = graders.poll("evaluation", wait=True)
    assert of(evaluated[0]) == ("0/a#2", True, None)
    evaluated += wait_for(functools.partial(graders.poll, "evaluation"), 3 - len(evaluated))
    assert sorted(map(of, evaluated[1:])) == [("0/a#0", False, None), ("0/a#1", True, None)]
    trained = wait_for(functools.partial(graders.poll, "training"), 2)
    assert sorted(map(of, trained)) == [("0/a#0", True, None), ("0/a#1", False, None)]
    assert graders.poll("training", wait=True) == graders.poll("evaluation", wait=True) == []


def test_answer_that_breaks_the_grader_costs_only_itself(graders: GraderRunner):
    found = verdicts_on(graders, judge(OBEDIENT), "3", "hang", "die", "raise", "4", "3")
    assert [one.correct for one in found] == [True, None, None, None, False, True]
    assert [one.reason for one in found] == [None, "timeout", "crash", "error", None, None]
    assert graders.first_errors[OBEDIENT] == "ArithmeticError: no such number"


def test_grading_settings_are_the_pools_limits():
    taken = dataclasses.asdict(ForkLimits())
    del taken["longest_reply"], taken["settings"]
    assert GradingSettings().model_dump() == taken


def test_slow_grader_may_take_its_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grading_module, "_SPARE_S", 0.0)
    now = [0.0]
    monkeypatch.setattr(grading_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for timeout_s, sentence in ((900.0, "900 s"), (30.0, "30 s")):
        patient = GraderRunner(GradingSettings(num_workers=1, timeout_s=timeout_s))
        with closing(patient):
            patient.submit([completion("sleep")], judge(OBEDIENT), "training")
            now[0] += timeout_s - 1
            # The watchdog counts the seconds of a call, however long a grader may take.
            start = time.monotonic()
            assert patient.poll("training", wait=True) == []
            assert time.monotonic() - start < timeout_s - 1
            now[0] += 2
            with pytest.raises(
                GradingStalled, match=f"1 answers are with the graders, and none came back in {sentence}"
            ):
                patient.poll("training")


def test_silence_is_counted_while_answers_are_pending(monkeypatch: pytest.MonkeyPatch):
    now = [time.monotonic()]
    monkeypatch.setattr(grading_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with closing(GraderRunner(LIMITS)) as graders:
        verdicts_on(graders, judge(OBEDIENT), "3")
        pid = graders.pids[0]
        # A learner that takes an hour for a step is no silence of the graders.
        now[0] += 3600
        graders.submit([completion("sleep")], judge(OBEDIENT), "training")
        assert graders.poll("training") == []
        # With an answer pending it is one, although another answer has just been submitted.
        now[0] += 3600
        graders.submit([completion("sleep", 1)], judge(OBEDIENT), "training")
        with pytest.raises(GradingStalled, match="2 answers"):
            graders.poll("training")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# Groups ---------------------------------------------------------------------------------------------------------------


def groups_of(
    graders: GraderRunner, judge_of: Callable[[Problem], Judge], reward: RewardSettings | None = None, cost: float = 0.0
) -> GroupGrading:
    """A correct answer costs so much a token."""
    length = LengthControl(
        max_tokens=64,
        plan=lambda seed: LengthPlan(answer_budget=64),
        adjust=lambda num_tokens, correct: -cost * num_tokens if correct else 0.0,
    )
    return GroupGrading(graders, judge_of, reward=reward or RewardSettings(), length=length)


def asked(grading: GroupGrading, *answers: str, key: str = "0/a", problem: Problem = PROBLEM) -> None:
    grading.submit([[completion(answer, index, key, problem) for index, answer in enumerate(answers)]])


def test_rewards_follow_verdict_and_length(graders: GraderRunner):
    grading = groups_of(graders, lambda _: judge("exact"), RewardSettings(correct=2.0, wrong=-0.5), cost=0.01)
    asked(grading, "<think>1+2=3</think>3", "<think>1+2=4</think>4", "3")
    (group,) = grading.poll()
    assert (group.key, group.correct) == ("0/a", (True, False, True))
    assert group.rewards == (pytest.approx(2.0 - 0.01 * len(group.completions[0])), -0.5, pytest.approx(1.99))
    assert grading.poll() == []


def test_completion_without_verdict_is_neither_right_nor_wrong(graders: GraderRunner):
    grading = groups_of(graders, lambda _: judge("exact"))
    asked(grading, "3", "4", problem=dataclasses.replace(PROBLEM, answer=" "))
    (group,) = grading.poll()
    assert (group.correct, group.rewards) == ((None, None), (-1.0, -1.0))
    assert (group.num_correct, group.num_graded) == (0, 0)
    assert grading.num_without_verdict == {"grader/no_answer": 2}


def test_group_is_returned_with_its_last_verdict(tmp_path: Path):
    # No limit is met, however busy the machine is: the last verdict comes when the test says so.
    with closing(GraderRunner(GradingSettings(num_workers=2, timeout_s=60, cpu_limit_s=60))) as graders:
        grading = groups_of(graders, lambda problem: judge("exact" if problem.task == "sums" else OBEDIENT))
        file = tmp_path / "go"
        asked(grading, "3", "wait", key="0/slow", problem=dataclasses.replace(PROBLEM, answer=str(file)))
        asked(grading, "3", "4", key="0/sum", problem=dataclasses.replace(PROBLEM, task="sums"))
        assert [group.key for group in grading.poll(wait=True)] == ["0/sum"]
        assert grading.poll(wait=True) == []
        file.touch()
        (slow,) = wait_for(grading.poll, 1)
    assert (slow.key, slow.correct) == ("0/slow", (False, True))
    assert [one.request.index for one in slow.completions] == [0, 1]


def several(threshold: float = 1.0, **used: GraderSettings) -> Judge:
    task = Task(name="arithmetic", training=(PROBLEM,), evaluation=(), grader="exact", graders=used)
    return dataclasses.replace(judge("exact"), graders=graders_of(task), threshold=threshold)


@pytest.mark.parametrize(
    ("returned", "value"),
    [(np.True_, 1.0), (np.bool_(False), 0.0), (np.float32(0.5), 0.5), (1, 1.0), (0.75, 0.75), (None, None)],
)
def test_grader_may_return_a_number_or_numpys_bool(returned: object, value: float | None):
    assert read_score(returned) == Score(value=value)


@pytest.mark.parametrize("returned", [float("nan"), 1.5, -0.5, [], "x" * 100, Score(value=1, outcome="not a name")])
def test_anything_else_is_an_error(returned: object):
    with pytest.raises(TypeError, match=r"a number from 0 to 1|an outcome is a name"):
        read_score(returned)


def test_value_is_compared_with_the_threshold(graders: GraderRunner):
    lenient = dataclasses.replace(judge("own_code:share"), threshold=0.5)
    verdicts = verdicts_on(graders, lenient, "yes", "0.49", "half", "nan")
    assert [(one.value, one.correct, one.reason) for one in verdicts] == [
        (1.0, True, None),
        (0.49, False, None),
        (0.5, True, None),
        (None, None, "error"),
    ]
    assert "returned nan, but a grader returns True, False, None or a number" in graders.first_errors["own_code:share"]


def test_named_outcomes_are_counted_by_group(graders: GraderRunner):
    grading = groups_of(graders, lambda _: judge("own_code:named_outcome"))
    asked(grading, "timeout", "timeout", "none")
    (group,) = wait_for(grading.poll, 1)
    assert group.values == (0.5, 0.5, None)
    assert grading.num_outcomes == {"timeout": 2, "none": 1}
    assert grading.num_without_verdict == {"grader/no_answer": 1}
    both = several(right=GraderSettings(name="exact"), named=GraderSettings(name="own_code:named_outcome"))
    (verdict,) = verdicts_on(graders, both, "timeout")
    assert (verdict.outcome, verdict.value) == ("timeout", 0.25), "the first named one of several graders"


def test_several_graders_give_a_weighted_mean(graders: GraderRunner):
    both = several(
        right=GraderSettings(name="exact", weight=3.0),
        short=GraderSettings.model_validate({"name": "own_code:brief", "most": 1}),
        seen=GraderSettings(name="own_code:obedient", weight=0.0),
    )
    graders.check(both)
    verdicts = verdicts_on(graders, both, "3", "late", "4", "raise")
    assert verdicts[0].scores == {"right": 1.0, "short": 1.0, "seen": 1.0}
    assert [one.value for one in verdicts] == [1.0, 0.0, 0.25, None]
    assert [one.correct for one in verdicts] == [True, False, False, None]
    # One grader that fails leaves the completion without a verdict, whatever the others say.
    assert verdicts[3].reason == "error"


def test_values_become_rewards_linearly_and_columns(graders: GraderRunner):
    used = several(part=GraderSettings(name="own_code:share"), same=GraderSettings(name="own_code:share", weight=0.0))
    grading = groups_of(graders, lambda _: used, RewardSettings(correct=2.0, wrong=-1.0))
    asked(grading, "1", "0", "0.5")
    (group,) = wait_for(grading.poll, 1)
    assert group.rewards == (2.0, -1.0, 0.5)
    assert (group.values, group.correct) == ((1.0, 0.0, 0.5), (True, False, False))
    assert group.scores == {"part": (1.0, 0.0, 0.5), "same": (1.0, 0.0, 0.5)}
