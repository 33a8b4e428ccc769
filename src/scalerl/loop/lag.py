"""The lag rule: when a group may be submitted, which groups a step takes, and when a step must wait.

Terms: B groups make a batch. The learner is at version v after v steps; the engine samples with version e <= v, the
one pushed last. A group's lag is the version it is trained from minus the version that sampled its first token. Its
deadline is that first version + max_lag: the last version it may be trained from. While a group is in flight its first
version is not known, but no token of it is sampled by a version older than the engine's at its submission. So that
version + max_lag bounds its deadline from below, and counts as its deadline until it is finished. Plain Python: no
clock, no torch.

The setting `waits_for` says what a step waits for:

    batch    max_lag bounds the mean lag. A step takes the first B groups that are finished, oldest first, and waits for
             nothing else; a long completion is trained when it is done, however old it is by then. This is the paper's
             rule, by which the trainer waits when it is k steps ahead of the generators, and the default.
    groups   max_lag bounds the lag of every group. A step also waits for a group that would otherwise be trained too
             late, so one very long completion stops training until it is done.

Weights are pushed right after a step, so under both the learner is never ahead in weights. How far it is ahead in data
is the room: at most (max_lag + 1) x B groups are untrained. A group that is untrained at m steps, the one that takes it
included, has at most the lag m - 1. The sum of m over groups is that of untrained groups over steps, (max_lag + 1) x B
per step at most, of which B are trained. So the mean lag of groups is at most max_lag under both rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

WaitsFor = Literal["batch", "groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Untrained:
    finished: bool
    first_version: int
    """For a group in flight, a lower bound: the engine's version at its submission."""


