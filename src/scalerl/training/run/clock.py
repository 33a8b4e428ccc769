"""The clock of a run: GPU-hours, FLOPs and tokens spent so far. Evaluation and other pauses are counted separately."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, get_args

from scalerl.training.run.hooks import Hook, RunEnd

# Kinds of time. Only training time counts on the compute axis.
TRAINING = "training"
START_UP = "start_up"
Aside = Literal["evaluation", "compilation", "checkpoint", "stalled", "tools"]

STALL_FACTOR = 5.0  # a step with a stall takes at least this many times as long as usual
STALL_S = 5.0  # and at least this many seconds longer: the times of short steps vary
STALL_STEPS = 20  # the usual time is the median of this many steps
FEWEST_STEPS = 5  # with fewer steps, the usual time is unknown

_SECONDS = {kind: f"time/{kind}_s" for kind in (TRAINING, *get_args(Aside), START_UP)}
_COUNTED = ("gpu_hours", "flops", "flops/generator", "flops/learner", "flops/evaluation", "tokens", *_SECONDS.values())
_AXIS = {"flops/generator": "flops", "flops/learner": "flops"}


class StallDetector:
    """Finds the stalled part of a step's time: the process was suspended, or others used the machine.

    A step's time is compared with the median of the last STALL_STEPS. The time beyond the median is a stall if the step
    took more than STALL_FACTOR times as long and more than STALL_S longer. If the steps slow down for good, the median
    follows after half of the window.

    PPO-off-policy-k samples for all k steps of a round before the first, which therefore always takes longest. With
    rounds of several steps, a step is compared with the steps at the same position in earlier rounds.
    """

    def __init__(self, *, round_steps: int = 1) -> None:
        self._round_steps = round_steps
        self._seconds: deque[float] = deque(maxlen=STALL_STEPS * round_steps)

    def stalled_s(self, seconds: float) -> float:
        """Return the stalled part of a step of this many seconds, and remember the step."""
        same_position = list(self._seconds)[-self._round_steps :: -self._round_steps]
        usual = statistics.median(same_position) if len(same_position) >= FEWEST_STEPS else math.inf
        self._seconds.append(seconds)
        return seconds - usual if seconds > max(STALL_FACTOR * usual, usual + STALL_S) else 0.0


class Clock(Hook):
    """Counts what a run has spent so far. Values only grow; `row` returns them for rows and checkpoints.

    gpu_hours is the number of devices x the wall time of training, including idle time. Without a GPU it is the CPU
    time of the processes that train, which does not depend on other programs. Time before `start_training` is start-up.
    Time inside `aside(kind)` is not training time: it is counted in a separate field.
    """

    def __init__(
        self,
        *,
        num_devices: int = 1,
        cpu_s: Callable[[], float] | None = None,
        now: Callable[[], float] = time.monotonic,
        since: float | None = None,
        spent: Mapping[str, float] = MappingProxyType({}),
        within: Mapping[Aside, Callable[[], float]] = MappingProxyType({}),
        stalls: StallDetector | None = None,
        work: Callable[[Any], Mapping[str, float]] = lambda done: {},
    ) -> None:
        """`since` is when start-up began, by default now; `spent` is what earlier attempts spent (see `larger`).

        `num_devices` are the devices that the run holds. `cpu_s` returns seconds of CPU time, for a run without GPUs,
        which has no devices. `within` has counters of seconds during training that do not count as training, such as
        compilation. `work` returns the FLOPs and tokens of a step (see `add`).
        """
        self._now = now
        self._within = within
        self._work = work
        self._num_devices = 0 if cpu_s else num_devices
        self._cpu_s = cpu_s or (lambda: 0.0)
        self._used_s = self._cpu_s()
        self._stalls = stalls
        self._kind = START_UP
        self._spent = {key: float(spent.get(key, 0.0)) for key in _COUNTED}
        self._since = now() if since is None else since
        self._counters = {kind: read() for kind, read in within.items()}
        self._trained_s = self._spent[_SECONDS[TRAINING]]
        self.at_step = dict(self._spent)
        """The values at the end of the last step."""

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        """Count the work of a step, and the stalled part of its time."""
        if done is None:
            return
        self._update()
        training = _SECONDS[TRAINING]
        if self._stalls is not None:
            self._reclassify("stalled", self._stalls.stalled_s(self._spent[training] - self._trained_s))
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
        """Count the time inside as this kind. The innermost kind counts."""
        self._update()
        outer = self._kind
        self._kind = kind
        try:
            yield
        finally:
            self._update()
            self._kind = outer

    def add(self, done: Mapping[str, float]) -> None:
        """Add work, by field: "flops/generator", "flops/learner", "flops/evaluation" or "tokens".

        Tokens are those sampled for training, including what filters drop. The FLOPs of evaluations are not part of
        "flops", the compute axis.
        """
        for key, value in done.items():
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{key} cannot grow by {value}: it must be finite and at least 0")
            for field in {key, _AXIS.get(key, key)}:
                self._spent[field] += value

    def row(self) -> dict[str, float]:
        """Return everything spent so far, as columns of a row and for checkpoints."""
        self._update()
        return dict(self._spent)

    def _update(self) -> None:
        now = self._now()
        # If the clock steps back (a suspended machine), the values must not decrease.
        elapsed = max(now - self._since, 0.0)
        self._since = now
        self._spent[_SECONDS[self._kind]] += elapsed
        before = self._used_s
        self._used_s = self._cpu_s()
        if self._kind == TRAINING:
            self._spent["gpu_hours"] += (self._num_devices * elapsed + self._used_s - before) / 3600
        for kind, read in self._within.items():
            before = self._counters[kind]
            self._counters[kind] = read()
            if self._kind == TRAINING:
                self._reclassify(kind, min(self._counters[kind] - before, elapsed))

    def _reclassify(self, kind: Aside, seconds: float) -> None:
        """Move seconds from training to `kind`, at most as many as were counted as training."""
        seconds = min(max(seconds, 0.0), self._spent[_SECONDS[TRAINING]])
        self._spent[_SECONDS[TRAINING]] -= seconds
        self._spent["gpu_hours"] -= self._num_devices * seconds / 3600
        self._spent[_SECONDS[kind]] += seconds


def larger(*spent: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest value of each field in a checkpoint and the last rows.

    Steps after the checkpoint are repeated, but their compute was spent all the same.
    """
    largest = dict.fromkeys(_COUNTED, 0.0)
    for row in spent:
        for key in _COUNTED:
            largest[key] = max(largest[key], float(row.get(key, 0.0)))
    return largest
