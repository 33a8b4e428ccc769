"""verl's ppo_trainer configuration, as YAML or as Hydra overrides.

The cap of its CISPO is 1 + clip_ratio_high, and it has a floor of 1 - clip_ratio_low. The ratio is against log-probs
that the learner recomputed, unless algorithm.rollout_correction.bypass_mode takes the generator's.
"""

from scalerl.config.peers.values import Reader

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_LOSS, _AVERAGE = f"{_ACTOR}.policy_loss.loss_mode", f"{_ACTOR}.loss_agg_mode"
_HIGH, _LOW = f"{_ACTOR}.clip_ratio_high", f"{_ACTOR}.clip_ratio_low"
_BYPASS, _FILTER = "algorithm.rollout_correction.bypass_mode", "algorithm.filter_groups.enable"
_STALE = "async_training.staleness_threshold"

DEFAULTS = {
    _LOSS: "vanilla",
    _AVERAGE: "token-mean",
    f"{_ACTOR}.clip_ratio": 0.2,
    _LOW: 0.2,
    _HIGH: 0.2,
    f"{_ACTOR}.ppo_epochs": 1,
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.kl_loss_coef": 0.001,
    f"{_ACTOR}.optim.lr": 1e-6,
    f"{_ROLLOUT}.n": 1,
    f"{_ROLLOUT}.temperature": 1.0,
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    _BYPASS: False,
    _FILTER: False,
    "data.train_batch_size": 1024,
    "data.max_response_length": 512,
}
NAMES = ("actor_rollout_ref", "algorithm.adv_estimator", "data.train_batch_size", "async_training")
AVERAGES = {
    "token-mean": "token",
    "seq-mean-token-mean": "sample",
    "seq-mean-token-sum": "constant",
    "seq-mean-token-sum-norm": "constant",
}


def check(settings: Reader) -> None:
    """Note how each setting translates, and where it differs from ScaleRL."""
    _loss(settings)
    _advantage(settings)
    settings.differs("fp32_head", "model.fp32_head", "the head is computed in the body's precision at both ends")
    _filter(settings)
    _steps(settings)
    settings.differs(
        "no_curriculum", "curriculum", "problems that are solved nearly always keep returning (no-positive-resampling)"
    )
    settings.differs("no_interruption", "length", "thinking is cut off at data.max_response_length, not interrupted")
    settings.as_ours("data.max_response_length", "length.max_length", settings.get("data.max_response_length"))
    if settings.flag(f"{_ACTOR}.use_kl_loss"):
        coefficient = settings.number(f"{_ACTOR}.kl_loss_coef") or 0.0
        settings.as_ours(f"{_ACTOR}.kl_loss_coef", "learner.start_kl", coefficient)
        settings.differs(
            "start_kl", "learner.start_kl", f"a KL term of {coefficient:g} holds the policy back",
            f"{_ACTOR}.use_kl_loss=False",
        )  # fmt: skip
    settings.as_ours(f"{_ROLLOUT}.n", "pipeline.completions_per_group", settings.get(f"{_ROLLOUT}.n"))
    settings.as_ours(f"{_ROLLOUT}.temperature", "rollout.temperature", settings.get(f"{_ROLLOUT}.temperature"))
    settings.as_ours(f"{_ACTOR}.optim.lr", "optimizer.lr", settings.get(f"{_ACTOR}.optim.lr"))


