"""Whole runs on what people bring: files, graders and tasks of their own, several tasks at once, sinks."""

import itertools
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import small_runs
from needs import needs_bubblewrap
from read_logs import rows

from scalerl.callbacks import RunHealth
from scalerl.errors import GraderPoolError, RecipeError
from scalerl.forecast.logs import Selection, read_log, series_from
from scalerl.forecast.report.alarms import Alarm, AlarmKind
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.runfolder import store
from scalerl.training.graders.sandbox.job import Reference
from scalerl.training.loop.grading import GraderRunner
from scalerl.training.run.evaluate import evaluate_model
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.run import TrainingRun

SHORT = '{name="arithmetic", num_problems=12, min_terms=3, max_terms=3, max_number=20, weight=3.0}'
LONG = '{name="arithmetic", num_problems=12, min_terms=4, max_terms=4, max_number=20, weight=1.0}'
MIXED = ('task=""', f"tasks.short={SHORT}", f"tasks.long={LONG}")


def small(*more: str) -> Recipe:
    own = ("rollout.slots=24", "evaluation.num_prompts=3", "evaluation.every=2")
    # Each has a task of its own.
    return load_recipe("tiny-cpu", [*small_runs.SMALL[1:], *small_runs.SHORT, *own, *more])


def rows_file(path: Path, problems: Mapping[str, object]) -> str:
    """The path of a file of these problems with their answers, as a recipe has it."""
    path.write_text("".join(json.dumps({"q": one, "a": answer}) + "\n" for one, answer in problems.items()))
    return json.dumps(str(path))


SUMS = {f"{one}+{other}+1=": one + other + 1 for one in range(2, 6) for other in range(6, 12)}


# Graders --------------------------------------------------------------------------------------------------------------


def test_cache_larger_than_memory_is_refused_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[GraderRunner] = []
    monkeypatch.setattr(
        "scalerl.training.run.inputs.GraderRunner", lambda limits: made.append(GraderRunner(limits)) or made[-1]
    )
    task = ("task.num_problems=20", 'task.grader="own_code:obedient"')
    # 4 layers x 2 x 50,000,000 slots x 64 tokens x 128 wide x 4 bytes.
    with pytest.raises(RecipeError, match=r"^50000000 slots \(rollout.slots\) of \d+ tokens .* need a cache of \d{4,}"):
        TrainingRun(small("rollout.slots=50000000", *task), tmp_path / "run")
    (graders,) = made
    assert small_runs.graders_are_over(graders)


def test_answers_without_verdict_are_not_trained_on(tmp_path: Path):
    path = rows_file(tmp_path / "sums.jsonl", SUMS)
    task = (f'task={{name="file", path={path}, prompt_field="q", answer_field="a"}}', 'task.grader="own_code:moody"')
    # What hangs costs a fifth of a second.
    grading = ("grading.num_workers=3", "grading.cpu_limit_s=0.2")
    filters = ("filter.zero_variance=false", "filter.drop_truncated=false")
    run = TrainingRun(small("budget.steps=4", "evaluation.every=4", *task, *grading, *filters), tmp_path / "run")
    raised: list[Alarm] = []
    health = RunHealth(run)
    run.observer.evaluated = lambda rows: raised.extend(health.alarms())  # type: ignore[method-assign]
    assert run.train().reason == "budget of 4 steps spent"
    assert small_runs.graders_are_over(run.parts.inputs.graders)
    moods = {0: "crash", 1: "error", 2: "no_answer", 3: "timeout"}
    answers = {problem.id: int(problem.answer) for problem in run.parts.prompts["main"].tokens}
    metrics = store.read_metrics(tmp_path / "run")
    graded: Counter[str] = Counter()
    for row in metrics:
        groups = [moods.get(answers[key.partition("/")[2]] % 8) for key in row["groups"]]
        graded.update(mood for mood in groups if mood)
        assert row["batch/no_verdict_frac"] == sum(mood is not None for mood in groups) / 4
        assert row["batch/effective"] == 2 * groups.count(None)
    for group in run.pipeline.state().groups:
        graded.update({moods[int(group.problem.answer) % 8]: 1} if int(group.problem.answer) % 8 in moods else {})
    # Each group is two completions, and what waits for its step is counted too.
    counted = Counter({reason: sum(row.get(f"grader/{reason}", 0) for row in metrics) for reason in moods.values()})
    assert counted == Counter({reason: 2 * num for reason, num in graded.items()})
    assert sum(counted.values()) >= 8
    for row in store.read_evals(tmp_path / "run"):
        missing = sum(row.get(f"grader/{reason}", 0) for reason in moods.values())
        # An answer without a verdict counts as wrong.
        assert row["num_samples"] == 6
        assert row["reward"] <= (6 - missing) / 6
    # Its author hears of the exception, once.
    assert [alarm for alarm in raised if alarm.kind == "grader_error"] == [
        Alarm(kind=AlarmKind.GRADER_ERROR, subject="own_code:moody", detail="ArithmeticError: no such number")
    ]


