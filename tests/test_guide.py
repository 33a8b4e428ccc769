"""README.md and pages of docs/ do what they say: files are written, commands run in order and print what is shown."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from commands import scalerl
from needs import needs_bubblewrap

from scalerl.cli import study
from scalerl.runfolder import store

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
GUIDE = DOCS / "your-own.md"
FAKE_TRAIN = ROOT / "tests" / "support" / "fake_train.py"

# Pages train long enough for a curve that is read; the commands work with less. A fit needs six evaluations.
SMALL = {
    "budget.steps": 5,
    "evaluation.every": 1,
    "evaluation.num_prompts": 6,
    "evaluation.samples_per_prompt": 1,
    "grading.num_workers": 1,
    "pipeline.groups_per_batch": 2,
    "pipeline.completions_per_group": 2,
    "rollout.slots": 8,
}
THINKING = {"length.thinking_min": 6, "length.thinking_max": 8}
MEASURED = ("evaluation.num_prompts", "evaluation.samples_per_prompt", "grading.num_workers")
# Without real training, runs too short for a fit: it is the reports of fits that would take the time.
STUDY = {"budget.steps": 4, "seeds": "[0]"}
SFT = {"sft.steps": 2, "sft.num_demonstrations": 100, "sft.batch_tokens": 300}


def shortened(words: list[str], training: Mapping[str, Any], arms: Mapping[str, Any]) -> list[str]:
    """Return the words of a command, with settings added that make it short."""
    measuring = {key: value for key, value in training.items() if key in MEASURED}
    checking = {key: value for key, value in training.items() if key == "grading.num_workers"}
    is_training = words[0] == "train" and "--check" not in words
    of_train = training if is_training else checking
    added = {"train": of_train, "study": arms, "eval": measuring, "sft": SFT}.get(words[0], {}) if training else {}
    words = [*words, *["--no-plots"] * (is_training and bool(training))]
    return words + [word for key, value in added.items() for word in ("--set", f"{key}={value}")]


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def follow(
    page: Path,
    training: Mapping[str, Any] | None = None,
    *,
    arms: Mapping[str, Any] = STUDY,
    wanted: Callable[[str], bool] = lambda line: True,
) -> list[str]:
    """Write a page's files into this folder and run the commands that are wanted; return these.

    `training` and `arms` are added to the commands that train and to studies.
    """
    training = SMALL | THINKING if training is None else training
    ran, printed = [], ""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        name = re.match(r"# (\S+\.(?:py|toml))\n", text)
        if name is not None:
            Path(name[1]).write_text(text)
        elif language == "python":
            Path("block.py").write_text(
                text.replace('{"budget.steps": 40}', repr(dict(training))) if training else text
            )
            runpy.run_path("block.py")
        elif language == "text":
            shown = lines_of(text)
            assert lines_of(printed)[: len(shown)] == shown
        for line in filter(wanted, text.splitlines() if language == "sh" else ()):
            program, *words = shlex.split(line)
            if program == "python":
                runpy.run_path(words[0])
            elif words[0] == "example" and page != README:
                Path("example").mkdir()
                Path("example/runs.csv").write_bytes((files("scalerl") / "assets" / "example_runs.csv").read_bytes())
            else:
                done = scalerl(*shortened(words, training, arms))
                assert done.returncode == 0, f"{line}\n{done.stderr}"
                printed = done.stdout
            ran.append(line)
    return ran


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that a reader works in, with its modules on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def missing(folder: Path, *made: str) -> list[str]:
    return [name for name in made if not (folder / name).is_file()]


def test_readme_works_as_written(folder: Path):
    assert len(follow(README)) == 6
    made = ("example/runs.csv", "example/example.png", "example/report.html", "compare.png", "report/report.html")
    assert missing(folder, *made, "runs/demo/evals.jsonl", "runs/mine/evals.jsonl", "runs/rows/evals.jsonl") == []


@pytest.mark.slow
def test_tasks_of_the_readme_are_learned(folder: Path):
    """As written, each takes under two minutes on two free cores; the wrong task for its base ends where it began."""
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    task, from_python = blocks
    (folder / "my_task.py").write_text(task)
    (command,) = re.findall(r"^scalerl (train .*my_task.*)$", README.read_text(), flags=re.MULTILINE)
    done = scalerl(*shlex.split(command), "--no-plots")
    assert done.returncode == 0, done.stderr
    (folder / "block.py").write_text(from_python)
    runpy.run_path(str(folder / "block.py"))
    for run in ("mine", "rows"):
        first, *_, last = store.read_evals(folder / "runs" / run)
        assert last["reward"] > first["reward"] + 0.15


def is_about_a_model(line: str) -> bool:
    return "questions" in line or "chat.toml" in line


def test_guide_works_as_written(monkeypatch: pytest.MonkeyPatch, folder: Path):
    """The runs of its study are made up: each would be a process that takes seconds to import torch."""
    (folder / "behaviour.json").write_text("{}")
    monkeypatch.setattr(study, "TRAIN", (sys.executable, str(FAKE_TRAIN), str(folder / "behaviour.json")))
    assert len(follow(GUIDE, wanted=lambda line: not is_about_a_model(line))) == 14
    made = ("curve.png", "report/report.html", "model/model.safetensors")
    runs = ("runs/two/evals.jsonl", "runs/mine-study/report.html")
    assert missing(folder, *made, *runs) == []


@needs_bubblewrap
def test_page_on_code_works_as_written(folder: Path):
    # Programs need their whole length, and no curve is fitted to them.
    assert len(follow(DOCS / "sandbox.md", SMALL | {"budget.steps": 1})) == 4
    evals = store.read_evals(folder / "runs" / "code")
    assert all(sum(row[key] for key in row if key.startswith("outcome/") and "frac" not in key) for row in evals)


def test_guide_works_with_a_model(folder: Path):
    less = SMALL | {"budget.steps": 1, "length.max_length": 16}
    assert len(follow(GUIDE, less, wanted=lambda line: "questions" in line)) == 3
    assert missing(folder, "runs/own/evals.jsonl") == []


def test_tutorial_works_as_written(folder: Path):
    assert len(follow(DOCS / "tutorial.md")) == 6
    assert missing(folder, "compare.png", "report/report.html") == []


@pytest.mark.slow
def test_readme_trains_as_written():
    assert len(follow(README, {})) == 6


@pytest.mark.slow
def test_guide_works_with_a_real_model():
    pytest.importorskip("gguf")
    assert follow(GUIDE, {}, wanted=lambda line: "chat.toml" in line)


@pytest.mark.slow
def test_study_of_the_guide_trains(folder: Path):
    ran = follow(
        GUIDE,
        arms=SMALL | THINKING | {"seeds": "[0]"},
        wanted=lambda line: "make_problems" in line or "-study" in line,
    )
    assert len(ran) == 4
    assert missing(folder, *(f"runs/mine-study/runs/{arm}-seed0/evals.jsonl" for arm in ("cispo", "dapo"))) == []
