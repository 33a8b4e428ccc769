"""GPU time of PipelineRL-k to the reward that PPO-off-policy-k ends with: shared as measured, and on two GPUs replayed.

    python benchmarks/replay.py --pipeline RUN [RUN ...] --drained RUN [RUN ...]     runs of the two arms, a seed each
    python benchmarks/replay.py                                                      an example of constant durations
    python benchmarks/replay.py --pack FOLDER [--every N] RUN [RUN ...]              keep of runs what this reads

On one GPU that both share, the ratio is read off the runs. For one generator and one learner GPU their schedules are
replayed on a virtual clock, by the real pipeline and lag rule (run/simulate). Where the durations come from:

    a step      the drained runs, where nothing else is on the device while the learner works: a line through seconds
                against trained tokens, read at each run's own tokens
    a poll      generation of the drained runs, divided by the polls that their own replay takes
    a push      mean over the drained runs
    lengths     those of the groups in each run's checkpoints, scaled to the mean that metrics.jsonl has for a step

The steps to a reward are those of the curve fitted to the evaluations over steps. Both replays are also made for one
shared device and set against the seconds that were measured there: that says what this model of time is worth.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_runs import Arm, ReplayError, pack, read_arm

from scalerl.curves import Value, compute_for
from scalerl.run.simulate.rates import line_through
from scalerl.run.simulate.schedule import Durations, Regime, Simulated, simulate

GOAL = 0.7
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Of the gain of the drained runs: what both arms are compared at, beside its end."""
MOST_STEPS = 400
"""Replayed at most; of a longer run every so many steps."""
GROUPS = 4
"""A batch is replayed with as few groups, and with as many slots a group as it had."""
HEADER = ("arm", "runs", "steps", "s a step", "replayed", "two GPUs", "idle: gen.", "learner")


def main() -> int:
    arguments = parse()
    try:
        if arguments.pack:
            for folder in arguments.runs:
                print(pack(folder, arguments.pack, every=arguments.every))
            return 0
        if arguments.runs or bool(arguments.pipeline) != bool(arguments.drained):
            raise ReplayError(
                "give runs of both arms, --pipeline RUN ... and --drained RUN ..., or none for an example"
            )
        if not arguments.pipeline:
            print(example())
            return 0
        result = compare(read_arm(arguments.pipeline), read_arm(arguments.drained))
    except ReplayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=1) if arguments.json else shown(result))
    return 0 if result["end"]["apart"] is not None and result["end"]["apart"] <= GOAL else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", type=Path, nargs="+", metavar="RUN", help="run folders of PipelineRL-k")
    parser.add_argument("--drained", type=Path, nargs="+", metavar="RUN", help="run folders of PPO-off-policy-k")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="copy what is read of the runs to this folder")
    every = "with --pack: keep one metrics row in N, and evaluations without their counts per problem, for fits alone"
    parser.add_argument("--every", type=int, default=1, metavar="N", help=every)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="with --pack: run folders")
    return parser.parse_args()


