"""The predictive commands, which load no torch, where POSIX is missing and nothing can fork, on logs of Windows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from log_texts import rising, verl
from run_folders import write_study
from without_posix import HIDE_POSIX, NO_FORK

COMMAND = f"{HIDE_POSIX}\n{NO_FORK}\nfrom scalerl.cli import main\nmain()\n"


def command(*words: str, cwd: Path) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, cwd=cwd, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two curves in a CSV with a byte order mark and Windows line ends."""
    path = tmp_path_factory.mktemp("windows") / "Runs (2).csv"
    rows = [f"{step},{reward * factor:.4f},{arm}" for arm, factor in (("a", 1.0), ("b", 0.9)) for step, reward in
            enumerate(rising(24), start=1)]  # fmt: skip
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(["step,pass_rate,arm", *rows, ""]).encode())
    return path


NAMES = ("fit", "forecast", "backtest", "compare")
EACH = f"""{HIDE_POSIX}
{NO_FORK}
from scalerl.cli import main
for name in {NAMES}:
    sys.argv[1:2] = [name]
    try:
        main()
    except SystemExit as leaving:
        assert not leaving.code, name
    heavy = {{"torch", "transformers", "matplotlib"}} & set(sys.modules)
    assert not heavy, (name, heavy)
    print("-----")
"""


@pytest.fixture(scope="module")
def shown(table: Path) -> dict[str, Any]:
    """Run each command, all in one process; return what they print."""
    words = [sys.executable, "-c", EACH, "", str(table), "--by", "arm", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=table.parent, timeout=240)
    assert done.returncode == 0, done.stderr
    return dict(zip(NAMES, map(json.loads, done.stdout.split("-----\n")[:-1]), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_commands_run_without_posix(shown: dict[str, Any], name: str):
    assert [curve["name"] for curve in shown[name]["curves"]] == ["a", "b"]
    assert all(curve["num_points"] == 24 for curve in shown[name]["curves"])


def test_report_of_a_study_made_on_windows(tmp_path: Path):
    folder = write_study(tmp_path / "study", num=10)
    plan = json.loads((folder / "study.json").read_text())
    assert all("/" in run["folder"] for run in plan["runs"])
    for run in plan["runs"]:
        run["folder"] = run["folder"].replace("/", "\\")
        evals = folder / run["folder"].replace("\\", "/") / "evals.jsonl"
        evals.write_bytes(evals.read_bytes().replace(b"\n", b"\r\n"))
    (folder / "study.json").write_text(json.dumps(plan))
    command("report", str(folder), "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert "report.html" in {path.name for path in (tmp_path / "out").iterdir()}
    curves = json.loads(command("fit", str(folder), "--json", cwd=tmp_path))["curves"]
    assert len(curves) >= 2


def test_console_output_with_windows_line_ends(tmp_path: Path):
    (tmp_path / "train.log").write_bytes(verl(rising(20)).replace("\n", "\r\n").encode("utf-16"))
    (curve,) = json.loads(command("fit", "train.log", "--json", cwd=tmp_path))["curves"]
    assert curve["num_points"] == 20
