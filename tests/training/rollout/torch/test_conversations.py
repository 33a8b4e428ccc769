"""Turns that continue in the slot of the turn before: what is computed, and that it is right."""

from dataclasses import replace

import pytest
from contracts.requests import by_key, drain
from contracts.sampling import check_log_probs
from played import STOPS, Echo, Slow, played_requests, playing, request, turns_engine
from tiny_models import sampled_model

from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.rollout.torch.scheduler import SlotScheduler, plan_prompts


def torch_engine(slots: int, *, fused: bool = True) -> TorchEngine:
    return TorchEngine(sampled_model("llama"), slots=slots, max_length=64, stop_tokens=STOPS, chunk=4, fused=fused)


@pytest.mark.parametrize("fused", [True, False])
def test_a_turn_computes_only_what_is_new(fused):
    inner = torch_engine(8, fused=fused)
    engine = turns_engine({"own": playing(Echo)}, inner=inner, slots=8, context=64)
    engine.submit(played_requests(8))
    completions = drain(engine)
    check_log_probs(sampled_model("llama"), completions)
    num_followed = sum(len(completion.turns) - 1 for completion in completions)
    assert num_followed > 8
    # The prompt once for all, then of each further turn the stop token and an observation of two, less the last token.
    assert inner.work.prefilled == 2 + 2 * num_followed
    attended = inner.work.attended
    lengths = [len(completion.request.prompt_tokens) + len(completion) - 1 for completion in completions]
    observed_last = sum(num * (num + 1) // 2 for num in lengths) - 7 * 3
    assert attended == observed_last


@pytest.mark.parametrize("slots", [2, 5])
def test_slots_that_others_took_are_computed_again(slots):
    inner = torch_engine(slots)
    engine = turns_engine({"own": playing(Echo, where=Slow)}, inner=inner, slots=slots, context=64)
    singles = [request(number + 100, environment="", budget=30) for number in range(10)]
    engine.submit([*played_requests(20), *singles])
    completions = drain(engine)
    assert len(completions) == 30
    check_log_probs(sampled_model("llama"), completions)
    alone = turns_engine({"own": playing(Echo)}, inner=torch_engine(30), slots=30, context=64)
    alone.submit([*played_requests(20), *singles])
    expected = by_key(drain(alone))
    for completion in completions:
        assert completion.tokens.tolist() == expected[completion.request.key].tokens.tolist()


def test_pauses_and_pushes_leave_conversations_right():
    inner = torch_engine(4)
    engine = turns_engine({"own": playing(Echo)}, inner=inner, slots=4, context=64)
    engine.submit(played_requests(8))
    completions = [completion for _ in range(3) for completion in engine.poll()]
    with engine.paused():
        engine.submit([replace(each, group=f"inside/{each.group}") for each in played_requests(6)])
        inside = drain(engine)
    engine.push_weights(sampled_model("llama").state_dict(), 1)
    check_log_probs(sampled_model("llama"), [*completions, *inside, *drain(engine)])


def test_scheduler_prefers_slots_that_hold_nothing():
    scheduler = SlotScheduler(3)
    turns = [request(number) for number in range(3)]
    scheduler.submit(turns)
    first = scheduler.admit()
    scheduler.release([0, 1, 2])
    for entry in (first[1], first[0]):
        scheduler.keep(entry, (*entry.request.prompt_tokens, 8, 9))
    following = replace(turns[0], prompt_tokens=(*turns[0].prompt_tokens, 8, 9, 10, 11))
    scheduler.submit([request(7), following, request(8)])
    admitted = scheduler.admit()
    assert [(entry.slot, entry.num_held) for entry in admitted] == [(2, 0), (0, 4), (1, 0)]
    assert not scheduler.kept
    whole, follows = plan_prompts(admitted, batch_tokens=64, max_length=64)
    assert (whole.starts, {slot for _, slot in whole.places}) == ((0,), {1, 2})
    assert (follows.starts, follows.tokens, follows.places) == ((4,), ((9, 10),), ((0, 0),))


@pytest.mark.parametrize("change", [(4, 8, 9, 10), (1, 2, 3, 8, 7, 10), (1, 2, 3, 8, 9)])
def test_only_a_prompt_that_begins_with_the_turn_continues_it(change):
    scheduler = SlotScheduler(1)
    turn = request(0)
    scheduler.submit([turn])
    (entry,) = scheduler.admit()
    scheduler.release([0])
    scheduler.keep(entry, (1, 2, 3, 8, 9))
    scheduler.submit([replace(turn, prompt_tokens=change)])
    assert [each.num_held for each in scheduler.admit()] == [0]
