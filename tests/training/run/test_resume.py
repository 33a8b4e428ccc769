"""A run that is there already: which settings it may be resumed with, and what can be exported."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from small_runs import small

from scalerl.errors import RecipeError, RunFolderError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.runfolder import store
from scalerl.training.run import checkpoint as checkpoints
from scalerl.training.run.evaluate import eval_rows
from scalerl.training.run.export import export
from scalerl.training.run.resume import best_step, check_same, read_earlier
from scalerl.training.run.run import TrainingRun

MIXED = ('task=""', 'tasks.a={name="arithmetic", weight=3.0}', 'tasks.b={name="programs"}')
"""Two tasks, three to one."""


def begun(folder: Path, recipe: Recipe) -> Path:
    """A run that has got no further than its settings."""
    folder.mkdir()
    store.write_json(folder / store.RECIPE, recipe.model_dump(mode="json"))
    return folder


def test_settings_that_may_change_on_resume(tmp_path: Path):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu", MIXED))
    changes = ("budget.steps=900", "checkpoint.every=7", 'sinks=["tensorboard"]', 'description="a"')
    check_same(load_recipe("tiny-cpu", [*MIXED, *changes, "grading.num_workers=7"]), folder)
    assert read_earlier(folder).checkpoint is None


@pytest.mark.parametrize(
    "before, after, sentence",
    [
        ((), ("seed=1",), "seed = 0, and now it is 1"),
        ((), ('task.grader="numeric"',), "task.grader = '', and now it is 'numeric'"),
        ((), ("task.max_terms=4",), "task.max_terms = 5, and now it is 4"),
        ((), ("grading.timeout_s=3",), "grading.timeout_s = 10.0, and now it is 3.0"),
        ((), ("evaluation.every=3",), "evaluation.every = 8, and now it is 3"),
        ((), ('evaluation.sets.hard={name="arithmetic", max_terms=9}',), "was started with evaluation.sets.hard"),
        (MIXED, (*MIXED, "tasks.b.weight=2.0"), "tasks.b.weight = 1.0, and now it is 2.0"),
        (MIXED, MIXED[:2], "was started with tasks."),
        (MIXED, (*MIXED, 'tasks.c={name="programs"}'), "was started with tasks."),
    ],
)
def test_anything_else_makes_it_another_run(tmp_path: Path, before: Sequence[str], after: Sequence[str], sentence: str):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu", before))
    with pytest.raises(RecipeError) as error:
        check_same(load_recipe("tiny-cpu", after), folder)
    assert str(folder) in str(error.value)
    assert sentence in str(error.value)


def test_unreadable_line_error_says_what_to_do(tmp_path: Path):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu"))
    (folder / store.METRICS).write_text('{"step": 1}\ngarbage\n{"step": 2}\n')
    with pytest.raises(RunFolderError, match=r"metrics.jsonl, line 2: not JSON .*: remove that line and resume"):
        read_earlier(folder)


def test_export_needs_a_run_with_a_checkpoint(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"does not contain a run to export: it has no recipe\.json"):
        export(tmp_path, tmp_path / "model")
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu"))
    with pytest.raises(RecipeError, match="has no checkpoint yet, so there is no model to export"):
        export(folder, tmp_path / "model")


def test_a_recipe_of_another_version_names_its_field(tmp_path: Path):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu"))
    written = json.loads((folder / store.RECIPE).read_text())
    written["loss"]["half_life"] = 3
    (folder / store.RECIPE).write_text(json.dumps(written))
    message = r"recipe\.json: loss\.half_life is not a setting of .*; another version of scalerl wrote that file: "
    with pytest.raises(RecipeError, match=rf"{message}resume with that version$"):
        check_same(load_recipe("tiny-cpu"), folder)
    with pytest.raises(RecipeError, match=rf"{message}export with that version$"):
        export(folder, tmp_path / "model")


def evals(*rewards: tuple[int, float | None], name: str = "main") -> list[store.Row]:
    return [{"step": step, "set": name, "reward": reward} for step, reward in rewards]


def test_best_step_is_the_first_of_the_highest_rewards():
    rows = [*evals((0, 0.9), (2, 0.4), (4, None), (6, 0.7), (8, 0.7)), *evals((8, 1.0), name="other")]
    assert best_step(rows, "main") == 6
    assert best_step(rows, "other") == 8
    assert best_step(rows, None) is None


def test_the_best_checkpoint_is_kept_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    best = ("evaluation.every=1", "checkpoint={every=9, keep=1}", "evaluation.num_prompts=2")
    recipe = small("budget.steps=3", *best, "optimizer.lr=1e-2", "filter.zero_variance=false")
    given = iter([0.5, 0.1, 0.9, 0.3])
    monkeypatch.setattr(
        "scalerl.training.run.evaluate.eval_rows",
        lambda *arguments: [row | {"reward": next(given)} for row in eval_rows(*arguments)],
    )
    folder = tmp_path / "run"
    TrainingRun(recipe, folder).train()
    assert list(checkpoints.steps(folder / store.CHECKPOINTS)) == [2, 3]
    weights = {}
    for step, number in (("2", 2), ("best", 2), ("last", 3)):
        assert export(folder, tmp_path / step, step) == (tmp_path / step, number)
        weights[step] = (tmp_path / step / "model.safetensors").read_bytes()
    assert weights["best"] == weights["2"] != weights["last"]
    with pytest.raises(RecipeError, match=r"--step 4, but .* has only checkpoints of steps 2, 3: give one"):
        export(folder, tmp_path / "none", "4")
    shutil.rmtree(checkpoints.steps(folder / store.CHECKPOINTS)[2])
    with pytest.raises(RecipeError, match=r'best evaluation of "main" was after step 2, but .* of steps 3: give'):
        export(folder, tmp_path / "none", "best")
    (folder / store.EVALS).unlink()
    with pytest.raises(RecipeError, match=r'no evaluation of "main" after a step'):
        export(folder, tmp_path / "none", "best")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "settings, kept",
    [((), "main"), (("checkpoint.best=none",), None), (MIXED, "a"), ((*MIXED, "checkpoint.best=b"), "b")],
)
def test_best_checkpoint_is_that_of_the_first_task(settings: Sequence[str], kept: str | None):
    assert load_recipe("tiny-cpu", settings).best_set == kept
