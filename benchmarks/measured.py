"""Measured runs: published curves and other people's logs (../shared/data, where it is there), and our own.

A source is a group of curves of one kind; within a `group` curves may be compared with each other.
"""

import csv
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from populations import Array, Case, Pair, Run

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
OWN = ROOT / "docs" / "results"
START_8B = 0.399
"""Pass rate of the 8B runs of arXiv 2510.13786 before training."""
FIRST_8B = 1500.0
"""GPU-hours before which its fits leave points out."""
DRAWN_AGAIN = {("fwd_loss", "DAPO"), ("fwd_fp32", "default"), ("fwd_lossagg", "sample_avg")}
"""Series that are another figure's run."""
SUMMED = ("trl_gemma3", "trl_unsloth")
"""Logs whose rewards are sums over reward functions, beyond 1."""
LEAST = 12
"""Evaluations of a curve that is used."""
CLEAR, ALIKE = 5.0, 2.0
"""Standard errors from which a late difference is clear, and below which two runs are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    source: str
    group: str
    name: str
    run: Run
    is_repeat: bool = False
    """Whether the same run is among the curves under another name: it is compared, but not scored again."""

    @property
    def unit(self) -> float:
        """Training rewards are scored in units of their range."""
        return float(np.ptp(self.run.reward)) if self.source.startswith("training") else 1.0

    @property
    def case(self) -> Case:
        reached, error = late_mean(self.run, 0.9, self.run.compute.max())
        return Case(
            run=self.run,
            later_compute=self.run.compute,
            later_reward=self.run.reward,
            reached=reached,
            reached_error=error,
            unit=self.unit,
        )


def make(
    compute: Iterable[float],
    reward: Iterable[float],
    num_samples: Sequence[int] | None = None,
    *,
    is_bounded: bool = True,
) -> Run:
    """Return a run by compute; its evaluation at compute 0 is the start."""
    compute, reward = np.array(list(compute), dtype=float), np.array(list(reward), dtype=float)
    order = np.argsort(compute, kind="stable")
    compute, reward = compute[order], reward[order]
    counts = None if num_samples is None else np.array(num_samples)[order]
    after = compute > 0
    start = float(reward[~after][0]) if not after.all() else None
    return Run(
        compute=compute[after],
        reward=reward[after],
        start=start,
        num_samples=None if counts is None else counts[after],
        is_bounded=is_bounded,
    )


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Sources --------------------------------------------------------------------------------------------------------------


def published() -> dict[tuple[str, str], list[tuple[float, float, str]]]:
    points = defaultdict(list)
    for row in read_csv(DATA / "scalerl_published_curves.csv"):
        points[row["figure"], row["series"]].append((float(row["gpu_hours"]), float(row["pass_rate"]), row["kind"]))
    return {key: sorted(rows) for key, rows in points.items()}


def published_curves() -> Iterator[Curve]:
    for (figure, series), rows in published().items():
        compute, reward, _ = zip(*rows, strict=True)
        run = Run(compute=np.array(compute), reward=np.array(reward), start=START_8B, start_sd=0.0)
        is_repeat = (figure, series) in DRAWN_AGAIN
        yield Curve(source="published", group=figure, name=series, run=run, is_repeat=is_repeat)


def published_forecasts() -> Iterator[Case]:
    """What the authors fitted, and what they held out."""
    for rows in published().values():
        train = np.array([(c, r) for c, r, kind in rows if kind == "train" and c >= FIRST_8B])
        later = np.array([(c, r) for c, r, kind in rows if kind == "extended"])
        if len(later):
            run = Run(compute=train[:, 0], reward=train[:, 1], start=START_8B, start_sd=0.0)
            yield Case(run=run, later_compute=later[:, 0], later_reward=later[:, 1])


def tan_curves() -> Iterator[Curve]:
    points = defaultdict(list)
    for row in read_csv(DATA / "tan2025_qwen_base.csv"):
        points[row["size"]].append((float(row["compute_flops"]), float(row["pass_at_1"])))
    for size, rows in points.items():
        yield Curve(source="tan2025", group="tan2025", name=size, run=make(*zip(*rows, strict=True)))


def logged_curves() -> Iterator[Curve]:
    """Evaluations and training rewards that others logged."""
    logs = DATA / "foreign_logs"
    for path in sorted(logs.glob("wandb*.csv")):
        rows = read_csv(path)
        for column in rows[0]:
            if column != "Step" and not column.endswith(("__MIN", "__MAX")):
                points = [(float(row["Step"]), float(row[column])) for row in rows if row[column]]
                run = make(*zip(*points, strict=True))
                yield Curve(source="logged evaluations", group=path.stem, name=column.split(" - ")[0], run=run)
    for group, name, points in training_rewards(logs):
        run = make(*zip(*points, strict=True), is_bounded=not name.startswith(SUMMED))
        yield Curve(source="training rewards", group=group, name=name, run=run)


def training_rewards(logs: Path) -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    for path in sorted(logs.glob("tinker*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        key = next(key for key in ("reward/mean", "env/all/reward/total") if key in rows[0])
        yield path.stem, path.stem, [(row["step"], row[key]) for row in rows if key in row]
    for path in sorted(logs.glob("tinker_gsm8k*.log")):
        found = re.findall(r"(\d+)/50 \| .*?reward=([\d.]+)", path.read_text())
        yield "tinker_gsm8k", path.stem, [(float(step), float(reward)) for step, reward in found]
    for path in sorted(logs.glob("trl*.json")):
        rows = [row for row in json.loads(path.read_text())["log_history"] if "reward" in row]
        for key in ("reward", "rewards/correctness_reward_func"):
            if key in rows[0]:
                yield f"{path.stem} {key}", f"{path.stem} {key}", [(row["step"], row[key]) for row in rows]
    rows = json.loads((logs / "fair_rlvr_step_logs.json").read_text())
    # Each value stands ten times.
    steps = [row for row, before in zip(rows[1:], rows, strict=False) if row["reward_mean"] != before["reward_mean"]]
    yield "fair_rlvr", "fair_rlvr", [(row["step"], row["reward_mean"]) for row in steps]
    attempts: dict[float, float] = {}
    rows = [row for path in logs.glob("verl_attempts/*.csv") for row in read_csv(path) if row["critic/score/mean"]]
    for row in sorted(rows, key=lambda row: float(row["_timestamp"])):
        attempts[float(row["_step"])] = float(row["critic/score/mean"])
    yield "verl", "verl", sorted(attempts.items())


def own_curves() -> Iterator[Curve]:
    """Single runs of our studies."""
    for study, run, rows in own_runs():
        for name in dict.fromkeys(row["set"] for row in rows):
            last = {row["step"]: row for row in rows if row["set"] == name}.values()
            compute, reward = ([float(row[key]) for row in last] for key in ("flops", "reward"))
            made = make(compute, reward, [int(row["num_samples"]) for row in last])
            yield Curve(source="our runs", group=f"{study} {name}", name=run, run=made)


def own_runs() -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Yield study, run and evaluations: of run folders, and of tables of studies (study_table.py)."""
    for path in sorted((*OWN.glob("**/evals.jsonl"), *(OWN / "principles").glob("*.csv.gz"))):
        if path.suffix == ".gz":
            runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
            with gzip.open(path, "rt", newline="") as file:
                for row in csv.DictReader(file):
                    runs[f"{row['arm']}-seed{row['seed']}"].append(row)
            yield from ((path.name.removesuffix(".csv.gz"), name, rows) for name, rows in runs.items())
        else:
            study = path.parents[2].name if path.parents[1].name == "runs" else path.parent.name
            yield study, path.parent.name, [json.loads(line) for line in path.read_text().splitlines()]


