"""The study of a real model (examples/real-model): what a lease leaves, and every table of docs/results/real-model.md.

    python benchmarks/real_study.py record OUT        keep what benchmarks/lease.py left in OUT
    python benchmarks/real_study.py pilot             the learning rates that were tried before
    python benchmarks/real_study.py runs              every run: how far it came, and what it scores before and after
    python benchmarks/real_study.py ends [SET]        differences of the ends of arms, and whether they are equivalent
    python benchmarks/real_study.py ceilings          differences of fitted ceilings
    python benchmarks/real_study.py ratios            compute to two rewards, over ScaleRL's
    python benchmarks/real_study.py forecasts         the sealed forecasts of each run's end, beside four rivals
    python benchmarks/real_study.py best              P(best) as it was said during the runs, and who was
    python benchmarks/real_study.py draw PICTURE      the part that was fitted, the forecast, and what came

A run is the unit. The error of a difference has two parts: the spread of runs of one arm, pooled over arms, and a
bootstrap of the problems, which are the same for all runs. Answers count in both, so intervals are a little wide.
Intervals are 90 %; two arms are equivalent if the interval of their difference lies within 0.03 (two one-sided tests
at 5 %), different if it leaves out 0, and otherwise nothing is shown.
"""

import csv
import gzip
import io
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from bank import RESULTS
from gate_fitters import LeastSquares
from populations import Run as Seen
from study_table import as_ratio, interval, ratios, within_arms

from scalerl.forecast.curves import Fit, compare, fit
from scalerl.runfolder import store

HERE = RESULTS / "real-model" / "runs"
PILOT = RESULTS / "real-model" / "pilot.csv"
BASE = "scalerl"
MARGIN = 0.03
"""Differences smaller than this do not matter (fixed before the first run that counts)."""
TARGETS = (0.5, 0.55)
"""Rewards to which the compute of arms is compared (fixed before the first run that counts)."""
AXES = {"gpu_hours": "GPU-hours", "tokens": "tokens", "flops": "FLOPs"}
SHARES = {"tenth": 0.1, "quarter": 0.25, "half": 0.5}
TEST_SETS = ("gsm8k", "math500", "gsm8k-fresh")
METRICS = (
    *(
        "step",
        "gpu_hours",
        "tokens",
        "flops",
        "reward/mean",
        "rollout/length_mean",
        "loss/kl",
        "loss/entropy",
        "optim/grad_norm",
    ),
    *("rollout/lag_mean", "rollout/lag_max", "rollout/truncated_frac", "batch/zero_variance_frac"),
    *("time/step_s", "time/wait_s"),
)
ENVIRONMENT = ("scalerl", "python", "torch", "transformers", "device", "slots", "expected_lag", "start_up")
"""What is kept of a run's versions and hardware."""
EVERY = 5
"""One step in so many is kept."""
NUM_RESAMPLED = 400

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded run."""

    name: str
    rows: list[Row]
    sealed: dict[str, Row]

    @property
    def arm(self) -> str:
        return self.name.rpartition("-seed")[0]

    @property
    def seed(self) -> int:
        return int(self.name.rpartition("-seed")[2])

    @cached_property
    def withheld(self) -> list[Row]:
        """The evaluations on problems that were withheld from training."""
        return [row for row in self.rows if row["set"] not in TEST_SETS]

    @property
    def last(self) -> list[Row]:
        """The evaluations whose mean is the end of the run."""
        return self.withheld[-3:]

    def of_set(self, name: str) -> list[Row]:
        return [row for row in self.rows if row["set"] == name]

    def until(self, compute: float) -> "list[Row]":
        return [row for row in self.withheld if row["gpu_hours"] <= compute * (1 + 1e-9)]


def recorded() -> list[Run]:
    return [read_run(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir()]


def pilot() -> Iterator[str]:
    with PILOT.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    runs = {row["run"]: [other for other in rows if other["run"] == row["run"]] for row in rows}
    steps = [row["step"] for row in rows if row["run"] == rows[0]["run"]]
    yield f"| run | {' | '.join(steps)} steps | seconds a step |"
    yield f"|---|{'---|' * len(steps)}---|"
    for name, evaluations in runs.items():
        # The first steps fill the pipeline and compile.
        first, last = evaluations[1], evaluations[-1]
        hours = float(last["gpu_hours"]) - float(first["gpu_hours"])
        seconds = 3600 * hours / (int(last["step"]) - int(first["step"]))
        rewards = [f"{float(row['reward']):.3f}" for row in evaluations]
        yield f"| {name} | {' | '.join(rewards)} | {seconds:.1f} |"


def read_run(folder: Path) -> Run:
    with gzip.open(folder / "evals.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    sealed = {share: folder / f"sealed-{share}.json" for share in SHARES}
    there = {share: json.loads(path.read_text()) for share, path in sealed.items() if path.exists()}
    return Run(name=folder.name, rows=rows, sealed=there)


def by_arm(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of every arm, ScaleRL's first."""
    arms = sorted({run.arm for run in runs}, key=lambda arm: (arm != BASE, arm))
    return {arm: [run for run in runs if run.arm == arm] for arm in arms}