def test_dead_grader_pool_ends_the_run(tmp_path: Path):
    class Murderer(RunObserver):
        def stepped(self, row: Mapping[str, Any]) -> None:
            os.kill(run.parts.inputs.graders.pids[0], signal.SIGKILL)

    task = ("task.num_problems=20", 'task.grader="own_code:obedient"')
    run = TrainingRun(small("budget.steps=4", *task), tmp_path / "run", observer=Murderer())
    with pytest.raises(GraderPoolError, match='the process of the grader "own_code:obedient" died'):
        run.train()
    status = store.read_status(tmp_path / "run") or {}
    assert status["status"] == "failed"
    assert status["reason"].startswith("the process of the grader")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny base with a chat template, which asks as the base was taught; its path as a recipe has it."""
    folder = tmp_path_factory.mktemp("models") / "chatty"
    shutil.copytree(str(files("scalerl") / "assets" / "tiny-base"), folder)
    template = "{{ bos_token }}{% for turn in messages %}{{ turn['content'] }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    return json.dumps(str(folder))


def test_a_file_with_the_math_grader_and_a_chat_template_trains(tmp_path: Path, chatty: str):
    fields = 'prompt_field="q", answer_field="a", answer_pattern="#### (.+)"'
    path = rows_file(tmp_path / "sums.jsonl", {one[:-1]: f"so #### {answer}" for one, answer in SUMS.items()})
    chat = ["task.chat=true", 'task.template="{prompt}="', 'task.grader="math"', f"model.path={chatty}"]
    task = f'task={{name="file", path={path}, {fields}}}'
    more = ("evaluation.samples_per_prompt=4", "evaluation.num_prompts=6")
    run = TrainingRun(small("budget.steps=1", task, *chat, *more), tmp_path / "run")
    assert run.train().reason == "budget of 1 steps spent"
    first = store.read_evals(tmp_path / "run")[0]
    assert first["num_samples"] == 24
    # The same prompts with the same noise, asked without a chat and graded at once.
    (row,) = evaluate_model(small(task, 'task.template="{prompt}="', *more))
    assert 0 < first["reward"] < 1
    assert (first["reward"], first["prompts_hash"]) == (row["reward"], row["prompts_hash"])
    assert small_runs.graders_are_over(run.parts.inputs.graders)


@needs_bubblewrap
def test_answers_of_a_run_are_run_as_programs(tmp_path: Path):
    # The tiny model answers with a number: a program that writes nothing. Two minuses in a row are no program.
    reference = Reference(streams=(("", ""),)).to_text()
    path = rows_file(tmp_path / "problems.jsonl", dict.fromkeys(SUMS, reference))
    task = f'task={{name="file", path={path}, prompt_field="q", answer_field="a", grader="code"}}'
    TrainingRun(small("budget.steps=1", task, "grading.timeout_s=120", *small_runs.USUAL), tmp_path / "run").train()
    (first, *_) = store.read_evals(tmp_path / "run")
    assert first["reward"] > 0.5
    assert first["outcome/passed"] == sum(first["num_correct"])
    (row,) = store.read_metrics(tmp_path / "run")
    counted = sum(value for key, value in row.items() if key.startswith("outcome/") and not key.endswith("_frac"))
    assert counted > 0 == counted % 2
    assert row["outcome/stopped_frac"] == 0


# Several tasks --------------------------------------------------------------------------------------------------------


class Listener(RunObserver):
    """Asks to stop after a step, and remembers what it heard of evaluations."""

    def __init__(self, stops_after: int) -> None:
        self.stops_after, self.stepped_to = stops_after, 0
        self.heard: list[tuple[list[str], dict[str, bool]]] = []

    def started(self, run: TrainingRun) -> None:
        self.health = RunHealth(run)

    def stepped(self, row: Mapping[str, Any]) -> None:
        self.stepped_to = row["step"]

    def evaluated(self, rows: Sequence[Mapping[str, Any]]) -> None:
        outlooks = self.health.outlooks(rows)
        self.heard.append(([row["set"] for row in rows], {name: one is not None for name, one in outlooks.items()}))

    def stopping(self) -> bool:
        return self.stepped_to >= self.stops_after


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Listener]]:
    """Two tasks, three to one; stopped after step 3 and resumed. The run's folder, and who listened."""
    folder, listeners = tmp_path_factory.mktemp("runs") / "mixed", [Listener(3), Listener(100)]
    recipe = small("budget.steps=6", "evaluation.every=1", 'sinks=["tensorboard"]', *MIXED)
    for resume, listener in enumerate(listeners):
        TrainingRun(recipe, folder, observer=listener, resume=bool(resume)).train()
    return folder, listeners


