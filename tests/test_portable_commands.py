"""The predictive commands, which load no torch, where POSIX is missing and nothing can fork, on logs of Windows."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from log_texts import rising, verl
from run_folders import write_study
from without_posix import HIDE_POSIX, NO_FORK

HEAVY = {"torch", "transformers", "matplotlib"}
COMMANDS = f"""{HIDE_POSIX}
{NO_FORK}
import json
from scalerl.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as leaving:
        assert not leaving.code, words
    print("-----")
    print("-----", *sorted({HEAVY} & set(sys.modules)), file=sys.stderr)
"""


def commands(*lines: Sequence[object], cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run commands, one after another in one process."""
    words = json.dumps([[str(word) for word in line] for line in lines])
    done = subprocess.run([sys.executable, "-c", COMMANDS, words], capture_output=True, text=True, cwd=cwd, timeout=240)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two curves in a CSV with a byte order mark and Windows line ends."""
    path = tmp_path_factory.mktemp("windows") / "Runs (2).csv"
    rows = [f"{step},{reward * factor:.4f},{arm}" for arm, factor in (("a", 1.0), ("b", 0.9)) for step, reward in
            enumerate(rising(24), start=1)]  # fmt: skip
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(["step,pass_rate,arm", *rows, ""]).encode())
    return path


NAMES = ("fit", "forecast", "backtest", "compare")


def test_commands_run_without_posix(table: Path):
    (table.parent / "train.log").write_bytes(verl(rising(20)).replace("\n", "\r\n").encode("utf-16"))
    lines = [(name, table, "--by", "arm", "--json") for name in NAMES]
    done = commands(*lines, ("fit", "train.log", "--json"), cwd=table.parent)
    *compared, logged = [json.loads(text)["curves"] for text in done.stdout.split("-----\n")[:-1]]
    assert compared != []
    for curves in compared:
        assert [(curve["name"], curve["num_points"]) for curve in curves] == [("a", 24), ("b", 24)]
    assert [curve["num_points"] for curve in logged] == [20]
    assert {line for line in done.stderr.splitlines() if line.startswith("-----")} == {"-----"}


def test_report_of_a_study_made_on_windows(tmp_path: Path):
    folder = write_study(tmp_path / "study", num=10)
    plan = json.loads((folder / "study.json").read_text())
    assert all("/" in run["folder"] for run in plan["runs"])
    for run in plan["runs"]:
        run["folder"] = run["folder"].replace("/", "\\")
        evals = folder / run["folder"].replace("\\", "/") / "evals.jsonl"
        evals.write_bytes(evals.read_bytes().replace(b"\n", b"\r\n"))
    (folder / "study.json").write_text(json.dumps(plan))
    done = commands(("fit", folder, "--json"), ("report", folder, "--out", tmp_path / "out"), cwd=tmp_path)
    assert "report.html" in {path.name for path in (tmp_path / "out").iterdir()}
    assert len(json.loads(done.stdout.partition("-----")[0])["curves"]) >= 2
