"""The loop over a simulated engine: lags, exactly-once, kills, stalls."""

import dataclasses
import functools
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import (
    NUM_COMPLETIONS,
    AtOnce,
    CountingLearner,
    Killed,
    SimulatedEngine,
    answers_right,
    complete,
    grade,
    make_requests,
)

from scalerl.errors import EngineStalled
from scalerl.training.loop.lag import WaitsFor
from scalerl.training.loop.pipeline import Pipeline, PipelineState, StepDone, Timings
from scalerl.training.loop.watchdog import Watchdog, WatchedEngine
from scalerl.training.run.pack import pack_groups, unpack_groups
from scalerl.training.tasks.curriculum import Curriculum, Issued, LeftOut, no_positive_resampling, uniform
from scalerl.training.types import Completion, Ending, Group, LengthPlan, group_key

NPR: LeftOut = functools.partial(no_positive_resampling, threshold=0.9, history="latest")


@dataclass(frozen=True, kw_only=True)
class Regime:
    groups_per_batch: int
    max_lag: int
    push_every: int = 1
    drain: bool = False
    waits_for: WaitsFor = "groups"

    @property
    def room(self) -> int:
        return (self.max_lag + 1) * self.groups_per_batch


def problem_ids(number: int) -> list[str]:
    return [f"p{place:03d}" for place in range(number)]


def make_pipeline(regime, engine, *, curriculum, learner=None, grading=None, **changes):
    return Pipeline(
        engine=engine,
        curriculum=curriculum,
        learner=learner or CountingLearner(),
        make_requests=make_requests,
        grading=grading or AtOnce(grade),
        **dataclasses.asdict(regime),
        **changes,
    )


def run(regime, *, num_problems, slots, seed=0, num_steps=None, left_out: LeftOut = uniform):
    engine = SimulatedEngine(slots=slots, seed=seed)
    curriculum = Curriculum(problem_ids(num_problems), seed=seed, left_out=left_out)
    pipeline = make_pipeline(regime, engine, curriculum=curriculum)
    return engine, curriculum, list(itertools.islice(pipeline.steps(), num_steps))


def keys_of(done: StepDone) -> list[str]:
    return [group.key for group in done.batch.groups]


def completions_of(done: StepDone) -> list[Completion]:
    return [completion for group in done.batch.groups for completion in group.completions]


def regimes():
    sizes, max_lag = st.integers(1, 3), st.integers(0, 4)
    pipelined = st.builds(Regime, groups_per_batch=sizes, max_lag=max_lag)
    drained = st.builds(
        lambda size, lag: Regime(groups_per_batch=size, max_lag=lag, push_every=lag + 1, drain=True), sizes, max_lag
    )
    # Not a regime of the paper, but nothing in the rule forbids it.
    between = st.builds(
        lambda size, lag: Regime(groups_per_batch=size, max_lag=lag, push_every=max(1, lag - 1)), sizes, max_lag
    )
    return st.one_of(pipelined, drained, between)


def test_long_tail_stops_training_only_by_the_rule_of_groups():
    """One in eight completions of the simulated engine takes fifty times as long; others overtake it."""
    lags, polls = {}, {}
    for waits_for in ("groups", "batch"):
        regime = Regime(groups_per_batch=4, max_lag=4, waits_for=waits_for)
        engine, _, steps = run(regime, num_problems=2000, slots=200, num_steps=200)
        lags[waits_for] = np.array([done.batch.lags for done in steps[10:]])
        polls[waits_for] = engine.num_polls
        assert any(len(set(one.versions.tolist())) > 1 for done in steps for one in completions_of(done))
    assert set(lags["groups"].flat) == {0, 1, 2, 3, 4}
    assert lags["batch"].max() > 8
    assert lags["batch"].mean() <= 4
    assert polls["batch"] < 0.75 * polls["groups"]


seeds = st.integers(0, 2**16)


