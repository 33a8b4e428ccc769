"""Replay policies that spend a limited budget over the arms of a study: where does each end, and what did it cost?

    python benchmarks/plan_replay.py [--studies 500] [--seed 0] [--spread 0.03] [--out rows.jsonl]
    python benchmarks/plan_replay.py --summary rows.jsonl [rows.jsonl ...]
    python benchmarks/plan_replay.py --published scalerl_published_curves.csv

Simulated: studies of 8 arms, ceilings N(0.6, spread), exponents lognormal around 1.8 with 0.25, midpoints 0.2 T times
lognormal 0.5, 40 evaluations to T with noise of sd 0.005, start 0.4. Every policy has at most 40 % of the compute of
training all arms to T. Regret is the best true reward at T minus that of the chosen arm.

    forecast   scalerl.joint.plan over pooled fits: the arm with the largest expected gain per compute gets a stage more
    halving    successive halving: three rounds of equal compute, the better half by the latest evaluation goes on
    highest    all arms to 40 % of T, the highest reward seen so far is chosen
    oracle     Bayes' choice from the data that `forecast` gathered, knowing the distributions the curves came from
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simulated_studies

from scalerl.forecast.curves import Fit, fit
from scalerl.forecast.several.plan import Candidate, plan
from scalerl.forecast.several.pool import pool

NUM_ARMS, NUM_EVALS, SD, START = 8, 40, 0.005, 0.4
SHARE = 0.4
STAGE = 1 / 8  # of the target: five evaluations
EXPONENT, EXPONENT_SD, MIDPOINT, MIDPOINT_SD, CEILING = 1.8, 0.25, 0.2, 0.5, 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What each arm would measure, in units of the target's compute, and its true reward at the target."""

    compute: list[np.ndarray]
    reward: list[np.ndarray]
    truth: np.ndarray
    start: float
    is_crossing: bool
    """Whether the best at T is not the best at T/4."""
    first: float = STAGE
    """Compute that every arm is given before the first decision."""

    def latest(self, arm: int, spent: float) -> float:
        return float(np.append(self.start, self.reward[arm][self._seen(arm, spent)])[-1])

    def highest(self, arm: int, spent: float) -> float:
        return float(self.reward[arm][self._seen(arm, spent)].max(initial=self.start))

    def fit(self, arm: int, spent: float) -> Fit:
        seen = self._seen(arm, spent)
        return fit(self.compute[arm][seen], self.reward[arm][seen], start=self.start)

    def _seen(self, arm: int, spent: float) -> np.ndarray:
        return self.compute[arm] <= spent + 1e-9


def curve(compute, ceiling, exponent, midpoint):
    return START + (ceiling - START) / (1 + (midpoint / compute) ** exponent)


