"""Small logs, a study, and what is asked of each: results of every kind that a document can show."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from run_folders import write_study

from scalerl.forecast.curves.paper import CEILINGS
from scalerl.forecast.logs import Selection, read
from scalerl.forecast.report.analyse import analyse_backtest, analyse_compare, analyse_fit, analyse_forecast
from scalerl.forecast.report.build import build_report
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.results import Result

Rewards = Sequence[float] | np.ndarray
Axes = dict[str, np.ndarray]
STEPS = np.arange(1, 41)


def rise(ceiling: float = 0.7, *, midpoint: float = 8.0, start: float = 0.3, noise: float = 0.006, seed: int = 0):
    """Rewards of forty evaluations that rise from a start to a ceiling."""
    rng = np.random.default_rng(seed)
    return start + (ceiling - start) / (1 + (midpoint / STEPS) ** 1.8) + noise * rng.standard_normal(len(STEPS))


def fallen() -> np.ndarray:
    return np.where(STEPS > 28, rise()[27] - 0.02 * (STEPS - 28), rise())


def dipped() -> np.ndarray:
    return rise(noise=0.003) - 0.25 * np.exp(-(((STEPS - 22) / 4.0) ** 2))


def write(path: Path, rewards: Rewards, start: float | None = 0.3, axes: Axes | None = None) -> str:
    """Write a log of steps, GPU-hours and other axes."""
    columns = {"step": 10 * STEPS, "gpu_hours": 4.0 * STEPS, **(axes or {})}
    lines = [",".join([*columns, "reward"])]
    lines += [] if start is None else [",".join([*("0" for _ in columns), f"{start}"])]
    places = range(len(rewards))
    lines += [",".join([*(f"{column[at]:g}" for column in columns.values()), f"{rewards[at]:.5f}"]) for at in places]
    path.write_text("\n".join(lines))
    return str(path)


def one(rewards: Rewards, options: FitOptions | None = None, **given: Any) -> Callable[[Path], Result]:
    def make(folder: Path) -> Result:
        log = write(folder / "run.csv", rewards, **given)
        return analyse_fit(read([log], Selection(x="gpu_hours")), options or FitOptions())

    return make


def several(
    *rewards: Rewards, options: FitOptions | None = None, at: float | None = None, paces: Sequence[float] = ()
) -> Callable[[Path], Result]:
    def make(folder: Path) -> Result:
        tokens: Sequence[Axes] = [{"tokens": 1000.0 * pace * STEPS} for pace in paces] or [{} for _ in rewards]
        names = ["one", "two", "three", "four"]
        logs = [write(folder / f"{names[k]}.csv", each, axes=tokens[k]) for k, each in enumerate(rewards)]
        return analyse_compare(read(logs, Selection(x="gpu_hours")), options or FitOptions(), at)

    return make


def coarsely(make: Callable[[Path], Result]) -> Callable[[Path], Result]:
    """Try a tenth of the paper's ceilings: the whole grid takes six seconds per curve."""

    def made(folder: Path) -> Result:
        with patch("scalerl.forecast.curves.paper.CEILINGS", CEILINGS[::10]):
            return make(folder)

    return made


def seeds(folder: Path) -> Result:
    logs = [write(folder / f"arm-seed{seed}.csv", rise(seed=seed)) for seed in range(3)]
    return analyse_fit(read(logs, Selection(x="gpu_hours")), FitOptions())


def forecast(at: Sequence[float], reach: Sequence[float]) -> Callable[[Path], Result]:
    def make(folder: Path) -> Result:
        series = read([write(folder / "run.csv", rise())], Selection(x="gpu_hours"))
        return analyse_forecast(series, FitOptions(), at, reach)

    return make


def backtest(folder: Path) -> Result:
    series = read([write(folder / "run.csv", rise())], Selection(x="gpu_hours"))
    return analyse_backtest(series, FitOptions(), [0.05, 0.5])


def late(folder: Path) -> Result:
    path = folder / "run.csv"
    path.write_text("\n".join(["gpu_hours,reward", *(f"{100 + 4 * n},{0.91 + 0.004 * (n % 3)}" for n in range(20))]))
    return analyse_fit(read([path], Selection()), FitOptions())


def study(folder: Path) -> Result:
    return build_report([write_study(folder / "study", num=14)], Selection(), FitOptions())


PAPER = FitOptions(method="paper")
EARLY, NOISY = rise(midpoint=3.0, noise=0.001), rise(noise=0.02, midpoint=30)
RESULTS: dict[str, tuple[Callable[[Path], Result], set[str]]] = {
    # name: how it is made, and kinds that it must say
    "flat": (one(0.3 + 0.006 * np.random.default_rng(1).standard_normal(40)), {"flat", "flat_doubling"}),
    "rising": (one(rise(midpoint=60.0, ceiling=0.95)), {"rising", "ceiling", "doubling"}),
    "levelling off": (one(rise(midpoint=4.0, noise=0.002)), {"levelling_off", "ceiling", "doubling"}),
    "fallen": (one(fallen()), {"past_peak", "checkpoint_step"}),
    "regained dip": (one(dipped()), {"dip"}),
    "too few points": (several(rise(), rise(seed=3)[:3]), {"too_early_points", "without_curve"}),
    "resumed late": (late, {"too_early_beginning"}),
    "unbounded": (one(30 * rise() - 12, FitOptions(), start=-3.0), {"ceiling", "smallest_change"}),
    "two alike": (several(EARLY, rise(midpoint=3.0, noise=0.001, seed=1), options=FitOptions(worth=0.05)), {"either"}),
    "two apart": (several(rise(), rise(0.55, seed=1)), {"take", "default_budget", "assumed_spread"}),
    "two open": (several(NOISY, rise(0.66, noise=0.02, seed=5, midpoint=26)), {"open", "settle"}),
    "three": (several(rise(), rise(0.6, seed=1), rise(0.5, seed=2)), {"take", "pooled"}),
    "fallen rival": (several(rise(0.6, seed=1), fallen()), {"best_checkpoint", "checkpoint_step"}),
    "same run": (several(rise(), rise()), {"same_run", "equal_curves"}),
    "seeds": (seeds, {"seeds_by_name", "ceiling"}),
    "paper": (coarsely(one(rise(), PAPER)), {"paper"}),
    "paper pair": (coarsely(several(rise(), rise(0.6, seed=1), options=PAPER)), {"paper_ceiling"}),
    "several axes": (several(rise(), rise(0.69, seed=1, midpoint=6.0), paces=(1.0, 8.0)), {"columns"}),
    "price": (one(rise(), FitOptions(price=2.5)), {"doubling"}),
    "forecast": (forecast([200.0, 1e4], [0.5, 0.99]), {"forecast_at", "far"}),
    "back-test": (backtest, {"not_scored"}),
    "study": (study, {"take", "default_budget"}),
}
