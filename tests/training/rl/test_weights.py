import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.training.rl.losses import LOSSES, LossInputs
from scalerl.training.rl.weights import WEIGHTS, constant, prompt, sample, token

pytestmark = pytest.mark.usefixtures("float64")
SETTINGS = {"constant": {"denominator": 40.0}}


def packed(lengths: list[int], groups: list[int]):
    """Group and completion of each token of completions of these lengths."""
    completion = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return torch.tensor(groups)[completion], completion


def test_by_hand():
    # Prompt 10 has completions of 1 and 3 tokens, prompt 20 of 2 and 4; the last token of the last one is forced.
    group, completion = packed([1, 3, 2, 4], [10, 10, 20, 20])
    trained = torch.tensor([True] * 9 + [False])
    # Prompt: 2 prompts of 4 and 5 trained tokens. Sample: 4 completions of 1, 3, 2, 3. Token: 9.
    assert prompt(group, completion, trained).tolist() == pytest.approx([1 / 8] * 4 + [1 / 10] * 5 + [0])
    by_sample = [1 / 4] + [1 / 12] * 3 + [1 / 8] * 2 + [1 / 12] * 3 + [0]
    assert sample(group, completion, trained).tolist() == pytest.approx(by_sample)
    assert token(group, completion, trained).tolist() == pytest.approx([1 / 9] * 9 + [0])
    assert constant(group, completion, trained, denominator=40.0).tolist() == pytest.approx([1 / 40] * 9 + [0])


@pytest.mark.parametrize("name", ["prompt", "sample", "token"])
@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=9), seed=st.integers(0, 1000))
def test_the_weights_of_an_average_sum_to_one(name, lengths, seed):
    rng = torch.Generator().manual_seed(seed)
    group, completion = packed(lengths, [i // 2 for i in range(len(lengths))])
    trained = torch.rand(completion.numel(), generator=rng) < 0.6
    total = WEIGHTS[name](group, completion, trained).sum().item()
    assert total == pytest.approx(1.0 if trained.any() else 0.0)


def a_model_and_batch(lengths, seed):
    """A linear policy over 5 tokens, so that a gradient of parameters is at the end; the last completion is dropped."""
    rng = torch.Generator().manual_seed(seed)
    group, completion = packed(lengths, [i // 2 for i in range(len(lengths))])
    num_tokens = completion.numel()
    features = torch.randn(num_tokens, 3, generator=rng)
    targets = torch.randint(0, 5, (num_tokens,), generator=rng)
    parameters = torch.randn(3, 5, generator=rng).requires_grad_()
    generator = -2 * torch.rand(num_tokens, generator=rng)
    advantages = torch.randn(len(lengths), generator=rng)[completion]
    trained = (torch.rand(num_tokens, generator=rng) < 0.8) & (completion < len(lengths) - 1)
    return parameters, {
        "features": features,
        "targets": targets,
        "generator": generator,
        "advantages": advantages,
        "completion": completion,
        "group": group,
        "trained": trained,
    }


def gradient(parameters, loss, batch, weights):
    log_probs = torch.log_softmax(batch["features"] @ parameters, dim=-1).gather(1, batch["targets"][:, None])[:, 0]
    inputs = LossInputs(
        log_probs=log_probs,
        generator_log_probs=batch["generator"],
        advantages=batch["advantages"],
        completion_of_token=batch["completion"],
        trained=batch["trained"],
    )
    return torch.autograd.grad((weights * loss(inputs).loss).sum(), parameters)[0]


@pytest.mark.parametrize("name", WEIGHTS)
@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 6), min_size=2, max_size=8), seed=st.integers(0, 1000), data=st.data())
def test_splits_padding_and_packing_leave_the_gradient_unchanged(name, lengths, seed, data):
    parameters, batch = a_model_and_batch(lengths, seed)
    loss = data.draw(st.sampled_from(sorted(LOSSES.keys() - {"none"})))
    weigh = lambda b: WEIGHTS[name](b["group"], b["completion"], b["trained"], **SETTINGS.get(name, {}))  # noqa: E731
    weights = weigh(batch)
    whole = gradient(parameters, LOSSES[loss], batch, weights)

    # Micro-batches or ranks: completions go anywhere, in any number of parts; an empty part is fine.
    parts = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))))
    split = torch.zeros_like(whole)
    for part in range(4):
        here = parts[batch["completion"]] == part
        split += gradient(parameters, LOSSES[loss], {k: v[here] for k, v in batch.items()}, weights[here])
    torch.testing.assert_close(split, whole, rtol=1e-10, atol=1e-12)

    # Packing in another order, with padding between: garbage there, and completion -1.
    num_tokens = weights.numel()
    order = torch.randperm(num_tokens + 5, generator=torch.Generator().manual_seed(seed))
    pads = {
        "features": torch.full((5, 3), 9.0),
        "targets": torch.zeros(5, dtype=torch.long),
        "generator": torch.full((5,), torch.nan),
        "advantages": torch.ones(5),
        "completion": torch.full((5,), -1),
        "group": torch.full((5,), -1),
        "trained": torch.zeros(5, dtype=torch.bool),
    }
    padded = {k: torch.cat([v, pads[k]])[order] for k, v in batch.items()}
    torch.testing.assert_close(gradient(parameters, LOSSES[loss], padded, weigh(padded)), whole, rtol=1e-10, atol=1e-12)