def issue_order(regime, *, num_problems, seed, num_steps):
    """Batches as they would be if each group were finished as soon as it is asked for."""
    curriculum = Curriculum(problem_ids(num_problems), seed=seed, left_out=uniform)
    cycle = regime.room
    issued: list[Issued] = []
    while len(issued) < num_steps * regime.groups_per_batch:
        asked = [curriculum.next() for _ in range(cycle)]
        issued += [one for one in asked if one is not None]
        for one in asked:
            assert one is not None
            curriculum.graded(one.key, num_correct=0, num_graded=1, num_asked=1)
    size = regime.groups_per_batch
    return [[one.key for one in issued[size * number : size * (number + 1)]] for number in range(num_steps)]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), seeds, st.booleans())
def test_ppo_off_policy_trains_in_the_order_of_issue(size, k, seed, drain):
    """k = 1 is synchronous, whether drained or not."""
    regime = Regime(groups_per_batch=size, max_lag=k - 1, push_every=k, drain=drain or k > 1)
    engine, _, steps = run(regime, num_problems=2 * regime.room, slots=5, seed=seed, num_steps=3 * k)
    for done in steps:
        policy = done.batch.version - done.batch.version % k
        assert done.batch.lags == [done.batch.version % k] * size
        assert all((completion.versions == policy).all() for completion in completions_of(done))
    assert engine.pushed == [0, k, 2 * k, 3 * k]
    expected = issue_order(regime, num_problems=2 * regime.room, seed=seed, num_steps=3 * k)
    assert [keys_of(done) for done in steps] == expected


def expected_groups(num_problems: int) -> set[str]:
    """What no-positive-resampling asks in all: each problem once an epoch up to the first that solves it."""
    groups = set()
    for name in problem_ids(num_problems):
        for epoch in itertools.count():
            groups.add(group_key(epoch, name))
            if answers_right(group_key(epoch, name)):
                break
    return groups


class Late:
    """Verdicts arrive in random order, each after a random number of polls."""

    def __init__(self, seed: int, most_polls: int) -> None:
        self.random, self.most_polls = random.Random(seed), most_polls
        self.waiting: list[tuple[int, Group]] = []
        self.num_waits = 0

    def submit(self, groups: Sequence[Sequence[Completion]]) -> None:
        self.waiting += [(self.random.randint(0, self.most_polls), grade(completions)) for completions in groups]

    def poll(self, *, wait: bool = False) -> list[Group]:
        if wait:
            assert self.waiting, "waits for a verdict that nobody will give"
            self.num_waits += 1
        done = [group for polls, group in self.waiting if polls == 0]
        self.waiting = [(polls - 1, group) for polls, group in self.waiting if polls > 0]
        self.random.shuffle(done)
        return done


@settings(max_examples=25, deadline=None)
@given(regimes(), seeds, st.integers(1, 12), st.booleans())
def test_exhausted_data_is_trained_to_the_last_group(regime, seed, num_problems, is_late):
    curriculum, grading = Curriculum(problem_ids(num_problems), seed=seed, left_out=NPR), Late(seed, most_polls=60)
    engine = SimulatedEngine(slots=8, seed=seed)
    pipeline = make_pipeline(regime, engine, curriculum=curriculum, grading=grading if is_late else None)
    steps = list(pipeline.steps())
    trained = [key for done in steps for key in keys_of(done)]
    assert Counter(trained) == Counter(expected_groups(num_problems))
    assert curriculum.exhausted
    assert not grading.waiting
    sizes = [len(done.batch.groups) for done in steps]
    assert set(sizes[:-1]) <= {regime.groups_per_batch}
    assert 1 <= sizes[-1] <= regime.groups_per_batch


FOREVER = (sys.maxsize, sys.maxsize)


def deaths(**sizes):
    """(polls, steps) that an attempt lives to: it dies in the middle of generating, or between two steps."""
    return st.lists(
        st.one_of(
            st.tuples(st.integers(0, 250), st.just(sys.maxsize)), st.tuples(st.just(sys.maxsize), st.integers(0, 8))
        ),
        **sizes,
    )


def saved(state: PipelineState) -> PipelineState:
    """Through arrays and JSON text, as a checkpoint would."""
    arrays, packed = pack_groups(state.groups)
    meta, packed = json.loads(json.dumps([dict(state.meta), packed]))
    return PipelineState(meta=meta, groups=unpack_groups(arrays, packed))


