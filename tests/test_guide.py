"""docs/your-own-task.md, done as it says: its files are written, its commands run, in its order."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scalerl.cli import main, study

GUIDE = Path(__file__).parents[1] / "docs" / "your-own-task.md"

# Enough for a curve on a page that is read; fewer will do for the commands to work.
SHORTER = ("budget.steps=60", "budget.steps=5", *("--set", "evaluation.num_prompts=16", "--set", "evaluation.every=1"))
STAND_IN = Path(__file__).parent / "support" / "fake_train.py"


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each block of code, in order."""
    return re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)


def shortened(line: str, *, shorter_study: bool) -> list[str]:
    words = shlex.split(line.replace(SHORTER[0], SHORTER[1]))
    if words[1] == "train" and "--check" not in words:
        words += SHORTER[2:]
    if words[1] == "study" and shorter_study:
        words += [*SHORTER[2:], *("--set", SHORTER[1], "--set", "seeds=[0]", "--set", "pipeline.groups_per_batch=4")]
    if words[1] == "eval":
        words += SHORTER[2:4]
    return words


def exit_code() -> object:
    try:
        main()
    except SystemExit as left:
        return left.code
    return 0


def do(
    monkeypatch: pytest.MonkeyPatch, folder: Path, wanted: Callable[[str], bool], *, shorter_study: bool = False
) -> list[str]:
    """Write and run what the guide says; the commands that were run."""
    monkeypatch.chdir(folder)
    ran = []
    for language, text in blocks():
        if language in ("python", "toml"):
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
            continue
        for line in text.splitlines():
            if not wanted(line):
                continue
            program, *rest = shortened(line, shorter_study=shorter_study)
            if program == "python":
                runpy.run_path(rest[0])
            else:
                monkeypatch.setattr(sys, "argv", [program, *rest])
                assert not exit_code(), line
            ran.append(line)
    return ran


def test_the_guide_works_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The runs of its study are made up: each is a process of its own, which takes seconds only to import torch."""
    (tmp_path / "behaviour.json").write_text("{}")
    monkeypatch.setattr(study, "TRAIN", (sys.executable, str(STAND_IN), str(tmp_path / "behaviour.json")))
    assert len(do(monkeypatch, tmp_path, lambda line: "chat.toml" not in line)) == 18
    for made in (
        "curve.png",
        "report/report.html",
        "model/model.safetensors",
        "runs/two/evals.jsonl",
        "runs/mine-study/report.html",
    ):
        assert (tmp_path / made).is_file(), made


@pytest.mark.slow
def test_the_guide_works_with_a_real_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("gguf")
    assert do(monkeypatch, tmp_path, lambda line: "chat.toml" in line)


@pytest.mark.slow
def test_the_study_of_the_guide_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    ran = do(monkeypatch, tmp_path, lambda line: "make_problems" in line or "-study" in line, shorter_study=True)
    assert len(ran) == 5
    for arm in ("cispo", "dapo"):
        assert (tmp_path / "runs" / "mine-study" / "runs" / f"{arm}-seed0" / "evals.jsonl").is_file(), arm