# Recording ------------------------------------------------------------------------------------------------------------


def record(out: str) -> None:
    """Keep what the page needs of every run in a lease's folder."""
    for folder in sorted((Path(out) / "runs").iterdir()):
        target = HERE / folder.name
        target.mkdir(parents=True, exist_ok=True)
        evals = "".join(json.dumps(row) + "\n" for row in store.read_evals(folder))
        write_packed(target / "evals.jsonl.gz", evals)
        write_packed(target / "metrics.csv.gz", thinned(list(store.read_metrics(folder))))
        store.write_json(target / "recipe.json", without_folders(store.read_recipe(folder) or {}))
        env = json.loads((folder / store.ENV).read_text())
        store.write_json(target / "env.json", {name: env[name] for name in ENVIRONMENT if name in env})
        for share in SHARES:
            seal = Path(out) / "sealed" / share / f"{folder.name}-{share}.json"
            if seal.exists():
                (target / f"sealed-{share}.json").write_bytes(seal.read_bytes())
        print(f"{target}: {len(evals.splitlines())} evaluations")


def without_folders(settings: Any) -> Any:
    """Return settings with the names of files alone: where they lay says nothing about a run."""
    if not isinstance(settings, dict):
        return settings
    named: Row = {}
    for key, value in settings.items():
        is_path = key in ("path", "evaluation_path") and isinstance(value, str)
        named[key] = Path(value).name if is_path else without_folders(value)
    return named


def thinned(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, METRICS, extrasaction="ignore")
    table.writeheader()
    table.writerows(row for row in rows if row["step"] % EVERY == 0 or row is rows[-1])
    return text.getvalue()


def write_packed(path: Path, text: str) -> None:
    # Without the time, so that the same run gives the same file.
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


# Tables ---------------------------------------------------------------------------------------------------------------


def runs() -> Iterator[str]:
    titles = ("withheld", *TEST_SETS)
    yield f"| run | steps | GPU-hours | {' | '.join(titles)} |"
    yield f"|---|---|---|{'---|' * len(titles)}"
    for run in recorded():
        last = run.withheld[-1]
        cells = [risen(run.withheld), *(risen(run.of_set(name)) for name in TEST_SETS)]
        yield f"| {run.name} | {last['step']} | {last['gpu_hours']:.3f} | {' | '.join(cells)} |"


def risen(rows: Sequence[Row]) -> str:
    """Return the first and last reward with its 90 % interval over problems."""
    if not rows:
        return "-"
    solved = shares(rows[-1:])
    error = 1.645 * float(np.std(solved)) / math.sqrt(len(solved))
    reward = rows[-1]["reward"]
    return f"{rows[0]['reward']:.3f} to {interval(reward, reward - error, reward + error)}"


