"""What every Engine must do. A test module runs it for an engine by importing * and giving the fixture `make_engine`:

    make_engine(slots=4, stop_tokens=(), version=0) -> Engine      vocabulary 64, context 64 or more

and `new_weights`, a mapping that its push_weights accepts.
"""

import dataclasses

import numpy as np
import pytest
from contracts.requests import advance, by_key, drain, make_request, mixed_requests
from played import STOPS, Echo, played_requests, playing, turns_engine

from scalerl.errors import EngineError
from scalerl.training.environments.conversation import Conversation
from scalerl.training.loop.seams import Engine
from scalerl.training.rollout.progress import FREE, CompletionProgress
from scalerl.training.types import LengthPlan, Work


def test_satisfies_the_protocol(make_engine):
    assert isinstance(make_engine(), Engine)


def test_every_request_is_returned_exactly_once(make_engine):
    engine = make_engine(slots=3)
    requests = mixed_requests(20)
    engine.submit(requests[:13])
    completions = engine.poll()
    engine.submit(requests[13:])
    assert engine.num_pending == len(requests) - len(completions)
    completions += drain(engine)
    assert sorted(completion.request.key for completion in completions) == sorted(request.key for request in requests)
    assert all(completion.request == requests[int(completion.request.group[2:])] for completion in completions)
    assert engine.num_pending == 0
    assert engine.poll() == []


def test_completion_is_independent_of_batch_and_order(make_engine):
    requests = mixed_requests(12)

    def completions_of(*parts):
        engine, completions = make_engine(slots=12), []
        for part in parts:
            engine.submit(part)
            completions += engine.poll()
        return by_key(completions + drain(engine))

    expected = completions_of(requests)
    alone = [(requests[number : number + 1],) for number in range(12)]
    for parts in [(requests[::-1],), (requests[5:8],), (requests[6:], requests[:6]), *alone]:
        completions = completions_of(*parts)
        assert completions.keys() == {request.key for part in parts for request in part}
        for key, completion in completions.items():
            other = expected[key]
            assert completion.tokens.tolist() == other.tokens.tolist()
            np.testing.assert_allclose(completion.log_probs, other.log_probs, atol=1e-5)
            assert completion.finish == other.finish


def test_other_seeds_give_other_completions(make_engine):
    engine = make_engine(slots=8)
    plan = LengthPlan(answer_budget=16)
    engine.submit([make_request(number, plan=plan) for number in range(8)])
    assert len({tuple(completion.tokens.tolist()) for completion in drain(engine)}) == 8


PLANS = (
    *(LengthPlan(answer_budget=budget) for budget in (1, 2, 7, 8, 9, 30)),
    # An end that is hardly ever sampled, one that often is, and a marker longer than the answer may be.
    *(
        LengthPlan(thinking_budget=budget, thinking_end=(5, 5, 5, 5), marker=(6, 7, 5), answer_budget=9)
        for budget in (0, 1, 5, 8, 11)
    ),
    *[LengthPlan(thinking_budget=14, thinking_end=(9,), marker=(6, 9), answer_budget=7)] * 8,
    LengthPlan(thinking_budget=2, marker=(6, 7, 8, 9), answer_budget=3),
)


@pytest.mark.parametrize("stops", [(), (3, 17, 40)])
def test_completions_follow_their_length_plans(make_engine, stops):
    """By tokens one after another, as test_progress.py compares them with the words of a plan."""
    engine = make_engine(slots=8, stop_tokens=stops)
    engine.submit([make_request(number, plan=plan) for number, plan in enumerate(PLANS * 4)])
    seen = set()
    for completion in drain(engine):
        progress, forced, stopped = CompletionProgress(completion.request.length), [], False
        for token in completion.tokens.tolist():
            assert progress.count < progress.limit
            assert not stopped, "nothing follows a stop token"
            given = progress.forced(progress.count)
            assert given in (FREE, token)
            forced.append(given != FREE)
            stopped = token in stops and given == FREE
            progress.take(token)
        assert completion.finish == ("stop" if stopped else "length")
        assert stopped or progress.count == progress.limit
        assert completion.forced.tolist() == forced
        assert completion.interrupted_at == (forced.index(True) if any(forced) else None)
        assert ((completion.log_probs == 0) == completion.forced).all()
        assert completion.num_trained_tokens == forced.count(False)
        seen |= {completion.finish, "interrupted" if any(forced) else "ended" if progress.ended else "plain"}
    assert seen == {"length", "interrupted", "ended", "plain", *(["stop"] if stops else [])}


