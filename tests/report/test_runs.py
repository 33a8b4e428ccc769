"""What a run folder says beside its curve."""

import json
from pathlib import Path

import pytest
from run_folders import write_run

from scalerl.report.runs import read_run


def test_the_largest_lag_is_the_largest_and_the_mean_a_mean(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    lags = [1, 2, 7, None, 2]
    rows = [{"step": n, "rollout/lag_max": lag, "rollout/lag_mean": lag} for n, lag in enumerate(lags, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    signals = read_run(folder, name="a", arm="a", evals=[]).signals
    assert signals is not None
    assert signals.last == {"rollout/lag_max": 7, "rollout/lag_mean": 3}
    assert signals.values["rollout/lag_max"] == lags


@pytest.mark.parametrize("key, expected", [("rollout/lag_max", [9, 4]), ("rollout/lag_mean", [5, 3])])
def test_neighbouring_steps_are_drawn_by_their_largest_lag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, expected: list[float]
) -> None:
    monkeypatch.setattr("scalerl.report.runs.MOST_SIGNAL_POINTS", 2)
    folder = write_run(tmp_path / "a")
    rows = [{"step": n, key: lag} for n, lag in enumerate([1, 9, 2, 4], start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    signals = read_run(folder, name="a", arm="a", evals=[]).signals
    assert signals is not None
    assert signals.values[key] == expected
