"""Each loss against a slow loop over tokens with its gradient written out by hand, and its closed forms."""

import dataclasses
import functools
import math

import jaxtyping
import pytest
import torch
from loss_inputs import some_tokens

from scalerl.errors import RecipeError
from scalerl.training.rl.losses import LOSSES, LossInputs, check_signature, cispo, dapo

SETTINGS = {
    "cispo": [{}, {"cap": 1.1}],
    "tis": [{}, {"cap": 1.1}],
    "dapo": [{}, {"clip_low": 0.05, "clip_high": 0.02}],
    "gspo": [{}, {"clip_low": 0.1, "clip_high": 0.15}, {"length_normalised": False, "clip_low": 0.3, "clip_high": 0.5}],
}
TRAINING = [name for name in LOSSES if name != "none"]
CASES = [(name, settings) for name, all_settings in SETTINGS.items() for settings in all_settings]


def slow_token(name, ratio, advantage, log_prob, settings):
    """Value of one token's loss and its derivative with respect to log(ratio) (CISPO: to the log-prob)."""
    if name == "cispo":
        weight = min(ratio, settings.get("cap", 5.0))
        return -weight * advantage * log_prob, -weight * advantage
    if name == "tis":
        cap = settings.get("cap", 2.0)
        return -min(ratio, cap) * advantage, -ratio * advantage if ratio <= cap else 0.0
    low, high = {"dapo": (0.2, 0.26), "gspo": (3e-3, 4e-3)}[name]
    low, high = settings.get("clip_low", low), settings.get("clip_high", high)
    plain = ratio * advantage
    clipped = min(max(ratio, 1 - low), 1 + high) * advantage
    return -min(plain, clipped), -plain if plain <= clipped else 0.0


def slow(name, tokens, settings):
    """Losses, and the gradient of their sum, one token after another in Python floats."""
    log_probs, generator, advantages, completion, trained = (
        getattr(tokens, field.name).tolist() for field in dataclasses.fields(tokens)
    )
    losses, gradient = [0.0] * len(log_probs), [0.0] * len(log_probs)
    for t in range(len(log_probs)):
        if not trained[t]:
            continue
        members = [u for u in range(len(log_probs)) if completion[u] == completion[t] and trained[u]]
        if name != "gspo":
            members = [t]
        share = 1 / len(members) if settings.get("length_normalised", True) else 1.0
        log_ratio = share * sum(log_probs[u] - generator[u] for u in members)
        losses[t], slope = slow_token(name, math.exp(log_ratio), advantages[t], log_probs[t], settings)
        for u in members:
            gradient[u] += share * slope
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(gradient, dtype=torch.float64)


def gradient_of(loss, tokens, weights=None, **settings):
    log_probs = tokens.log_probs.clone().requires_grad_()
    value = loss(dataclasses.replace(tokens, log_probs=log_probs), **settings).loss
    (gradient,) = torch.autograd.grad((value if weights is None else weights * value).sum(), log_probs)
    return gradient


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name, settings", CASES)
def test_against_a_slow_loop(name, settings, seed):
    tokens = some_tokens(seed)
    values, gradient = slow(name, tokens, settings)
    result = LOSSES[name](tokens, **settings)
    torch.testing.assert_close(result.loss, values, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient_of(LOSSES[name], tokens, **settings), gradient, rtol=1e-10, atol=1e-10)
    assert not result.ratio.requires_grad


def test_the_cases_reach_every_clip():
    tokens = some_tokens(0)
    for name, settings in CASES:
        clipped = LOSSES[name](tokens, **settings).clipped
        assert clipped.any() or not settings, (name, settings)
        assert not clipped[~tokens.trained].any()


def at_ratio_one(tokens):
    return dataclasses.replace(tokens, generator_log_probs=tokens.log_probs)


@pytest.mark.parametrize("name", TRAINING)
def test_at_ratio_one_every_gradient_is_reinforce(name):
    tokens = at_ratio_one(some_tokens(1))
    weights = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))[tokens.completion_of_token]
    expected = torch.where(tokens.trained, -weights * tokens.advantages, 0.0)
    torch.testing.assert_close(gradient_of(LOSSES[name], tokens, weights), expected, rtol=1e-12, atol=1e-12)
    # A ratio that is equal to its bound is not clipped.
    tightest = {"cap": 1.0} if name in ("cispo", "tis") else {"clip_low": 0.0, "clip_high": 0.0}
    assert not LOSSES[name](tokens, **tightest).clipped.any()
    gradient = gradient_of(LOSSES[name], tokens, weights, **tightest)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
    # No gradient flows through the generator's log-probs, also if they are the same tensor.
    log_probs = tokens.log_probs.clone().requires_grad_()
    on_policy = dataclasses.replace(tokens, log_probs=log_probs, generator_log_probs=log_probs)
    (gradient,) = torch.autograd.grad((weights * LOSSES[name](on_policy).loss).sum(), log_probs)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def one_token(ratio: float, advantage: float, log_prob: float = -1.0):
    log_probs = torch.tensor([log_prob], dtype=torch.float64)
    values = torch.tensor([advantage], dtype=torch.float64)
    return LossInputs(
        log_probs=log_probs,
        generator_log_probs=log_probs - math.log(ratio),
        advantages=values,
        completion_of_token=torch.tensor([0]),
        trained=torch.tensor([True]),
    )