def shares(rows: Sequence[Row]) -> np.ndarray:
    """Return the share of right answers of each problem, over some evaluations of one set."""
    right = np.sum([row["num_correct"] for row in rows], axis=0)
    return right * len(rows[0]["num_correct"]) / sum(row["num_samples"] for row in rows)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm's end less the base's."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > -MARGIN and self.high < MARGIN:
            return "equivalent"
        if self.low > 0 or self.high < 0:
            return "different"
        return "not shown"


def differences(arms: dict[str, list[np.ndarray]]) -> dict[str, Difference]:
    """Return every arm's end less the base's, from the shares of right answers of each problem of each run."""
    ends = {arm: [float(run.mean()) for run in runs] for arm, runs in arms.items()}
    spread, freedom = within_arms(ends)
    quantile = float(scipy.stats.t.ppf(0.95, freedom)) if freedom else math.nan
    own = np.mean(arms[BASE], axis=0)
    found: dict[str, Difference] = {}
    for arm, runs in arms.items():
        if arm == BASE:
            continue
        by_problem = np.mean(runs, axis=0) - own
        of_runs = spread * math.sqrt(1 / len(runs) + 1 / len(arms[BASE]))
        error = quantile * math.hypot(of_runs, resampled_error(by_problem))
        value = float(by_problem.mean())
        found[arm] = Difference(value=value, low=value - error, high=value + error)
    return found


def resampled_error(by_problem: np.ndarray) -> float:
    """Return the standard deviation of a mean over problems, by bootstrap."""
    draws = np.random.default_rng(0).integers(0, len(by_problem), (NUM_RESAMPLED, len(by_problem)))
    return float(by_problem[draws].mean(axis=1).std())


def ends(name: str = "") -> Iterator[str]:
    """Print differences of ends: on withheld problems the mean of three evaluations, on a test set the last one."""
    of_run = (lambda run: run.last) if not name else (lambda run: run.of_set(name)[-1:])
    arms = {arm: [shares(of_run(run)) for run in runs] for arm, runs in by_arm(recorded()).items()}
    yield "| arm | runs | ends | less ScaleRL's | verdict |"
    yield "|---|---|---|---|---|"
    found = differences(arms)
    for arm, runs in arms.items():
        reached = ", ".join(f"{run.mean():.3f}" for run in runs)
        difference = found.get(arm)
        if difference is None:
            yield f"| **{arm}** | {len(runs)} | {reached} | | |"
        else:
            cell = signed(difference.value, difference.low, difference.high)
            yield f"| {arm} | {len(runs)} | {reached} | {cell} | {difference.verdict} |"


def signed(value: float, low: float, high: float) -> str:
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def fitted(runs: Sequence[Run], until: float = math.inf, axis: str = "gpu_hours") -> Fit:
    """Fit the runs of an arm together, as `scalerl fit` does: the evaluation before the first step is the start."""
    rows = [(run.name, row) for run in runs for row in run.until(until)]
    later = [(name, row) for name, row in rows if row[axis] > 0]
    starts = [row for _, row in rows if row[axis] == 0]
    return fit(
        [row[axis] for _, row in later],
        [row["reward"] for _, row in later],
        start=statistics.mean(row["reward"] for row in starts) if starts else None,
        start_sd=None,
        num_samples=[row["num_samples"] for _, row in later],
        run=[name for name, _ in later],
        evaluation=[f"{row['prompts_hash']}:{row['step']}" for _, row in later],
    )


def ceilings() -> Iterator[str]:
    arms = by_arm(recorded())
    fits = {arm: fitted(runs) for arm, runs in arms.items()}
    yield "| arm | ceiling | less ScaleRL's | P(higher) | verdict |"
    yield "|---|---|---|---|---|"
    for arm, curve in fits.items():
        own = interval(curve.params["ceiling"], *curve.interval("ceiling"))
        if arm == BASE:
            yield f"| **{arm}** | {own} | | | |"
            continue
        pair = compare({arm: curve, BASE: fits[BASE]}, at=budget(arms)).pairs[0]
        value = pair.ceiling_difference
        verdict = Difference(value=value.value, low=value.low, high=value.high).verdict
        cell = signed(value.value, value.low, value.high)
        yield f"| {arm} | {own} | {cell} | {pair.p_higher_ceiling:.2f} | {verdict} |"


