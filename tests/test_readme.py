"""README.md does what it says: its commands run in order and print what it shows; the map of files is true."""

import re
import runpy
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from commands import scalerl

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

# The commands that train run as they stand with these added: 5 steps instead of 120, 6 problems instead of 250.
# Six evaluations are as many as a fit needs.
TINY = {
    "budget.steps": 5,
    "evaluation.every": 1,
    "evaluation.num_prompts": 6,
    "evaluation.samples_per_prompt": 1,
    "pipeline.groups_per_batch": 2,
    "pipeline.completions_per_group": 2,
    "rollout.slots": 8,
    "length.thinking_min": 6,
    "length.thinking_max": 8,
}
TRAINS = ("train", "sft", "study")


def blocks() -> list[tuple[str, str]]:
    """Return (language, text) of each block of code, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def run_readme(*, tiny: bool) -> list[str]:
    """Run every block in the current folder and return the commands that ran."""
    ran: list[str] = []
    printed = ""
    for number, (language, text) in enumerate(blocks()):
        if language == "sh":
            for line in text.splitlines():
                program, *words = shlex.split(line)
                assert program == "scalerl", line
                if tiny and words[0] in TRAINS:
                    words += [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
                done = scalerl(*words)
                assert done.returncode == 0, f"{line}\n{done.stderr}"
                printed = done.stdout
                ran.append(line)
        elif language == "python":
            first = text.splitlines()[0]
            path = Path(first.removeprefix("# ") if first.startswith("# ") else f"block{number}.py")
            if tiny:
                text = text.replace('settings={"budget.steps": 60}', f"settings={TINY!r}")
            path.write_text(text)
            runpy.run_path(str(path))
        elif language == "text":
            shown = lines_of(text)
            if shown[-1] == "...":
                shown.pop()
            assert lines_of(printed)[: len(shown)] == shown
    return ran


def test_readme_commands_run_and_print_what_it_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = run_readme(tiny=True)
    assert len(ran) == README.count("\nscalerl ")
    for made in (
        "example/runs.csv",
        "example/example.png",
        "example/report.html",
        "runs/demo/evals.jsonl",
        "compare.png",
        "report/report.html",
        "runs/mine/evals.jsonl",
    ):
        assert (tmp_path / made).is_file(), made


@pytest.mark.slow
def test_readme_trains_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(run_readme(tiny=False)) == README.count("\nscalerl ")


def test_make_demo_runs_the_command_that_readme_shows():
    shown = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "bin/scalerl train tiny-cpu --out runs/demo" in shown.stdout


def test_ci_runs_every_check(monkeypatch: pytest.MonkeyPatch):
    for given in ("MAKEFLAGS", "ARGS", "WORKERS"):  # to this run of the tests
        monkeypatch.delenv(given, raising=False)
    ran = re.findall(r"^make (\S+)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    assert ran == ["lint", "test", "docs", "test-vllm"]
    shown = subprocess.run(["make", "--dry-run", *ran], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tests = r"python -m pytest -n \d --dist worksteal"
    for command in ("ruff check .", "ruff format --check .", "pyright", tests, "mkdocs build"):
        assert re.search(rf"bin/{command} *$", shown, flags=re.MULTILINE), command
    assert 'pytest -m "vllm and not slow and not gpu"' in shown


def test_readme_names_extras_and_commands_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r'pip install "\.\[(\w+)\]"', README)
    assert extras
    assert set(extras) <= set(project["optional-dependencies"])
    listed = scalerl("--help").stdout
    rows = re.findall(r"^\| (`scalerl .*?) \|", README, flags=re.MULTILINE)
    for name in re.findall(r"`(?:scalerl )?(\w+)`", " ".join(rows)):
        assert re.search(rf"\b{name}\b", listed), name


def test_readme_is_short_and_the_map_is_true():
    assert README.count("\n") < 110
    (tree,) = re.findall(r"```\n(README\.md.*?)```", (ROOT / "docs" / "architecture.md").read_text(), flags=re.DOTALL)
    top, *rest = tree.splitlines()
    missing = [name for name in top.split() if not (ROOT / name).exists()]
    folder = ROOT
    for line in rest:
        name, names = line[:13].strip(), re.split(r"  +", line[13:])[0]
        folder = ROOT / name if name else folder
        missing += [f"{folder.name}/{entry}" for entry in names.split() if not (folder / entry).exists()]
    assert not missing
    package = {path.name for path in (ROOT / "src" / "scalerl").iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    unlisted = sorted(name for name in package if not re.search(rf"\b{re.escape(name)}\b", tree))
    assert not unlisted
