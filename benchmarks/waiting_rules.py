"""What a step waits for: the pace and the lag of both rules of `pipeline.waits_for`, by simulating every completion.

    python benchmarks/waiting_rules.py [--steps 400] [--lag 8]

The lag rule is the loop's own (loop/lag.py), with the paper's batch of 48 x 16 and its limit of 14,336 tokens. Lengths
are log-normal, with a mean before the limit cuts them and a spread (the standard deviation of their logarithm). Every
slot samples one token per tick. The learner trains beside the generators and takes half of the time in which the slots
sample a batch. Slots are given in batches of 768. Times per step are those of "groups" over those of "batch": with the
same max_lag, and with the max_lag of "batch" that has the same mean lag (linear between whole numbers).
"""

import argparse
import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from scalerl.training.loop.lag import LagRule, WaitsFor

GROUPS, COMPLETIONS, LONGEST = 48, 16, 14_336
BATCH = GROUPS * COMPLETIONS
TRAIN = 0.5
"""Time of a step of the learner over that in which the slots sample a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    ticks: float
    """Per step."""
    lag_mean: float
    lag_max: int


def lengths(mean: float, spread: float, num: int) -> np.ndarray:
    """Return the lengths of so many groups, the same for both rules."""
    normal = np.random.default_rng(0).standard_normal((num, COMPLETIONS))
    return np.minimum(np.ceil(mean * np.exp(spread * normal - spread**2 / 2)), LONGEST)


def simulate(waits_for: WaitsFor, *, max_lag: int, batches: float, mean: float, spread: float, steps: int) -> Measured:
    """Return the pace and lags after the first quarter of the steps, in which lags build up."""
    drawn = lengths(mean, spread, (steps + 2 * max_lag + 2) * GROUPS)
    slots, train_ticks = int(batches * BATCH), TRAIN * drawn.mean() / batches
    rule = LagRule(groups_per_batch=GROUPS, max_lag=max_lag, waits_for=waits_for)
    waiting: deque[tuple[int, int]] = deque()
    running: list[tuple[float, int]] = []
    left, first_version = np.full(len(drawn), COMPLETIONS), np.full(len(drawn), -1)
    issued, now, trained_until, keys, changed = 0, 0.0, np.inf, (), True
    ends, lags = [], []
    while len(ends) < steps:
        while changed and rule.may_submit:
            rule.submitted(str(issued))
            waiting.extend((issued, place) for place in range(COMPLETIONS))
            issued += 1
        while waiting and len(running) < slots:
            group, place = waiting.popleft()
            if first_version[group] < 0:
                first_version[group] = rule.engine_version
            heapq.heappush(running, (now + drawn[group, place], group))
        if changed and not keys and (keys := rule.due()):
            trained_until = now + train_ticks
            lags.append([rule.version - first_version[int(key)] for key in keys])
        if keys and (not running or trained_until <= running[0][0]):
            now, trained_until = trained_until, np.inf
            rule.trained(keys)
            rule.pushed()
            ends.append(now)
            keys, changed = (), True
            continue
        now, group = heapq.heappop(running)
        left[group] -= 1
        changed = not left[group]
        if changed:
            rule.finished(str(group), first_version=int(first_version[group]))
    warm = steps // 4
    of_groups = np.array(lags[warm:steps])
    return Measured(
        ticks=(ends[-1] - ends[warm - 1]) / (steps - warm),
        lag_mean=float(of_groups.mean()),
        lag_max=int(of_groups.max()),
    )


def ticks_at_lag(measured: dict[int, Measured], lag: float) -> float:
    """Return the ticks per step of the rule "batch" at a mean lag."""
    ordered = sorted(measured.values(), key=lambda each: each.lag_mean)
    return float(np.interp(lag, [each.lag_mean for each in ordered], [each.ticks for each in ordered]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lag", type=int, default=8, help="max_lag of both rules")
    arguments = parser.parse_args()
    max_lag, steps = arguments.lag, arguments.steps
    columns = "mean length, spread, slots, time at the same max_lag, at the same mean lag, groups: mean lag, largest, "
    columns += "batch: mean lag, largest"
    print(f"| {columns.replace(', ', ' | ')} |", "|" + "---|" * 9, sep="\n")
    for mean, spread in ((4500.0, 0.6), (4500.0, 1.0), (2000.0, 0.6), (2000.0, 1.0), (2000.0, 1.4)):
        for batches in (1.5, 3.0, max_lag + 1.0):
            given = {"batches": batches, "mean": mean, "spread": spread, "steps": steps}
            strict = simulate("groups", max_lag=max_lag, **given)
            loose = {lag: simulate("batch", max_lag=lag, **given) for lag in range(max_lag // 2, max_lag + 1)}
            same, equal = loose[max_lag], ticks_at_lag(loose, strict.lag_mean)
            print(
                f"| {mean:,.0f} | {spread} | {batches:g} | {strict.ticks / same.ticks:.2f} | "
                f"{strict.ticks / equal:.2f} | {strict.lag_mean:.1f} | {strict.lag_max} | {same.lag_mean:.1f} | "
                f"{same.lag_max} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