# Time -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds, as the drained runs took them."""

    poll_s: float
    push_s: float
    step_s: float
    """Of a step without tokens."""
    token_s: float
    """And of each trained token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """GPU-hours of an arm at the end of each step, from 0 on."""

    measured: NDArray[np.float64]
    replayed_shared: NDArray[np.float64]
    apart: NDArray[np.float64]
    generator_idle: float
    learner_idle: float

    def at(self, hours: NDArray[np.float64], step: float) -> float:
        """Beyond its end at its mean pace."""
        last = len(hours) - 1
        return float(np.interp(step, np.arange(last + 1), hours)) * max(step / last, 1.0)


def costs_of(drained: Arm) -> Costs:
    round_steps = drained.regime.push_every
    whole = drained.steps - drained.steps % round_steps
    if not whole:
        raise ReplayError(f"{drained.name} has {drained.steps} steps, less than one round of generation and training")
    # In the first round things are compiled and recorded.
    steady = slice(round_steps if whole > 2 * round_steps else 0, whole)
    unit = replay_arm(drained, Costs(poll_s=1.0, push_s=0.0, step_s=0.0, token_s=0.0), apart=False)
    tokens, seconds = drained.column("batch/trained_tokens")[steady], drained.column("time/step_s")[steady]
    step_s, token_s = line_through(tokens, seconds)
    return Costs(
        poll_s=drained.column("time/wait_s")[steady].mean() * len(unit.ends_s) / unit.num_chunks,
        push_s=drained.column("time/push_s")[steady].mean() * round_steps,
        step_s=step_s,
        token_s=token_s,
    )


def replay_arm(arm: Arm, costs: Costs, *, apart: bool) -> Simulated:
    steps = min(arm.steps, MOST_STEPS)
    steps -= steps % arm.regime.push_every if steps > arm.regime.push_every else 0
    pace, tokens = arm.steps / steps, arm.column("batch/trained_tokens")
    durations = Durations(
        chunk_s=lambda num_active: costs.poll_s,
        step_s=lambda version, _: costs.step_s + costs.token_s * tokens[int(version * pace)],
        push_s=costs.push_s,
        copy_s=costs.push_s,
    )

    def num_tokens(version: int, seed: int) -> int:
        return arm.draw_length(int(version * pace), seed)

    return simulate(smaller(arm.regime), durations, num_tokens, steps=steps, chunk=arm.chunk, apart=apart)


def smaller(regime: Regime) -> Regime:
    groups = min(regime.groups_per_batch, GROUPS)
    return replace(
        regime, groups_per_batch=groups, slots=max(1, round(regime.slots * groups / regime.groups_per_batch))
    )


def timeline(arm: Arm, costs: Costs) -> Timeline:
    together, apart = (replay_arm(arm, costs, apart=apart) for apart in (False, True))
    return Timeline(
        measured=arm.hours,
        replayed_shared=_hours(together, arm.steps, devices=1),
        apart=_hours(apart, arm.steps, devices=2),
        generator_idle=apart.generator_idle,
        learner_idle=apart.learner_idle,
    )


def _hours(replayed: Simulated, steps: int, *, devices: int) -> NDArray[np.float64]:
    """By step of the run, of which perhaps not every one was replayed."""
    ends = np.array([0.0, *replayed.ends_s]) * devices / 3600
    pace = steps / len(replayed.ends_s)
    return np.interp(np.arange(steps + 1), np.arange(len(ends)) * pace, ends) * pace


# Reward ---------------------------------------------------------------------------------------------------------------


def compare(pipeline: Arm, drained: Arm) -> dict[str, Any]:
    """All figures; None where a reward is never reached."""
    if pipeline.regime.drain or not drained.regime.drain:
        raise ReplayError(
            "--pipeline takes runs with pipeline.drain = false, --drained runs with pipeline.drain = true"
        )
    costs = costs_of(drained)
    lines = [timeline(arm, costs) for arm in (pipeline, drained)]
    start, end = (float(value) for value in drained.curve.predict([0.0, float(drained.steps)]))
    whole = {"target": end, "target_smoothed": drained.last_reward, "steps_drained": float(drained.steps)}
    return {
        "end": whole | _ratios(pipeline, lines, end, float(drained.steps)),
        "shares": [
            {"share": share, "target": target, "steps_drained": steps} | _ratios(pipeline, lines, target, steps)
            for share in SHARES
            if (steps := value_of(steps_to(drained, target := start + share * (end - start)))) is not None
        ],
        "costs": asdict(costs),
        "arms": {
            name: {
                "runs": len(arm.rows),
                "steps": arm.steps,
                "verdict": arm.curve.verdict,
                "seconds_a_step": line.measured[-1] * 3600 / arm.steps,
                "replayed_seconds_a_step": line.replayed_shared[-1] * 3600 / arm.steps,
                "apart_seconds_a_step": line.apart[-1] * 1800 / arm.steps,
                "generator_idle": line.generator_idle,
                "learner_idle": line.learner_idle,
            }
            for name, arm, line in zip(("pipeline", "drained"), (pipeline, drained), lines, strict=True)
        },
    }


def steps_to(arm: Arm, reward: float) -> Value | None:
    (reached,) = compute_for(arm.curve, [reward])
    return reached.compute


def value_of(steps: Value | None) -> float | None:
    return None if steps is None else steps.value


def _ratios(pipeline: Arm, lines: list[Timeline], target: float, drained_steps: float) -> dict[str, Any]:
    """The interval of the ratio is that of the steps alone; the durations are taken as they are."""
    needed, (first, second) = steps_to(pipeline, target), lines
    if needed is None:
        return {"steps_pipeline": None, "shared": None, "apart": None, "apart_interval": None}

    def apart(steps: float) -> float:
        return first.at(first.apart, steps) / second.at(second.apart, drained_steps)

    return {
        "steps_pipeline": needed.value,
        "shared": first.at(first.measured, needed.value) / second.at(second.measured, drained_steps),
        "apart": apart(needed.value),
        "apart_interval": [apart(needed.low), apart(needed.high)],
    }


# Words ----------------------------------------------------------------------------------------------------------------


def shown(result: dict[str, Any]) -> str:
    end = result["end"]
    lines = [
        f"PPO-off-policy ends at {end['target']:.3f} by its fitted curve ({end['target_smoothed']:.3f} by its last"
        f" evaluations) after {end['steps_drained']:,.0f} steps",
        "{:<10}{:>5}{:>7}{:>10}{:>10}{:>10}{:>12}{:>9}".format(*HEADER),
    ]
    for name, arm in result["arms"].items():
        lines.append(
            f"{name:<10}{arm['runs']:>5}{arm['steps']:>7}{arm['seconds_a_step']:>10.4f}"
            f"{arm['replayed_seconds_a_step']:>10.4f}{arm['apart_seconds_a_step']:>10.4f}"
            f"{arm['generator_idle']:>12.0%}{arm['learner_idle']:>9.0%}"
        )
    lines.append(f"{'reward':<22}{'steps PPO':>10}{'PipelineRL':>11}{'GPU time, shared':>18}{'two GPUs [90 %]':>20}")
    for row in result["shares"]:
        lines.append(_line(f"{row['share']:.0%} of its gain, {row['target']:.3f}", row))
    lines.append(_line(f"its end, {end['target']:.3f}", end))
    return "\n".join(lines)


def _line(name: str, row: dict[str, Any]) -> str:
    if row["steps_pipeline"] is None:
        return f"{name:<22}{row['steps_drained']:>10.0f}{'never':>11}"
    low, high = row["apart_interval"]
    ratios = f"{row['shared']:>18.2f}{row['apart']:>6.2f} [{low:.2f}, {high:.2f}]"
    return f"{name:<22}{row['steps_drained']:>10.0f}{row['steps_pipeline']:>11.0f}{ratios}"


def example() -> str:
    """A batch is sampled in as long as a step takes: the best case for two devices beside each other."""
    durations = Durations(chunk_s=lambda num_active: 1.0, step_s=lambda version, tokens: 1.0, push_s=0.0)
    both = [
        simulate(regime, durations, lambda version, seed: 1, steps=160).ends_s[-1] / 160
        for regime in (
            Regime(groups_per_batch=4, completions_per_group=4, slots=16, max_lag=8),
            Regime(groups_per_batch=4, completions_per_group=4, slots=16, max_lag=7, push_every=8, drain=True),
        )
    ]
    return (
        f"one second to sample a batch and one to train on it, two devices: PipelineRL-8 {both[0]:.3f} s a step,"
        f" PPO-off-policy-8 {both[1]:.3f}, ratio {both[0] / both[1]:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
