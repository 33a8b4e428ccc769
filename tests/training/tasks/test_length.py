from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalerl.errors import RecipeError
from scalerl.training.tasks.length import interruption, penalty, unlimited


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def control(thinking_min: int, thinking_max: int, answer_budget: int = 20):
    return interruption(
        encode,
        "</t>",
        thinking_min=thinking_min,
        thinking_max=thinking_max,
        marker="stop</t>",
        answer_budget=answer_budget,
    )


@given(seed=st.integers(0, 2**63 - 1), thinking_min=st.integers(1, 50), span=st.integers(0, 50))
def test_thinking_budget_lies_in_its_range_and_follows_the_seed(seed, thinking_min, span):
    lengths = control(thinking_min, thinking_min + span)
    plan = lengths.plan(seed)
    assert plan.thinking_budget is not None
    assert thinking_min <= plan.thinking_budget <= thinking_min + span
    assert plan == control(thinking_min, thinking_min + span).plan(seed)
    assert plan.max_tokens <= lengths.max_tokens == thinking_min + span + 20
    assert (plan.marker, plan.thinking_end) == (tuple(encode("stop</t>")), tuple(encode("</t>")))


def test_thinking_budget_is_uniform_with_both_ends():
    drawn = Counter(control(3, 6).plan(seed).thinking_budget for seed in range(4000))
    assert sorted(budget for budget in drawn if budget) == [3, 4, 5, 6]
    # Five standard deviations of a binomial(4000, 1/4).
    assert all(abs(count - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5 for count in drawn.values())


@given(st.integers(0, 200), st.integers(1, 100), st.integers(1, 100))
@example(num_tokens=13312, max_length=14336, cache=2048)  # a reward lower by a half
def test_penalty_of_long_correct_answers_is_the_formula(num_tokens, max_length, cache):
    raw = (max_length - num_tokens) / cache - 1
    expected = -1.0 if raw < -1 else 0.0 if raw > 0 else raw
    lengths = penalty(encode, "</t>", max_length=max_length, cache=cache)
    assert (lengths.adjust(num_tokens, True), lengths.adjust(num_tokens, False)) == (expected, 0.0)


def test_without_interruption_the_plan_is_one_limit():
    for lengths in (penalty(encode, "</t>", max_length=9, cache=3), unlimited(encode, "</t>", max_length=9)):
        plan = lengths.plan(1)
        assert (plan.thinking_budget, plan.marker, plan.max_tokens, lengths.max_tokens) == (None, (), 9, 9)
    # Only a penalty adjusts.
    assert unlimited(encode, "</t>", max_length=9).adjust(10**6, True) == control(3, 6).adjust(10**6, True) == 0.0


@pytest.mark.parametrize("marker, thinking_end", [("Stop.", "</t>"), ("stop</t>", "")])
def test_a_marker_must_end_thinking_and_be_short(marker, thinking_end):
    with pytest.raises(RecipeError, match=r"length.marker is .* but must hold the text that ends thinking"):
        interruption(encode, thinking_end, thinking_min=3, thinking_max=6, marker=marker, answer_budget=20)
    with pytest.raises(ValueError, match=r"length.answer_budget is 8, but the marker alone takes 8 tokens"):
        control(3, 6, answer_budget=8)
