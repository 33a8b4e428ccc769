"""The recipes of public benchmarks, with copies of their data sets in the layout of the hub, and with files."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalerl.recipe.load import load_recipe
from scalerl.training.tasks.build import build_whole_task
from scalerl.training.tasks.task import Task

ROWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gsm8k": [{"question": f"{n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(6)],
    "math": [{"problem": f"Find ${n}^2$.", "solution": "So.", "answer": str(n * n), "level": "1"} for n in range(6)],
    "mbpp": [
        {
            "task_id": n,
            "text": f"Write a function to add {n}.",
            "code": f"def add(x):\n    return x + {n}",
            "test_list": [f"assert add(1) == {1 + n}"],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for n in range(6)
    ],
}
SUBSETS = {"gsm8k": "main", "math": "default", "mbpp": "full"}


def task_of(name: str, *changes: str) -> Task:
    recipe = load_recipe(name, ["model.path=tiny-base", *changes])
    return build_whole_task(recipe.task, recipe.evaluation)


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ROWS)
def test_copy_of_the_data_set_is_loaded_as_from_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "train.jsonl").write_text(lines(ROWS[name][:4]))
    (folder / "test.jsonl").write_text(lines(ROWS[name][4:]))
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {SUBSETS[name]}\n  data_files:\n  - split: train\n    path: train.jsonl\n"
        "  - split: test\n    path: test.jsonl\n---\n"
    )
    task = task_of(name, f"task.dataset={folder}")
    assert len(task.training) == 4
    assert len(task.evaluation) == 2


@pytest.mark.parametrize("name", ROWS)
def test_files_replace_the_data_set(name: str, tmp_path: Path):
    for file, rows in (("train", ROWS[name][:4]), ("test", ROWS[name][4:])):
        (tmp_path / f"{file}.jsonl.gz").write_bytes(gzip.compress(lines(rows).encode()))
    paths = [f"task.path={tmp_path}/train.jsonl.gz", f"task.evaluation_path={tmp_path}/test.jsonl.gz"]
    task = task_of(name, *paths)
    assert len(task.training) == 4
    assert len(task.evaluation) == 2
    assert {problem.prompt for problem in task.training}.isdisjoint(each.prompt for each in task.evaluation)


def test_prompts_ask_for_the_form_that_the_grader_reads(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text(lines(ROWS["gsm8k"]))
    number = task_of("gsm8k", f"task.path={tmp_path}/train.jsonl")
    assert (number.grader, number.prompt.template.count("{prompt}")) == ("numeric", 1)
    (tmp_path / "train.jsonl").write_text(lines(ROWS["math"]))
    boxed = task_of("math", f"task.path={tmp_path}/train.jsonl")
    assert boxed.grader == "math"
    assert "\\boxed{}" in boxed.prompt.template.format(prompt="x")
