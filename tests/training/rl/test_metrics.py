import dataclasses
import math

import pytest
import torch

from scalerl.training.rl.filters import effective_batch
from scalerl.training.rl.losses import LOSSES, LossInputs, cispo, gspo
from scalerl.training.rl.metrics import LARGEST_RATIO, SUMS, step_metrics, token_sums

LAG = torch.tensor([0, 1, 1, 4])


def a_batch(correct, no_verdict=()):
    num = len(correct)
    has_verdict = torch.tensor([place not in no_verdict for place in range(num)])
    truncated = torch.zeros(num, dtype=torch.bool)
    truncated[0] = True
    group, verdicts = torch.arange(num) // 2, torch.tensor(correct)
    return effective_batch(
        group,
        verdicts,
        has_verdict,
        verdicts,
        truncated,
        torch.full((num,), 3),
        drop_truncated=False,
        zero_variance=True,
    )


def some_tokens():
    rng = torch.Generator().manual_seed(0)
    completion = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3])
    log_probs = -torch.rand(10, generator=rng, dtype=torch.float64)
    generator = log_probs + torch.randn(10, generator=rng, dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)[completion]
    trained = torch.tensor([True, True, False, True, True, True, True, True, False, False])
    generator[8] = math.nan
    tokens = make_inputs(log_probs, generator, advantages, completion, trained)
    return tokens, torch.rand(10, generator=rng, dtype=torch.float64)


def make_inputs(log_probs, generator, advantages, completion, trained):
    return LossInputs(
        log_probs=log_probs,
        generator_log_probs=generator,
        advantages=advantages,
        completion_of_token=completion,
        trained=trained,
    )


def select(tokens, part):
    """The part of the tokens where the mask is true."""
    return LossInputs(**{field.name: getattr(tokens, field.name)[part] for field in dataclasses.fields(tokens)})


def sums(loss, tokens, entropy):
    """The sums and the largest ratio of some tokens, as floats."""
    return tuple(part.tolist() for part in token_sums(loss(tokens), tokens, entropy))


def row_of(parts, batch=None, lag=LAG, num_nonfinite=0):
    """The metrics of micro-batches, whose sums add up."""
    added = [sum(column) for column in zip(*(part for part, _ in parts), strict=True)]
    largest = max(ratio for _, ratio in parts)
    return step_metrics(added, largest, batch or a_batch([1.0, 0.0]), lag=lag, num_nonfinite=num_nonfinite)


NOTHING = [0.0] * len(SUMS), -math.inf


def test_metrics_computed_by_hand():
    tokens, entropy = some_tokens()
    capped = sums(lambda inputs: cispo(inputs, cap=1.5), tokens, entropy)
    metrics = row_of([capped], a_batch([1.0, 0.0, 1.0, 1.0]), num_nonfinite=1)
    rows = [t for t in range(10) if tokens.trained[t]]
    ratios = [math.exp(tokens.log_probs[t] - tokens.generator_log_probs[t]) for t in rows]
    expected = {
        "loss/ratio_mean": sum(ratios) / 7,
        "loss/ratio_max": max(ratios),
        "loss/clip_frac": sum(ratio > 1.5 for ratio in ratios) / 7,
        "loss/kl": sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 7,
        "loss/entropy": sum(entropy[t].item() for t in rows) / 7,
        "rollout/truncated_frac": 0.25,
        "rollout/lag_mean": 1.5,
        "rollout/lag_max": 4.0,
        "batch/no_verdict_frac": 0.0,
        "batch/zero_variance_frac": 0.5,
        "batch/effective": 2.0,
        "batch/effective_groups": 1.0,
        "batch/nonfinite_tokens": 1.0,
    }
    assert metrics == pytest.approx(expected)
    assert all(type(value) is float for value in metrics.values())


