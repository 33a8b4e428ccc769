"""The lag rule: when a group may be submitted, which groups a step takes, and when a step must wait.

Terms: B groups make a batch. The learner is at version v after v steps; the engine samples with version e <= v, the
one pushed last. A group's lag is the version it is trained from minus the version that sampled its first token. Its
deadline is that first version + max_lag: the last version it may be trained from. While a group is in flight its first
version is not known, but no token of it is sampled by a version older than the engine's at its submission. So that
version + max_lag bounds its deadline from below, and counts as its deadline until it is finished. Plain Python: no
clock, no torch.

The setting `waits_for` says what a step waits for:

    batch    max_lag bounds the mean lag. A step takes the first B groups that are finished, oldest first, and waits for
             nothing else; a long completion is trained when it is done, however old it is by then. The default.
    groups   max_lag bounds the lag of every group. A step also waits for a group that would otherwise be trained too
             late, so one very long completion stops training until it is done.

By the paper "the trainer waits when k steps ahead of the generators". Both do; it does not say which lag k bounds.

Weights are pushed right after a step, so under both the learner is never ahead in weights. How far it is ahead in data
is the room: at most (max_lag + 1) x B groups are untrained. A group that is untrained at m steps, the one that takes it
included, has at most the lag m - 1. The sum of m over groups is that of untrained groups over steps, (max_lag + 1) x B
per step at most, of which B are trained. So the mean lag of groups is at most max_lag under both rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

WaitsFor = Literal["batch", "groups"]


@dataclass(kw_only=True)
class LagRule:
    """Decides when to submit, step and push, so that no group is trained past its deadline and none is discarded.

    (A caller may replace groups that teach nothing, training/loop/refill.py.)

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

    groups_per_batch: int
    max_lag: int
    push_every: int = 1
    drain: bool = False
    waits_for: WaitsFor = "batch"
    version: int = 0
    """The number of steps taken: the version that the next step starts from."""

    def __post_init__(self) -> None:
        assert self.push_every <= self.max_lag + 1, "after max_lag + 1 steps every new group would be too old already"
        self.engine_version = self.version
        """The version pushed last. No token of a group submitted now is sampled by an older one."""
        # The first version of each untrained group; of one in flight, a lower bound: the engine's at its submission. In
        # the order of issue; sorting by deadline is stable, so that order breaks ties.
        self._untrained: dict[str, int] = {}
        self._finished: set[str] = set()

    @property
    def num_in_flight(self) -> int:
        return len(self._untrained) - len(self._finished)

    @property
    def finished_keys(self) -> tuple[str, ...]:
        """Groups that are finished but not yet trained, in the order of issue."""
        return tuple(key for key in self._untrained if key in self._finished)

    @property
    def may_submit(self) -> bool:
        behind = self.version - self.engine_version
        return len(self._untrained) < (self.max_lag + 1 - behind) * self.groups_per_batch

    @property
    def push_due(self) -> bool:
        return self.version - self.engine_version >= self.push_every

    def submitted(self, key: str) -> None:
        """Record that a group was given to the engine."""
        assert self.may_submit, f"{key} may not be submitted: there is no room for it"
        assert key not in self._untrained, f"{key} may not be submitted: it is untrained already"
        self._untrained[key] = self.engine_version

    def finished(self, key: str, *, first_version: int) -> None:
        """Record that a group is complete and graded; `first_version` sampled its first token."""
        self._check_in_flight(key)
        assert self._untrained[key] <= first_version <= self.version, (
            f"{key} was not sampled by version {first_version}"
        )
        self._untrained[key] = first_version
        self._finished.add(key)

    def replaced(self, key: str) -> None:
        """Record that a group in flight is complete and will not be trained: another one may be submitted.

        The state stays good, since no count of untrained groups rises.
        """
        self._check_in_flight(key)
        del self._untrained[key]

    def _check_in_flight(self, key: str) -> None:
        assert key in self._untrained.keys() - self._finished, f"{key} was never submitted, or came twice"

    def due(self, *, last: bool = False) -> tuple[str, ...]:
        """Return the groups of the next step, or none if it must wait. `last`: no more groups will be submitted."""
        if self.drain and self.num_in_flight:
            return ()
        finished = self.finished_keys
        if len(finished) < self.groups_per_batch and not (last and not self.num_in_flight):
            return ()
        batch = sorted(finished, key=self._deadline)[: self.groups_per_batch]
        if self.waits_for == "batch":
            return tuple(batch)
        taken = set(batch)
        rest = sorted(self._deadline(key) for key in self._untrained if key not in taken)
        # The condition for every j at once: with B groups per step from v + 1 on, earliest first, all are in time.
        earliest_step = (self.version + 1 + place // self.groups_per_batch for place in range(len(rest)))
        in_time = all(deadline >= step for deadline, step in zip(rest, earliest_step, strict=True))
        return tuple(batch) if in_time else ()

    def trained(self, keys: Sequence[str]) -> None:
        """Record that a step took these groups, as `due` returned them; the version advances."""
        for key in keys:
            assert key in self._finished, f"{key} is trained but not finished"
            in_time = self.waits_for == "batch" or self._deadline(key) >= self.version
            assert in_time, f"{key} is trained past its deadline"
            self._finished.remove(key)
            del self._untrained[key]
        self.version += 1

    def pushed(self) -> None:
        """Record that the engine samples with the learner's version from now on."""
        self.engine_version = self.version

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, in JSON types, without groups in flight: they are submitted again."""
        return {
            "waits_for": self.waits_for,
            "version": self.version,
            "engine_version": self.engine_version,
            "kept": [[key, self._untrained[key]] for key in self.finished_keys],
        }

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return a rule with the same settings in the state that `state_dict` returned, with nothing in flight.

        The engine's version stays the one pushed last, although a new engine has newer weights: it is still a lower
        bound, and pushes stay at the same steps.
        """
        # The recipe's settings are those of the first attempt. Checkpoints made before there was a choice have no
        # waits_for, and neither have their recipes.
        if (saved := state.get("waits_for", "groups")) != self.waits_for:
            raise ValueError(
                f"the checkpoint was made with pipeline.waits_for = {saved}, not {self.waits_for}; resume with the same"
            )
        rule = replace(self, version=state["version"])
        rule.engine_version = state["engine_version"]
        rule._untrained = dict(state["kept"])
        rule._finished = set(rule._untrained)
        return rule

    def _deadline(self, key: str) -> int:
        return self._untrained[key] + self.max_lag
