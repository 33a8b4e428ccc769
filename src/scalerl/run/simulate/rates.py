"""How long sampling and training take, for a simulation: from a table (TOML), or from a run folder.

A table has the measured or assumed rates of one generator and of one GPU of the learner:

    slots = 192                            # completions that a generator samples at a time
    decode_s = [[1, 0.008], [192, 0.020]]  # seconds for one token of so many completions at once; linear in between
    train_tokens_per_s = 3000              # completion tokens that one GPU of the learner trains on per second
    [lengths]                              # tokens of a completion
    mean = 4500
    spread = 0.6

A run folder gives them as they were while everything ran: the learner's from its steps, a generator's from the rows
that a fleet writes (`generators/...`), or else from the time the loop waited for its only engine and the number of
chunks that it must have sampled.
"""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from scalerl import store
from scalerl.config.parts import Settings
from scalerl.errors import UsageError, not_utf8
from scalerl.run.simulate.schedule import Durations, Regime, simulate

CHUNKS = {"cpu": 4, "gpu": 16}
"""Tokens per chunk of the torch engine, by device."""
_LENGTHS = "lengths.json"
_REGIME = ("groups_per_batch", "completions_per_group", "max_lag", "push_every", "drain")
_NORMAL = NormalDist()
_SEEDS = 2.0**63


class LengthsSettings(Settings):
    """Tokens of a completion: log-normal, or as a list."""

    mean: float | None = Field(default=None, gt=0)
    """Mean of the distribution before it is cut at `longest`."""
    spread: float = Field(default=0.6, ge=0)
    """Standard deviation of the logarithm of a length; 0 for equal lengths."""
    values: Annotated[tuple[float, ...], Field(strict=False)] = ()
    """Lengths to draw from instead, all equally often."""
    longest: int | None = Field(default=None, ge=1)
    """Where completions are cut; not set: where the recipe's length control does."""

    def draw(self, seed: int, longest: int) -> int:
        """Return the length of the completion with this 63-bit seed."""
        share = (seed + 0.5) / _SEEDS
        if self.values:
            length = self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        else:
            assert self.mean is not None, "checked on reading"
            length = self.mean * math.exp(self.spread * _NORMAL.inv_cdf(share) - self.spread**2 / 2)
        return int(min(max(length, 1.0), self.longest or longest))


class RatesSettings(Settings):
    """The rates of one generator and of one GPU of the learner, and the lengths of completions."""

    description: str = ""
    """Where the numbers come from."""
    slots: int = Field(ge=1)
    """Completions that a generator samples at a time."""
    decode_s: Annotated[
        tuple[Annotated[tuple[float, float], Field(strict=False)], ...], Field(strict=False, min_length=1)
    ]
    """Pairs of (active completions, seconds for one token of all of them); linear in between, constant outside."""
    chunk: int = Field(default=16, ge=1)
    """Tokens that a generator samples before it looks for finished completions, requests and weights."""
    prompt_s: float = Field(default=0.0, ge=0)
    """Seconds a generator pauses to read the prompt of a group."""
    gpus_per_generator: int = Field(default=1, ge=1)
    """GPUs that one generator holds."""
    train_tokens_per_s: float = Field(gt=0)
    """Completion tokens that one GPU of the learner trains on per second, the time for their prompts included."""
    train_fixed_s: float = Field(default=0.0, ge=0)
    """Seconds of a step that do not depend on its tokens: the optimiser, preparing a batch."""
    learner_efficiency: float = Field(default=1.0, gt=0, le=1)
    """Share of the rate that is kept with each doubling of the learner's GPUs."""
    push_s: float = Field(default=0.0, ge=0)
    """Seconds the loop waits for a push of weights."""
    copy_s: float = Field(default=0.0, ge=0)
    """Seconds a generator pauses to copy new weights."""
    lengths: LengthsSettings
    """Tokens of a completion."""

    def decode_token_s(self, num_active: int) -> float:
        """Return the seconds for one token of so many completions at once."""
        numbers, seconds = zip(*sorted(self.decode_s), strict=True)
        return float(np.interp(num_active, numbers, seconds))

    def durations(self, learner_gpus: int) -> Durations:
        """Return the durations with a learner of so many GPUs."""
        by_active = [self.chunk * self.decode_token_s(num) for num in range(self.slots + 1)]
        rate = self.train_tokens_per_s * learner_gpus * self.learner_efficiency ** math.log2(learner_gpus)
        return Durations(
            chunk_s=by_active.__getitem__,
            step_s=lambda version, tokens: self.train_fixed_s + tokens / rate,
            push_s=self.push_s,
            copy_s=self.copy_s,
            prompt_s=self.prompt_s,
        )


def read_rates(path: Path) -> RatesSettings:
    """Read rates from a TOML table or from a run folder."""
    if path.is_dir():
        return rates_of_run(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"--rates {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--rates {not_utf8(path, error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--rates {path} cannot be read: {error}") from None
    return _checked(content, path)


def _checked(content: Mapping[str, Any], path: Path) -> RatesSettings:
    try:
        rates = RatesSettings.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"--rates {path}: {place}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    if rates.lengths.mean is None and not rates.lengths.values:
        raise UsageError(f"--rates {path}: lengths.mean is not set: give it, or lengths.values")
    return rates