def budget(arms: dict[str, list[Run]]) -> float:
    return max(run.withheld[-1]["gpu_hours"] for runs in arms.values() for run in runs)


def print_ratios() -> Iterator[str]:
    arms = {arm: [[texts(row) for row in run.withheld] for run in runs] for arm, runs in by_arm(recorded()).items()}
    columns = [(axis, target) for target in TARGETS for axis in AXES]
    cells = {column: ratios(arms, BASE, column[1], column[0]) for column in columns}
    yield f"| arm | runs | {' | '.join(f'{AXES[axis]} to {target}' for axis, target in columns)} |"
    yield f"|---|---|{'---|' * len(columns)}"
    for arm, runs in arms.items():
        found = [as_ratio(cells[column].get(arm), arm == BASE) for column in columns]
        yield f"| {arm} | {len(runs)} | {' | '.join(found)} |"


def texts(row: Row) -> dict[str, str]:
    return {name: str(row[name]) for name in ("reward", *AXES)}


# Forecasts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What was said of the end of a run from a part of it, and what came."""

    run: str
    share: str
    came: float
    value: float
    low: float
    high: float
    rivals: dict[str, float]
    """Forecasts of the same reward; NaN where a rival has none."""

    @property
    def is_inside(self) -> bool:
        return self.low <= self.came <= self.high


RIVALS = ("paper's grid fit", "last value", "least squares", "an earlier seed")


def scored(run: Run, share: str, others: Sequence[Run]) -> Scored | None:
    """Return the score of a sealed forecast; None where nothing was sealed."""
    if share not in run.sealed:
        return None
    sealed = run.sealed[share]
    # The test sets have a curve too, of a few points.
    curve = max(sealed["curves"], key=lambda each: each["num_points"])
    said, compute = curve["at"][0]["reward"], curve["at"][0]["compute"]
    seen = run.until(sealed["options"]["fit_until"])
    earlier = [each for each in others if each.arm == run.arm and each.seed < run.seed]
    guesses = (by_paper(seen, compute), seen[-1]["reward"], by_least_squares(seen, compute), by_seed(earlier, compute))
    return Scored(
        run=run.name,
        share=share,
        came=run.withheld[-1]["reward"],
        value=said["value"],
        low=said["low"],
        high=said["high"],
        rivals=dict(zip(RIVALS, guesses, strict=True)),
    )


