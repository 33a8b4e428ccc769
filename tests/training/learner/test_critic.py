"""A critic: values and gradients against the model that it is, and what a policy makes of them."""

from typing import Any

import pytest
import torch
from batches import VERSION, make_completion, make_group, random_batch
from learners import check_close, foreseeing, gradients_of, make_learner

from scalerl.training.types import Batch

PPO = ("advantage.credit=gae", "filter.zero_variance=false", "optimizer.lr=3e-3")


def slow_values(model: Any, completion: Any) -> torch.Tensor:
    """Return the value before each token of a completion, by a pass of its own."""
    prompt = completion.request.prompt_tokens
    hidden = model.model(input_ids=torch.tensor([[*prompt, *completion.tokens.tolist()]])).last_hidden_state[0]
    return model.get_output_embeddings()(hidden).squeeze(-1)[len(prompt) - 1 : -1]


def flat(batch: Batch) -> list[tuple[Any, float]]:
    return [pair for group in batch.groups for pair in zip(group.completions, group.rewards, strict=True)]


@pytest.mark.parametrize("tokens", [64, 100_000])
def test_values_and_gradients_are_those_of_the_model(tokens):
    batch = random_batch(1, clean=True)
    learner = foreseeing(make_learner(*PPO, f"learner.micro_batch_tokens={tokens}"))
    model = learner.critic.policy.model
    expected, total, count = [], torch.zeros(()), 0
    for completion, reward in flat(batch):
        values = slow_values(model, completion)
        sampled = torch.from_numpy(~completion.forced)
        total = total + ((values - reward).square() / 2)[sampled].sum()
        count += int(sampled.sum())
        expected.append(torch.where(sampled, values.detach(), 0.0))
    named = dict(model.named_parameters())
    slow = dict(zip(named, torch.autograd.grad(total / count, list(named.values())), strict=True))
    gradients, _ = gradients_of(learner.critic, Batch(version=VERSION, groups=()))
    values, metrics = learner.critic.learn(Batch(version=VERSION + 1, groups=batch.groups))
    torch.testing.assert_close(values, torch.cat(expected), rtol=1e-4, atol=1e-5)
    check_close(gradients, slow, 1e-4)
    assert metrics["critic/loss"] == pytest.approx(float(total.detach()) / count, rel=1e-4)


def test_policy_learns_what_the_critic_did_not_foresee():
    batch = random_batch(2, clean=True)
    learner = foreseeing(make_learner(*PPO, "advantage.normalisation=none", "weights=token"))
    seen: dict[str, Any] = {}
    weigh = learner.algorithm

    def watched(rollout: Any) -> Any:
        seen["made"], seen["rollout"] = weigh(rollout), rollout
        return seen["made"]

    learner.algorithm = watched
    row = learner.step(batch)
    rollout, made = seen["rollout"], seen["made"]
    # With lam = 0.95 the last trained token of a completion still has reward - value.
    for number, (_, reward) in enumerate(flat(batch)):
        last = torch.nonzero(made.trained & (rollout.completion_of_token == number))[-1]
        torch.testing.assert_close(made.weights.advantages[last], reward - rollout.critic[last])
    assert {"critic/loss", "critic/explained", "critic/grad_norm", "critic/skipped"} <= row.keys()
    plain = make_learner("filter.zero_variance=false")
    assert row["batch/flops"] > 1.5 * plain.step(batch)["batch/flops"]


def test_critic_learns_to_foresee():
    completions = [make_completion("0/a", i, [3, 2], [4, 1] if i < 4 else [5, 1]) for i in range(8)]
    group = make_group(completions, [True] * 4 + [False] * 4)
    learner = make_learner(*PPO, "critic.lr=1e-2", "critic.warmup_steps=40")
    before = {name: weight.detach().clone() for name, weight in learner.policy.parameters.items()}
    rows = [learner.step(Batch(version=VERSION + step, groups=[group])) for step in range(40 - VERSION)]
    assert rows[0]["critic/loss"] == pytest.approx(0.5)
    assert rows[-1]["critic/loss"] < 0.26  # before the first token both are as likely: 0.5 of half the tokens is left
    assert rows[-1]["optim/lr"] == 0.0

    def changed() -> list[str]:
        return [name for name, weight in learner.policy.parameters.items() if not torch.equal(weight, before[name])]

    assert changed() == []
    assert learner.step(Batch(version=40, groups=[group]))["optim/lr"] > 0.0
    assert changed()


def test_policy_begins_its_warmup_when_it_first_moves():
    warmups = ("critic.warmup_steps=10", "optimizer.warmup_steps=10")
    falls = ("optimizer.schedule=linear", "budget.steps=30")
    learner = make_learner(*PPO, *warmups, *falls)
    batch = random_batch(1, clean=True)
    rates = {
        version: learner.step(Batch(version=version, groups=batch.groups))["optim/lr"] for version in range(VERSION, 30)
    }
    assert [rates[version] for version in range(VERSION, 10)] == [0.0] * (10 - VERSION)
    rising = [3e-3 * step / 10 for step in range(1, 11)]
    assert [rates[version] for version in range(10, 20)] == pytest.approx(rising)
    falling = [3e-3 * (1 - step / 10) for step in range(10)]
    assert [rates[version] for version in range(20, 30)] == pytest.approx(falling)


def test_policy_keeps_nothing_of_a_warmup_in_which_it_did_not_move():
    first, second = random_batch(1, clean=True), random_batch(2, clean=True)
    warming = make_learner(*PPO, "critic.warmup_steps=9")
    for version in range(VERSION, 9):
        warming.step(Batch(version=version, groups=first.groups))
    for state in warming.optimizer.state.values():
        assert all(not moment.any() for moment in state.values())
    fresh = make_learner(*PPO)
    fresh.critic.load_state_dict(warming.critic.state_dict())
    fresh.version = 9
    for learner in (warming, fresh):
        learner.step(Batch(version=9, groups=second.groups))
    for name, weight in warming.policy.parameters.items():
        torch.testing.assert_close(weight, fresh.policy.parameters[name])


def test_resumed_critic_goes_on_as_before():
    learner = make_learner(*PPO)
    learner.step(random_batch(1))
    resumed = make_learner(*PPO)
    resumed.load_state_dict(learner.state_dict())
    assert not any("lm_head" in name and weight.shape[0] == 1 for name, weight in resumed.weights().items())
    rows = [made.step(random_batch(2, version=VERSION + 1)) for made in (learner, resumed)]
    assert rows[0] == rows[1]


def test_one_answer_per_problem_is_enough():
    completions = [make_completion(f"0/{i}", 0, [3, i], [4, 1]) for i in range(6)]
    groups = [make_group([completion], [bool(i % 2)]) for i, completion in enumerate(completions)]
    row = make_learner(*PPO).step(Batch(version=VERSION, groups=groups))
    assert row["batch/effective"] == 6
    assert row["optim/grad_norm"] > 0


def test_adapters_of_a_critic_share_the_frozen_weights():
    learner = make_learner(*PPO, "model.lora.rank=2")
    critic = learner.critic.policy
    frozen = {name: weight for name, weight in learner.policy.model.named_parameters() if not weight.requires_grad}
    mine = dict(critic.model.named_parameters())
    assert all(mine[name] is weight for name, weight in frozen.items() if name in mine and "embed" not in name)
    assert learner.step(random_batch(1, clean=True))["critic/loss"] == pytest.approx(0.5)