@cache
def curves() -> tuple[Curve, ...]:
    others = (*published_curves(), *tan_curves(), *logged_curves()) if DATA.is_dir() else ()
    found, seen = [], set()
    for curve in (*others, *own_curves()):
        key = tuple(curve.run.reward[:30])
        if len(curve.run.reward) >= LEAST:
            found.append(replace(curve, is_repeat=curve.is_repeat or key in seen))
        seen.add(key)
    return tuple(found)


SOURCES = ("published", "tan2025", "logged evaluations", "training rewards", "our runs")
PUBLISHED = "published, train to extended"


def cases(source: str, share: float) -> list[Case]:
    if source == PUBLISHED:
        return list(published_forecasts()) if DATA.is_dir() else []
    found = [curve.case.cut(share) for curve in curves() if curve.source == source and not curve.is_repeat]
    return [case for case in found if case is not None]


# Pairs ----------------------------------------------------------------------------------------------------------------


def late_mean(run: Run, since: float, end: float) -> tuple[float, float]:
    """Return the mean of a run's rewards from a share of `end` up to it, and its standard error.

    The scatter is that about a straight line, with the correlation of neighbours; with several seeds at least that of
    their means.
    """
    labels = np.zeros(len(run.reward)) if run.label is None else run.label
    means, errors = [], []
    for label in np.unique(labels):
        here = (labels == label) & (run.compute > since * end) & (run.compute <= end * (1 + 1e-9))
        if here.sum() < 2:
            here = labels == label
            here &= run.compute >= np.sort(run.compute[here])[-2]
        compute, reward = run.compute[here], run.reward[here]
        means.append(reward.mean())
        errors.append(error_of_mean(compute, reward))
    error = float(np.sqrt(np.mean(np.square(errors)) / len(errors)))
    if len(means) > 1:
        error = max(error, float(np.std(means, ddof=1)) / np.sqrt(len(means)))
    return float(np.mean(means)), error