def survive(regime, names, lives, num_steps, *, seed, left_out: LeftOut = uniform, save_every=1, is_late=False):
    """Train in attempts that end as `lives` says, each from the last checkpoint; return the steps that counted.

    Whatever is asked again has the same noise, and what was in flight at the checkpoint comes first.
    """
    lineage: list[StepDone] = []
    checkpoint: PipelineState | None = None
    requests: dict[str, object] = {}
    curriculum = Curriculum(names, seed=seed, left_out=left_out)
    for attempt, (polls_to_live, steps_to_live) in enumerate([*lives, FOREVER]):
        engine = SimulatedEngine(slots=7, seed=seed + attempt, polls_to_live=polls_to_live)
        if checkpoint is None:
            curriculum, lineage = Curriculum(names, seed=seed, left_out=left_out), []
        else:
            curriculum = Curriculum.restore(checkpoint.meta["curriculum"], names, left_out=left_out)
            lineage = lineage[: checkpoint.meta["lag"]["version"]]
        in_flight = [issued.key for issued in curriculum.in_flight]
        grading = Late(seed + attempt, most_polls=40) if is_late else None
        learner = CountingLearner(len(lineage))
        pipeline = make_pipeline(
            regime, engine, curriculum=curriculum, learner=learner, grading=grading, state=checkpoint
        )
        with suppress(Killed):
            for done in itertools.islice(pipeline.steps(), min(num_steps - len(lineage), steps_to_live)):
                lineage.append(done)
                if done.version % save_every == 0:
                    checkpoint = saved(pipeline.state())
        asked = list(dict.fromkeys(request.group for request in engine.submitted))
        assert not asked or asked[: len(in_flight)] == in_flight
        for request in engine.submitted:
            assert requests.setdefault(request.key, request) == request
    return lineage, curriculum


@settings(max_examples=30, deadline=None)
@given(regimes(), seeds, st.integers(1, 12), st.integers(1, 3), deaths(max_size=6), st.booleans(), st.booleans())
def test_kill_and_resume_trains_each_group_once(regime, seed, num_problems, save_every, lives, drops, is_late):
    names, num_steps = problem_ids(num_problems), sys.maxsize if drops else 14
    how = {"seed": seed, "left_out": NPR if drops else uniform, "save_every": save_every, "is_late": is_late}
    lineage, curriculum = survive(regime, names, lives, num_steps, **how)
    trained = Counter(key for done in lineage for key in keys_of(done))
    assert [done.version for done in lineage] == list(range(1, len(lineage) + 1))
    assert max(trained.values()) == 1
    assert max(lag for done in lineage for lag in done.batch.lags) <= regime.max_lag
    if drops:
        assert set(trained) == expected_groups(num_problems)
    else:
        assert len(lineage) == num_steps
        assert len(trained) == num_steps * regime.groups_per_batch
        untrained = {issued.key for issued in (*curriculum.in_flight, *curriculum.untrained)}
        for epoch in range(curriculum.state_dict()["tasks"][""]["epoch"]):
            assert {group_key(epoch, name) for name in names} <= set(trained) | untrained


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), seeds, deaths(min_size=1, max_size=4))
def test_drained_run_resumes_with_the_same_batches(size, k, seed, lives):
    regime = Regime(groups_per_batch=size, max_lag=k - 1, push_every=k, drain=True)
    names, num_steps = problem_ids(2 * regime.room), 3 * k + 1
    lineage, _ = survive(regime, names, lives, num_steps, seed=seed)
    assert all(done.batch.lags == [done.batch.version % k] * size for done in lineage)
    expected = issue_order(regime, num_problems=len(names), seed=seed, num_steps=num_steps)
    assert [keys_of(done) for done in lineage] == expected


