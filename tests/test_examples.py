import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import scalerl
from scalerl import config
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.runfolder import store

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_fit_a_csv_is_ten_lines_and_ends_with_a_forecast(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert (EXAMPLES / "fit_a_csv.py").read_text().count("\n") <= 10
    run(monkeypatch, "fit_a_csv.py")
    printed = capsys.readouterr().out
    assert "Choose fixed" in printed
    assert "at 100" in printed


def test_notebook_shows_what_its_cells_return():
    """In words; the last digits may differ from machine to machine. `python docs/make_notebook.py` executes it."""
    make_notebook = runpy.run_path(str(EXAMPLES.parent / "docs" / "make_notebook.py"))
    stored = json.loads(make_notebook["NOTEBOOK"].read_text())
    before = [words(cell) for cell in stored["cells"]]
    assert [words(cell) for cell in make_notebook["executed"](stored)["cells"]] == before
    assert any("Choose fixed" in text for text in before)
    assert sum("image/png" in text for text in before) == 1


def words(cell: dict[str, Any]) -> str:
    """Return what a cell shows, without digits and spaces."""
    data = [output["data"] for output in cell.get("outputs", ())]
    text = " ".join(word for each in data for word in [*each, *each["text/plain"]])
    return " ".join(re.sub(r"[-+\d.,]+", "", text).split())


def test_one_page_loop_is_one_page_and_trains(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def smaller(name: str, overrides: list[str]) -> Recipe:
        return load_recipe(name, [*overrides, "pipeline.groups_per_batch=4", "evaluation.num_prompts=4"])

    monkeypatch.setattr(config, "load_recipe", smaller)
    assert (EXAMPLES / "one_page_loop.py").read_text().count("\n") < 150
    run(monkeypatch, "one_page_loop.py", "2")
    printed = capsys.readouterr().out
    assert "step 2: correct" in printed
    assert "evaluation:" in printed


def test_training_from_python_ends_with_a_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    train = scalerl.train

    def train_small(*words: Any, settings: dict[str, Any], **own: Any) -> Any:
        evaluation = settings["evaluation"] | {"num_prompts": 6, "samples_per_prompt": 2}
        small = {"pipeline.groups_per_batch": 4, "pipeline.completions_per_group": 4, "rollout.slots": 16}
        return train(*words, settings=settings | small | {"evaluation": evaluation}, **own)

    monkeypatch.setattr(scalerl, "train", train_small)
    run(monkeypatch, "train_from_python.py", str(tmp_path / "run"), "6")
    printed = capsys.readouterr().out
    assert "after 6 steps" in printed
    assert "mean value of the grader" in printed
    assert "curve: " in printed
    # Partial credit was trained on: the rewards of a batch are not those of right and wrong alone.
    recipe = store.read_recipe(tmp_path / "run")
    assert recipe is not None
    assert (recipe["loss"]["name"], recipe["task"]["grader"]) == ("__main__:reinforce", "__main__:near")
