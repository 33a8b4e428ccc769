"""The clock of a run: GPU-hours, FLOPs and tokens spent so far. Evaluation and the like are counted separately."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, get_args

from scalerl.run.hooks import Hook, RunEnd

# What a second can be spent on; only training is on the compute axis.
TRAINING = "training"
START_UP = "start_up"
Aside = Literal["evaluation", "compilation", "checkpoint", "stalled", "tools"]

STALL_FACTOR = 5.0  # a step that takes this many times as long as usual was not slow but suspended or starved
STALL_S = 5.0  # and at least this much longer: short steps vary
PACE_STEPS = 20  # steps whose median is the usual time
FEWEST_STEPS = 5  # before that there is no usual time

_SECONDS = {kind: f"time/{kind}_s" for kind in (TRAINING, *get_args(Aside), START_UP)}
_COUNTED = ("gpu_hours", "flops", "flops/generator", "flops/learner", "flops/evaluation", "tokens", *_SECONDS.values())
_AXIS = {"flops/generator": "flops", "flops/learner": "flops"}


class Pace:
    """Tells how much of a step's time was a stall: a suspended process, or a machine that others took.

    A step is compared with the median of the last PACE_STEPS. What it took beyond that median is a stall if the step
    took STALL_FACTOR times as long and STALL_S longer. A lasting change of pace becomes the median after half of the
    window.

    PPO-off-policy-k samples for k steps before the first of them, which is therefore always longer than the others.
    With rounds of several steps, a step is compared with those at the same place in earlier rounds.
    """

    def __init__(self, *, round_steps: int = 1) -> None:
        self._round_steps = round_steps
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS * round_steps)

    def stalled_s(self, seconds: float) -> float:
        """Return the stalled part of a step that took this long, and remember the step."""
        same_place = list(self._seconds)[-self._round_steps :: -self._round_steps]
        usual = statistics.median(same_place) if len(same_place) >= FEWEST_STEPS else math.inf
        self._seconds.append(seconds)
        return seconds - usual if seconds > max(STALL_FACTOR * usual, usual + STALL_S) else 0.0


class Clock(Hook):
    """Counts what a run has spent so far. Values only grow, and `row` returns them for every row and checkpoint.

    gpu_hours is devices x wall time of training, including idle time. On CPUs it is the CPU time of the processes that
    train, which does not depend on what else the machine does. It starts with `start_training`; time before that is
    start-up. The seconds inside `aside(kind)` go into a field of their own instead.
    """

    def __init__(
        self,
        *,
        devices: Callable[[], int] = lambda: 1,
        cpu_s: Callable[[], float] | None = None,
        now: Callable[[], float] = time.monotonic,
        since: float | None = None,
        spent: Mapping[str, float] = MappingProxyType({}),
        within: Mapping[Aside, Callable[[], float]] = MappingProxyType({}),
        pace: Pace | None = None,
        work: Callable[[Any], Mapping[str, float]] = lambda done: {},
    ) -> None:
        """`since` is when start-up began, if before now; `spent` is what a resumed run starts from (see `larger`).

        `devices` returns how many are held now. `cpu_s` counts seconds of CPU time, for a run without GPUs.

        `within` has counters of seconds that pass while training and are not training, such as compilation. `work`
        returns what a step added to FLOPs and tokens (see `add`).
        """
        self._now, self._within, self._work = now, within, work
        self._devices, self._cpu_s = (lambda: 0, cpu_s) if cpu_s else (devices, lambda: 0.0)
        self._used_s = self._cpu_s()
        self._pace = pace
        self._kind = START_UP
        self._spent = {key: float(spent.get(key, 0.0)) for key in _COUNTED}
        self._since = now() if since is None else since
        self._counters = {kind: read() for kind, read in within.items()}
        self._trained_s = self._spent[_SECONDS[TRAINING]]
        self.at_step = dict(self._spent)
        """What was spent when the last step ended."""

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        """Count the work of a step, and what of its time was a stall."""
        if done is None:
            return
        self._update()
        training = _SECONDS[TRAINING]
        if self._pace is not None:
            self._reclassify("stalled", self._pace.stalled_s(self._spent[training] - self._trained_s))
        self._trained_s = self._spent[training]
        self.add(self._work(done))
        self.at_step = dict(self._spent)

    def state(self) -> dict[str, Any]:
        return {"clock": self.row()}

    def start_training(self) -> None:
        """End start-up; time counts as training from here."""
        self._update()
        self._kind = TRAINING

    @contextmanager
    def aside(self, kind: Aside) -> Iterator[None]:
        """Count time as of this kind. The innermost kind counts."""
        self._update()
        outer, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._update()
            self._kind = outer

    def add(self, done: Mapping[str, float]) -> None:
        """Add work by its field: "flops/generator", "flops/learner", "flops/evaluation" or "tokens".

        Tokens are those sampled for training, including what filters drop. Of the FLOPs, those of the evaluation are
        not part of "flops", the compute axis.
        """
        for key, value in done.items():
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{key} cannot grow by {value}: it must be finite and at least 0")
            for field in {key, _AXIS.get(key, key)}:
                self._spent[field] += value

    def row(self) -> dict[str, float]:
        """Return everything spent so far, as the fields of a row and of a checkpoint."""
        self._update()
        return dict(self._spent)

    def _update(self) -> None:
        now = self._now()
        # A clock that steps back (a suspended machine) must not reduce what was spent.
        elapsed = max(now - self._since, 0.0)
        self._since = now
        self._spent[_SECONDS[self._kind]] += elapsed
        before, self._used_s = self._used_s, self._cpu_s()
        if self._kind == TRAINING:
            self._spent["gpu_hours"] += (self._devices() * elapsed + self._used_s - before) / 3600
        for kind, read in self._within.items():
            before, self._counters[kind] = self._counters[kind], read()
            if self._kind == TRAINING:
                self._reclassify(kind, min(self._counters[kind] - before, elapsed))

    def _reclassify(self, kind: Aside, seconds: float) -> None:
        """Count training seconds as `kind`, never more than there are."""
        seconds = min(max(seconds, 0.0), self._spent[_SECONDS[TRAINING]])
        self._spent[_SECONDS[TRAINING]] -= seconds
        self._spent["gpu_hours"] -= self._devices() * seconds / 3600
        self._spent[_SECONDS[kind]] += seconds


def larger(*spent: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest value of each field over a checkpoint and the last rows.

    Steps after the checkpoint are repeated, but what they spent was spent.
    """
    return {key: max((float(row[key]) for row in spent if key in row), default=0.0) for key in _COUNTED}
