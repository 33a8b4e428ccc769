"""Time of PipelineRL-k to the reward that PPO-off-policy-k ends with, generator and learner on devices of their own.

    python benchmarks/scheme.py --pipeline RUN [RUN ...] --drained RUN [RUN ...]      runs of the two arms, a seed each

Both arms hold the same devices all the time, so the ratio of their GPU-hours is that of their training times. For each
arm one curve is fitted to the evaluations of all seeds, over GPU-hours and over steps. Targets are rewards on the
curve of PPO-off-policy-k, at its end and earlier. The interval of a ratio is over the posterior draws of both curves:
a target has the uncertainty of its curve, and the time to it that of the other.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalerl import store
from scalerl.curves import Fit, Value, fit

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the time that PPO-off-policy-k took: where it is compared."""
LEVEL = 0.9
LAST = 3
"""Number of last evaluations that are averaged."""
_SET = "main"

Array = NDArray[np.float64]


class SchemeError(ValueError):
    """The runs cannot be compared; one sentence has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The evaluations and metrics of the runs of one arm."""

    name: str
    evals: tuple[tuple[store.Row, ...], ...]
    rows: tuple[tuple[store.Row, ...], ...]

    def end(self, axis: str) -> float:
        """Return the compute that every run reached."""
        return min(max(row[axis] for row in rows) for rows in self.evals)

    @property
    def seconds_per_step(self) -> float:
        return float(np.mean([rows[-1]["time/training_s"] / rows[-1]["step"] for rows in self.rows]))

    @property
    def last_reward(self) -> float:
        return float(np.mean([row["reward"] for rows in self.evals for row in rows[-LAST:]]))

    def column(self, name: str) -> Array:
        """Return a metric after the first quarter of the steps, of all runs."""
        return np.array([row[name] for rows in self.rows for row in rows[len(rows) // 4 :] if name in row])

    def curve(self, axis: str) -> Fit:
        later = [(row, run) for run, rows in enumerate(self.evals) for row in rows if row["step"]]
        starts = [row["reward"] for rows in self.evals for row in rows if not row["step"]]
        fitted = fit(
            [row[axis] for row, _ in later],
            [row["reward"] for row, _ in later],
            num_samples=[row["num_samples"] for row, _ in later],
            run=[run for _, run in later],
            start=float(np.mean(starts)) if starts else None,
            start_sd=None,
            level=LEVEL,
        )
        if not fitted.usable:
            raise SchemeError(f"{self.name} has no curve over {axis}: {' '.join(fitted.messages) or fitted.verdict}")
        return fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Both arms at one reward."""

    target: float
    drained: float
    """Compute of PPO-off-policy-k at the target."""
    pipeline: float
    """Compute of PipelineRL-k there; infinite where it never gets there."""
    ratio: Value
    p_never: float
    """Share of the draws in which PipelineRL-k does not get there within four times its runs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", type=Path, nargs="+", metavar="RUN", required=True)
    parser.add_argument("--drained", type=Path, nargs="+", metavar="RUN", required=True)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    arguments = parser.parse_args()
    try:
        pipeline, drained = read_arm(arguments.pipeline, drain=False), read_arm(arguments.drained, drain=True)
        result = {axis: compare(pipeline, drained, axis) for axis in ("gpu_hours", "step")}
    except SchemeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({axis: [asdict(row) for row in rows] for axis, rows in result.items()}, indent=1))
    else:
        print(shown(pipeline, drained, result))
    return 0


def read_arm(folders: Sequence[Path], *, drain: bool) -> Arm:
    for folder in folders:
        recipe = store.read_recipe(folder)
        if recipe is None or recipe["pipeline"]["drain"] != drain:
            raise SchemeError(f"{folder} is not the folder of a run with pipeline.drain = {str(drain).lower()}")
    return Arm(
        name=folders[0].name,
        evals=tuple(tuple(row for row in store.read_evals(folder) if row["set"] == _SET) for folder in folders),
        rows=tuple(tuple(sorted(store.read_metrics(folder), key=lambda row: row["step"])) for folder in folders),
    )


def compare(pipeline: Arm, drained: Arm, axis: str) -> list[Row]:
    """Return the compute to rewards on the curve of PPO-off-policy-k."""
    first, second = pipeline.curve(axis), drained.curve(axis)
    end = drained.end(axis)
    grid = np.geomspace(1e-3, 4.0, 800) * pipeline.end(axis)
    rng, curves, rows = np.random.default_rng(0), first.curve_draws(grid), []
    rng.shuffle(curves)
    for share in SHARES:
        at = np.array([share * end])
        targets = second.curve_draws(at)[:, 0]
        # The two arms are independent of each other, so any draw of the one goes with any of the other.
        needed = np.array([reach(grid, curve, of) for curve, of in zip(curves, rng.permutation(targets), strict=False)])
        target = float(second.predict(at)[0])
        value = reach(grid, first.predict(grid), target)
        low, high = np.quantile(needed / (share * end), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
        ratio = Value(value=value / (share * end), low=float(low), high=float(high))
        rows.append(
            Row(
                target=target,
                drained=share * end,
                pipeline=value,
                ratio=ratio,
                p_never=float(np.isinf(needed).mean()),
            )
        )
    return rows


def reach(grid: Array, curve: Array, target: float) -> float:
    """Return the compute at which a rising curve reaches a reward; infinite beyond the grid."""
    above = np.flatnonzero(curve >= target)
    if not len(above):
        return np.inf
    place = int(above[0])
    if not place:
        return float(grid[0])
    return float(np.interp(target, curve[place - 1 : place + 1], grid[place - 1 : place + 1]))


def shown(pipeline: Arm, drained: Arm, result: dict[str, list[Row]]) -> str:
    lines = []
    for name, arm in (("PipelineRL", pipeline), ("PPO-off-policy", drained)):
        learning_s = arm.column("time/step_s").mean()
        lines.append(
            f"{name:<15}{len(arm.rows)} runs, {arm.end('step'):.0f} steps of {arm.seconds_per_step:.2f} s (learning "
            f"{learning_s:.2f}), largest lag {arm.column('rollout/lag_max').max():.0f}; last evaluations "
            f"{arm.last_reward:.3f}"
        )
    for axis, rows in result.items():
        lines.append(f"{'reward':>8}{'PPO, ' + axis:>18}{'PipelineRL':>14}{'ratio':>8}  [{LEVEL:.0%}]")
        for row in rows:
            low, high = row.ratio.low, row.ratio.high
            lines.append(
                f"{row.target:>8.3f}{row.drained:>18.4g}{row.pipeline:>14.4g}{row.ratio.value:>8.2f}  "
                f"[{low:.2f}, {high:.2f}]" + (f"  never: {row.p_never:.0%}" if row.p_never else "")
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