def simulate(rng: np.random.Generator, spread: float) -> Study:
    ceiling = np.clip(rng.normal(CEILING, spread, NUM_ARMS), START + 0.01, 0.99)[:, None]
    exponent = np.exp(rng.normal(np.log(EXPONENT), EXPONENT_SD, NUM_ARMS))[:, None]
    midpoint = MIDPOINT * np.exp(rng.normal(0.0, MIDPOINT_SD, NUM_ARMS))[:, None]
    compute = np.arange(1, NUM_EVALS + 1) / NUM_EVALS
    true = curve(compute, ceiling, exponent, midpoint)
    reward = np.clip(true + rng.normal(0.0, SD, true.shape), 0.0, 1.0)
    early = curve(0.25, ceiling, exponent, midpoint)[:, 0]
    return Study(
        compute=[compute] * NUM_ARMS,
        reward=list(reward),
        truth=true[:, -1],
        start=START,
        is_crossing=bool(early.argmax() != true[:, -1].argmax()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    choice: int
    spent: np.ndarray
    """Compute of each arm, in units of the target's."""


def forecast(study: Study, budget: float) -> Outcome:
    """The planner, stage by stage."""
    num_arms = len(study.reward)
    spent = np.full(num_arms, study.first)
    fits: dict[tuple[int, float], Fit] = {}
    while True:
        keys = [(arm, float(spent[arm])) for arm in range(num_arms)]
        fits |= {key: study.fit(*key) for key in keys if key not in fits}
        curves = pool({str(arm): fits[arm, own] for arm, own in keys})
        arms = [Candidate(name=str(arm), spent=own, fit=curves[str(arm)]) for arm, own in keys]
        planned = plan(arms, 1.0, stage=STAGE)
        going = [arm for arm in planned.arms if arm.rate > 0 and arm.spent < 1 - 1e-9]
        if not going or budget - spent.sum() < STAGE - 1e-9:
            return Outcome(choice=int(planned.chosen[0] if planned.chosen else 0), spent=spent)
        best = int(max(going, key=lambda arm: (arm.rate, -arm.spent)).name)
        spent[best] = min(spent[best] + STAGE, 1.0)


def halving(study: Study, budget: float) -> Outcome:
    num_arms = len(study.reward)
    alive = np.arange(num_arms)
    spent = np.zeros(num_arms)
    rounds = int(np.ceil(np.log2(num_arms)))
    for _ in range(rounds):
        # Whole evaluations.
        more = int(budget / rounds / len(alive) * NUM_EVALS + 1e-9) / NUM_EVALS
        spent[alive] = np.minimum(spent[alive] + more, 1.0)
        latest = np.array([study.latest(int(arm), spent[arm]) for arm in alive])
        alive = alive[np.argsort(-latest, kind="stable")[: max(len(alive) // 2, 1)]]
    return Outcome(choice=int(alive[0]), spent=spent)


def highest(study: Study, budget: float) -> Outcome:
    num_arms = len(study.reward)
    each = int(budget / num_arms * NUM_EVALS + 1e-9) / NUM_EVALS
    best = [study.highest(arm, each) for arm in range(num_arms)]
    return Outcome(choice=int(np.argmax(best)), spent=np.full(num_arms, each))


def oracle(study: Study, spent: np.ndarray, spread: float) -> int:
    """The highest posterior mean at T under the distributions that the study was drawn from."""
    exponent = np.exp(np.log(EXPONENT) + EXPONENT_SD * np.linspace(-3.2, 3.2, 41))[:, None, None]
    midpoint = MIDPOINT * np.exp(MIDPOINT_SD * np.linspace(-3.2, 3.2, 61))[None, :, None]
    weight = np.add.outer(-0.5 * np.linspace(-3.2, 3.2, 41) ** 2, -0.5 * np.linspace(-3.2, 3.2, 61) ** 2)
    at_target = 1 / (1 + midpoint**exponent)[..., 0]
    means = []
    for arm, num in enumerate(spent):
        seen = study.compute[arm] <= num + 1e-9
        shape = 1 / (1 + (midpoint / study.compute[arm][seen]) ** exponent)
        residual = study.reward[arm][seen] - START - (CEILING - START) * shape
        # The ceiling's departure from its mean is normal before and after the data.
        precision = (shape**2).sum(axis=-1) / SD**2 + spread**-2
        departure = (shape * residual).sum(axis=-1) / SD**2 / precision
        log_mass = weight - 0.5 * (residual**2).sum(axis=-1) / SD**2 + 0.5 * departure**2 * precision
        log_mass -= 0.5 * np.log(precision)
        mass = np.exp(log_mass - log_mass.max())
        means.append(float((mass * (CEILING - START + departure) * at_target).sum() / mass.sum()))
    return int(np.argmax(means))


POLICIES: dict[str, Callable[[Study, float], Outcome]] = {"forecast": forecast, "halving": halving, "highest": highest}


def replay(study: Study, spread: float | None) -> dict:
    """One row: regret and compute of every policy."""
    row: dict = {"crossing": study.is_crossing}
    best = study.truth.max()
    budget = SHARE * len(study.reward)
    # Halving spends whole evaluations in each round: the forecast may not spend more than it does.
    limits = {"forecast": min(budget, float(halving(study, budget).spent.sum()))}
    for name, policy in POLICIES.items():
        done = policy(study, limits.get(name, budget))
        spent = float(done.spent.mean())
        row[name] = {"regret": float(best - study.truth[done.choice]), "compute": spent}
        if name == "forecast" and spread is not None:
            row["oracle"] = {"regret": float(best - study.truth[oracle(study, done.spent, spread)])}
    return row


def ratio_bound(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Ratio of the mean regrets and its 90 % upper bound, by resampling studies."""
    rng = np.random.default_rng(0)
    pick = rng.integers(0, len(ours), (4000, len(ours)))
    ratios = ours[pick].mean(axis=1) / np.maximum(theirs[pick].mean(axis=1), 1e-9)
    return float(ours.mean() / max(theirs.mean(), 1e-12)), float(np.quantile(ratios, 0.9))


def summary(rows: Sequence[dict]) -> None:
    groups = {
        "all": rows,
        "crossing": [r for r in rows if r["crossing"]],
        "not crossing": [r for r in rows if not r["crossing"]],
    }
    print("| studies | policy | compute | mean regret | within 0.01 | forecast's ratio to it (90 % upper bound) |")
    print("|---|---|---|---|---|---|")
    for group, members in groups.items():
        if not members:
            continue
        ours = np.array([row["forecast"]["regret"] for row in members])
        for name in ("forecast", "oracle", "halving", "highest"):
            if name not in members[0]:
                continue
            regret = np.array([row[name]["regret"] for row in members])
            spent = [row[name].get("compute", row["forecast"]["compute"]) for row in members]
            ratio = ""
            if name not in ("forecast", "oracle") and regret.mean() > 1e-6:
                ratio = "{:.2f} ({:.2f})".format(*ratio_bound(ours, regret))
            within = float(np.mean(regret <= 0.01))
            numbers = f"{np.mean(spent):.2f} | {regret.mean():.4f} | {within:.1%} | {ratio}"
            print(f"| {group}, {len(members)} | {name} | {numbers} |")


PUBLISHED = {
    # Every run once: one baseline is drawn in four figures, and ScaleRL in two.
    "long runs": (
        ("fig2_prevalent", ("ScaleRL", "MiniMax", "Magistral", "Qwen2.5-DAPO", "DeepSeek-GRPO")),
        ("loo1", ("loo_plan", "loo_lp")),
    ),
    "forward ablations": (
        ("fwd_loss", ("CISPO", "GSPO", "DAPO")),
        ("fwd_fp32", ("fp32",)),
        ("fwd_lossagg", ("prompt_avg", "token_avg")),
        ("fwd_offpolicy", ("PPO-off-policy-1", "PPO-off-policy-8")),
    ),
}


def published(path: Path) -> list[dict]:
    """Two studies of published curves; the target is where the shortest ends, the truth the mean of points near it."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    results = []
    for name, figures in PUBLISHED.items():
        series = {}
        for figure, members in figures:
            for row in rows:
                if row["figure"] == figure and row["series"] in members:
                    series.setdefault(row["series"], []).append((float(row["gpu_hours"]), float(row["pass_rate"])))
        curves = [np.array(sorted(points)) for points in series.values()]
        target = min(points[-1, 0] for points in curves)
        near = [np.sort(np.argsort(np.abs(np.log(points[:, 0] / target)))[:3]) for points in curves]
        truth = np.array([points[places, 1].mean() for points, places in zip(curves, near, strict=True)])
        early = [np.interp(target / 4, *points.T) for points in curves]
        study = Study(
            compute=[points[:, 0] / target for points in curves],
            reward=[points[:, 1] for points in curves],
            truth=truth,
            start=0.399,
            is_crossing=bool(np.argmax(early) != truth.argmax()),
            first=0.25,  # the published points begin late: five evaluations of most
        )
        row = replay(study, None)
        print(f"{name}: {len(curves)} arms to {target:.0f} GPU-hours, {json.dumps(row)}")
        results.append(row)
    return results


def study(rng: np.random.Generator, spread: str) -> dict:
    return replay(simulate(rng, float(spread)), float(spread))


if __name__ == "__main__":
    simulated_studies.main(__doc__, "0.03", study, summary, lambda path: summary(published(path)))
