"""Simulated schedules against what can be worked out by hand, and against a clock that ticks chunk by chunk."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.run.simulate.schedule import Durations, Regime, simulate
from scalerl.types import derive_seed


def run(
    *,
    generators: int = 1,
    chunk_s: float | Callable[[int], float] = 1.0,
    step_s: float = 1.0,
    tokens: int | Callable[[int, int], int] = 1,
    steps: int = 40,
    slots: int = 8,
):
    regime = Regime(groups_per_batch=2, completions_per_group=4, slots=slots, max_lag=4)
    durations = Durations(
        chunk_s=(lambda _: chunk_s) if isinstance(chunk_s, float | int) else chunk_s,
        step_s=lambda version, num: step_s,
        push_s=0.0,
    )
    num_tokens = (lambda version, seed: tokens) if isinstance(tokens, int) else tokens
    return simulate(regime, durations, num_tokens, steps=steps, num_generators=generators)


@pytest.mark.parametrize("generators", [1, 2, 4])
def test_pace_is_that_of_the_slower_side(generators):
    # A batch of 8 completions of 4 chunks each; a generator has 8 slots, so it makes a batch in 4 s.
    bound = run(generators=generators, tokens=4, step_s=0.1)
    assert bound.step_s == pytest.approx(max(4 / generators, 0.1), rel=0.05)
    assert bound.slots_used == pytest.approx(1.0, abs=0.05)
    learner_bound = run(generators=generators, tokens=4, step_s=10.0)
    assert learner_bound.step_s == pytest.approx(10.0)
    assert learner_bound.learner_idle == pytest.approx(0.0, abs=1e-9)
    assert learner_bound.slots_used == pytest.approx(0.4 / generators, rel=0.1)


def test_synchronous_run_adds_up_sampling_step_and_push():
    regime = Regime(groups_per_batch=2, completions_per_group=4, slots=8, max_lag=0)
    durations = Durations(chunk_s=lambda _: 1.0, step_s=lambda version, num: 1.0, push_s=0.5)
    simulated = simulate(regime, durations, lambda version, seed: 4, steps=8, num_generators=1)
    # 4 chunks, a step, a push; a push counts as idle on both sides.
    assert simulated.step_s == pytest.approx(5.5)
    assert simulated.learner_idle == pytest.approx(1 - 1 / 5.5)
    assert simulated.generator_idle == pytest.approx(1 - 4 / 5.5)
    assert simulated.slots_used == pytest.approx(4 / 5.5)
    assert (simulated.num_chunks, simulated.num_tokens) == (4 * 8, 4 * 8 * 8)
    assert simulated.lags == {0: 16}


def test_chunks_take_longer_with_more_active_completions():
    slow = run(chunk_s=lambda active: 0.1 * active, tokens=1, step_s=0.0, slots=8)
    assert slow.step_s == pytest.approx(0.8, rel=1e-6)
    # One slot: eight times as many chunks, each an eighth as long.
    assert run(chunk_s=lambda active: 0.1 * active, tokens=1, step_s=0.0, slots=1).step_s == pytest.approx(
        0.8, rel=1e-6
    )


def test_lags_never_exceed_max_lag():
    simulated = run(tokens=lambda version, seed: 1 + derive_seed("length", seed) % 40, generators=3, steps=100)
    assert set(simulated.lags) <= set(range(5))
    assert sum(simulated.lags.values()) == 200


def ticking(slots, lengths, submitted_at, chunk_s):
    """When each completion of one generator ends, if every chunk is taken one by one."""
    waiting, active, ends = [], {}, {}
    time, pending = 0.0, sorted(range(len(lengths)), key=submitted_at.__getitem__)
    while pending or waiting or active:
        while pending and submitted_at[pending[0]] <= time + 1e-9:
            waiting.append(pending.pop(0))
        if not waiting and not active:
            time = submitted_at[pending[0]]
            continue
        while waiting and len(active) < slots:
            place = waiting.pop(0)
            active[place] = lengths[place]
        time += chunk_s(len(active))
        for place in list(active):
            active[place] -= 1
            if not active[place]:
                ends[place] = time
                del active[place]
    return ends


EIGHTHS = st.integers(1, 16).map(lambda number: number / 8)  # exact, so that ties are ties on both sides


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 300).map(lambda n: n / 16)), min_size=1, max_size=12),
    EIGHTHS,
    EIGHTHS,
)
def test_jumps_over_chunks_equal_single_chunks(slots, asked, base_s, each_s):
    from scalerl.run.simulate.schedule import _Generator, _requests
    from scalerl.tasks.curriculum import Issued

    asked = sorted(asked, key=lambda pair: pair[1])
    lengths, times = [length for length, _ in asked], [time for _, time in asked]

    def chunk_s(active: int) -> float:
        return base_s + each_s * active

    durations = Durations(chunk_s=chunk_s, step_s=lambda version, tokens: 0.0, push_s=0.0)
    generator = _Generator(durations, slots, 1)
    regime = Regime(groups_per_batch=1, completions_per_group=1, slots=slots, max_lag=0)
    ends = {}
    for place, (length, time) in enumerate(asked):
        ends |= {int(done.request.group[2:]): when for when, done in generator.advance(time)}
        generator.time_s = max(generator.time_s, time)
        issued = Issued(problem_id=str(place), epoch=0)
        generator.submit(_requests(issued, regime, lambda seed, length=length: length))
    while generator.num_pending:
        ends |= {int(done.request.group[2:]): when for when, done in generator.advance()}
    expected = ticking(slots, lengths, times, chunk_s)
    assert ends.keys() == expected.keys()
    for place, when in expected.items():
        assert ends[place] == pytest.approx(when, rel=1e-6, abs=1e-6)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_is_flat_over_100_000_steps():
    sizes = []

    def step_s(version: int, tokens: int) -> float:
        if version in (20_000, 99_990):
            sizes.append(resident_bytes())
        return 0.5

    regime = Regime(groups_per_batch=1, completions_per_group=2, slots=4, max_lag=2)
    durations = Durations(chunk_s=lambda _: 0.1, step_s=step_s, push_s=0.0)
    simulated = simulate(regime, durations, lambda version, seed: 1 + seed % 5, steps=100_000, num_generators=2)
    assert len(simulated.ends_s) == 100_000
    # The times of the steps themselves take 32 bytes each, 2.6 MB; a group that stayed would take a kilobyte a step.
    assert sizes[1] - sizes[0] < 8e6
