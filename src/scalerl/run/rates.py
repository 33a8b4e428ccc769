"""The rates at which generators sample and learners train: a table by hand, or those of a run. No torch.

A table has the measured or assumed rates of one generator and of one GPU of the learner:

    slots = 192                            # completions that a generator samples at a time
    decode_s = [[1, 0.008], [192, 0.020]]  # seconds for one token of so many completions at once; linear in between
    train_tokens_per_s = 3000              # completion tokens that one GPU of the learner trains on per second
    length_mean = 4500                     # tokens of a completion

A run folder gives them as they were while everything ran.
"""

import math
import tomllib
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from scalerl import store
from scalerl.config import Settings
from scalerl.errors import UsageError, not_utf8

_FEWEST_STEPS = 8
_NORMAL = NormalDist()

Pair = Annotated[tuple[float, float], Field(strict=False)]


class Rates(Settings):
    """The rates of one generator and of one GPU of the learner, and the lengths of completions."""

    description: str = ""
    """Where the numbers come from."""
    slots: int = Field(ge=1)
    """Completions that a generator samples at a time."""
    decode_s: Annotated[tuple[Pair, ...], Field(strict=False, min_length=1)]
    """Pairs of (active completions, seconds for one token of all of them); linear in between, constant outside."""
    chunk: int = Field(default=1, ge=1)
    """Tokens that a generator samples before it looks for completions that have ended."""
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
    length_mean: float = Field(gt=0)
    """Mean number of tokens of a completion."""
    length_spread: float = Field(default=0.6, ge=0)
    """Standard deviation of the logarithm of a length; 0 for equal lengths."""
    length_max: int | None = Field(default=None, ge=1)
    """Where completions are cut; not set: at the recipe's context."""

    def length(self, longest: int) -> float:
        """Return the mean of log-normal lengths that are cut at the longest."""
        if not self.length_spread:
            return min(self.length_mean, longest)
        place = math.log(longest / self.length_mean) / self.length_spread + self.length_spread / 2
        kept = _NORMAL.cdf(place - self.length_spread)
        return self.length_mean * kept + longest * (1 - _NORMAL.cdf(place))

    def longest_of(self, num: int, longest: int) -> float:
        """Return the tokens of the longest of so many completions."""
        place = _NORMAL.inv_cdf(1 - 0.5 / num)
        return min(self.length_mean * math.exp(self.length_spread * place - self.length_spread**2 / 2), longest)

    def decode_token_s(self, num_active: float) -> float:
        numbers, seconds = zip(*sorted(self.decode_s), strict=True)
        return float(np.interp(num_active, numbers, seconds))

    def train_s(self, tokens: float, gpus: int) -> float:
        """Return the seconds of a step on so many completion tokens."""
        rate = self.train_tokens_per_s * gpus * self.learner_efficiency ** math.log2(gpus)
        return self.train_fixed_s + tokens / rate

    def draw(self, rng: np.random.Generator, num: int, longest: int) -> NDArray[np.float64]:
        """Draw lengths: log-normal with these mean and spread, cut at the longest."""
        logs = math.log(self.length_mean) - self.length_spread**2 / 2 + self.length_spread * rng.standard_normal(num)
        return np.minimum(np.exp(logs), longest)


def read_rates(path: Path) -> Rates:
    """Read rates from a TOML table or from a run folder; UsageError says what is wrong with it."""
    if path.is_dir():
        return _rates_of_run(path)
    try:
        return Rates.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise UsageError(f"--rates {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--rates {not_utf8(path, error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--rates {path} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--rates {path}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None


def _rates_of_run(folder: Path) -> Rates:
    """Return the rates at which a run went, without its first quarter of steps, which compile and fill."""
    rows, recipe = sorted(store.read_metrics(folder), key=lambda row: row["step"]), store.read_recipe(folder)
    if len(rows) < _FEWEST_STEPS or recipe is None:
        raise UsageError(f"--rates {folder} is not a run folder with at least {_FEWEST_STEPS} steps")
    rows = rows[len(rows) // 4 :]

    def mean(name: str) -> float:
        return fmean(row.get(name) or 0.0 for row in rows)

    rollout, length = recipe["rollout"], mean("rollout/length_mean")
    tokens = length * recipe["pipeline"]["groups_per_batch"] * recipe["pipeline"]["completions_per_group"]
    num = max(rollout.get("generators") or 0, 1)
    # In one process the loop waits while the engine samples, in all its slots.
    slots = int(mean("generators/slots") or (store.read_env(folder) or {}).get("slots") or rollout["slots"])
    active = mean("generators/active_mean") or slots
    busy_s = mean("generators/busy_s") or mean("time/wait_s")
    parallel = rollout.get("vllm", {}).get("tensor_parallel", 1) if rollout.get("engine") == "vllm" else 1
    return Rates(
        description=f"measured in {folder}",
        slots=slots,
        decode_s=((active, busy_s * active * num / tokens),),
        gpus_per_generator=max(
            parallel if rollout.get("gpus_per_generator") is None else rollout["gpus_per_generator"], 1
        ),
        # All ranks together took this long.
        train_tokens_per_s=tokens / mean("time/step_s") / recipe.get("learner", {}).get("ranks", 1),
        push_s=mean("time/push_s") * recipe["pipeline"]["push_every"],
        copy_s=mean("generators/copy_s"),
        length_mean=length,
        length_spread=_spread(mean("rollout/length_max") / length, round(tokens / length)),
        length_max=max(int(max(row.get("rollout/length_max") or 0 for row in rows)), math.ceil(length)),
    )


def _spread(ratio: float, num: int) -> float:
    """Return the spread with which the longest of so many completions is this many times the mean; 0 if not known."""
    place = _NORMAL.inv_cdf(1 - 0.5 / num)
    return place - math.sqrt(max(place**2 - 2 * math.log(ratio), 0.0)) if ratio > 1 else 0.0
