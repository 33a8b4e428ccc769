"""Conversations over an engine without a model: tokens, masks, seeds, limits, rewards, lag, pauses."""

import dataclasses
import itertools
from dataclasses import replace

import numpy as np
import pytest
from contracts.requests import by_key, drain
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from played import STOPS, Counting, Echo, Slow, decode, playing, request, scripted, turns_engine
from simulated import NUM_COMPLETIONS, AtOnce, CountingLearner, grade, make_requests

from scalerl.training.environments.conversation import fit_plan
from scalerl.training.environments.protocol import Step, read_step
from scalerl.training.environments.steps import InProcess, Session
from scalerl.training.environments.turns import TurnsEngine
from scalerl.training.loop.pipeline import Pipeline
from scalerl.training.run.pack import pack_groups, unpack_groups
from scalerl.training.tasks.curriculum import Curriculum, uniform
from scalerl.training.types import Completion, Episode, LengthPlan


class Recording(FakeEngine):
    """Remembers every turn as the engine saw it."""

    def __init__(self, **settings) -> None:
        super().__init__(stop_tokens=STOPS, **settings)
        self.sampled: dict[tuple[str, int], Completion] = {}
        """By the request's key and the length of its prompt."""

    def poll(self) -> list[Completion]:
        turns = super().poll()
        self.sampled |= {(turn.request.key, len(turn.request.prompt_tokens)): turn for turn in turns}
        return turns


