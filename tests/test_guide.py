"""Pages of docs/ do what they say: their files are written and their commands run, in their order."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from commands import scalerl
from sandbox_support import needs_bubblewrap
from small_runs import SHORT

from scalerl import store
from scalerl.cli import study

GUIDE = Path(__file__).parents[1] / "docs" / "your-own-task.md"
SANDBOX = GUIDE.with_name("sandbox.md")
MODEL = GUIDE.with_name("your-own-model.md")
TUTORIAL = GUIDE.with_name("tutorial.md")
FAKE_TRAIN = Path(__file__).parent / "support" / "fake_train.py"

# The page trains long enough for a curve that is read; fewer steps and problems will do for the commands to work.
STEPS = ("budget.steps=60", "budget.steps=5")
FEW_PROBLEMS = ("evaluation.num_prompts=6",)
TINY = (
    *FEW_PROBLEMS,
    "evaluation.every=1",
    "evaluation.samples_per_prompt=2",
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=2",
    "rollout.slots=16",
)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (language, text) of each block of code, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def shortened(line: str, *, tiny_study: bool) -> list[str]:
    """Return the words of a command, with settings added that make it short."""
    words = shlex.split(line.replace(*STEPS))
    added: tuple[str, ...] = ()
    if words[1] == "train" and "--check" not in words:
        # Programs need their whole length, and no curve is fitted to them.
        added = (*TINY, "budget.steps=1") if "code.toml" in words else (*TINY, *SHORT)
    elif words[1] == "study":
        # Without real training, runs too short for a fit: it is the reports of fits that would take the time.
        added = (*TINY, *SHORT, STEPS[1], "seeds=[0]") if tiny_study else ("budget.steps=4", "seeds=[0]")
    elif words[1] == "eval":
        added = (*FEW_PROBLEMS, "evaluation.samples_per_prompt=2")
    elif words[1] == "sft":
        added = ("sft.steps=3", "sft.num_demonstrations=100")
    return words + [word for setting in added for word in ("--set", setting)]


def follow(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    wanted: Callable[[str], bool],
    *,
    tiny_study: bool = False,
    page: Path = GUIDE,
) -> list[str]:
    """Write a page's files and run the commands that are wanted; return these."""
    monkeypatch.chdir(folder)
    ran = []
    for language, text in blocks(page):
        if language in ("python", "toml"):
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
            continue
        for line in filter(wanted, text.splitlines()):
            program, *rest = shortened(line, tiny_study=tiny_study)
            if program == "python":
                runpy.run_path(rest[0])
            elif rest[0] == "example":  # as the README has it, whose test runs it
                Path("example").mkdir()
                Path("example/runs.csv").write_bytes((files("scalerl") / "assets" / "example_runs.csv").read_bytes())
            else:
                done = scalerl(*rest)
                assert done.returncode == 0, f"{line}\n{done.stderr}"
            ran.append(line)
    return ran


def test_guide_works_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The runs of its study are made up: each would be a process that takes seconds to import torch."""
    (tmp_path / "behaviour.json").write_text("{}")
    monkeypatch.setattr(study, "TRAIN", (sys.executable, str(FAKE_TRAIN), str(tmp_path / "behaviour.json")))
    assert len(follow(monkeypatch, tmp_path, lambda line: True)) == 26
    for made in (
        "curve.png",
        "report/report.html",
        "model/model.safetensors",
        "runs/two/evals.jsonl",
        "long-base/model.safetensors",
        "runs/long/evals.jsonl",
        "runs/mine-study/report.html",
    ):
        assert (tmp_path / made).is_file(), made


@needs_bubblewrap
def test_page_on_code_works_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert len(follow(monkeypatch, tmp_path, lambda line: True, page=SANDBOX)) == 4
    evals = store.read_evals(tmp_path / "runs" / "code")
    assert all(sum(row[key] for key in row if key.startswith("outcome/") and "frac" not in key) for row in evals)


def test_page_on_models_works_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys.modules[__name__], "SHORT", ("budget.steps=1", "length.max_length=16"))
    assert len(follow(monkeypatch, tmp_path, lambda line: "chat.toml" not in line, page=MODEL)) == 3
    assert (tmp_path / "runs" / "own" / "evals.jsonl").is_file()


def test_tutorial_works_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def is_command(line: str) -> bool:
        return line.startswith("scalerl") and " watch " not in line

    assert len(follow(monkeypatch, tmp_path, is_command, page=TUTORIAL)) == 6
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.slow
def test_page_on_models_works_with_a_real_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("gguf")
    assert follow(monkeypatch, tmp_path, lambda line: "chat.toml" in line, page=MODEL)


@pytest.mark.slow
def test_study_of_the_guide_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    ran = follow(monkeypatch, tmp_path, lambda line: "make_problems" in line or "-study" in line, tiny_study=True)
    assert len(ran) == 5
    for arm in ("cispo", "dapo"):
        assert (tmp_path / "runs" / "mine-study" / "runs" / f"{arm}-seed0" / "evals.jsonl").is_file(), arm