def error_of_mean(compute: Array, reward: Array) -> float:
    if len(reward) < 5:
        return float(np.std(reward, ddof=1) / np.sqrt(len(reward)))
    rest = reward - np.polyval(np.polyfit(compute / compute.max(), reward, 1), compute / compute.max())
    rho = float(np.clip(rest[1:] @ rest[:-1] / max(rest @ rest, 1e-300), 0.0, 0.9))
    return float(np.sqrt(rest @ rest / (len(rest) - 2) / len(rest) * (1 + rho) / (1 - rho)))


def recipes() -> dict[tuple[str, str], dict[str, list[Run]]]:
    """Return the runs of each recipe by source and group; those of ours have several seeds."""
    found: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for curve in curves():
        found[curve.source, curve.group][re.sub(r"-seed\d+$", "", curve.name)].append(curve.run)
    return found


def together(runs: Sequence[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    starts = [run.start for run in runs if run.start is not None]
    return Run(
        compute=np.concatenate([run.compute for run in runs]),
        reward=np.concatenate([run.reward for run in runs]),
        start=float(np.mean(starts)) if starts else None,
        num_samples=np.concatenate([run.num_samples for run in runs if run.num_samples is not None]),
        label=np.repeat(np.arange(len(runs)), [len(run.reward) for run in runs]),
        is_bounded=all(run.is_bounded for run in runs),
    )


def compared(first: Run, second: Run) -> tuple[str, float] | None:
    """Return "clear" with the late difference, or "alike"; None where neither can be said.

    It is clear where the last quarter of the common compute and the last quarter of each run say the same.
    """
    runs, ends = (first, second), [float(run.compute.max()) for run in (first, second)]
    signs = []
    for until in ([min(ends)] * 2, ends):
        parts = list(zip(runs, until, strict=True))
        if any(np.sum((run.compute > 0.75 * end) & (run.compute <= end)) < 2 for run, end in parts):
            return None
        (one, one_error), (two, two_error) = (late_mean(run, 0.75, end) for run, end in parts)
        signs.append((one - two) / max(float(np.hypot(one_error, two_error)), 1e-9))
    if min(signs) > CLEAR or max(signs) < -CLEAR:
        return "clear", float(one - two)
    return ("alike", 0.0) if max(map(abs, signs)) < ALIKE else None


def pairs() -> Iterator[tuple[str, Pair]]:
    """Yield all pairs of recipes within a group that are clearly different or alike, and the seeds of each recipe."""
    for (source, _), arms in recipes().items():
        for first, second in combinations(map(together, arms.values()), 2):
            found = compared(first, second)
            if found is not None:
                kind, lead = found
                yield f"{source}, {kind}", Pair(first=first, second=second, lead=lead, efficiency=None)
        for runs in arms.values():
            for first, second in combinations(runs, 2):
                yield f"{source}, two seeds", Pair(first=first, second=second, lead=0.0, efficiency=None)