def test_turns_of_a_conversation_are_what_requests_of_their_own_give(make_engine):
    """Whether an engine goes on from the cache of the turn before or computes the prompt again."""
    context = 60
    engine = turns_engine(
        {"own": playing(Echo)}, inner=make_engine(slots=4, stop_tokens=STOPS), slots=4, context=context
    )
    engine.submit(played_requests(10))
    conversations = drain(engine)
    assert max(len(completion.turns) for completion in conversations) >= 3
    turns, alone = {}, make_engine(slots=4, stop_tokens=STOPS)
    for completion in conversations:
        for number, (start, end) in enumerate(completion.turns):
            before = Conversation(
                completion.request, tokens=completion.tokens[:start].tolist(), turns=list(completion.turns[:number])
            )
            room = context - len(completion.request.prompt_tokens) - start
            single = dataclasses.replace(before.next_request(room), environment="", index=number)
            turns[single.key] = completion.tokens[start:end], completion.log_probs[start:end]
            alone.submit([single])
    for single in drain(alone):
        tokens, log_probs = turns.pop(single.request.key)
        assert single.tokens.tolist() == tokens.tolist()
        np.testing.assert_allclose(single.log_probs, log_probs, atol=1e-4)
    assert not turns


def versions_over_two_pushes(engine, new_weights):
    """Return the versions of three requests of 40 tokens in two slots, with pushes of 5 and 9 in between."""
    engine.submit([make_request(number, plan=LengthPlan(answer_budget=40)) for number in range(3)])
    completions = advance(engine, 2)
    for version in (5, 9):
        engine.push_weights(new_weights, version)
        assert engine.version == version
        completions += advance(engine, 2)
    completions = by_key(completions + drain(engine))
    return [completions[f"0/{number}#0"].versions for number in range(3)]


def test_versions_rise_within_a_completion(make_engine, new_weights):
    # An engine that runs by itself may finish a completion before a push reaches it: once in a while, not five times.
    for _ in range(5):
        engine = make_engine(slots=2, version=4)
        assert engine.version == 4
        first, second, third = versions_over_two_pushes(engine, new_weights)
        assert first[0] == second[0] == 4
        assert third[0] >= min(first[-1], second[-1])
        for versions in (first, second, third):
            assert (np.diff(versions) >= 0).all()
            assert set(versions.tolist()) <= {4, 5, 9}
        with pytest.raises(ValueError, match="versions must rise"):
            engine.push_weights(new_weights, 8)
        if len(set(first.tolist())) > 1:
            return
    raise AssertionError("no push took effect within a completion")


def test_requests_never_meet_weights_older_than_the_last_push(make_engine, new_weights):
    engine = make_engine(slots=2, version=4)
    plan = LengthPlan(answer_budget=12)
    pushed, completions = {}, []
    for version in (4, 5, 9):
        if version > 4:
            engine.push_weights(new_weights, version)
        requests = [make_request(10 * version + number, plan=plan) for number in range(4)]
        engine.submit(requests)
        pushed |= {request.key: version for request in requests}
        completions += engine.poll()
    for completion in completions + drain(engine):
        assert completion.first_version >= pushed[completion.request.key]
        assert (np.diff(completion.versions) >= 0).all()
        assert set(completion.versions.tolist()) <= {4, 5, 9}