def test_conversation_holds_sampled_and_given_tokens():
    inner = Recording(slots=8)
    engine = turns_engine({"own": playing(Echo)}, inner=inner)
    engine.submit([request(number) for number in range(40)])
    assert engine.num_pending == 40
    completions, pushed = [], 0
    while engine.num_pending:
        completions += engine.poll()
        pushed += 1
        engine.push_weights({}, pushed // 5)
    assert len(completions) == 40
    for completion in completions:
        prompt, tokens = completion.request.prompt_tokens, completion.tokens.tolist()
        assert completion.request == request(int(completion.request.group[2:]))
        ends = [end for _, end in completion.turns]
        for number, (start, end) in enumerate(completion.turns):
            turn = inner.sampled[completion.request.key, len(prompt) + start]
            assert turn.request.prompt_tokens == (*prompt, *tokens[:start])
            assert turn.tokens.tolist() == tokens[start:end]
            assert turn.log_probs.tolist() == completion.log_probs[start:end].tolist()
            assert turn.versions.tolist() == completion.versions[start:end].tolist()
            if number:
                assert start - ends[number - 1] == 2
        observed = completion.forced
        assert completion.num_trained_tokens == completion.num_written == len(tokens) - 2 * (len(ends) - 1)
        assert (completion.log_probs[observed] == 0).all()
        assert (completion.log_probs[~observed] < 0).all()
        assert (np.diff(completion.versions) >= 0).all()
        assert completion.interrupted_at is None
        episode = completion.episode
        assert completion.truncated or (episode is not None and episode.value in (0, 0.25, 0.5, 0.75, 1))
    assert len({len(completion.turns) for completion in completions}) > 1


def test_turns_have_noise_of_their_own_and_seeds_repeat():
    def played(slots: int) -> dict[str, Completion]:
        engine = turns_engine({"own": playing(Echo)}, slots=slots)
        engine.submit([request(number) for number in range(12)])
        return by_key(drain(engine))

    first, again = played(8), played(3)
    for key, completion in first.items():
        assert completion.tokens.tolist() == again[key].tokens.tolist()
        assert completion.episode == again[key].episode
        beginnings = {tuple(completion.tokens[start:end][:3].tolist()) for start, end in completion.turns}
        assert len(beginnings) == len(completion.turns)


def test_a_group_shares_its_environment():
    engine = turns_engine({"own": playing(Counting, {"turns": 1})})
    engine.submit([replace(request(number), group=f"g{number // 4}", index=number % 4) for number in range(8)])
    openings = {}
    for completion in drain(engine):
        openings.setdefault(completion.request.group, set()).add(completion.request.prompt_tokens)
    assert all(len(prompts) == 1 for prompts in openings.values())
    assert openings["g0"] != openings["g1"]


def test_class_in_the_manner_of_gymnasium_works_as_it_is():
    Counting.closed = 0
    engine = turns_engine({"own": playing(Counting, {"turns": 3}, rewards="sum")})
    engine.submit([request(number, budget=200) for number in range(4)])
    completions = drain(engine)
    for completion in completions:
        assert completion.request.prompt_tokens[:4] == (1, 2, 3, 7)
        assert len(completion.turns) == 3
        assert completion.episode == Episode(value=0.75, base=0.5)
    assert Counting.closed == 4


def test_requests_without_an_environment_pass_through():
    inner = FakeEngine(slots=8, stop_tokens=STOPS)
    inner.submit([request(number, environment="") for number in range(6)])
    expected = by_key(drain(inner))
    engine = turns_engine({"own": playing(Echo)})
    engine.submit([request(number, environment="own" if number > 5 else "") for number in range(12)])
    mixed = by_key(drain(engine))
    assert len(mixed) == 12
    for key, completion in expected.items():
        # All but the order in which the two engines returned them.
        assert mixed[key] == completion
        assert mixed[key].turns == ()


@pytest.mark.parametrize(
    ("returns", "rules", "expected", "truncated"),
    [
        ([1.0], {}, Episode(value=1.0), False),
        ([True], {}, Episode(value=1.0), False),
        (["5", 0.5], {}, Episode(value=0.5), False),
        ([None], {}, Episode(reason="no_answer"), False),
        (["5", Step(done=True, answer="8")], {}, Episode(answer="8"), False),
        # Rewards of turns: the last one, their sum or their mean; within a range.
        ([Step(observation="5", reward=0.5), 0.25], {}, Episode(value=0.25), False),
        ([Step(observation="5", reward=0.5), 0.25], {"rewards": "sum"}, Episode(value=0.75, base=0.5), False),
        (
            [Step(observation="5", reward=0.5), 0.25],
            {"rewards": "mean"},
            Episode(value=0.375, base=0.25, weight=0.5),
            False,
        ),
        (
            [Step(observation="5", reward=4.0), Step(done=True, reward=-1.0)],
            {"rewards": "sum", "reward_range": (-2.0, 8.0)},
            Episode(value=0.5, base=0.6, weight=0.1),
            False,
        ),
        ([Step(done=True, reward=7.0)], {}, Episode(value=1.0), False),
        (
            [Step(observation="5", reward=0.5), Step(done=True, answer="8")],
            {"rewards": "sum"},
            Episode(answer="8", base=0.5),
            False,
        ),
        # Calls and their errors are counted.
        (
            [Step(observation="5", num_calls=2, num_errors=1), Step(done=True, reward=1.0, num_calls=1)],
            {},
            Episode(value=1.0, num_calls=3, num_errors=1),
            False,
        ),
        # Limits.
        (["5", "6", "7"], {"max_turns": 2}, Episode(value=0.0), True),
        ([Step(observation="5", reward=0.5)], {"max_turns": 1}, Episode(value=0.5), True),
        (["5"] * 9, {"max_tokens": 40, "max_turns": 9}, Episode(value=0.0), True),
        ([("5", 0.5, False, True, {})], {}, Episode(value=0.5), True),
        # Failures.
        ([ValueError("x")], {}, Episode(reason="error"), False),
        ([float("nan")], {}, Episode(reason="error"), False),
        (["x" * 200_000], {}, Episode(reason="error"), False),
        ([["a list"]], {}, Episode(reason="error"), False),
        (["5", float("inf")], {}, Episode(reason="error"), False),
        ([Step(messages=({"role": "user", "content": "5"},))], {}, Episode(reason="error"), False),  # type: ignore[arg-type]
        (["not what can be encoded"], {}, Episode(reason="error"), False),
        ([Step(messages=(("user", "neither"),), restart=True)], {}, Episode(reason="error", num_branches=1), False),
        ([Step(tokens=(5, 63)), 0.5], {"num_tokens": 64}, Episode(value=0.5), False),
        ([Step(tokens=(5, 64))], {"num_tokens": 64}, Episode(reason="error"), False),
        ([Step(tokens=(10**5000,))], {"num_tokens": 64}, Episode(reason="error"), False),
        ([Step(tokens=(-1,))], {}, Episode(reason="error"), False),
        ([Step(done=True, answer=5)], {}, Episode(reason="error"), False),  # type: ignore[arg-type]
        ([Step(messages=(("user", "5"),), tools="{")], {}, Episode(reason="error"), False),
        ([Step(observation="5", num_calls="1")], {}, Episode(reason="error"), False),  # type: ignore[arg-type]
    ],
)
def test_how_conversations_end(returns, rules, expected, truncated):
    engine = scripted(*returns, **rules)
    engine.submit([request(budget=200)])
    (completion,) = drain(engine)
    assert completion.episode is not None
    assert dataclasses.asdict(completion.episode) == pytest.approx(dataclasses.asdict(expected))
    assert completion.truncated == truncated
    assert engine.first_errors.keys() == ({"own"} if expected.reason == "error" else set())


@pytest.mark.parametrize("field, value", [("observation", 5), ("num_calls", -1), ("tools", "{")])
def test_wrong_field_of_a_step_is_named_in_one_line(field, value):
    with pytest.raises(ValueError, match=rf"\b{field} = {value!r}: ") as raised:
        read_step(Step(**{field: value}))
    assert "\n" not in str(raised.value)


def test_lone_surrogates_become_escapes():
    step = read_step(Step(observation="é\ud800", messages=(("user", "\udfff"),), answer="\ud800", done=True))
    assert (step.observation, step.messages, step.answer) == ("é\\ud800", (("user", "\\udfff"),), "\\ud800")

    class Opening:
        def reset(self) -> str:
            return "\ud800"

    assert Session(Opening, {})((request().problem, 0)) == {"step": Step(observation="\\ud800")}


def test_errors_of_environments_hide_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SEARCH_API_KEY", "a-long-secret")
    engine = scripted(ValueError("refused: a-long-secret"))
    engine.submit([request(budget=200)])
    drain(engine)
    assert engine.first_errors == {"own": "ValueError: refused: (hidden)"}


def test_a_cut_turn_is_not_carried_out():
    engine = scripted(AssertionError("a cut turn was carried out"))
    engine.submit([request(budget=1, seed=seed) for seed in range(1, 2)])
    (completion,) = drain(engine)
    assert completion.truncated
    assert completion.episode == Episode(value=0.0)
    assert not engine.first_errors


def test_context_bounds_the_whole_conversation():
    engine = turns_engine({"own": playing(Echo, {"turns": 90}, max_turns=99)}, context=60)
    engine.submit([request(number, budget=30) for number in range(12)])
    for completion in drain(engine):
        assert completion.truncated
        assert len(completion.request.prompt_tokens) + len(completion) <= 60


def test_an_opening_without_room_costs_one_verdict():
    engine = turns_engine({"own": playing(Counting)}, context=4)
    engine.submit([request(budget=1)])
    (completion,) = drain(engine)
    assert completion.episode == Episode(reason="error")
    assert completion.num_trained_tokens == 0
    assert "no room" in engine.first_errors["own"]


def test_hint_is_not_read_with_the_prompt_of_an_environment():
    """The policy as its own teacher would read another conversation than the one that was held."""
    for start, expected in ((Echo, set()), (Counting, {"error"})):
        engine = turns_engine({"own": playing(start)})
        engine.submit([request(number, hint_tokens=(5, 6)) for number in range(4)])
        reasons = {completion.episode and completion.episode.reason for completion in drain(engine)}
        assert reasons == (expected or {None})
        assert ("hint" in engine.first_errors.get("own", "")) == bool(expected)


@pytest.mark.parametrize(
    ("plan", "room", "expected"),
    [
        ((None, 10), 10, (None, 10)),
        ((None, 10), 4, (None, 4)),
        ((8, 4), 12, (8, 4)),
        ((8, 4), 10, (6, 4)),
        ((8, 4), 4, (0, 4)),
        ((8, 4), 3, (None, 3)),
    ],
)
def test_plans_shrink_to_the_room_that_is_left(plan, room, expected):
    made = fit_plan(LengthPlan(thinking_budget=plan[0], marker=(1,), answer_budget=plan[1]), room)
    assert (made.thinking_budget, made.answer_budget) == expected


def test_interruptions_of_turns_are_markers_and_not_observations():
    engine = turns_engine({"own": playing(Echo, {"turns": 2})})
    plan = LengthPlan(thinking_budget=2, thinking_end=(63, 63), marker=(62, 63), answer_budget=60)
    engine.submit([replace(request(number), length=plan) for number in range(12)])
    interrupted = [each for each in drain(engine) if each.interrupted_at is not None]
    assert interrupted
    for completion in interrupted:
        at = completion.interrupted_at
        assert at is not None
        assert completion.tokens[at : at + 2].tolist() == [62, 63]
        assert any(start <= at < end for start, end in completion.turns)


def test_follow_up_turns_come_before_new_conversations():
    inner = FakeEngine(slots=4, stop_tokens=STOPS, polls=lambda _: 1)
    engine = turns_engine({"own": playing(Echo, {"turns": 3})}, slots=4, inner=inner)
    engine.submit([request(number, budget=200) for number in range(12)])
    drain(engine)
    order = [each.group for each in inner.submitted]
    assert order[:4] * 3 + order[12:16] * 3 + order[24:28] * 3 == order


def test_seconds_of_steps_are_their_own():
    now = 0.0

    class Timed(Echo):
        def step(self, text: str) -> str | float:
            nonlocal now
            now += 1.0
            return super().step(text)

    class Sampling(FakeEngine):
        def poll(self) -> list[Completion]:
            nonlocal now
            now += 100.0
            return super().poll()

    inner = Sampling(slots=4, stop_tokens=STOPS, polls=lambda _: 1)
    environments = {"own": playing(Timed, {"turns": 3})}
    engine = TurnsEngine(inner, environments, decode=decode, context=400, slots=4, clock=lambda: now)
    engine.submit([request(number, budget=200) for number in range(12)])
    drain(engine)
    assert (engine.tool_s, engine.waited_s) == (36.0, 36.0)


def test_function_that_starts_nothing_is_named():
    engine = turns_engine({"own": playing(lambda problem, seed: None)})
    engine.submit([request()])
    (completion,) = drain(engine)
    assert completion.episode == Episode(reason="error")
    assert "must return an object with step(text)" in engine.first_errors["own"]


class Stuck(InProcess):
    """Steps that never come back, but for the start of a conversation."""

    def tell(self, key, message) -> None:
        if key not in self.conversations:
            super().tell(key, message)


def test_conversations_that_wait_for_steps_are_bounded():
    stuck = playing(Echo, where=Stuck)
    engine = turns_engine({"own": stuck}, slots=4)
    engine.submit([request(number, budget=200) for number in range(40)])
    for _ in range(400):
        engine.poll()
    assert len(stuck.steps.conversations) == 8  # type: ignore[union-attr]
    assert engine.num_pending == 40


def pipeline_over(engine, max_lag: int, curriculum, **changes) -> Pipeline:
    def requests(issued):
        return [replace(each, environment="own", length=LengthPlan(answer_budget=60)) for each in make_requests(issued)]

    return Pipeline(
        engine=engine,
        curriculum=curriculum,
        learner=changes.pop("learner", None) or CountingLearner(),
        make_requests=requests,
        grading=AtOnce(grade),
        groups_per_batch=3,
        max_lag=max_lag,
        waits_for="groups",
        **changes,
    )


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 4), st.integers(0, 2**16), st.sampled_from([2, 8, 64]))
def test_lag_stays_within_its_bound_over_random_step_times(max_lag, seed, slots):
    inner = FakeEngine(slots=slots, stop_tokens=STOPS, seed=seed)
    engine = turns_engine({"own": playing(Echo, where=Slow)}, slots=slots, inner=inner)
    curriculum = Curriculum([f"p{number}" for number in range(20)], seed=seed, left_out=uniform)
    trained = []
    for done in itertools.islice(pipeline_over(engine, max_lag, curriculum).steps(), 12):
        for group in done.batch.groups:
            trained.append(group.key)
            oldest = min(int(completion.versions.min()) for completion in group.completions)
            assert 0 <= done.batch.version - oldest <= max_lag
            assert len(group.completions) == NUM_COMPLETIONS
    assert len(trained) == len(set(trained)) == 36


