"""Corrections against slow loops over completions, and the gradients of losses behind them."""

import dataclasses
import functools
import math

import pytest
import torch
from loss_inputs import some_tokens

from scalerl.training.rl.algorithm import TokenWeights
from scalerl.training.rl.correction import CORRECTIONS, band, sequence_truncate
from scalerl.training.rl.filters import EffectiveBatch
from scalerl.training.rl.losses import LOSSES, LossInputs, cispo, dapo, gspo, tis
from scalerl.training.rl.metrics import step_metrics, token_sums
from scalerl.training.rl.objective import Objective

NO_BATCH = EffectiveBatch(
    kept=torch.zeros(0, dtype=torch.bool),
    advantages=torch.zeros(0),
    num_completions=0,
    num_truncated=0,
    num_no_verdict=0,
    num_groups=0,
    num_zero_variance=0,
    num_kept=0,
    num_kept_groups=0,
)
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


def gradient_behind(name, tokens, settings, loss) -> torch.Tensor:
    """Return the gradient of the sum of a loss's token losses after a correction."""
    tokens = dataclasses.replace(tokens, log_probs=tokens.log_probs.detach().requires_grad_())
    objective = Objective(loss=loss, correction=functools.partial(CORRECTIONS[name], **settings))
    num = len(tokens.trained)
    weights = TokenWeights(policy=torch.ones(num, dtype=tokens.log_probs.dtype), advantages=tokens.advantages)
    (gradient,) = torch.autograd.grad(objective(tokens, weights).total, tokens.log_probs)
    return gradient


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name, settings", CASES)
def test_gradients_against_a_slow_loop(name, settings, seed):
    tokens = some_tokens(seed)
    gradient = gradient_behind(name, tokens, settings, functools.partial(cispo, cap=math.inf))
    expected = slow(name, tokens, settings)
    weights = torch.tensor([weight for weight, _ in expected], dtype=torch.float64)
    torch.testing.assert_close(gradient, -weights * tokens.advantages, rtol=1e-10, atol=1e-12)
    assert CORRECTIONS[name](tokens, **settings).changed.tolist() == [changed for _, changed in expected]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("loss", [cispo, dapo, gspo, tis])
def test_truncated_weights_stand_outside_the_clip(loss, name, seed):
    """As TRL and verl multiply the loss: its clip sees the same ratio as without, and where it does not act the weight
    of the gradient is that of the completion."""
    tokens = some_tokens(seed, spread=0.3)
    plain = loss(tokens)
    gradient = gradient_behind(name, tokens, {"high" if name == "sequence_mask" else "cap": 1.1}, loss)
    expected = torch.zeros_like(gradient)
    for t in range(len(tokens.trained)):
        has_gradient = loss is cispo or not plain.clipped[t]
        if tokens.trained[t] and has_gradient:
            ratio = slow_ratio(tokens, t, of_completion=True, length_normalised=False)
            weight = min(ratio, 1.1) if name == "sequence_truncate" else ratio * (ratio <= 1.1)
            expected[t] = -weight * tokens.advantages[t]
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    assert loss in (cispo, tis) or plain.clipped.any()


