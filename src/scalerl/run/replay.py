"""Replay the loop without a model: the lag rule over completions of drawn lengths, at the rates of `simulate`.

The formulas of `simulate` know means only. Which step waits for which group, and how old groups become, depends on the
longest completions; so this draws lengths, submits, samples, trains and pushes as `loop/pipeline.py` does, with the
same `LagRule`, and counts seconds instead of spending them. All completions that are sampled at one time get a token
at the same pace, whatever generator they are on.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from scalerl.config.parts import PipelineSettings
from scalerl.loop.lag import LagRule
from scalerl.run.rates import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Means over the steps of a replay, without the first ones, in which the pipeline fills."""

    step_s: float
    sample_s: float
    """Seconds per step in which at least one completion was sampled."""
    train_s: float
    active_mean: float
    """Completions sampled at the same time, over all generators."""
    lag_mean: float
    """Mean lag of tokens, as `rollout/lag_mean`."""
    group_lag_mean: float
    """Mean lag of groups, by the version that sampled their first token."""
    submitted_lag_mean: float
    """The same by the version at their submission."""
    lag_max: int
    untrained_mean: float
    """Groups that are submitted and not trained, at the beginning of a step."""


Ended = tuple[str, float, float]
"""A completion: its group, and the places of its first and last token."""


class _Sampling:
    """Completions in slots. `place` counts the tokens that a completion sampled from the beginning would have."""

    def __init__(self, rates: Rates, *, slots: int, num: int) -> None:
        self._rates, self._slots, self._num = rates, slots, num
        self._token_s: dict[int, float] = {}
        self._waiting: deque[tuple[str, int, float]] = deque()
        self._running: list[tuple[float, str, int, float]] = []
        self.started: dict[str, int] = {}
        self.place = self.busy_s = self.active_s = self.pause_s = 0.0

    def submit(self, key: str, lengths: Iterable[float]) -> None:
        self._waiting.extend((key, index, length) for index, length in enumerate(lengths))
        self.pause_s += self._rates.prompt_s / self._num

    def run(self, seconds: float, version: int, *, until_one_ends: bool) -> tuple[float, list[Ended]]:
        """Sample for so many seconds; return the seconds taken and what ended."""
        spent, ended = 0.0, list[Ended]()
        while True:
            while self._waiting and len(self._running) < self._slots:
                key, index, length = self._waiting.popleft()
                self.started.setdefault(key, version)
                heapq.heappush(self._running, (self.place + length, key, index, self.place))
            if not self._running or spent >= seconds:
                return (spent if until_one_ends else seconds), ended
            paused = min(self.pause_s, seconds - spent)
            self.pause_s -= paused
            active, token_s = len(self._running), self._pace()
            end = self._running[0][0]
            sampled = min((end - self.place) * token_s, seconds - spent - paused)
            spent += paused + sampled
            self.busy_s += paused + sampled
            self.active_s += active * (paused + sampled)
            if spent >= seconds:
                self.place += sampled / token_s
                continue
            self.place = end
            _, key, _, first = heapq.heappop(self._running)
            ended.append((key, first, end))
            if until_one_ends:
                return spent, ended

    def _pace(self) -> float:
        active = math.ceil(len(self._running) / self._num)
        if active not in self._token_s:
            self._token_s[active] = self._rates.decode_token_s(active)
        return self._token_s[active]


def replay(
    pipeline: PipelineSettings,
    rates: Rates,
    *,
    generators: int,
    learner_gpus: int,
    longest: int,
    steps: int = 40,
    seed: int = 0,
) -> Replay:
    """Replay about `steps` steps, in whole rounds, after the pipeline has filled.

    With 0 generators one GPU samples and trains in turns.
    """
    rng, size = np.random.default_rng(seed), pipeline.completions_per_group
    rule, num = LagRule(**pipeline.model_dump(exclude={"completions_per_group"})), max(generators, 1)
    sampling = _Sampling(rates, slots=rates.slots * num, num=num)
    # First and last place of the completions of a group that have ended.
    ended: dict[str, list[tuple[float, float]]] = {}
    submitted: dict[str, int] = {}
    first_versions: dict[str, int] = {}
    # The places at which new weights came, and the versions summed up to there.
    pushes, sums = [0.0], [0.0]
    steps = math.ceil(steps / pipeline.push_every) * pipeline.push_every
    now, num_submitted, skipped, rows = 0.0, 0, 3 * (pipeline.max_lag + 1), []

    def sample(seconds: float = math.inf) -> float:
        """Sample for so many seconds, or until a completion ends; return the seconds."""
        spent, parts = sampling.run(seconds, rule.engine_version, until_one_ends=seconds == math.inf)
        for key, first, last in parts:
            ended.setdefault(key, []).append((first, last))
            if len(ended[key]) == size:
                first_versions[key] = sampling.started.pop(key)
                rule.finished(key, first_version=first_versions[key])
        return spent

    while len(rows) < skipped + steps:
        while rule.may_submit:
            key, num_submitted = str(num_submitted), num_submitted + 1
            rule.submitted(key)
            submitted[key] = rule.version
            sampling.submit(key, np.ceil(rates.draw(rng, size, longest) / rates.chunk) * rates.chunk)
        if not (keys := rule.due()):
            finished = rule.num_finished
            while rule.num_finished == finished:
                now += sample()
            continue
        untrained = rule.num_in_flight + rule.num_finished
        places = np.array([place for key in keys for place in ended.pop(key)])
        tokens = float((places[:, 1] - places[:, 0]).sum())
        # The sum of versions up to a place is linear between two pushes.
        beyond = pushes[-1] + 1e12
        summed = np.interp(places, [*pushes, beyond], [*sums, sums[-1] + rule.engine_version * 1e12])
        token_lag = rule.version - float((summed[:, 1] - summed[:, 0]).sum()) / tokens
        lags = [rule.version - first_versions.pop(key) for key in keys]
        train_s = rates.train_s(tokens, learner_gpus)
        # What ends during a step is seen after it: the loop waits for its learner.
        now += sample(train_s) if generators else train_s
        rule.trained(keys)
        if rule.push_due:
            now += sample(rates.push_s) if generators else rates.push_s
            sampling.pause_s += rates.copy_s if generators else 0.0
            sums.append(sums[-1] + rule.engine_version * (sampling.place - pushes[-1]))
            pushes.append(sampling.place)
            rule.pushed()
        waits = rule.version - 1 - fmean(submitted.pop(key) for key in keys)
        rows.append(
            (now, sampling.busy_s, sampling.active_s, train_s, token_lag, fmean(lags), max(lags), untrained, waits)
        )
    before, last, columns = rows[skipped - 1], rows[-1], list(zip(*rows[skipped:], strict=True))
    step_s, busy_s, active_s = ((last[place] - before[place]) / steps for place in range(3))
    return Replay(
        step_s=step_s,
        sample_s=busy_s,
        train_s=fmean(columns[3]),
        active_mean=active_s / step_s,
        lag_mean=fmean(columns[4]),
        group_lag_mean=fmean(columns[5]),
        lag_max=max(columns[6]),
        untrained_mean=fmean(columns[7]),
        submitted_lag_mean=fmean(columns[8]),
    )
