"""What the name of a column means, from the name alone."""

import pytest

from scalerl.forecast.logs.columns import (
    BARE,
    ROLES,
    are_splits,
    has_role,
    is_benchmark,
    is_evaluation,
    is_measured,
    is_part,
    is_rate,
    plain,
    reward_rank,
    with_role,
)


@pytest.mark.parametrize(
    ("name", "compared"),
    [
        ("timing_s/step", "timing_s_step"),
        ("Timing_s Step", "timing_s_step"),
        ("_step", "_step"),
        (" Steps (k)", "steps"),
        ("tokens (B)", "tokens"),
        ("GPU hours (h)", "gpu_hours"),
        ("Runtime (h)", "runtime_hours"),
        ("val/acc@8", "val_acc@8"),
        ("--", ""),
    ],
)
def test_names_are_compared_by_their_words(name: str, compared: str) -> None:
    assert plain(name) == compared


def test_columns_of_a_role_come_in_the_order_of_its_names() -> None:
    assert with_role(["_step", "Global Step", "reward", "step"], "step") == ["step", "Global Step", "_step"]
    assert with_role(["step", "Step"], "step") == ["step"]
    assert with_role(["tokens", "gpu_hours"], "gpu_hours", "tokens") == ["gpu_hours", "tokens"]
    assert has_role("train/global_step", "step")
    assert not has_role("reward", "step", "tokens")


@pytest.mark.parametrize("name", ["EpRewMean", "eprewmean", "AverageEpRet"])
def test_rewards_of_the_first_baselines_in_both_spellings(name: str) -> None:
    assert reward_rank(name) is not None


@pytest.mark.parametrize("name", ["win_pct", "win_percentage", "pass_percent", "accuracy_pct"])
def test_percentages_are_rates(name: str) -> None:
    assert reward_rank(name) == reward_rank("win_rate")
    assert reward_rank("clip_pct") is None


@pytest.mark.parametrize("names", [("metricName", "metricValue"), ("metricname", "metricvalue")])
def test_one_metric_per_row_in_both_spellings(names: tuple[str, str]) -> None:
    assert (has_role(names[0], "metric"), has_role(names[1], "value")) == (True, True)


@pytest.mark.parametrize("name", ["runtime (h)", "Wall time (hours)", "time (h)", "Elapsed (h)", "hours (h)"])
def test_hours_are_not_read_as_seconds(name: str) -> None:
    assert has_role(name, "hours")
    assert not has_role(name, "elapsed", "wall_clock")


def test_names_of_roles_are_written_as_they_are_compared() -> None:
    assert {name for names in ROLES.values() for name in names if plain(name) != name} == set()


# From the one that is taken first.
RANKED = (
    *("eval/pass_rate", "val/acc", "val/mean@8", "eval/reward", "eval/score", "eval/avg", "eval/aime"),
    "val/gsm8k",
    *("pass_rate", "reward/mean", "reward", "rewards/total", "rewards/accuracy_reward/mean"),
    "eval/rewards/format_reward/mean",
)


def test_evaluations_rank_before_training_rewards() -> None:
    ranks = [reward_rank(name) for name in RANKED]
    assert None not in ranks
    assert ranks == sorted(ranks, key=lambda rank: rank or (9, 9, 9))
    assert [name for name, rank in zip(RANKED, ranks, strict=True) if rank and rank[:2] == BARE] == [
        "eval/avg",
        "eval/aime",
        "val/gsm8k",
    ]


@pytest.mark.parametrize(
    "name", ["reward_std", "eval/loss", "eval/acc/response_len", "grad_norm", "reward/max", "kl_reward", "wandb"]
)
def test_what_is_measured_beside_a_reward_is_none(name: str) -> None:
    assert reward_rank(name) is None


def test_kinds_of_names() -> None:
    assert [is_rate(name) for name in ("solve_rate", "acc_pct", "reward")] == [True, True, False]
    assert [is_part(name) for name in ("acc/best@8/mean", "pass@16", "pass@1", "reward/format")] == [
        True, True, False, True
    ]  # fmt: skip
    assert [is_evaluation(name) for name in ("held-out acc", "validation/acc", "evaluator")] == [True, True, False]
    assert [is_benchmark(name) for name in ("AIME2024", "gsm8k", "my aime run")] == [True, True, False]
    assert [is_measured(name) for name in ("kl", "tokens", "accuracy", "lr 3e-4", "my run")] == [
        True, True, True, True, False
    ]  # fmt: skip
    assert are_splits(["training", "eval", "Validation"])
    assert not are_splits(["train", "grpo"])