def test_work_counts_tokens_and_the_context_they_attend_to(make_engine):
    engine = make_engine(slots=2)
    assert engine.work == Work()
    engine.submit([make_request(number, prompt=range(5 + number)) for number in range(3)])
    completions = drain(engine)
    lengths = [(len(completion.request.prompt_tokens), len(completion)) for completion in completions]
    attended = sum(sum(range(1, prompt + count)) for prompt, count in lengths)
    assert engine.work == Work(prefilled=4 + 5 + 6, decoded=sum(num for _, num in lengths), attended=attended)


@pytest.mark.parametrize("polls_before", [0, 1, 3])
def test_paused_requests_go_on_as_if_nothing_had_happened(make_engine, polls_before):
    requests, others = mixed_requests(10), [make_request(number + 50) for number in range(9)]
    undisturbed = make_engine(slots=4)
    undisturbed.submit(requests)
    expected = by_key(drain(undisturbed))

    engine = make_engine(slots=4)
    engine.submit(requests)
    completions = [completion for _ in range(polls_before) for completion in engine.poll()]
    num_pending = engine.num_pending
    with engine.paused():
        assert engine.num_pending == 0
        engine.submit(others)
        inside = drain(engine)
    assert sorted(completion.request.key for completion in inside) == sorted(request.key for request in others)
    assert engine.num_pending == num_pending
    after = by_key(completions + drain(engine))
    assert after.keys() == expected.keys()
    for key, completion in after.items():
        assert completion.tokens.tolist() == expected[key].tokens.tolist()
        np.testing.assert_allclose(completion.log_probs, expected[key].log_probs, atol=1e-5)
        assert (completion.finish, completion.interrupted_at) == (expected[key].finish, expected[key].interrupted_at)


def test_what_is_left_at_the_end_of_a_pause_is_dropped(make_engine):
    engine = make_engine(slots=2)
    requests = mixed_requests(5)
    engine.submit(requests)
    engine.poll()
    with engine.paused():
        engine.submit([make_request(number + 50, plan=LengthPlan(answer_budget=40)) for number in range(5)])
        engine.poll()
    assert engine.num_pending <= len(requests)
    assert {completion.request.key for completion in drain(engine)} <= {request.key for request in requests}


def test_work_within_pauses_is_counted_apart(make_engine):
    engine = make_engine(slots=3)
    requests = [make_request(number, prompt=range(4 + number)) for number in range(9)]
    engine.submit(requests[:6])
    outside = engine.poll()
    with engine.paused():
        engine.submit(requests[6:])
        inside = drain(engine)
    outside += drain(engine)
    for work, completions in ((engine.work, outside), (engine.eval_work, inside)):
        alone = [Work.of(len(each.request.prompt_tokens), len(each)) for each in completions]
        assert work == sum(alone, Work())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": ()}, "empty prompt"),
        ({"prompt_tokens": (1,) * 20_000}, "context"),
        ({"length": LengthPlan(answer_budget=0)}, "allows no token"),
        ({"temperature": -0.5}, "temperature -0.5"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"prompt_tokens": (1, 64)}, "vocabulary of 64"),
        ({"prompt_tokens": (1, -1)}, "vocabulary of 64"),
        ({"length": LengthPlan(thinking_budget=1, marker=(2, 64), answer_budget=4)}, "vocabulary of 64"),
    ],
)
def test_unservable_request_is_refused_and_nothing_queued(make_engine, change, message):
    engine = make_engine()
    good = make_request(0)
    with pytest.raises(ValueError, match=message):
        engine.submit([good, dataclasses.replace(make_request(1), **change)])
    assert engine.num_pending == 0


def test_zero_slots_are_refused(make_engine):
    with pytest.raises(ValueError, match="at least 1 slot"):
        make_engine(slots=0)


def test_closed_engine_raises(make_engine):
    engine = make_engine()
    engine.submit([make_request()])
    engine.close()
    engine.close()
    assert engine.num_pending == 0
    with pytest.raises(EngineError, match="closed"):
        engine.poll()
    with pytest.raises(EngineError, match="closed"):
        engine.submit([make_request()])
