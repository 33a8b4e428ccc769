"""The clock of a run: device-hours, FLOPs and tokens spent so far, with evaluation and the like counted apart."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# What a second can be spent on; only training is on the compute axis.
TRAINING = "training"
START_UP = "start_up"
ASIDE = ("evaluation", "compilation", "checkpoint", START_UP)

_SECONDS = {kind: f"time/{kind}_s" for kind in (TRAINING, *ASIDE)}
_COUNTED = ("gpu_hours", "flops", "flops/generator", "flops/learner", "tokens", *_SECONDS.values())


def devices_held(names: Iterable[str]) -> int:
    """How many devices a run pays for: a shared one once, the host of a GPU not at all, a machine without one as one.

    devices_held(["cuda:0", "cuda:1", "cuda:0", "cpu"]) is 2.
    """
    accelerators = {name for name in names if name.split(":")[0] != "cpu"}
    return max(len(accelerators), 1)


class Clock:
    """What a run has spent so far: cumulative, never running backwards, and a plain dict in every row and checkpoint.

    gpu_hours is devices x wall time of training, idle time included. It runs from `start_training` on, except inside
    `aside(kind)`, whose seconds go into that kind's own field; until then everything is start-up.
    """

    def __init__(
        self,
        *,
        devices: int = 1,
        now: Callable[[], float] = time.monotonic,
        since: float | None = None,
        spent: Mapping[str, float] | None = None,
    ) -> None:
        """`since` is when the start-up began, if before now; `spent` what a resumed run starts from (see `larger`)."""
        self._devices = devices
        self._now = now
        self._kind = START_UP
        self._spent = dict.fromkeys(_COUNTED, 0.0) | {key: float((spent or {}).get(key, 0.0)) for key in _COUNTED}
        self._since = now() if since is None else since

    @property
    def gpu_hours(self) -> float:
        return self.row()["gpu_hours"]

    @property
    def flops(self) -> float:
        return self._spent["flops"]

    def start_training(self) -> None:
        """The end of start-up."""
        self._settle()
        self._kind = TRAINING

    @contextmanager
    def aside(self, kind: str) -> Iterator[None]:
        """Time that is not training: "evaluation", "compilation", "checkpoint" or "start_up". The innermost counts."""
        if kind not in ASIDE:
            raise ValueError(f"no time is counted as {kind!r}; the kinds are {', '.join(ASIDE)}")
        self._settle()
        outer, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._settle()
            self._kind = outer

    def recount(self, kind: str, seconds: float) -> None:
        """Of the training so far, these seconds were of another kind: known only afterwards, as of a compiler's."""
        if kind not in ASIDE:
            raise ValueError(f"no time is counted as {kind!r}; the kinds are {', '.join(ASIDE)}")
        self._settle()
        seconds = min(max(seconds, 0.0), self._spent[_SECONDS[TRAINING]])
        self._spent[_SECONDS[TRAINING]] -= seconds
        self._spent["gpu_hours"] -= self._devices * seconds / 3600
        self._spent[_SECONDS[kind]] += seconds

    def add(self, *, generator_flops: float = 0.0, learner_flops: float = 0.0, tokens: int = 0) -> None:
        """Work of training done, tokens being sampled ones: what filters drop is paid for too, evaluations are not."""
        added = {
            "flops": generator_flops + learner_flops,
            "flops/generator": generator_flops,
            "flops/learner": learner_flops,
            "tokens": tokens,
        }
        for key, value in added.items():
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{key} grows by {value}, which is no amount of work")
            self._spent[key] += value

    def row(self) -> dict[str, float]:
        """All that was spent so far: the fields of a row and of a checkpoint."""
        self._settle()
        return dict(self._spent)

    def _settle(self) -> None:
        now = self._now()
        # A source that steps back (a suspended machine, a bad clock) must not take back what was spent.
        elapsed = max(now - self._since, 0.0)
        self._since = now
        self._spent[_SECONDS[self._kind]] += elapsed
        if self._kind == TRAINING:
            self._spent["gpu_hours"] += self._devices * elapsed / 3600


def larger(*spent: Mapping[str, Any]) -> dict[str, float]:
    """Field by field the largest, of a checkpoint and the last rows.

    What was spent after the checkpoint was spent, though its steps are repeated.
    """
    return {key: max((float(row[key]) for row in spent if key in row), default=0.0) for key in _COUNTED}
