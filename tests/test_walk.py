"""What a command walks through: functions that count once, and none that its answer does not need."""

from pathlib import Path

import pytest
import walk
from small_logs import rise, write


def test_functions_count_once_and_returns_are_to_modules_left_before():
    lines = walk.table([("a.py", "one"), ("a.py", "two"), ("b.py", "three"), ("a.py", "four")])
    assert [line.split()[:2] for line in lines[1:]] == [["3", "1"], ["1", "0"], ["4", "1"]]


def test_a_clean_table_enters_few_functions_of_the_reader(tmp_path: Path):
    rows = [f"{step},{step / 2},{0.2 + 0.5 * step / (step + 10):.4f}" for step in range(1, 41)]
    (tmp_path / "log.csv").write_text("\n".join(["step,gpu_hours,reward", *rows]) + "\n")
    entered = [name for module, name in walk.walked(["fit", str(tmp_path / "log.csv")]) if "logs" in module]
    assert len(entered) <= 100


def test_an_answer_makes_nothing_that_it_does_not_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """No parameters and noise, no compute for rewards that nobody asked for, no pool of a single curve."""
    names = {name for _, name in walk.walked(["fit", write(tmp_path / "run.csv", rise())])}
    assert "ceiling" in capsys.readouterr().out
    assert {"answer_text", "curve_says"} <= names
    assert not names & {"details", "compute_for", "wide_curve", "siblings", "member", "equal_curves"}
