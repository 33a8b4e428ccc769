from collections import Counter

from contracts.requests import make_request
from hypothesis import given
from hypothesis import strategies as st

from scalerl.training.rollout.torch.scheduler import FINEST_WIDTH, Admitted, SlotScheduler, padded_width, plan_prompts


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 7))), max_size=40))
def test_requests_run_once_in_order_without_idle_slots(slots, events):
    scheduler, started, finished, submitted = SlotScheduler(slots), [], [], 0
    for arrivals, ready in events:
        scheduler.submit([make_request(submitted + number) for number in range(arrivals)])
        submitted += arrivals
        started += [entry.order for entry in scheduler.admit()]
        running = [slot for slot in range(slots) if slot in scheduler.running]
        assert len(running) == slots or scheduler.num_pending == len(running)
        finished += [entry.order for entry in scheduler.release([slot for slot in running if slot in ready])]
        assert scheduler.num_pending == submitted - len(finished)
    assert started == list(range(len(started)))
    assert len(set(finished)) == len(finished)


@given(st.integers(1, 100_000))
def test_padding_stays_within_its_bound(length):
    width = padded_width(length)
    assert length <= width < length + max(FINEST_WIDTH, length / 4 + 1)


def test_widths_are_few():
    assert len({padded_width(length) for length in range(1, 4097)}) < 40


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=30),
    st.integers(1, 256),
)
def test_every_prompt_reaches_its_slots(prompts, batch_tokens):
    admitted = [
        Admitted(slot=slot, order=slot, request=make_request(slot, prompt=prompt))
        for slot, prompt in enumerate(prompts)
    ]
    batches = plan_prompts(admitted, batch_tokens=batch_tokens, max_length=48)
    filled = {slot: batch.tokens[row] for batch in batches for row, slot in batch.places}
    assert filled == {slot: tuple(prompt[:-1]) for slot, prompt in enumerate(prompts) if len(prompt) > 1}
    counts = Counter(prompt for batch in batches for prompt in batch.tokens)
    assert set(counts.values()) <= {1}, "a shared prompt is computed once"
    for batch in batches:
        assert batch.rows == max(1, batch_tokens // batch.width)
        assert len(batch.tokens) <= batch.rows
        assert all(padded_width(len(prompt)) == batch.width for prompt in batch.tokens)
        assert sorted({row for row, _ in batch.places}) == list(range(len(batch.tokens)))
    # All but the last batch of a width are full.
    for width in {batch.width for batch in batches}:
        same = [batch for batch in batches if batch.width == width]
        assert all(len(batch.tokens) == batch.rows for batch in same[:-1])


def test_a_width_never_exceeds_the_context():
    admitted = [Admitted(slot=0, order=0, request=make_request(prompt=range(46)))]
    (batch,) = plan_prompts(admitted, batch_tokens=128, max_length=47)
    assert (batch.width, len(batch.tokens[0])) == (47, 45)
