"""Corrections against slow loops over completions, and the gradients of losses behind them."""

import dataclasses
import math

import pytest
import torch
from loss_inputs import some_tokens

from scalerl.training.rl.correction import CORRECTIONS, band, none, sequence_mask, sequence_truncate
from scalerl.training.rl.losses import LOSSES, cispo
from scalerl.training.rl.objective import Objective

CASES = [
    ("band", {}),
    ("band", {"low": 0.8, "high": 1.2}),
    ("band", {"low": 0.0, "high": 1.1}),
    ("sequence_truncate", {}),
    ("sequence_truncate", {"cap": 0.9}),
    ("sequence_truncate", {"cap": 1.05, "length_normalised": True}),
    ("sequence_mask", {}),
    ("sequence_mask", {"low": 0.5, "high": 1.1}),
    ("sequence_mask", {"low": 0.9, "high": 1.1, "length_normalised": True}),
]


def slow_ratio(tokens, t: int, *, of_completion: bool, length_normalised: bool) -> float:
    """Return the ratio of a token, or of its completion, in Python floats."""
    owner = tokens.completion_of_token.tolist()
    members = [u for u in range(len(owner)) if owner[u] == owner[t] and tokens.trained[u]] if of_completion else [t]
    logs = [(tokens.log_probs[u] - tokens.generator_log_probs[u]).item() for u in members]
    return math.exp(sum(logs) / (len(logs) if length_normalised else 1))


def slow(name, tokens, settings) -> list[tuple[float, bool]]:
    """Return for each token the weight that CISPO without a cap gives its gradient, and whether it was changed."""
    rows = []
    for t in range(len(tokens.trained)):
        if not tokens.trained[t]:
            rows.append((0.0, False))
            continue
        normalised = settings.get("length_normalised", False)
        ratio = slow_ratio(tokens, t, of_completion=name != "band", length_normalised=normalised)
        if name == "sequence_truncate":
            cap = settings.get("cap", 2.0)
            rows.append((min(ratio, cap), ratio > cap))
            continue
        low, high = {"band": (0.5, 5.0), "sequence_mask": (0.0, 2.0)}[name]
        outside = ratio < settings.get("low", low) or ratio > settings.get("high", high)
        rows.append((0.0 if outside else ratio, outside))
    return rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name, settings", CASES)
def test_gradients_against_a_slow_loop(name, settings, seed):
    tokens = some_tokens(seed)
    tokens = dataclasses.replace(tokens, log_probs=tokens.log_probs.requires_grad_())
    corrected = CORRECTIONS[name](tokens, **settings)
    loss = cispo(corrected.inputs, cap=math.inf).loss
    (gradient,) = torch.autograd.grad(loss.sum(), tokens.log_probs)
    expected = slow(name, tokens, settings)
    weights = torch.tensor([weight for weight, _ in expected], dtype=torch.float64)
    torch.testing.assert_close(gradient, -weights * tokens.advantages, rtol=1e-10, atol=1e-12)
    assert corrected.changed.tolist() == [changed for _, changed in expected]


def test_the_cases_change_something():
    for name, settings in CASES[1:]:
        changed = [CORRECTIONS[name](some_tokens(seed), **settings).changed for seed in range(3)]
        assert any(each.any() for each in changed), (name, settings)
        assert not all(each.all() for each in changed), (name, settings)


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "none"])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_equal_policies_are_left_alone(name, loss):
    """At ratio 1 every correction leaves every loss's gradient as it is."""
    tokens = some_tokens(4)
    log_probs = tokens.log_probs.requires_grad_()
    tokens = dataclasses.replace(tokens, log_probs=log_probs, generator_log_probs=log_probs.detach())
    corrected = CORRECTIONS[name](tokens)
    assert not corrected.changed.any()
    plain, behind = (
        torch.autograd.grad(LOSSES[loss](inputs).loss.sum(), log_probs)[0] for inputs in (tokens, corrected.inputs)
    )
    torch.testing.assert_close(behind, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["band", "sequence_truncate", "sequence_mask"])
def test_overflowing_ratios_have_finite_gradients(name):
    log_probs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    tokens = some_tokens(0, num_completions=1)
    tokens = type(tokens)(
        log_probs=log_probs,
        generator_log_probs=torch.tensor([-1.0, -150.0, -150.0]),
        advantages=torch.ones(3),
        completion_of_token=torch.tensor([0, 1, 1]),
        trained=torch.ones(3, dtype=torch.bool),
    )
    for loss in ("cispo", "dapo", "tis"):
        made = LOSSES[loss](CORRECTIONS[name](tokens).inputs)
        (gradient,) = torch.autograd.grad(made.loss.sum(), log_probs)
        assert gradient.isfinite().all(), loss
        assert gradient[0] == -1.0


def test_junk_of_untrained_tokens_reaches_nothing():
    tokens = some_tokens(6)
    junk = torch.where(tokens.trained, tokens.generator_log_probs, math.nan)
    for correction in (none, band, sequence_truncate, sequence_mask):
        clean = cispo(correction(tokens).inputs).loss
        assert torch.equal(cispo(correction(dataclasses.replace(tokens, generator_log_probs=junk)).inputs).loss, clean)


def test_objective_reports_the_share():
    tokens = dataclasses.replace(some_tokens(1), trained=torch.ones(len(some_tokens(1).trained), dtype=torch.bool))
    num = len(tokens.trained)
    from scalerl.training.rl.algorithm import TokenWeights

    weights = TokenWeights(policy=torch.ones(num, dtype=torch.float64), advantages=tokens.advantages)
    objective = Objective(loss=cispo, correction=lambda inputs: band(inputs, low=0.9, high=1.1))
    value = objective(tokens, weights)
    assert objective.columns == ("loss/corrected_frac",)
    assert value.columns[0].sum() == band(tokens, low=0.9, high=1.1).changed.sum() > 0
