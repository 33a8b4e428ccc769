"""A run that is there already: which settings it may be resumed with, and what can be exported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl import store
from scalerl.config import Recipe, load_recipe
from scalerl.errors import RecipeError, RunFolderError
from scalerl.run.resume import check_same, export, lock_folder, newest_checkpoint

MIXED = ('task=""', 'tasks.a={name="arithmetic", weight=3.0}', 'tasks.b={name="countdown"}')


def begun(folder: Path, recipe: Recipe) -> Path:
    """A run that has got no further than its settings."""
    folder.mkdir()
    store.write_json(folder / store.RECIPE, recipe.model_dump(mode="json"))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        "budget.steps=900",
        "checkpoint.every=7",
        'sinks=["tensorboard"]',
        'description="longer"',
        "grading.num_workers=7",
    ],
)
def test_settings_that_may_change_on_resume(tmp_path: Path, change: str):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu"))
    check_same(load_recipe("tiny-cpu", [change]), folder)
    assert newest_checkpoint(folder) is None


@pytest.mark.parametrize(
    "change, sentence",
    [
        ("seed=1", "seed = 0, and now it is 1"),
        ('task.grader="numeric"', "task.grader = '', and now it is 'numeric'"),
        ("task.max_terms=4", "task.max_terms = 5, and now it is 4"),
        ("grading.timeout_s=3", "grading.timeout_s = 10.0, and now it is 3.0"),
        ("evaluation.every=3", "evaluation.every = 8, and now it is 3"),
        ('evaluation.sets.hard={name="arithmetic", max_terms=9}', "was started with evaluation.sets.hard"),
    ],
)
def test_anything_else_makes_it_another_run(tmp_path: Path, change: str, sentence: str):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu"))
    with pytest.raises(RecipeError) as error:
        check_same(load_recipe("tiny-cpu", [change]), folder)
    assert str(folder) in str(error.value)
    assert sentence in str(error.value)


def test_one_process_trains_into_a_folder_at_a_time(tmp_path: Path):
    code = "import sys; from pathlib import Path; from scalerl.run.resume import lock_folder\n"
    code += "with lock_folder(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(RunFolderError, match="is being trained into by another process: wait"),
            lock_folder(tmp_path),
        ):
            pass
        other.kill()
    # Killed, it could not let go by itself.
    with lock_folder(tmp_path):
        pass


def test_tasks_may_neither_come_nor_go(tmp_path: Path):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu", MIXED))
    check_same(load_recipe("tiny-cpu", MIXED), folder)
    for settings in (MIXED[:2], (*MIXED, 'tasks.c={name="countdown"}')):
        with pytest.raises(RecipeError, match=r"was started with tasks\."):
            check_same(load_recipe("tiny-cpu", settings), folder)


def test_export_needs_a_run_with_a_checkpoint(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"does not hold a run to export: it has no recipe\.json"):
        export(tmp_path, tmp_path / "model")
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu"))
    with pytest.raises(RecipeError, match="has no checkpoint yet, so there is no model to export"):
        export(folder, tmp_path / "model")


def test_a_recipe_of_another_version_names_its_field(tmp_path: Path):
    folder = begun(tmp_path / "run", load_recipe("tiny-cpu"))
    written = json.loads((folder / store.RECIPE).read_text())
    written["loss"]["half_life"] = 3
    (folder / store.RECIPE).write_text(json.dumps(written))
    said = r"recipe\.json: loss\.half_life is not a setting of .*; another version of scalerl wrote that file: "
    with pytest.raises(RecipeError, match=rf"{said}resume with that version$"):
        check_same(load_recipe("tiny-cpu"), folder)
    with pytest.raises(RecipeError, match=rf"{said}export with that version$"):
        export(folder, tmp_path / "model")