class LagRule:
    """Decides when to submit, step and push, so that no group is trained past its deadline and none is discarded.

    (A caller may replace groups that teach nothing, loop/refill.py.)

    Submit  while untrained groups < (max_lag + 1 - (v - e)) x B; that is (max_lag + 1) x B right after a push.
    Step    with the B finished groups of earliest deadline (ties in the order of issue), and only if of the rest, for
            every j >= 0, at most j x B have a deadline <= v + j: none is overdue, the rest can be in time. Else wait.
            With waits_for = "batch" the first half only.
    Push    once v - e = push_every.

    Proof that lags are bounded and the loop never deadlocks, with waits_for = "groups". Call a state good if for every
    j >= 0 at most (j + 1) x B untrained groups have a deadline <= v + j. The empty state is good, and it stays so:

    - A submission adds the deadline v + J with J = max_lag - (v - e). Counts for j < J do not change; for j >= J they
      are at most all untrained groups, which are at most (J + 1) x B by the rule above.
    - A finish replaces a bound by the deadline itself, which is no earlier; a push changes no deadline.
    - After a step from v, the step's condition at j + 1 is what makes the state good at v + 1, and its condition at
      j = 0 says that nothing is overdue. So a good state never holds an overdue group, and no trained group has a lag
      above max_lag.

    Waiting always ends if the engine ends what it was given. Suppose nothing is left in flight. If B or more groups are
    finished, a step is allowed: it takes the earliest, so each count of the good state falls by B, or to zero, and the
    step's condition is exactly that. If fewer are, a submission is allowed, since push_every <= max_lag + 1 keeps
    v - e <= max_lag. Only when there is nothing more to submit does neither hold: then `due(last=True)` returns
    the rest as one smaller batch, so that no group goes untrained. With waits_for = "batch" a step needs less, so
    waiting ends all the more.

    max_lag = 0 is synchronous: B groups are submitted, all are waited for, one step, one push. PPO-off-policy-k is
    max_lag = k - 1, push_every = k, drain = true: k x B groups share one deadline, are all finished before the first
    step, and go into k steps in the order of issue (the order of finishing would favour short answers); the submission
    rule allows none in between, since each step lowers both of its sides by B.
    """

    def __init__(
        self,
        *,
        groups_per_batch: int,
        max_lag: int,
        push_every: int = 1,
        drain: bool = False,
        waits_for: WaitsFor = "batch",
        version: int = 0,
    ) -> None:
        if groups_per_batch < 1 or max_lag < 0 or push_every < 1:
            raise ValueError(
                f"a pipeline needs groups_per_batch >= 1, max_lag >= 0 and push_every >= 1, got "
                f"{groups_per_batch}, {max_lag} and {push_every}"
            )
        if push_every > max_lag + 1:
            raise ValueError(
                f"push_every is {push_every} with max_lag = {max_lag}: after {max_lag + 1} steps without a push every "
                f"new group would be too old already; set push_every <= {max_lag + 1}"
            )
        self.groups_per_batch = groups_per_batch
        self.max_lag = max_lag
        self.push_every = push_every
        self.drain = drain
        self.waits_for: WaitsFor = waits_for
        self._version = version
        self._engine_version = version
        # In the order of issue; sorting by deadline is stable, so that order breaks ties.
        self._untrained: dict[str, _Untrained] = {}

    @property
    def version(self) -> int:
        """The number of steps taken: the version that the next step starts from."""
        return self._version

    @property
    def engine_version(self) -> int:
        """The version pushed last. No token of a group submitted now is sampled by an older one."""
        return self._engine_version

    @property
    def num_in_flight(self) -> int:
        return sum(not group.finished for group in self._untrained.values())

    @property
    def num_finished(self) -> int:
        return sum(group.finished for group in self._untrained.values())

    @property
    def finished_keys(self) -> tuple[str, ...]:
        """Groups that are finished but not yet trained, in the order of issue."""
        return tuple(key for key, group in self._untrained.items() if group.finished)

    @property
    def may_submit(self) -> bool:
        behind = self._version - self._engine_version
        return len(self._untrained) < (self.max_lag + 1 - behind) * self.groups_per_batch

    @property
    def push_due(self) -> bool:
        return self._version - self._engine_version >= self.push_every

    def submitted(self, key: str) -> None:
        """Record that a group was given to the engine."""
        if not self.may_submit or key in self._untrained:
            raise ValueError(f"group {key!r} may not be submitted: there is no room for it, or it is untrained already")
        self._untrained[key] = _Untrained(finished=False, first_version=self._engine_version)

    def finished(self, key: str, *, first_version: int) -> None:
        """Record that a group is complete and graded; `first_version` sampled its first token."""
        group = self._untrained.get(key)
        if group is None or group.finished:
            raise ValueError(f"group {key!r} is finished but not in flight: it was never submitted, or came twice")
        if not group.first_version <= first_version <= self._version:
            raise ValueError(
                f"version {first_version} sampled the first token of group {key!r}, but the engine had version "
                f"{group.first_version} when it was submitted and the learner is at {self._version} now"
            )
        self._untrained[key] = _Untrained(finished=True, first_version=first_version)

    def replaced(self, key: str) -> None:
        """Record that a group in flight is complete and will not be trained: another one may be submitted.

        The state stays good, since no count of untrained groups rises.
        """
        group = self._untrained.pop(key, None)
        if group is None or group.finished:
            raise ValueError(f"group {key!r} is replaced but not in flight: it was never submitted, or is finished")

    def due(self, *, last: bool = False) -> tuple[str, ...]:
        """Return the groups of the next step, or none if it must wait. `last`: no more groups will be submitted."""
        if self.drain and self.num_in_flight:
            return ()
        finished = [key for key, group in self._untrained.items() if group.finished]
        if len(finished) < self.groups_per_batch and not (last and not self.num_in_flight):
            return ()
        batch = sorted(finished, key=self._deadline)[: self.groups_per_batch]
        if self.waits_for == "batch":
            return tuple(batch)
        taken = set(batch)
        rest = sorted(self._deadline(key) for key in self._untrained if key not in taken)
        # The condition for every j at once: with B groups per step from v + 1 on, earliest first, all are in time.
        earliest_step = (self._version + 1 + place // self.groups_per_batch for place in range(len(rest)))
        in_time = all(deadline >= step for deadline, step in zip(rest, earliest_step, strict=True))
        return tuple(batch) if in_time else ()

    def trained(self, keys: Sequence[str]) -> None:
        """Record that a step took these groups, as `due` returned them; the version advances."""
        for key in keys:
            group = self._untrained.pop(key)
            assert group.finished, f"{key} is trained but not finished"
            in_time = self.waits_for == "batch" or self._version - group.first_version <= self.max_lag
            assert in_time, f"{key} is trained past its deadline"
        self._version += 1

    def pushed(self) -> None:
        """Record that the engine samples with the learner's version from now on."""
        self._engine_version = self._version

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, in JSON types, without groups in flight: they are submitted again."""
        finished = [[key, group.first_version] for key, group in self._untrained.items() if group.finished]
        return {**self._settings(), "version": self._version, "engine_version": self._engine_version, "kept": finished}

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return a rule with the same settings in the state that `state_dict` returned, with nothing in flight.

        The engine's version stays the one pushed last, although a new engine has newer weights: it is still a lower
        bound, and pushes stay at the same steps.
        """
        for name, value in self._settings().items():
            # Checkpoints made before there was a choice have no waits_for.
            if (saved := state.get(name, "groups")) != value:
                raise ValueError(
                    f"the checkpoint was made with pipeline.{name} = {saved}, not {value}; resume with the same"
                )
        rule = type(self)(**self._settings(), version=state["version"])
        rule._engine_version = state["engine_version"]
        rule._untrained = {
            key: _Untrained(finished=True, first_version=first_version) for key, first_version in state["kept"]
        }
        return rule

    def _settings(self) -> dict[str, Any]:
        return {
            "groups_per_batch": self.groups_per_batch,
            "max_lag": self.max_lag,
            "push_every": self.push_every,
            "drain": self.drain,
            "waits_for": self.waits_for,
        }

    def _deadline(self, key: str) -> int:
        return self._untrained[key].first_version + self.max_lag
