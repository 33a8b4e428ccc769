"""docs/your-own-task.md, done as it says: its files are written, its commands run, in its order."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from scalerl.cli import main

GUIDE = Path(__file__).parents[1] / "docs" / "your-own-task.md"

# Enough for a curve on a page that is read; fewer will do for the commands to work.
SHORTER = ("budget.steps=60", "budget.steps=5", *("--set", "evaluation.num_prompts=16", "--set", "evaluation.every=1"))


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each block of code, in order."""
    return re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)


def shortened(line: str) -> list[str]:
    words = shlex.split(line.replace(SHORTER[0], SHORTER[1]))
    if words[1] == "train" and "--check" not in words:
        words += SHORTER[2:]
    if words[1] == "eval":
        words += SHORTER[2:4]
    return words


def exit_code() -> object:
    try:
        main()
    except SystemExit as left:
        return left.code
    return 0


def do(monkeypatch: pytest.MonkeyPatch, folder: Path, *, real_model: bool) -> list[str]:
    """Write and run what the guide says; the commands that were run."""
    monkeypatch.chdir(folder)
    ran = []
    for language, text in blocks():
        if language in ("python", "toml"):
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
            continue
        for line in text.splitlines():
            if ("chat.toml" in line) != real_model:
                continue
            program, *rest = shortened(line)
            if program == "python":
                runpy.run_path(rest[0])
            else:
                monkeypatch.setattr(sys, "argv", [program, *rest])
                assert not exit_code(), line
            ran.append(line)
    return ran


def test_the_guide_works_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert len(do(monkeypatch, tmp_path, real_model=False)) == 14
    for made in ("curve.png", "report/report.html", "model/model.safetensors", "runs/two/evals.jsonl"):
        assert (tmp_path / made).is_file(), made


@pytest.mark.slow
def test_the_guide_works_with_a_real_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("gguf")
    assert do(monkeypatch, tmp_path, real_model=True)