def test_resumed_pipeline_plays_conversations_again_alike(tmp_path):
    ids = [f"p{number}" for number in range(12)]

    def played(stop_at: int | None) -> dict[str, list[list[int]]]:
        engine = turns_engine({"own": playing(Echo)})
        curriculum = Curriculum(ids, seed=1, left_out=uniform)
        pipeline = pipeline_over(engine, 2, curriculum)
        seen = {}
        for done in itertools.islice(pipeline.steps(), stop_at):
            seen |= {group.key: [c.tokens.tolist() for c in group.completions] for group in done.batch.groups}
        if stop_at is None or stop_at == 6:
            return seen
        state = pipeline.state()
        assert state.groups
        assert unpack_groups(*pack_groups(state.groups)) == tuple(state.groups)
        again = turns_engine({"own": playing(Echo)})
        restored = Curriculum.restore(state.meta["curriculum"], ids, left_out=uniform)
        resumed = pipeline_over(again, 2, restored, state=state, learner=CountingLearner(stop_at))
        for done in itertools.islice(resumed.steps(), 6 - stop_at):
            seen |= {group.key: [c.tokens.tolist() for c in group.completions] for group in done.batch.groups}
        return seen

    whole, parts = played(6), played(3)
    for key in whole.keys() & parts.keys():
        assert whole[key] == parts[key]
    assert len(parts) == 18


def test_pause_puts_conversations_aside():
    expected = turns_engine({"own": playing(Echo)})
    expected.submit([request(number) for number in range(10)])
    undisturbed = by_key(drain(expected))
    engine = turns_engine({"own": playing(Echo, where=Slow)})
    engine.submit([request(number) for number in range(10)])
    completions = [completion for _ in range(6) for completion in engine.poll()]
    num_pending = engine.num_pending
    with engine.paused():
        assert engine.num_pending == 0
        engine.submit([request(number + 50) for number in range(6)])
        inside = drain(engine)
        engine.submit([request(number + 50) for number in range(6)])
        engine.poll()
    assert len(inside) == 6
    assert engine.num_pending == num_pending
    completions += drain(engine)
    assert {c.request.key: c.tokens.tolist() for c in completions} == {
        key: completion.tokens.tolist() for key, completion in undisturbed.items()
    }


def test_unknown_environment_is_refused_and_nothing_queued():
    engine = turns_engine({})
    with pytest.raises(ValueError, match='there is no environment "own"'):
        engine.submit([request(environment=""), request()])
    assert engine.num_pending == 0
