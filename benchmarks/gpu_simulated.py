"""Predict the loop of benchmarks/gpu.py by `scalerl simulate`, and set it against what was measured.

    python benchmarks/gpu.py --parts sample,learn,loop --json gpu.json
    python benchmarks/gpu_simulated.py gpu.json [--tables FOLDER]

One device samples and trains in turns (`scalerl simulate scalerl --gpus 1`). No rate comes from the loop that is
predicted:

    alone    seconds of a poll without and with beginning groups, of a push, and of steps of a whole and of half a
             batch, each measured with nothing else running
    half     seconds in another loop, whose batches are half as large; what a group and further tokens of a step cost is
             from `alone`

--tables writes the rates of both as tables for `scalerl simulate --rates FILE`.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.config import load_recipe
from scalerl.run.simulate.plan import make_plan
from scalerl.run.simulate.rates import CHUNKS, LengthsSettings, RatesSettings, line_through

GOAL = 0.15
"""Largest share by which the best prediction of a shape may miss."""
STEPS = 96
MAX_LAG = 8

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The pace of one shape's loop, from rates of one kind."""

    shape: str
    kind: str
    """"alone" or "half"."""
    rates: RatesSettings
    settings: tuple[str, ...]
    """Of the recipe, for --set."""
    steps_per_hour: float
    measured: float
    """Steps per hour of the loop."""

    @property
    def ratio(self) -> float:
        return self.steps_per_hour / self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds that the parts of a loop take."""

    decode: float
    """A poll in which no completion begins."""
    prompt: float
    """What each group that begins adds to it."""
    fixed: float
    """A step without tokens."""
    token: float
    """What each completion token adds to it."""
    push: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="GPU_JSON", help="rows of benchmarks/gpu.py")
    parser.add_argument("--tables", type=Path, metavar="FOLDER", help="write the rates as tables into this folder")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines() if line.strip()]
    predictions = predict(rows)
    if not predictions:
        print(f"error: {arguments.rows} has no loop that was measured with its parts alone", file=sys.stderr)
        return 2
    if arguments.tables:
        arguments.tables.mkdir(parents=True, exist_ok=True)
        for each in predictions:
            path = arguments.tables / f"{each.shape}-{each.kind}.toml"
            path.write_text(table(each.rates), encoding="utf-8")
            settings = " ".join(f"--set {setting}" for setting in each.settings)
            print(f"scalerl simulate scalerl --gpus 1 --rates {path} --steps {STEPS} {settings}")
    print(shown(predictions))
    best = {shape: min(abs(each.ratio - 1) for each in of) for shape, of in by_shape(predictions).items()}
    return int(max(best.values()) > GOAL)


def predict(rows: Sequence[Row]) -> list[Prediction]:
    """Return the predictions for every shape whose parts were recorded; of several rows the last counts."""
    measured = {(row["shape"], row["part"]): row for row in rows if "failed" not in row}
    predictions = []
    for (shape, part), row in measured.items():
        if part != "loop" or "alone_poll_s" not in row:
            continue
        settings = (
            f"pipeline.groups_per_batch={row['loop_groups']}",
            f"pipeline.completions_per_group={row['per_group']}",
            f"pipeline.max_lag={MAX_LAG}",
        )
        recipe = load_recipe("scalerl", settings)
        for kind, rates in rates_of(shape, row, measured.get((shape, "learn"), {})).items():
            plan = make_plan(recipe, rates, 1, steps=STEPS)
            predictions.append(
                Prediction(
                    shape=shape,
                    kind=kind,
                    rates=rates,
                    settings=settings,
                    steps_per_hour=plan.regimes[0].best.steps_per_hour,
                    measured=3600 * row["steps_per_s"],
                )
            )
    return predictions


def rates_of(shape: str, row: Row, learn: Row) -> dict[str, RatesSettings]:
    """Return the rates from the parts alone, and from the loop with half the batch where it was run."""
    fixed_s, token_s = learning(row, learn)
    decode_s = row.get("alone_decode_s", row["alone_poll_s"])
    prompt_s = max(row["alone_poll_s"] - decode_s, 0.0) / max(row.get("alone_groups_per_poll", 0.0), 1e-9)
    alone = Seconds(decode=decode_s, prompt=prompt_s, fixed=fixed_s, token=token_s, push=row["alone_push_s"])
    rates = {"alone": make_rates(f"{shape} shape, each part alone", row, alone)}
    if row.get("half_polls"):
        half = replace(
            alone,
            decode=max(row["half_wait_s"] - prompt_s * row["half_groups"], 0.0) / row["half_polls"],
            fixed=max(row["half_step_s"] - token_s * row["half_trained"], 0.0),
            push=row["half_push_s"],
        )
        rates["half"] = make_rates(f"{shape} shape, in a loop with half the batch", row, half)
    return rates


def learning(row: Row, learn: Row) -> tuple[float, float]:
    """Return the seconds of a step without tokens, and those of each completion token."""
    if "alone_step_s" in row:
        tokens = np.array([row["alone_trained_half"], row["alone_trained"]])
        return line_through(tokens, np.array([row["alone_step_s_half"], row["alone_step_s"]]))
    # Long completions: the part `learn`, whose tokens are those of prompts too.
    name = "checkpointed" if row["gradient_checkpointing"] else "plain"
    inputs = row["trained_tokens_per_s"] * row["loop_s"] / row["num_steps"]
    return 0.0, inputs / row["loop_trained"] / learn[f"{name}_learner_tokens_per_s"]


def make_rates(description: str, row: Row, seconds: Seconds) -> RatesSettings:
    chunk = CHUNKS["cpu" if row["device"] == "cpu" else "gpu"]
    return RatesSettings(
        description=f"measured on {row['device']}, {description}",
        slots=row["slots"],
        decode_s=((float(row["slots"]), seconds.decode / chunk),),
        chunk=chunk,
        prompt_s=seconds.prompt,
        train_tokens_per_s=1 / max(seconds.token, 1e-12),
        train_fixed_s=seconds.fixed,
        push_s=seconds.push,
        copy_s=seconds.push,
        lengths=LengthsSettings(values=tuple(map(float, row["lengths"])), longest=max(row["lengths"])),
    )


def table(rates: RatesSettings) -> str:
    """Return rates as TOML."""
    (slots, decode_s), lengths = rates.decode_s[0], rates.lengths
    return (
        f'description = "{rates.description}"\n'
        f"slots = {rates.slots}\n"
        f"decode_s = [[{slots:g}, {decode_s:.6g}]]\n"
        f"chunk = {rates.chunk}\n"
        f"prompt_s = {rates.prompt_s:.6g}\n"
        f"train_tokens_per_s = {rates.train_tokens_per_s:.6g}\n"
        f"train_fixed_s = {rates.train_fixed_s:.6g}\n"
        f"push_s = {rates.push_s:.6g}\n"
        f"copy_s = {rates.copy_s:.6g}\n\n"
        f"[lengths]\n"
        f"values = [{', '.join(f'{value:g}' for value in lengths.values)}]\n"
        f"longest = {lengths.longest}\n"
    )


def by_shape(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    shapes: dict[str, list[Prediction]] = {}
    for each in predictions:
        shapes.setdefault(each.shape, []).append(each)
    return shapes


def shown(predictions: Sequence[Prediction]) -> str:
    lines = [f"{'shape':<10}{'rates':<8}{'measured, steps/h':>19}{'simulated':>12}{'simulated / measured':>22}"]
    for each in predictions:
        lines.append(
            f"{each.shape:<10}{each.kind:<8}{each.measured:>19,.0f}{each.steps_per_hour:>12,.0f}{each.ratio:>22.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