@settings(max_examples=45, deadline=None)
@given(regimes(), seeds, st.integers(1, 20), st.sampled_from([0, 3, 300]), st.sampled_from([0.2, 1, 10]))
def test_no_trained_group_is_too_old_and_none_is_lost(regime, seed, num_problems, delay, capacity):
    # Capacity is in units of what may be untrained; ten times of it must not make anything older.
    slots = max(1, int(capacity * regime.room * NUM_COMPLETIONS))
    engine, grading = SimulatedEngine(slots=slots, seed=seed), Late(seed, delay)
    curriculum = Curriculum(problem_ids(num_problems), seed=seed, left_out=uniform)
    pipeline = make_pipeline(regime, engine, curriculum=curriculum, grading=grading)
    trained: list[str] = []
    for number, done in enumerate(itertools.islice(pipeline.steps(), 10)):
        assert (done.batch.version, done.version, done.metrics["loss/mean"]) == (number, number + 1, float(number))
        trained += keys_of(done)
        oldest = min(int(completion.versions.min()) for completion in completions_of(done))
        assert 0 <= number - oldest <= regime.max_lag
        if regime.drain:
            assert not grading.waiting
        # A group with the grader is in flight, as one with the engine is: a checkpoint asks it again.
        graded = {group.key for group in pipeline.state().groups}
        flying = {issued.key for issued in curriculum.in_flight}
        assert {group.key for _, group in grading.waiting} <= flying
        assert not graded & flying
    assert len(trained) == 10 * regime.groups_per_batch == len(set(trained))
    # What was asked is trained, waiting, or in flight; and every poll was for something.
    waiting = {issued.key for issued in (*curriculum.in_flight, *curriculum.untrained)}
    assert Counter(trained) + Counter(waiting) == Counter({request.group for request in engine.submitted})
    assert len(waiting) <= regime.room
    assert engine.num_polls <= engine.work.decoded
    # An epoch that is over asked every problem.
    for epoch in range(curriculum.state_dict()["tasks"][""]["epoch"]):
        assert {group_key(epoch, name) for name in problem_ids(num_problems)} <= set(trained) | waiting
    assert engine.pushed == [0, *range(regime.push_every, 11, regime.push_every)]
    # The engine is never polled for nothing (it asserts that), and where it has nothing the grader is waited for.
    assert grading.num_waits or regime.max_lag > 0


# Bookkeeping and faults -----------------------------------------------------------------------------------------------


def test_pass_rate_is_recorded_at_grading():
    regime = Regime(groups_per_batch=1, max_lag=4)
    engine = SimulatedEngine(slots=100)
    curriculum = Curriculum(problem_ids(5), seed=0, left_out=NPR)
    pipeline = make_pipeline(regime, engine, curriculum=curriculum)
    for done in pipeline.steps():
        graded = {issued.key for issued in curriculum.untrained} | set(keys_of(done))
        assert len(curriculum.state_dict()["tasks"][""]["solved"]) >= sum(answers_right(key) for key in graded)


def test_a_state_whose_parts_disagree_is_refused():
    regime = Regime(groups_per_batch=1, max_lag=3)
    curriculum = Curriculum(problem_ids(8), seed=0, left_out=uniform)
    pipeline = make_pipeline(regime, SimulatedEngine(slots=100), curriculum=curriculum)
    version = next(done.version for done in pipeline.steps() if pipeline.lag.finished_keys)
    state = saved(pipeline.state())
    assert len(state.groups) == len(pipeline.lag.finished_keys)
    assert len(pipeline.lag.finished_keys) + pipeline.lag.num_in_flight == 3
    again = Curriculum.restore(state.meta["curriculum"], problem_ids(8), left_out=uniform)
    for broken, learner_version, message in (
        (state, version + 1, "the pipeline and the learner are of different steps"),
        (replace(state, groups=state.groups[1:]), version, "disagree on which groups wait to be trained"),
    ):
        learner = CountingLearner(learner_version)
        with pytest.raises(AssertionError, match=message):
            make_pipeline(regime, SimulatedEngine(slots=1), curriculum=again, learner=learner, state=broken)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedEngine(SimulatedEngine):
    """Ten seconds a poll; from poll `stalls_at` on it does nothing, and forgets its requests if it is `forgetful`."""

    def __init__(self, clock: Clock, *, stalls_at: int = 10**9, forgetful: bool = False, fails: bool = False) -> None:
        super().__init__(slots=1)
        self.clock, self.stalls_at, self.forgetful, self.fails = clock, stalls_at, forgetful, fails

    def poll(self) -> list[Completion]:
        self.clock.now += 10.0
        if self.num_polls < self.stalls_at:
            return super().poll()
        if self.fails:
            raise ConnectionError("the engine's process ended with code 9")
        if self.forgetful:
            self.drop_pending()
        self.num_polls += 1
        return []


