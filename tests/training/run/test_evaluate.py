"""Rows of an evaluation."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from small_runs import USUAL, small, without_time

from scalerl.errors import RecipeError
from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store
from scalerl.training.run import parts
from scalerl.training.run.evaluate import evaluate_all, evaluate_model, wilson
from scalerl.training.run.export import export
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.run import TrainingRun
from scalerl.training.tasks.build import build_task


def test_wilson_interval_stays_within_0_and_1():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 20)[0] == 0
    assert wilson(20, 20)[1] == 1
    low, high = wilson(50, 100)
    assert low == pytest.approx(0.419, abs=1e-3)
    assert high == pytest.approx(0.581, abs=1e-3)


def file_of(path: Path, rows: int, times: int = 1) -> str:
    """Return the path, in JSON, of a file of sums, each several times."""
    sums = [f"{place}+1+2=" for place in range(rows)]
    lines = [json.dumps({"prompt": text, "answer": str(eval(text[:-1]))}) for text in sums * times]
    path.write_text("\n".join(lines), encoding="utf-8")
    return json.dumps(str(path))


def test_each_set_has_its_own_size_and_sampling(tmp_path: Path):
    recipe = load_recipe(
        "tiny-cpu",
        [
            "task.num_problems=64",
            "rollout.slots=24",
            "evaluation.num_prompts=4",
            "evaluation.samples_per_prompt=2",
            f'evaluation.sets.small={{name="file", path={file_of(tmp_path / "small.jsonl", 3)}, samples_per_prompt=8}}',
            'evaluation.sets.greedy={name="arithmetic", num_prompts=5, samples_per_prompt=1, temperature=0}',
            "evaluation.sets.greedy.num_problems=64",
            'evaluation.sets.moody={name="arithmetic", num_prompts=24, samples_per_prompt=1, num_problems=64}',
            *("evaluation.sets.moody.grader=own_code:moody", "grading.cpu_limit_s=0.3"),
        ],
    )
    rows = {row["set"]: row for row in evaluate_model(recipe)}
    sizes = {name: (row["num_prompts"], row["samples_per_prompt"], row["num_samples"]) for name, row in rows.items()}
    assert sizes == {"main": (4, 2, 8), "small": (3, 8, 24), "greedy": (5, 1, 5), "moody": (24, 1, 24)}
    small = rows["small"]
    assert len(small["num_correct"]) == 3
    assert small["reward"] == sum(small["num_correct"]) / 24 == small["pass_at"]["1"]
    assert list(small["pass_at"]) == ["1", "2", "4", "8"]
    # An answer without a verdict is wrong, and counted.
    assert sum(rows["moody"]["without_verdict"].values()) > 0
    assert rows["moody"]["reward"] == sum(rows["moody"]["num_correct"]) / 24
    assert [row["set"] for row in evaluate_model(recipe, ["small"])] == ["small"]
    with pytest.raises(RecipeError, match=r'"smal"; choices: .*; did you mean "small"'):
        evaluate_model(recipe, ["smal"])


def test_default_sizes_are_all_rows_or_a_thousand(tmp_path: Path):
    own = f'evaluation.sets.own={{name="file", path={file_of(tmp_path / "own.jsonl", 7)}}}'
    recipe = load_recipe("tiny-cpu", [own, 'evaluation.sets.made={name="arithmetic", num_problems=8}'])
    made = {name: build_task(part, recipe.evaluation) for name, part in recipe.evaluation.sets.items()}
    assert {name: len(task.evaluation) for name, task in made.items()} == {"own": 7, "made": 1000}


def test_repeated_rows_are_answered_independently(tmp_path: Path):
    path = file_of(tmp_path / "repeated.jsonl", 30, times=8)
    settings = [
        f'task={{name="file", path={file_of(tmp_path / "train.jsonl", 40)}, grader="numeric"}}',
        "evaluation.num_prompts=1",
        f'evaluation.sets.often={{name="file", path={path}, samples_per_prompt=1, grader="numeric"}}',
    ]
    (row,) = evaluate_model(load_recipe("tiny-cpu", settings), ["often"])
    by_repeat = [row["num_correct"][start : start + 30] for start in range(0, 240, 30)]
    assert any(by_repeat[0] != other for other in by_repeat[1:])


IN_FLIGHT = (
    *("task.num_problems=64", "pipeline.groups_per_batch=2", "pipeline.max_lag=4", "evaluation.every=2"),
    *("optimizer.lr=1e-2", "optimizer.warmup_steps=0", "filter.zero_variance=false", "budget.steps=3"),
)


def test_evaluation_in_a_run_equals_one_on_a_fresh_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    build = parts.make_engine
    monkeypatch.setattr(parts, "make_engine", lambda *args, **named: made.append(build(*args, **named)) or made[-1])
    run = TrainingRun(small(*IN_FLIGHT, *USUAL, "budget.steps=2"), tmp_path / "run")
    run.train()
    assert len(made) == 1
    # At step 2 training was under way in the same slots.
    model = export(tmp_path / "run", tmp_path / "model").folder
    recipe = small(*IN_FLIGHT, *USUAL, f"model.path={json.dumps(str(model))}")
    inputs = parts.load_inputs(recipe)
    with closing(parts.build_engine(recipe, inputs)) as engine:
        fresh = evaluate_all(engine, inputs, step=2)["main"]
    assert list(fresh.num_correct) == store.read_evals(tmp_path / "run")[-1]["num_correct"]


@pytest.mark.parametrize("ahead", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_training_is_the_same_however_often_it_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
):
    build = parts.make_engine

    def built(*arguments: Any, **named: Any) -> Any:
        engine: Any = build(*arguments, **named)
        # A GPU has the next chunk under way when a poll returns, and so when an evaluation begins.
        engine.launches_ahead = ahead
        return engine

    monkeypatch.setattr(parts, "make_engine", built)
    rows = {}
    for every in (1, 100):
        folder = tmp_path / str(every)
        TrainingRun(small(*IN_FLIGHT, f"evaluation.every={every}", "checkpoint.every=100"), folder).train()
        assert len(store.read_evals(folder)) == (4 if every == 1 else 2)
        # What was spent is left out: a chunk that is under way when an evaluation begins is counted then, not later.
        rows[every] = [
            {key: value for key, value in row.items() if not key.startswith(("flops", "tokens"))}
            for row in without_time(store.read_metrics(folder))
        ]
    assert rows[1] == rows[100]
    assert max(row["rollout/lag_max"] for row in rows[1]) > 0


RARE = 'evaluation.sets.rare={name="arithmetic", num_problems=24, num_prompts=3, samples_per_prompt=1, every=3}'
SHORT_RUN = ("evaluation.every=2", "evaluation.num_prompts=2", "evaluation.samples_per_prompt=1", RARE)


def evaluated(folder: Path) -> list[tuple[int, str, int]]:
    return [(row["step"], row["set"], row["attempt"]) for row in store.read_evals(folder)]


def test_observer_hears_each_evaluation_once(tmp_path: Path):
    heard: list[tuple[int, str]] = []

    class Listener(RunObserver):
        def evaluated(self, rows: Sequence[Mapping[str, Any]]) -> None:
            heard.extend((row["step"], row["set"]) for row in rows)

    TrainingRun(small(*SHORT_RUN, "budget.steps=2"), tmp_path / "run", observer=Listener()).train()
    TrainingRun(small(*SHORT_RUN, "budget.steps=3"), tmp_path / "run", observer=Listener(), resume=True).train()
    assert heard == [(step, name) for step in (0, 2, 3) for name in ("main", "rare")]


def test_set_with_its_own_interval_is_evaluated_then_and_at_both_ends(tmp_path: Path):
    folder = tmp_path / "run"
    TrainingRun(small(*SHORT_RUN, "budget.steps=5"), folder).train()
    first = [(0, "main", 1), (0, "rare", 1), (2, "main", 1), (3, "rare", 1), (4, "main", 1)]
    last = [(5, "main", 1), (5, "rare", 1)]
    assert evaluated(folder) == first + last
    TrainingRun(small(*SHORT_RUN, "budget.steps=6"), folder, resume=True).train()
    assert evaluated(folder) == [*first, *last, (6, "main", 2), (6, "rare", 2)]


def test_resumed_run_evaluates_only_sets_without_a_row(tmp_path: Path):
    folder = tmp_path / "run"
    TrainingRun(small(*SHORT_RUN, "budget.steps=2"), folder).train()
    rows = store.read_evals(folder)
    # As if the process had been killed between the two rows of the last evaluation.
    (folder / store.EVALS).write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    TrainingRun(small(*SHORT_RUN, "budget.steps=2"), folder, resume=True).train()
    assert evaluated(folder)[-2:] == [(2, "main", 1), (2, "rare", 2)]
    assert store.read_evals(folder)[-1]["num_correct"] == rows[-1]["num_correct"]