def _loss(settings: Reader) -> None:
    name = str(settings.get(_LOSS))
    low, high = settings.number(_LOW) or 0.0, settings.number(_HIGH) or 0.0
    if name == "cispo":
        settings.as_ours(_LOSS, "loss.name", "cispo")
        settings.as_ours(_HIGH, "loss.cap", 1 + high)
        if high != 4:
            settings.differs(
                "cap_relative", "loss.cap",
                f"clip_ratio_high = {high:g} is a cap of 1 + {high:g} = {1 + high:g}; ScaleRL's absolute cap of 5 is "
                "clip_ratio_high = 4",
                f"{_HIGH}=4",
            )  # fmt: skip
        if low < 1:
            settings.differs(
                "cap", "loss.cap",
                f"ratios below 1 - clip_ratio_low = {1 - low:g} are raised to it; ScaleRL's CISPO has no floor",
                f"{_LOW}=1",
            )  # fmt: skip
    else:
        settings.as_ours(_LOSS, "loss.name", "gspo" if name == "gspo" else "dapo")
        settings.as_ours(_LOW, "loss.clip_low", low)
        settings.as_ours(_HIGH, "loss.clip_high", high)
        settings.differs(
            "loss", "loss", f"{name} clips, so that a clipped token loses its gradient; ScaleRL's CISPO caps the ratio",
            f"{_LOSS}=cispo {_HIGH}=4 {_LOW}=1",
        )  # fmt: skip
    average = AVERAGES.get(str(settings.get(_AVERAGE)), "token")
    settings.as_ours(_AVERAGE, "weights.name", average)
    settings.differs(
        "average", "weights",
        f"loss_agg_mode = {settings.get(_AVERAGE)}; ScaleRL averages over the tokens of each prompt, then over prompts",
    )  # fmt: skip


def _advantage(settings: Reader) -> None:
    name = str(settings.get("algorithm.adv_estimator"))
    by_std = settings.flag("algorithm.norm_adv_by_std_in_grpo")
    baseline = "leave_one_out" if name == "rloo" else "mean"
    norm = "batch" if name.startswith("reinforce_plus_plus") else "prompt" if name == "grpo" and by_std else "none"
    settings.as_ours("algorithm.adv_estimator", "advantage.baseline.name", baseline)
    settings.as_ours("algorithm.norm_adv_by_std_in_grpo", "advantage.normalisation.name", norm)
    if norm != "batch":
        by = "each group's standard deviation" if norm == "prompt" else "nothing"
        settings.differs(
            "normalisation", "advantage.normalisation", f"advantages are divided by {by}, not by the batch's",
            "algorithm.adv_estimator=reinforce_plus_plus_baseline",
        )  # fmt: skip


def _filter(settings: Reader) -> None:
    filters = settings.flag(_FILTER)
    settings.as_ours(_FILTER, "filter.zero_variance", filters)
    if filters:
        settings.differs(
            "refills", "filter.zero_variance",
            "groups without variance are replaced by sampling more, which costs compute; ScaleRL drops them",
        )  # fmt: skip
    else:
        settings.differs(
            "no_zero_variance_filter", "filter.zero_variance",
            "groups whose rewards are all equal stay in the batch and in the loss's denominator",
            f"{_FILTER}=True",
        )  # fmt: skip


def _steps(settings: Reader) -> None:
    batch, mini = settings.number("data.train_batch_size") or 1, settings.number(f"{_ACTOR}.ppo_mini_batch_size") or 1
    num = max(round(batch / mini * (settings.number(f"{_ACTOR}.ppo_epochs") or 1)), 1)
    stale, bypass = settings.number(_STALE), settings.flag(_BYPASS)
    if stale is None:
        settings.as_ours(f"{_ACTOR}.ppo_mini_batch_size", "pipeline.push_every", num)
        settings.differs(
            "not_streaming", "pipeline",
            f"generation and training take turns ({'synchronous' if num == 1 else f'PPO-off-policy-{num}'}); ScaleRL "
            "streams (PipelineRL-8)",
            "the fully asynchronous trainer: async_training.staleness_threshold, async_training.partial_rollout",
        )  # fmt: skip
    else:
        settings.as_ours(_STALE, "pipeline.max_lag", max(round(stale), 0))
        settings.differs(
            "lag", "pipeline.max_lag",
            f"staleness_threshold = {stale:g} limits the share of stale samples, not how old one may be; ScaleRL "
            "bounds each group's age by 8 steps",
        )  # fmt: skip
    if not bypass:
        acts = "; at one step a batch it is always 1, and neither clip nor cap ever acts" if num == 1 else ""
        settings.differs(
            "clip_never_acts" if num == 1 and stale is None else "anchor", "loss",
            f"the ratio is against log-probs that the learner recomputed, not the generator's{acts}",
            f"{_BYPASS}=True",
        )  # fmt: skip
