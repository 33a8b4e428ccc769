"""What a run folder says beside its curve."""

import json
from pathlib import Path

import pytest
from run_folders import write_run

from scalerl.report.caveats import compute_caveats
from scalerl.report.repeated import repeated_work
from scalerl.report.runs import RunFacts, hours_name, read_run


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


def test_repeated_and_stalled_work_is_reported(tmp_path: Path):
    folder = write_run(tmp_path / "a")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # Killed after step 100; the second attempt goes on from step 70 and pays for steps 80 to 100 again.
    first, again = rows[:10], [row | {"attempt": 2} for row in rows[7:]]
    for row in again:
        row["gpu_hours"] += 0.3
        row["flops"] += rows[9]["flops"] - rows[6]["flops"]
    again[-1]["time/stalled_s"] = 68.0
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*first, *again]))
    repeated = repeated_work(folder)
    assert repeated is not None
    assert repeated.num_steps == 3
    assert repeated.gpu_hours == pytest.approx(0.3)
    facts = read_run(folder, name="a", arm="a", evals=[])
    assert facts.repeated == repeated
    text = " ".join(compute_caveats(facts))
    assert "a repeated 3 steps after an interruption (0.3 CPU-hours" in text
    assert "a stood still for 68 s" in text
    assert repeated_work(write_run(tmp_path / "b")) is None


def test_hours_are_gpu_hours_only_on_a_gpu(tmp_path: Path):
    runs = {
        device: RunFacts(name=device, arm="a", folder=tmp_path, environment={"device": device})
        for device in ("cpu", "NVIDIA H200")
    }
    assert (runs["cpu"].hours, runs["NVIDIA H200"].hours) == ("CPU-hours", "GPU-hours")
    assert hours_name(list(runs.values())) == "GPU-hours"
    # The logs of others do not say what they ran on.
    assert hours_name([]) == "GPU-hours"
