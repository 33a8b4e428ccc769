import torch

from scalerl.training.rollout.sampling import sample


def test_sampling_inverts_the_cumulative_distribution():
    probs = torch.tensor([0.125, 0.0, 0.5, 0.25, 0.125])
    numbers = torch.tensor([0.0, 0.12, 0.125, 0.62, 0.63, 0.874, 0.875, 1 - 2.0**-24])
    tokens, log_probs = sample(probs.log().repeat(8, 1), numbers, torch.ones(8))
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3, 4, 4]
    torch.testing.assert_close(log_probs, probs.log()[tokens])


def test_a_token_without_probability_is_never_sampled():
    torch.manual_seed(0)
    logits = torch.randn(1, 999).masked_fill(torch.rand(999) < 0.5, float("-inf")).repeat(4096, 1)
    numbers = torch.cat((torch.arange(4094) / 4094, torch.tensor([0.0, 1 - 2.0**-24])))
    _, log_probs = sample(logits, numbers, torch.ones(4096))
    assert log_probs.isfinite().all()


def test_top_p_keeps_the_smallest_set_of_likeliest_tokens():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().repeat(101, 1)
    numbers = torch.linspace(0, 1 - 2.0**-24, 101)
    for top_p, kept in ((0.3, {1}), (0.45, {1, 3}), (0.69, {1, 3}), (0.75, {1, 2, 3}), (1.0, {0, 1, 2, 3})):
        tokens, log_probs = sample(logits, numbers, torch.ones(101), top_p=torch.full((101,), top_p))
        assert set(tokens.tolist()) == kept
        torch.testing.assert_close(log_probs, logits[0][tokens])
    # Two of four equal tokens hold exactly half.
    tokens, _ = sample(torch.zeros(101, 4), numbers, torch.ones(101), top_p=torch.full((101,), 0.5))
    assert set(tokens.tolist()) == {0, 1}


def test_non_finite_logits_give_a_non_finite_log_prob():
    logits = torch.randn(3, 10)
    logits[0, 3], logits[1, 4] = float("nan"), float("inf")
    tokens, log_probs = sample(logits, torch.full((3,), 0.99), torch.ones(3))
    assert ((tokens >= 0) & (tokens < 10)).all()
    assert log_probs.isfinite().tolist() == [False, False, True]