def points(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    later = [row for row in rows if row["gpu_hours"] > 0]
    return np.array([row["gpu_hours"] for row in later]), np.array([row["reward"] for row in later])


def by_paper(rows: Sequence[Row], compute: float) -> float:
    try:
        return float(fit(*points(rows), start=rows[0]["reward"], method="paper").predict(compute))
    except ValueError:
        return math.nan


def by_least_squares(rows: Sequence[Row], compute: float) -> float:
    places, rewards = points(rows)
    if len(places) < 3:
        return math.nan
    seen = Seen(compute=places, reward=rewards, start=rows[0]["reward"], is_bounded=True)
    low, high = LeastSquares().fit(seen).new(np.array([compute]))
    return float(low[0] + high[0]) / 2


def by_seed(earlier: Sequence[Run], compute: float) -> float:
    """Return what the run before this one had at a compute, by a line between its evaluations."""
    if not earlier:
        return math.nan
    return float(np.interp(compute, *points(max(earlier, key=lambda run: run.seed).withheld)))


def forecasts() -> Iterator[str]:
    every = recorded()
    yield f"| run | from | forecast of the end | came | inside | {' | '.join(RIVALS)} |"
    yield f"|---|---|---|---|---|{'---|' * len(RIVALS)}"
    scores: dict[str, list[Scored]] = {share: [] for share in SHARES}
    for run in every:
        for share in SHARES:
            score = scored(run, share, every)
            if score is None:
                yield f"| {run.name} | {share} | too early | | | {'| ' * len(RIVALS)}"
                continue
            scores[share].append(score)
            said = interval(score.value, score.low, score.high)
            held = "yes" if score.is_inside else "no"
            guesses = " | ".join(number(value) for value in score.rivals.values())
            yield f"| {run.name} | {share} | {said} | {score.came:.3f} | {held} | {guesses} |"
    for share, each in scores.items():
        if each:
            inside = f"{sum(score.is_inside for score in each)} of {len(each)}"
            own = statistics.median(abs(score.value - score.came) for score in each)
            yield f"| median error | {share} | {own:.3f} | | {inside} | {' | '.join(medians(each))} |"


def medians(scores: Sequence[Scored]) -> Iterator[str]:
    for rival in RIVALS:
        errors = [abs(score.rivals[rival] - score.came) for score in scores]
        known = [error for error in errors if math.isfinite(error)]
        yield f"{statistics.median(known):.3f}" + f" ({len(known)})" * (len(known) < len(errors)) if known else "-"


def number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def best() -> Iterator[str]:
    """Print how likely ScaleRL was to end above each arm, from shares of both, and whether it did."""
    arms = by_arm(recorded())
    end = budget(arms)
    reached = {arm: statistics.mean(float(shares(run.last).mean()) for run in runs) for arm, runs in arms.items()}
    yield f"| against | {' | '.join(f'P(ScaleRL is higher), {share}' for share in SHARES)} | it ended |"
    yield f"|---|{'---|' * (len(SHARES) + 1)}"
    for arm, runs in arms.items():
        if arm != BASE:
            chances = [chance(arms[BASE], runs, share * end, end) for share in SHARES.values()]
            side = "higher" if reached[BASE] > reached[arm] else "lower"
            yield f"| {arm} | {' | '.join(chances)} | {side}, by {abs(reached[BASE] - reached[arm]):.3f} |"


def chance(base: Sequence[Run], others: Sequence[Run], until: float, end: float) -> str:
    fits = {"base": fitted(base, until), "arm": fitted(others, until)}
    if not all(curve.has_intervals for curve in fits.values()):
        return "too early"
    return f"{compare(fits, at=end).pairs[0].p_ahead:.2f}"


def draw(target: str) -> None:
    """Draw each arm: what was fitted until half, the forecast from there, and what came."""
    from matplotlib.figure import Figure

    arms = by_arm(recorded())
    end = budget(arms)
    figure = Figure(figsize=(7.5, 4.6), dpi=140, layout="constrained")
    axes = figure.subplots()
    for (arm, runs), colour in zip(arms.items(), ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), strict=False):
        curve = fitted(runs, SHARES["half"] * end)
        if not curve.has_intervals:
            continue
        seen, later = (np.geomspace(low, high, 60) for low, high in ((end / 60, end / 2), (end / 2, end)))
        axes.plot(seen, curve.predict(seen), color=colour, linewidth=1.6, label=arm)
        axes.plot(later, curve.predict(later), "--", color=colour, linewidth=1.6)
        axes.fill_between(later, *curve.new_interval(later), color=colour, alpha=0.12, linewidth=0)
        for run in runs:
            places, rewards = points(run.withheld)
            was_seen = places <= SHARES["half"] * end
            axes.plot(places[was_seen], rewards[was_seen], "o", color=colour, markersize=3.5)
            axes.plot(places[~was_seen], rewards[~was_seen], "o", color=colour, markersize=3.5, fillstyle="none")
    axes.axvline(end / 2, color="#999999", linewidth=0.8)
    axes.set_xlabel("GPU-hours of training (H200); forecasts are made at the line")
    axes.set_ylabel("share of right answers, withheld problems")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(target, facecolor="white")


TABLES = {
    "pilot": pilot,
    "runs": runs,
    "ends": ends,
    "ceilings": ceilings,
    "ratios": print_ratios,
    "forecasts": forecasts,
    "best": best,
}


def run(name: str = "", *words: str) -> None:
    if name in TABLES:
        print(*TABLES[name](*words), sep="\n")
    elif name == "record":
        record(*words)
    elif name == "draw":
        draw(*words)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    run(*sys.argv[1:])
