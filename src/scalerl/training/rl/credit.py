"""Credit: the advantage of each token, if a completion has a single reward.

    completion   every token has the advantage of its completion: ScaleRL's choice
    gae          the return after a token, or a turn, is compared with the critic's value (PPO)
    states       turns are also compared with other turns that began in the same state of an environment (GiGPO)

A function of `CreditInputs`; its keyword-only arguments are its settings. The reward comes after the last step of a
completion, where a step is a trained token or a turn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scalerl.training.rl.segments import dense_index, segment_count, segment_sum

Level = Literal["token", "turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The turns of the conversations of a batch, numbered in order."""

    of_token: Int[Tensor, " tokens"]
    """Turn of each token; -1 for tokens of the environment."""
    state: Int[Tensor, " turns"]
    """Number of the text that the model had just read; equal for equal texts in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditInputs:
    """The inputs of credit. Only kept completions have trained tokens."""

    value: Float[Tensor, " completions"]
    """The value of each completion, from 0 to 1."""
    rewards: Float[Tensor, " completions"]
    advantages: Float[Tensor, " completions"]
    """Normalised advantages over the group."""
    group: Int[Tensor, " completions"]
    completion_of_token: Int[Tensor, " tokens"]
    trained: Bool[Tensor, " tokens"]
    turns: Turns | None = None
    """The turns of conversations; None if every completion is a single turn."""
    critic: Float[Tensor, " tokens"] | None = None
    """The critic's value before each trained token; None without a critic."""
    normalise: Callable[[Tensor, Tensor], Tensor] = lambda advantages, group: advantages
    """A function of training/rl/advantages.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The steps of all completions, in order."""

    of_trained: Int[Tensor, " trained"]
    completion: Int[Tensor, " steps"]
    first: Int[Tensor, " steps"]
    """Index of the first trained token of each step, among all tokens."""

    @property
    def left(self) -> Int[Tensor, " steps"]:
        """Number of later steps in the same completion."""
        index, num = dense_index(self.completion)
        last = torch.zeros(num, dtype=torch.long).index_add(0, index, torch.ones_like(index)).cumsum(0) - 1
        return last[index] - torch.arange(len(index))


def completion(inputs: CreditInputs) -> Float[Tensor, " tokens"]:
    """Every token has the advantage of its completion.   A_t = A   (ScaleRL, GRPO)"""
    return inputs.advantages.index_select(0, inputs.completion_of_token)


def gae(
    inputs: CreditInputs, *, gamma: float = 1.0, lam: float = 0.95, level: Level = "token"
) -> Float[Tensor, " tokens"]:
    """Generalised advantage estimation.

    A_s = sum over k >= 0 of (gamma lam)^k d_(s+k),   d_s = gamma V_(s+1) - V_s, and r - V_s at the last step
    (Schulman et al. 2016; PPO, Schulman et al. 2017)   V_s is the critic's value before the first token of step s.
    With level="turn", all tokens of a turn have its advantage. Advantages are normalised over the trained tokens.
    """
    assert inputs.critic is not None, "checked by the recipe"
    steps = _steps(inputs, level)
    before = inputs.critic.index_select(0, steps.first)
    by_step = _estimate(before, inputs.rewards.index_select(0, steps.completion), steps.left, gamma, lam)
    group_of_trained = inputs.group.index_select(0, inputs.completion_of_token)[inputs.trained]
    return _spread(inputs, inputs.normalise(by_step[steps.of_trained], group_of_trained))


def states(inputs: CreditInputs, *, gamma: float = 0.95, weight: float = 1.0) -> Float[Tensor, " tokens"]:
    """Compare turns that began in the same state, in addition to whole conversations.

    A_t = A + weight (R_s - mean of R over the turns of the group at that state),   R_s = gamma^(turns after s) x value
    (GiGPO, Feng et al. 2025, arXiv 2505.10978, with 0.95 and 1)   A turn alone in its state has only the first part.
    The second part is normalised like the first, with states as groups.
    """
    whole = completion(inputs)
    if inputs.turns is None:
        return whole
    steps = _steps(inputs, "turn")
    returns = inputs.value.index_select(0, steps.completion) * gamma**steps.left
    state, num = dense_index(inputs.turns.state.index_select(0, inputs.turns.of_token.index_select(0, steps.first)))
    size = segment_count(torch.ones_like(state, dtype=torch.bool), state, num)
    # Average the differences to one member, so that equal returns give exactly 0.
    member = returns.new_zeros(num).index_copy(0, state.flip(0), returns.flip(0))[state]
    apart = returns - member - (segment_sum(returns - member, state, num) / size)[state]
    normalised = inputs.normalise(apart, state)
    return whole + _spread(inputs, weight * normalised[steps.of_trained])


def returns(inputs: CreditInputs, *, gamma: float = 1.0, level: Level = "token") -> Float[Tensor, " tokens"]:
    """Return the critic's target at each trained token: gamma^(steps after it) x reward.

    This is the whole return, whatever `lam` is: in long completions, values learned from other values do not move away
    from their start (VC-PPO, arXiv 2503.01491).
    """
    steps = _steps(inputs, level)
    by_step = inputs.rewards.index_select(0, steps.completion) * gamma**steps.left
    return _spread(inputs, by_step[steps.of_trained])


def _steps(inputs: CreditInputs, level: Level) -> _Steps:
    trained = torch.nonzero(inputs.trained).squeeze(1)
    owner = inputs.completion_of_token.index_select(0, trained)
    number = torch.arange(len(trained))
    if level == "turn":
        turn = owner if inputs.turns is None else inputs.turns.of_token.index_select(0, trained)
        number, _ = dense_index(turn)
    # Numbers rise with the tokens, so each step begins where the number changes.
    begins = torch.nonzero(torch.cat([number.new_full((1,), -1), number]).diff()).squeeze(1)
    return _Steps(of_trained=number, completion=owner[begins], first=trained[begins])


def _estimate(before: Tensor, rewards: Tensor, left: Tensor, gamma: float, lam: float) -> Tensor:
    """Return A of every step, computed from the last steps of all completions back to the first."""
    last = left == 0
    after = torch.where(last, rewards, gamma * torch.cat([before[1:], before.new_zeros(1)]))
    errors = after - before
    advantages = torch.zeros_like(errors)
    order = torch.argsort(left, stable=True)
    for place in torch.split(order, torch.bincount(left).tolist()):
        following = torch.where(last[place], 0.0, advantages[(place + 1).clamp(max=len(left) - 1)])
        advantages[place] = errors[place] + gamma * lam * following
    return advantages


def _spread(inputs: CreditInputs, values: Tensor) -> Tensor:
    """Return a vector over all tokens with these values at the trained tokens."""
    spread = torch.zeros_like(inputs.advantages.index_select(0, inputs.completion_of_token))
    spread[inputs.trained] = values.to(spread.dtype)
    return spread


CREDITS = {"completion": completion, "gae": gae, "states": states}
