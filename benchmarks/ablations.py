"""What each choice of the ablations costs against ScaleRL's: the table of docs/results/ablations.md.

python benchmarks/ablations.py table     GPU-hours and FLOPs to a reward, as ratios with intervals
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bank import RESULTS
from study_table import as_ratio, by_arm, ratios, thirds


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Arms of one table that are compared with its base, in its order."""

    name: str
    table: str
    base: str
    arms: tuple[str, ...]
    other_call: tuple[str, ...] = ()
    """Arms that ran beside other runs than the base did, so that their GPU-hours cannot be compared with its own."""


TARGET = 0.8
LEFT_OUT = ("prompt-normalisation", "uniform-sampling", "no-zero-variance-filter", "length-penalty")
RECIPES = ("grpo", "minimax", "dapo", "magistral")
COMPLETIONS = ("gen4", "gen32")
LAGS = ("pipelinerl-16", "ppo-off-policy-8")
FIRST_ADDITIONS = ("imitation", "sequence-truncate", "refill", "start-kl")
LATER_ADDITIONS = ("band", "sequence-mask", "clip-cov", "entropy-bonus")
QUESTIONS = (
    Question(
        name="loss",
        table="interactions/runs.csv.gz",
        base="cispo-fp32-prompt",
        arms=("dapo-fp32-prompt", "cispo-bf16-prompt", "cispo-fp32-sample"),
    ),
    Question(
        name="leave out",
        table="principles/loo.csv.gz",
        base="scalerl",
        arms=LEFT_OUT,
        other_call=LEFT_OUT,
    ),
    Question(
        name="recipe",
        table="forward/runs.csv.gz",
        base="scalerl",
        arms=RECIPES,
        other_call=RECIPES,
    ),
    Question(
        name="completions",
        table="forward/runs.csv.gz",
        base="scalerl",
        arms=COMPLETIONS,
        other_call=COMPLETIONS,
    ),
    Question(
        name="lag",
        table="forward/runs.csv.gz",
        base="scalerl",
        arms=LAGS,
        other_call=LAGS,
    ),
    Question(
        name="batch",
        table="batch-rate/10m.csv.gz",
        base="bs512",
        arms=("bs256", "bs256-half", "bs1024", "bs1024-double"),
    ),
    Question(
        name="addition",
        table="algorithms/runs.csv.gz",
        base="scalerl",
        arms=(*FIRST_ADDITIONS, *LATER_ADDITIONS),
        other_call=LATER_ADDITIONS,
    ),
    Question(
        name="distillation",
        table="distillation/runs.csv.gz",
        base="scalerl",
        arms=("both", "distillation", "self-sharper"),
    ),
    Question(
        name="credit",
        table="critic/runs.csv.gz:calculator,calculator-states",
        base="calculator",
        arms=("calculator-states",),
    ),
)


def table() -> Iterator[str]:
    yield f"| question | arm | seeds | GPU-hours to {TARGET} | FLOPs to {TARGET} | end |"
    yield "|---|---|---|---|---|---|"
    for question in QUESTIONS:
        found = by_arm(str(RESULTS / question.table))
        hours, flops = (ratios(found, question.base, TARGET, axis) for axis in ("gpu_hours", "flops"))
        for arm in question.arms:
            spent = "-" if arm in question.other_call else as_ratio(hours.get(arm))
            ends = ", ".join(f"{thirds(rows)[-1]:.2f}" for rows in found[arm])
            yield f"| {question.name} | {arm} | {len(found[arm])} | {spent} | {as_ratio(flops.get(arm))} | {ends} |"


def run(*words: str) -> None:
    if words != ("table",):
        raise SystemExit(__doc__)
    print(*table(), sep="\n")


if __name__ == "__main__":
    run(*sys.argv[1:])