def rates_of_run(folder: Path) -> RatesSettings:
    """Return the rates at which a run went, without its first quarter of steps, which compile and fill."""
    rows = sorted(store.read_metrics(folder), key=lambda row: row["step"])
    recipe = store.read_recipe(folder)
    if len(rows) < 8 or recipe is None:
        raise UsageError(f"--rates {folder} is not a run folder with at least 8 steps, which rates could be read from")
    rows = rows[len(rows) // 4 :]
    env = store.read_env(folder) or {}
    chunk = CHUNKS["cpu" if env.get("device", "cpu") == "cpu" else "gpu"]
    completions = recipe["pipeline"]["groups_per_batch"] * recipe["pipeline"]["completions_per_group"]
    tokens = _column(rows, "rollout/length_mean") * completions
    fixed_s, token_s = line_through(tokens, _column(rows, "time/step_s"))
    lengths = _lengths(folder, float(tokens.mean()) / completions)
    slots, decode_s = _decoding(rows, chunk, recipe, env, lengths)
    push_s = _column(rows, "time/push_s")
    num_ranks = recipe.get("learner", {}).get("ranks", 1)
    return RatesSettings(
        description=f"measured in {folder}",
        slots=slots,
        decode_s=decode_s,
        chunk=chunk,
        gpus_per_generator=_gpus_per_generator(recipe["rollout"]),
        # All ranks together took this long.
        train_tokens_per_s=1 / (token_s * num_ranks) if token_s > 0 else 1e12,
        train_fixed_s=fixed_s,
        push_s=float(push_s[push_s > 0].mean()) if (push_s > 0).any() else 0.0,
        copy_s=float(_column(rows, "generators/copy_s").mean()),
        lengths=LengthsSettings(values=lengths),
    )


def _gpus_per_generator(rollout: Mapping[str, Any]) -> int:
    """Return the GPUs of a generator, as in RolloutSettings.generator_gpus; 1 for a CPU."""
    num = rollout.get("gpus_per_generator")
    if num is None:
        num = rollout["vllm"]["tensor_parallel"] if rollout.get("engine") == "vllm" else 1
    return max(num, 1)


def _decoding(
    rows: Sequence[store.Row], chunk: int, recipe: Mapping[str, Any], env: Mapping[str, Any], lengths: Sequence[float]
) -> tuple[int, tuple[tuple[float, float], ...]]:
    """Return the slots of a generator, and its seconds per token by active completions."""
    if "generators/chunks" not in rows[0]:
        # One engine in the driver's process: the loop waited while it sampled.
        slots = int(env.get("slots") or recipe["rollout"]["slots"])
        wait_s = float(_column(rows, "time/wait_s").mean())
        return slots, ((float(slots), wait_s / _chunks_per_step(recipe["pipeline"], slots, chunk, lengths) / chunk),)
    chunks, busy_s = _column(rows, "generators/chunks"), _column(rows, "generators/busy_s")
    active = _column(rows, "generators/active_mean")
    slots = int(rows[0]["generators/slots"])
    counts = chunks > 0
    start, slope = line_through(active[counts], busy_s[counts] / chunks[counts])
    # Steps with the same number of active completions do not show how the time depends on it.
    if np.ptp(active[counts]) < 0.2 * slots:
        mean = float(busy_s.sum() / chunks.sum() / chunk)
        return slots, ((float(slots), mean),)
    return slots, ((1.0, (start + slope) / chunk), (float(slots), (start + slope * slots) / chunk))


def _chunks_per_step(pipeline: Mapping[str, Any], slots: int, chunk: int, lengths: Sequence[float]) -> float:
    """Return the chunks that the run's engine sampled per step, by a simulation in which nothing else takes time."""
    regime = Regime(slots=slots, **{name: pipeline[name] for name in _REGIME})
    drawn, longest = LengthsSettings(values=tuple(lengths)), math.ceil(max(lengths))
    unit = Durations(chunk_s=lambda num_active: 1.0, step_s=lambda version, tokens: 0.0, push_s=0.0)
    simulated = simulate(
        regime,
        unit,
        lambda version, seed: drawn.draw(seed, longest),
        steps=max(48, 12 * regime.push_every),
        chunk=chunk,
        apart=False,
    )
    return simulated.step_s


def _lengths(folder: Path, mean: float) -> tuple[float, ...]:
    """Return the lengths of the groups in the last checkpoint, scaled to the run's mean; the mean without one.

    A compact folder (benchmarks/replay.py --pack) has them in lengths.json: {"step": {"length": number}}.
    """
    for lengths in _lengths_by_checkpoint(folder):
        if lengths:
            scale = mean * len(lengths) / sum(lengths)
            return tuple(length * scale for length in sorted(lengths))
    return (mean,)


def _lengths_by_checkpoint(folder: Path) -> Iterator[list[int]]:
    """Yield the lengths of untrained completions, the last checkpoint first."""
    for path in sorted((folder / store.CHECKPOINTS).glob("step-*/meta.json"), reverse=True):
        groups = json.loads(path.read_text())["groups"]
        yield [completion["num_tokens"] for group in groups for completion in group["completions"]]
    if (folder / _LENGTHS).is_file():
        by_step: dict[str, dict[str, int]] = json.loads((folder / _LENGTHS).read_text())
        for _, counts in sorted(by_step.items(), key=lambda entry: -int(entry[0])):
            yield [int(length) for length, num in counts.items() for _ in range(num)]


def line_through(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return start and slope of the least-squares line, neither of them negative."""
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0
    start = float(y.mean() - slope * x.mean())
    if slope < 0:
        return float(y.mean()), 0.0
    return (start, slope) if start >= 0 else (0.0, float((x * y).sum() / (x * x).sum()))


def _column(rows: Sequence[store.Row], name: str) -> NDArray[np.float64]:
    return np.array([row.get(name) or 0.0 for row in rows], dtype=np.float64)