@pytest.mark.parametrize(
    "settings, fault, message",
    [
        ({}, EngineStalled, "sampled nothing for 60 s while 3 requests are with it: it is dead or hung"),
        ({"forgetful": True}, EngineStalled, "nothing left to do, but lost 3 requests"),
        ({"fails": True}, ConnectionError, "ended with code 9"),
    ],
)
def test_a_dead_engine_ends_the_run_with_the_reason(settings, fault, message):
    clock = Clock()
    engine = TimedEngine(clock, stalls_at=3, **settings)
    curriculum = Curriculum(problem_ids(4), seed=0, left_out=uniform)
    watched = WatchedEngine(engine, Watchdog(pytest.fail), quiet_s=60.0, clock=clock)
    pipeline = make_pipeline(Regime(groups_per_batch=2, max_lag=0), watched, curriculum=curriculum)
    with pytest.raises(fault, match=message):
        list(pipeline.steps())
    assert clock.now == (90.0 if settings == {} else 40.0)


def test_timings_leave_out_the_callers_seconds():
    clock = Clock()
    engine = TimedEngine(clock)
    learner = CountingLearner()

    def slow_grade(completions):
        clock.now += 3.0
        return grade(completions)

    def slow_step(batch):
        clock.now += 7.0
        return CountingLearner.step(learner, batch)

    learner.step = slow_step
    curriculum = Curriculum(problem_ids(4), seed=0, left_out=uniform)
    regime, grading = Regime(groups_per_batch=2, max_lag=0), AtOnce(slow_grade)
    pipeline = make_pipeline(regime, engine, curriculum=curriculum, learner=learner, grading=grading, clock=clock)
    num_polls = 0
    for done in itertools.islice(pipeline.steps(), 3):
        polled, num_polls = engine.num_polls - num_polls, engine.num_polls
        assert done.timings == Timings(submit_s=0.0, poll_s=10.0 * polled, grade_s=6.0, step_s=7.0, push_s=0.0)
        assert done.timings.wait_s == 10.0 * polled + 6.0
        assert done.timings.total_s == done.timings.wait_s + 7.0
        clock.now += 1000.0


def test_a_completion_nobody_asked_for_is_an_error():
    class Repeating(SimulatedEngine):
        def poll(self) -> list[Completion]:
            return super().poll() * 2

    curriculum = Curriculum(problem_ids(4), seed=0, left_out=uniform)
    pipeline = make_pipeline(Regime(groups_per_batch=1, max_lag=0), Repeating(slots=1), curriculum=curriculum)
    with pytest.raises(ValueError, match="which was not requested or came twice"):
        list(pipeline.steps())


def test_pack_and_unpack_groups_round_trip():
    ending = Ending.of_text("b", ("a", "b"))
    plan = LengthPlan(thinking_budget=2, thinking_end=(8,), marker=(8, 9), answer_budget=5, ending=ending)
    groups = []
    for name, verdicts in (("a", (True, None)), ("b", (False, True))):
        requests = [replace(request, length=plan) for request in make_requests(Issued(problem_id=name, epoch=3))]
        completions = [complete(requests[0], [1, 1, 2]), complete(requests[1], [2])]
        completions[0] = replace(
            completions[0], finish="length", interrupted_at=1, forced=np.array([False, True, True])
        )
        groups.append(replace(grade(completions), correct=verdicts, rewards=(0.1 + 0.2, -1.0)))
    arrays, meta = pack_groups(groups)
    assert "moves" not in json.dumps(meta), "what recognises the end of thinking is large"
    # Tokens and versions of four completions of 3, 1, 3 and 1 tokens, and four prompts of 3.
    assert {name: len(array) for name, array in arrays.items()} == {"int32": 28, "float32": 8, "bool": 8}
    assert len(meta["problems"]) == 2
    assert unpack_groups(arrays, json.loads(json.dumps(meta))) == tuple(groups)
    assert unpack_groups(*pack_groups([])) == ()
    with pytest.raises(ValueError, match="but their arrays hold"):
        unpack_groups(arrays, meta | {"groups": meta["groups"][:1]})
