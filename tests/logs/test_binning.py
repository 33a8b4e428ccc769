"""Rewards averaged in bins along compute: `--bin N|auto`."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, Series, series_from
from scalerl.report.results import FitOptions, analyse_backtest, analyse_fit


def noisy_log(path: Path, num: int = 900, seeds: int = 1) -> Path:
    """Training rewards in eighths about a sigmoid that levels off at 0.6."""
    rng = np.random.default_rng(3)
    rows = ["step,reward,seed"]
    for seed in range(seeds):
        step = np.arange(1, num + 1)
        mean = 0.2 + 0.4 / (1 + (num / 8 / step) ** 2.0)
        rows += [f"{x},{y},{seed}" for x, y in zip(step, rng.binomial(8, mean) / 8, strict=True)]
    path.write_text("\n".join(rows))
    return path


def series(path: Path, **options: object) -> Series:
    [one] = series_from([read_table(path)], Selection(**options))  # type: ignore[arg-type]
    return one


def test_bins_have_errors_and_are_stated(tmp_path: Path):
    path = noisy_log(tmp_path / "log.csv")
    data = series(path, bins=45)
    assert len(data.reward) == 45
    assert data.error is not None
    # Binomial: sqrt(0.6 * 0.4 / (8 * 20)) about the end.
    assert data.error[-1] == pytest.approx(0.038, rel=0.3)
    (fact,) = [fact for fact in data.facts if fact.kind == "binned"]
    assert (fact.values["num_points"], fact.values["num_bins"]) == (900, 45)
    assert "900 rewards are averaged in 45 bins" in " ".join(data.notes)


def test_bins_do_not_mix_runs(tmp_path: Path):
    data = series(noisy_log(tmp_path / "log.csv", num=200, seeds=2), bins=20, seed="seed")
    assert data.run is not None
    assert [int(np.sum(data.run == label)) for label in np.unique(data.run)] == [20, 20]


def test_few_points_stay_as_they_are(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("step,reward\n" + "\n".join(f"{step},{0.1 * step}" for step in range(1, 8)))
    assert series(path, bins=50).error is None


def test_fit_of_bins_agrees_with_the_fit_of_all_points(tmp_path: Path):
    path = noisy_log(tmp_path / "log.csv")
    every, binned = (analyse_fit([series(path, bins=rule)], FitOptions()).curves[0].fit for rule in (None, "auto"))
    assert every is not None
    assert binned is not None
    low, high = every.interval("ceiling")
    assert low < binned.params["ceiling"] < high
    assert binned.noise_sd < every.noise_sd / 2
    (ends,) = [np.diff(binned.interval("ceiling"))]
    assert 0.5 * (high - low) < ends[0] < 2 * (high - low)


def test_bins_can_be_back_tested(tmp_path: Path):
    done = analyse_backtest([series(noisy_log(tmp_path / "log.csv"), bins=40)], FitOptions(), [0.5])
    score = done.curves[0].fractions[0][1]
    assert score is not None
    assert score.num_points == 21  # bins beyond half of the last one's compute


def test_option_is_checked_and_used(tmp_path: Path):
    path = noisy_log(tmp_path / "log.csv", num=300)
    shown = CliRunner().invoke(app, ["fit", str(path), "--y", "reward", "--bin", "30", "--json"])
    assert shown.exit_code == 0, shown.output
    (curve,) = json.loads(shown.output)["curves"]
    assert curve["num_points"] == 30
    for wrong in ("0", "2.5", "some"):
        refused = CliRunner().invoke(app, ["fit", str(path), "--bin", wrong])
        assert "--bin takes a whole number" in str(refused.exception)
