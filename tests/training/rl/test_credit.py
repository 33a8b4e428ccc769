"""Credit: against sums that are written out, and where ways of giving it must agree."""

from typing import Any

import pytest
import torch

from scalerl.training.rl import advantages
from scalerl.training.rl.credit import CREDITS, CreditInputs, Turns, gae, returns, states

TRAINED = torch.tensor([1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
OWNER = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3])
TURNS = Turns(
    of_token=torch.tensor([0, 0, -1, 1, 1, 2, 2, -1, 3, 4, -1, 5]),
    state=torch.tensor([0, 1, 0, 1, 2, 3]),
)
"""Completions 0 and 1 have two turns each, which begin at the same two states; 2 and 3 have one each."""


def credit_inputs(**changes: Any) -> CreditInputs:
    fields: dict[str, Any] = {
        "value": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "rewards": torch.tensor([1.0, -1.0, 1.0, -1.0]),
        "advantages": torch.tensor([1.0, -1.0, 0.5, -0.5]),
        "group": torch.tensor([0, 0, 1, 1]),
        "completion_of_token": OWNER,
        "trained": TRAINED,
        "turns": TURNS,
        "critic": torch.linspace(-0.8, 0.9, len(OWNER)),
    }
    return CreditInputs(**fields | changes)


def slow_gae(rewards: float, values: list[float], gamma: float, lam: float) -> list[float]:
    """The sum as it is printed."""
    num = len(values)
    errors = [(gamma * values[s + 1] if s + 1 < num else rewards) - values[s] for s in range(num)]
    return [sum((gamma * lam) ** k * errors[s + k] for k in range(num - s)) for s in range(num)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.97, 0.0)])
def test_gae_by_tokens_is_the_printed_sum(gamma, lam):
    inputs: Any = credit_inputs()
    given = gae(inputs, gamma=gamma, lam=lam)
    assert torch.equal(given[~TRAINED], torch.zeros(3))
    for number in range(4):
        mine = TRAINED & (number == OWNER)
        expected = slow_gae(float(inputs.rewards[number]), inputs.critic[mine].tolist(), gamma, lam)
        torch.testing.assert_close(given[mine], torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_gae_by_turns_has_the_value_before_each_turn():
    inputs: Any = credit_inputs()
    given = gae(inputs, gamma=0.9, lam=0.5, level="turn")
    for number, firsts in enumerate([[0, 3], [5, 8], [9], [11]]):
        expected = slow_gae(float(inputs.rewards[number]), inputs.critic[firsts].tolist(), 0.9, 0.5)
        for first, advantage in zip(firsts, expected, strict=True):
            turn = TRAINED & (TURNS.of_token == TURNS.of_token[first])
            torch.testing.assert_close(given[turn], torch.full((int(turn.sum()),), advantage))


def test_gae_with_no_discount_is_the_reward_less_the_value():
    inputs: Any = credit_inputs()
    given = gae(inputs, gamma=1.0, lam=1.0)
    expected = (inputs.rewards[OWNER] - inputs.critic)[TRAINED]
    torch.testing.assert_close(given[TRAINED], expected, rtol=1e-5, atol=1e-6)


def test_gae_is_normalised_over_trained_tokens():
    given = gae(credit_inputs(normalise=advantages.batch))[TRAINED]
    assert given.std(correction=0) == pytest.approx(1.0, rel=1e-5)


def test_turns_are_compared_where_they_begin_alike():
    inputs: Any = credit_inputs()
    # At state 0 the first turns, worth 0.9 and 0; at state 1 the last ones, worth 1 and 0; the others are alone.
    at_state = torch.tensor([0.45, 0.5, -0.45, -0.5, 0.0, 0.0])
    given = states(inputs, gamma=0.9, weight=2.0)
    expected = inputs.advantages[OWNER] + 2.0 * at_state[TURNS.of_token]
    torch.testing.assert_close(given[TRAINED], expected[TRAINED])


def test_equal_returns_at_a_state_add_exactly_nothing():
    values = torch.full((4,), 0.1)
    inputs: Any = credit_inputs(value=values, normalise=advantages.batch)
    given = states(inputs, gamma=1.0)
    assert torch.equal(given[TRAINED], inputs.advantages[OWNER][TRAINED])


def test_single_turns_have_the_credit_of_completions():
    inputs = credit_inputs(turns=None)
    assert torch.equal(states(inputs), CREDITS["completion"](inputs))


@pytest.mark.parametrize("level", ["token", "turn"])
def test_returns_are_discounted_rewards(level):
    given = returns(credit_inputs(), gamma=0.5, level=level)[TRAINED]
    left = {"token": [3, 2, 1, 0, 2, 1, 0, 0, 0], "turn": [1, 1, 0, 0, 1, 1, 0, 0, 0]}[level]
    reward = torch.tensor([1.0, 1, 1, 1, -1, -1, -1, 1, -1])
    torch.testing.assert_close(given, reward * 0.5 ** torch.tensor(left))


def test_nothing_trained_gives_nothing():
    nothing = torch.zeros_like(TRAINED)
    for function in (gae, states, returns):
        given = function(credit_inputs(trained=nothing, advantages=torch.zeros(4)))
        assert torch.equal(given, torch.zeros(len(OWNER)))
