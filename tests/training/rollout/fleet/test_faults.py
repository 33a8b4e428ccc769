"""The loop over a fleet whose members die and hang at random."""

import itertools
import random
import threading
import time
from collections import Counter

from fake_engine import FakeEngine
from fleets import make_fleet
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import NUM_COMPLETIONS, AtOnce, CountingLearner, grade, make_requests

from scalerl.errors import EngineError
from scalerl.training.loop.pipeline import Pipeline
from scalerl.training.remote.peer import Limits
from scalerl.training.tasks.curriculum import Curriculum, uniform

STEPS = 10


class FaultyEngine(FakeEngine):
    """Dies or hangs after a number of polls that its seed draws; some live on."""

    def __init__(self, seed: int, released: threading.Event) -> None:
        draw = random.Random(seed)
        super().__init__(polls=lambda request: 1 + request.seed % 5, slots=2, version=-1, seed=seed)
        self._released = released
        self._fault = draw.choice(["none", "death", "death", "hang"])
        self._fault_at = draw.randrange(12)

    def poll(self):
        assert self.version >= 0, "sampling before the first push"
        # Somewhat irregular, so that members interleave differently each time.
        time.sleep(0.0002 * (self.num_polls % 3))
        if self.num_polls >= self._fault_at and self._fault == "death":
            raise EngineError("died")
        if self.num_polls >= self._fault_at and self._fault == "hang":
            self._released.wait()
        return super().poll()


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([(0, 1, False), (1, 1, False), (3, 1, False), (2, 3, True)]),
)
def test_deaths_and_hangs_lose_and_repeat_nothing(seed, num_members, groups_per_batch, regime):
    max_lag, push_every, drain = regime
    engines: list[FaultyEngine] = []
    released = threading.Event()

    def engine(number: int) -> FaultyEngine:
        engines.append(FaultyEngine(seed + len(engines), released))
        return engines[-1]

    settings = {"limits": Limits(stuck_s=0.05), "replacements": 10_000, "wait_s": 0.01}
    fleet = make_fleet(engine, num_members, slots=2, version=-1, **settings)
    learner = CountingLearner()
    curriculum = Curriculum([f"p{number}" for number in range(7)], seed=seed, left_out=uniform)
    pipeline = Pipeline(
        engine=fleet,
        curriculum=curriculum,
        learner=learner,
        make_requests=make_requests,
        grading=AtOnce(grade),
        groups_per_batch=groups_per_batch,
        max_lag=max_lag,
        waits_for="groups",
        push_every=push_every,
        drain=drain,
    )
    try:
        steps = list(itertools.islice(pipeline.steps(), STEPS))
    finally:
        released.set()
        fleet.close()
    trained = Counter(group.key for done in steps for group in done.batch.groups)
    assert trained.total() == STEPS * groups_per_batch
    assert set(trained.values()) == {1}
    for done in steps:
        assert all(0 <= lag <= max_lag for lag in done.batch.lags)
        for group in done.batch.groups:
            assert len(group.completions) == NUM_COMPLETIONS
            # A restarted completion is whole: its versions rise, and none is from before its group was submitted.
            for completion in group.completions:
                versions = completion.versions.tolist()
                assert versions == sorted(versions)
                assert completion.tokens.tolist() == expected_tokens(completion)
    for member in engines:
        assert member.pushed == sorted(member.pushed)


def expected_tokens(completion) -> list[int]:
    """What a member that was never disturbed samples for the request."""
    engine = FakeEngine(polls=lambda request: 1)
    engine.submit([completion.request])
    return engine.poll()[0].tokens.tolist()