@pytest.mark.parametrize(
    "correct, no_verdict, fractions",
    [
        ([1.0, 0.0, 1.0, 1.0], {2, 3}, (0.25, 0.5, 0.0)),
        ([1.0, 1.0], {}, (0.5, 0.0, 1.0)),
        ([1.0], {0}, (1.0, 1.0, 0.0)),
    ],
)
def test_fractions_of_completions_and_comparable_groups(correct, no_verdict, fractions):
    metrics = row_of([NOTHING], a_batch(correct, no_verdict))
    keys = ("rollout/truncated_frac", "batch/no_verdict_frac", "batch/zero_variance_frac")
    assert tuple(metrics[key] for key in keys) == fractions


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batch_sums_add_up_to_the_batch(name):
    tokens, entropy = some_tokens()
    owner = tokens.completion_of_token
    parts = [owner <= 0, (owner == 1) | (owner == 3), owner == 2, owner > 5]
    by_parts = row_of([sums(LOSSES[name], select(tokens, part), entropy[part]) for part in parts])
    assert by_parts == pytest.approx(row_of([sums(LOSSES[name], tokens, entropy)]), rel=1e-12)


def test_kl_is_per_token_for_a_sequence_loss_too():
    tokens, entropy = some_tokens()
    (by_token, _), (by_sequence, _) = sums(cispo, tokens, entropy), sums(gspo, tokens, entropy)
    kl, ratio = SUMS.index("kl"), SUMS.index("ratio")
    assert by_token[kl] == by_sequence[kl]
    assert by_token[ratio] != by_sequence[ratio]


def test_kl_estimates_the_kl_of_generator_and_trainer():
    generator = torch.tensor([1 / 8, 3 / 8, 4 / 8], dtype=torch.float64).log()
    trainer = torch.tensor([1 / 2, 1 / 3, 1 / 6], dtype=torch.float64).log()
    # Every token as often as the generator would sample it: the mean of k3 is then the exact KL.
    drawn = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2])
    ones = torch.ones(8, dtype=torch.float64)
    tokens = make_inputs(trainer[drawn], generator[drawn], ones, torch.zeros(8, dtype=torch.long), ones.bool())
    metrics = row_of([sums(cispo, tokens, ones)])
    assert metrics["loss/kl"] == pytest.approx((generator.exp() * (generator - trainer)).sum().item())


@pytest.mark.parametrize("name", LOSSES)
def test_tiny_generator_probability_keeps_the_row_finite(name):
    generator = torch.tensor([-1.0, -100.0, -3e4, -1.0])
    trainer, ones = torch.full((4,), -1.0), torch.ones(4)
    tokens = make_inputs(trainer, generator, ones, torch.arange(4), ones.bool())
    metrics = row_of([sums(LOSSES[name], tokens, ones)] * 2)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["loss/ratio_max"] == LARGEST_RATIO
    assert metrics["loss/ratio_mean"] == pytest.approx(LARGEST_RATIO / 2)
    assert metrics["loss/kl"] == pytest.approx(LARGEST_RATIO / 2)
    # Below that, in float64 and as it is: the loss's own FP32 ratio would have rounded.
    tokens = make_inputs(trainer, torch.tensor([-1.0, -31.0, -1.0, -1.0]), ones, torch.arange(4), ones.bool())
    metrics = row_of([sums(LOSSES[name], tokens, ones)])
    assert metrics["loss/kl"] == pytest.approx((math.exp(30) - 1 - 30) / 4, rel=1e-12)


def test_nothing_trained_leaves_out_the_means():
    tokens, entropy = some_tokens()
    nothing = dataclasses.replace(tokens, trained=torch.zeros(10, dtype=torch.bool))
    batch = a_batch([1.0, 1.0])
    none_at_all = row_of([NOTHING], batch, lag=LAG[:0])
    for metrics in (row_of([sums(cispo, nothing, entropy)], batch), none_at_all):
        assert all(math.isfinite(value) for value in metrics.values())
        assert not any(key.startswith("loss/") for key in metrics)
        assert metrics["batch/effective"] == 0.0
    assert "rollout/lag_max" not in none_at_all