def test_resumed_mixture_keeps_epochs_and_ratio(mixed: tuple[Path, Any]):
    metrics = store.read_metrics(mixed[0])
    assert [(row["step"], row["attempt"]) for row in metrics] == [(step, 1 + (step > 3)) for step in range(1, 7)]
    keys = [key for row in metrics for key in row["groups"]]
    assert len(keys) == len(set(keys)) == 24
    asked = Counter(key.split("/")[1] for key in keys)
    # What is trained is what was issued, less what is in flight.
    assert abs(asked["short"] - 18) <= 6
    assert asked["short"] + asked["long"] == 24
    first_epoch = [key for key in keys if key.startswith("0/short/")]
    assert len(first_epoch) == len(set(first_epoch)) == 12
    solved = {key: value for row in metrics for key, value in row.items() if key.startswith("curriculum/")}
    assert solved == dict.fromkeys([f"curriculum/solved_frac{of}" for of in ("", "/short", "/long")], 0.0), "uniform"


def test_each_task_has_its_own_rows_curve_and_forecast(mixed: tuple[Path, list[Listener]]):
    folder, listeners = mixed
    evals = store.read_evals(folder)
    assert [(row["step"], row["set"]) for row in evals] == list(itertools.product(range(7), ["short", "long"]))
    assert len({row["prompts_hash"] for row in evals}) == 2
    # Named, because FLOPs are chosen if the time per step is uneven by chance, and those of two steps may be equal.
    series = series_from([read_log(str(folder))], Selection(x="gpu_hours"))
    assert len(series) == 2
    for one in series:
        (name,) = [name for name in ("short", "long") if name in one.name]
        rewards = [row["reward"] for row in evals if row["set"] == name]
        assert one.start == rewards[0]
        assert list(one.reward) == pytest.approx(rewards[1:])
    # From the fourth evaluation after the start on there is a forecast; those before a stop count.
    both = {True: {"short": True, "long": True}, False: {"short": False, "long": False}}
    heard = [one for listener in listeners for one in listener.heard]
    assert heard == [(["short", "long"], both[step >= 5]) for step in range(7)]


def test_changed_problems_are_refused_on_resume(tmp_path: Path):
    path = tmp_path / "sums.jsonl"
    task = f'task={{name="file", path={rows_file(path, SUMS)}, prompt_field="q", answer_field="a"}}'
    TrainingRun(small("budget.steps=1", task), tmp_path / "run").train()
    # Another answer to one problem, its words and its place in the file as they were.
    rows_file(path, SUMS | {"2+6+1=": 10})
    with pytest.raises(RecipeError, match=r"^the training problems of main have changed since .*run was started"):
        TrainingRun(small("budget.steps=2", task), tmp_path / "run", resume=True)
    rows_file(path, {one.replace("+1=", "+0="): answer for one, answer in SUMS.items()})
    with pytest.raises(RecipeError, match="main and the evaluation problems of main have changed"):
        TrainingRun(small("budget.steps=2", task), tmp_path / "run", resume=True)


def test_rows_of_all_attempts_go_to_sinks(mixed: tuple[Path, Any]):
    shown = {row["step"]: row for row in rows(read_log(mixed[0] / "tensorboard").frame)}
    assert sorted(shown) == list(range(7))
    for row in store.read_metrics(mixed[0]):
        # Of step 3 the second attempt's values count, which has only evaluated it.
        if row["step"] != 3:
            assert shown[row["step"]]["train/reward/mean"] == pytest.approx(row["reward/mean"])
    for row in store.read_evals(mixed[0]):
        assert shown[row["step"]][f"eval/{row['set']}/reward"] == pytest.approx(row["reward"])