def test_the_cispo_cap_is_absolute():
    # ratio 5.5, A = 2, log pi = -1: the weight is 5, the loss 5 * 2 * 1 = 10. A cap of 1 + 5 would give 11.
    result = cispo(one_token(5.5, 2.0), cap=5.0)
    assert result.loss.item() == pytest.approx(10.0, abs=1e-12)
    assert result.clipped.item()
    assert not cispo(one_token(4.9, 2.0), cap=5.0).clipped.item()
    # No lower cap: a small ratio weighs what it is.
    assert cispo(one_token(0.01, 2.0)).loss.item() == pytest.approx(0.02, abs=1e-12)


def test_dapo_clips_only_where_it_would_push_further():
    for ratio, advantage, clipped in [(1.3, 1.0, True), (1.3, -1.0, False), (0.7, 1.0, False), (0.7, -1.0, True)]:
        assert dapo(one_token(ratio, advantage)).clipped.item() is clipped, (ratio, advantage)
    assert dapo(one_token(1.25, 1.0)).clipped.item() is False  # inside 1.26: asymmetric
    # An advantage of 0 pushes nowhere, so no clip acts on it.
    for ratio in (1.3, 0.7):
        assert dapo(one_token(ratio, 0.0)).clipped.item() is False


@pytest.mark.parametrize("name", TRAINING)
def test_masked_tokens_do_not_affect_the_loss(name):
    tokens = some_tokens(6)
    trained = tokens.trained
    clean = LOSSES[name](tokens)
    for junk in (math.nan, math.inf, -math.inf):
        tokens = dataclasses.replace(
            tokens,
            generator_log_probs=torch.where(trained, tokens.generator_log_probs, junk),
            advantages=torch.where(trained, tokens.advantages, junk),
        )
        assert torch.equal(LOSSES[name](tokens).loss, clean.loss)
        gradient = gradient_of(LOSSES[name], tokens)
        assert gradient.isfinite().all()
        assert (gradient[~trained] == 0).all()


@pytest.mark.parametrize("name", TRAINING)
def test_clipped_overflowing_ratio_has_a_finite_gradient(name):
    tokens = one_token(2.0, 1.0)
    log_probs = tokens.log_probs.float()
    tokens = dataclasses.replace(
        tokens, log_probs=log_probs, generator_log_probs=log_probs - 200, advantages=torch.ones(1)
    )
    result = LOSSES[name](tokens)
    assert result.ratio.isinf().all()
    assert result.loss.isfinite().all()
    assert gradient_of(LOSSES[name], tokens).isfinite().all()


def test_empty_batch():
    tokens = some_tokens(0)
    tokens = LossInputs(**{field.name: getattr(tokens, field.name)[:0] for field in dataclasses.fields(tokens)})
    for name in TRAINING:
        assert gradient_of(LOSSES[name], tokens).shape == (0,)


def test_none_trains_nothing_and_has_the_ratio():
    tokens = some_tokens(3)
    result, other = LOSSES["none"](tokens), cispo(tokens)
    assert not result.loss.any()
    assert not result.clipped.any()
    assert torch.equal(result.ratio, other.ratio)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shapes are not checked where parts are compiled: conftest.py")
def test_shapes_are_checked():
    """If this fails, training.rl was imported before the hook of conftest.py: no shape of any test here is checked."""
    tokens = some_tokens(7)
    with pytest.raises(jaxtyping.TypeCheckError):
        dataclasses.replace(tokens, generator_log_probs=tokens.generator_log_probs[:-1])


def test_wrong_signature_is_one_clear_sentence():
    def old(log_probs, generator_log_probs, advantages, completion_of_token, trained, *, cap=5.0): ...

    with pytest.raises(
        RecipeError, match=r'"mine:old" takes \(log_probs, .*\) but must take one positional .* LossInputs'
    ):
        check_signature(old, "mine:old")  # pyright: ignore[reportArgumentType]


def test_signatures_of_one_positional_argument_pass():
    for loss in (*LOSSES.values(), functools.partial(cispo, cap=3.0), lambda inputs, **settings: cispo(inputs)):
        check_signature(loss, "mine:loss")
