"""The lag rule against its own words, and by hand."""

import json
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.training.loop.lag import LagRule, WaitsFor


@dataclass
class Asked:
    key: str
    bound: int
    first_version: int | None = None


class Reference:
    """The rule as it is described, computed from the list of untrained groups at every call."""

    def __init__(self, groups_per_batch: int, max_lag: int, drain: bool, waits_for: WaitsFor) -> None:
        self.size, self.max_lag, self.drain, self.waits_for = groups_per_batch, max_lag, drain, waits_for
        self.version = 0
        self.untrained: list[Asked] = []

    def deadline(self, group: Asked) -> int:
        return (group.bound if group.first_version is None else group.first_version) + self.max_lag

    def due(self, last: bool) -> tuple[str, ...]:
        finished = [group for group in self.untrained if group.first_version is not None]
        num_in_flight = len(self.untrained) - len(finished)
        if self.drain and num_in_flight:
            return ()
        order = sorted(finished, key=lambda group: (self.deadline(group), self.untrained.index(group)))
        batch = order[: self.size]
        if len(batch) < self.size and (num_in_flight or not last):
            return ()
        rest = [self.deadline(group) for group in self.untrained if group not in batch]
        for j in range(self.max_lag + 2) if self.waits_for == "groups" else ():
            if sum(deadline <= self.version + j for deadline in rest) > j * self.size:
                return ()
        return tuple(group.key for group in batch)


regimes = st.integers(0, 4).flatmap(
    lambda max_lag: st.tuples(
        st.integers(1, 3),
        st.just(max_lag),
        st.integers(1, max_lag + 1),
        st.booleans(),
        st.sampled_from(["groups", "batch"]),
    )
)


def operations(seed: int) -> list[tuple[str, int]]:
    """Long and dense, as lists that hypothesis draws are not; weighted anew for each seed."""
    numbers = random.Random(seed)
    kinds = ["submit", "finish", "step", "resume"]
    weights = [numbers.uniform(0.5, 2), numbers.uniform(0.5, 2), numbers.uniform(0.2, 2), numbers.choice([0, 0.1])]
    return [(kind, numbers.randrange(2**16)) for kind in numbers.choices(kinds, weights, k=150)]


@settings(max_examples=80, deadline=None)
@given(regimes, st.integers(0, 2**32))
def test_lag_rule_matches_its_definition(regime, seed):
    size, max_lag, push_every, drain, waits_for = regime
    rule = LagRule(groups_per_batch=size, max_lag=max_lag, push_every=push_every, drain=drain, waits_for=waits_for)
    reference, num_asked = Reference(size, max_lag, drain, waits_for), 0
    for kind, number in operations(seed):
        in_flight = [group for group in reference.untrained if group.first_version is None]
        last = number % 5 == 0
        assert rule.due(last=last) == reference.due(last=last)
        if kind == "submit" and rule.may_submit:
            key, num_asked = f"g{num_asked}", num_asked + 1
            reference.untrained.append(Asked(key, rule.engine_version))
            rule.submitted(key)
        elif kind == "finish" and in_flight:
            group = in_flight[number % len(in_flight)]
            group.first_version = group.bound + (number >> 4) % (rule.engine_version - group.bound + 1)
            rule.finished(group.key, first_version=group.first_version)
        elif kind == "step" and (keys := rule.due(last=last)):
            taken = [group for group in reference.untrained if group.key in keys]
            in_time = [rule.version - (group.first_version or 0) <= max_lag for group in taken]
            assert all(in_time) or waits_for == "batch"
            rule.trained(keys)
            reference.untrained = [group for group in reference.untrained if group.key not in keys]
            reference.version += 1
            if rule.push_due:
                rule.pushed()
        elif kind == "resume":
            state = rule.state_dict()
            rule = rule.restored(json.loads(json.dumps(state)))
            assert rule.state_dict() == state
            reference.untrained = [group for group in reference.untrained if group.first_version is not None]
        assert rule.num_in_flight + len(rule.finished_keys) == len(reference.untrained)
        assert len(reference.untrained) <= (max_lag + 1) * size
        if rule.num_in_flight == 0:
            assert rule.due() or rule.may_submit


def test_invalid_calls_are_refused():
    with pytest.raises(AssertionError, match="every new group would be too old already"):
        LagRule(groups_per_batch=1, max_lag=2, push_every=4)
    roomy = LagRule(groups_per_batch=2, max_lag=0)
    roomy.submitted("a")
    with pytest.raises(AssertionError, match="a may not be submitted"):
        roomy.submitted("a")
    rule = LagRule(groups_per_batch=1, max_lag=0, version=5)
    rule.submitted("a")
    with pytest.raises(AssertionError, match="b may not be submitted"):
        rule.submitted("b")
    with pytest.raises(AssertionError, match="b was never submitted"):
        rule.finished("b", first_version=5)
    for version in (4, 6):
        with pytest.raises(AssertionError, match=f"was not sampled by version {version}"):
            rule.finished("a", first_version=version)
    rule.finished("a", first_version=5)
    with pytest.raises(AssertionError, match="came twice"):
        rule.finished("a", first_version=5)


def test_a_checkpoint_of_another_rule_is_refused():
    state = LagRule(groups_per_batch=1, max_lag=3, waits_for="groups").state_dict()
    with pytest.raises(ValueError, match=r"pipeline\.waits_for = groups, not batch"):
        LagRule(groups_per_batch=1, max_lag=3, waits_for="batch").restored(state)
    del state["waits_for"]
    restored = LagRule(groups_per_batch=1, max_lag=3, waits_for="groups").restored(state)
    assert restored.waits_for == "groups", "made before the choice"