def test_clip_sees_the_ratio_of_the_loss():
    """Long completions of small ratios, whose product is far from 1."""
    rng = torch.Generator().manual_seed(0)
    num, length = 40, 1000
    owner = torch.arange(num).repeat_interleave(length)
    generator = -torch.rand(num * length, generator=rng, dtype=torch.float64) - 0.1
    drift = 5e-4 + 1e-3 * torch.randn(num, generator=rng, dtype=torch.float64)
    tokens = LossInputs(
        log_probs=generator + drift[owner],
        generator_log_probs=generator,
        advantages=torch.where(owner % 2 == 0, 1.0, -1.0).double(),
        completion_of_token=owner,
        trained=torch.ones(num * length, dtype=torch.bool),
    )
    weights = TokenWeights(policy=torch.ones(num * length, dtype=torch.float64), advantages=tokens.advantages)
    for loss in (gspo, dapo):
        behind = Objective(loss=loss, correction=sequence_truncate)(tokens, weights).policy
        plain = Objective(loss=loss)(tokens, weights).policy
        assert torch.equal(behind.ratio, plain.ratio)
        assert torch.equal(behind.clipped, plain.clipped)
    assert behind.ratio.max() < 1.01


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
    assert not CORRECTIONS[name](tokens).changed.any()
    plain = gradient_behind("none", tokens, {}, LOSSES[loss])
    torch.testing.assert_close(gradient_behind(name, tokens, {}, LOSSES[loss]), plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", ["band", "sequence_truncate", "sequence_mask"])
def test_overflowing_ratios_have_finite_gradients(name, advantage):
    tokens = LossInputs(
        log_probs=torch.tensor([-1.0, -1.0, -1.0]),
        generator_log_probs=torch.tensor([-1.0, -150.0, -150.0]),
        advantages=torch.full((3,), advantage),
        completion_of_token=torch.tensor([0, 1, 1]),
        trained=torch.ones(3, dtype=torch.bool),
    )
    for loss in (cispo, dapo, tis, gspo):
        gradient = gradient_behind(name, tokens, {}, loss)
        assert gradient.isfinite().all(), loss
        assert gradient[0] == -advantage


def test_junk_of_untrained_tokens_reaches_nothing():
    tokens = some_tokens(6)
    junk = torch.where(tokens.trained, tokens.generator_log_probs, math.nan)
    for name in CORRECTIONS:
        clean = gradient_behind(name, tokens, {}, cispo)
        assert torch.equal(
            gradient_behind(name, dataclasses.replace(tokens, generator_log_probs=junk), {}, cispo), clean
        )


def test_objective_reports_the_share():
    tokens = dataclasses.replace(some_tokens(1), trained=torch.ones(len(some_tokens(1).trained), dtype=torch.bool))
    num = len(tokens.trained)
    weights = TokenWeights(policy=torch.ones(num, dtype=torch.float64), advantages=tokens.advantages)
    objective = Objective(loss=cispo, correction=lambda inputs: band(inputs, low=0.9, high=1.1))
    value = objective(tokens, weights)
    assert objective.columns == ("loss/corrected_frac",)
    assert value.columns[0].sum() == band(tokens, low=0.9, high=1.1).changed.sum() > 0
    plain = Objective(loss=cispo)(tokens, weights)
    assert plain.columns[0].sum() == 0


@pytest.mark.parametrize("name", ["cispo", "dapo", "gspo", "tis", "none"])
def test_metrics_of_the_loss_are_over_tokens_that_it_trains_on(name):
    tokens = some_tokens(1, num_completions=40, spread=2.0)
    tokens = dataclasses.replace(tokens, trained=torch.ones_like(tokens.trained))
    kept = ~band(tokens, low=0.95, high=1.05).changed
    assert 0 < kept.sum() < 0.1 * len(kept)
    weights = TokenWeights(policy=torch.ones(len(kept), dtype=torch.float64), advantages=tokens.advantages)
    objective = Objective(loss=LOSSES[name], correction=functools.partial(band, low=0.95, high=1.05))
    value = objective(tokens, weights)
    sums, largest = token_sums(value.policy, tokens, torch.zeros(len(kept)), value.columns, in_loss=value.in_loss)
    row = step_metrics(
        sums.tolist(),
        float(largest),
        NO_BATCH,
        lag=torch.zeros(0, dtype=torch.long),
        num_nonfinite=0,
        columns=objective.columns,
    )
    alone = LOSSES[name](dataclasses.replace(tokens, trained=kept))
    assert row["loss/ratio_mean"] == pytest.approx(float(alone.ratio[kept].mean()))
    assert row["loss/ratio_max"] == pytest.approx(float(alone.ratio[kept].max()))
    assert row["loss/clip_frac"] == pytest.approx(float(alone.clipped[kept].double().mean()))
    assert row["loss/corrected_frac"] == pytest.approx(float((~kept).double().mean()))
