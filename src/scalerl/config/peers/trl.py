"""TRL's GRPOConfig (read at version 1.16).

The cap of its CISPO is absolute, as ours: min(ratio, epsilon_high). Its ratio is against log-probs recomputed by the
learner, which at one step per generation are its own: then the ratio is 1 and no clip ever acts. What vLLM sampled with
enters as a second factor (vllm_importance_sampling_correction).
"""

from scalerl.config.peers.values import Reader

DEFAULTS = {
    "loss_type": "dapo",
    "epsilon": 0.2,
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "cast_lm_head_to_fp32": False,
    "use_vllm": False,
    "num_iterations": 1,
    "steps_per_generation": None,
    "gradient_accumulation_steps": 1,
    "mask_truncated_completions": False,
    "beta": 0.0,
    "num_generations": 8,
    "temperature": 1.0,
    "learning_rate": 1e-6,
    "max_completion_length": 256,
    "vllm_importance_sampling_correction": True,
}
NAMES = ("loss_type", "num_generations", "scale_rewards", "epsilon_high", "max_completion_length", "num_iterations")
AVERAGES = {"grpo": "sample", "bnpo": "token", "dapo": "token", "cispo": "token", "dr_grpo": "constant"}
NORMALISATIONS = {"group": "prompt", "batch": "batch", "none": "none", "True": "prompt", "False": "none"}


def check(settings: Reader) -> None:
    """Note how each setting translates, and where it differs from ScaleRL."""
    _loss(settings)
    _advantage(settings)
    _head(settings)
    _steps(settings)
    settings.differs(
        "no_zero_variance_filter", "filter.zero_variance",
        "groups whose rewards are all equal stay in the batch and in the loss's denominator",
    )  # fmt: skip
    settings.differs(
        "no_curriculum", "curriculum", "problems that are solved nearly always keep returning (no-positive-resampling)"
    )
    settings.differs("no_interruption", "length", "thinking is cut off at max_completion_length, not interrupted")
    settings.as_ours("max_completion_length", "length.max_length", settings.get("max_completion_length"))
    masks = settings.flag("mask_truncated_completions")
    settings.as_ours("mask_truncated_completions", "filter.drop_truncated", masks)
    if not masks:
        settings.differs(
            "truncated_kept", "filter.drop_truncated", "answers that were cut off are trained on",
            "mask_truncated_completions=True",
        )  # fmt: skip
    beta = settings.number("beta") or 0.0
    settings.as_ours("beta", "learner.start_kl", beta)
    if beta:
        settings.differs("start_kl", "learner.start_kl", f"a KL term of {beta:g} holds the policy back", "beta=0.0")
    settings.as_ours("num_generations", "pipeline.completions_per_group", settings.get("num_generations"))
    settings.as_ours("temperature", "rollout.temperature", settings.get("temperature"))
    settings.as_ours("learning_rate", "optimizer.lr", settings.get("learning_rate"))


def _loss(settings: Reader) -> None:
    name = str(settings.get("loss_type"))
    low = settings.number("epsilon") or 0.2
    high = settings.number("epsilon_high")
    high = low if high is None else high
    if name == "cispo":
        settings.as_ours("loss_type", "loss.name", "cispo")
        settings.as_ours("epsilon_high", "loss.cap", high)
        if high < 1:
            settings.differs(
                "cap_too_low", "loss.cap",
                f"epsilon_high is an absolute cap here, and {high:g} lies below 1: every ratio is cut to {high:g}, "
                "which only scales the learning rate",
                "epsilon_high=5.0",
            )  # fmt: skip
        elif high != 5:
            settings.differs(
                "cap", "loss.cap", f"the cap is {high:g}; 4 to 8 did alike in the paper", "epsilon_high=5.0"
            )
    else:
        sequence = settings.get("importance_sampling_level") == "sequence"
        settings.as_ours("loss_type", "loss.name", "gspo" if sequence else "dapo")
        settings.as_ours("epsilon", "loss.clip_low", low)
        settings.as_ours("epsilon_high", "loss.clip_high", high)
        settings.differs(
            "loss", "loss", f"{name} clips, so that a clipped token loses its gradient; ScaleRL's CISPO caps the ratio",
            'loss_type="cispo", epsilon_high=5.0',
        )  # fmt: skip
    average = AVERAGES.get(name, "token")
    settings.as_ours("loss_type", "weights.name", average)
    settings.differs(
        "average", "weights", f"the loss is averaged over {_over(average)}; ScaleRL's over the tokens of each prompt"
    )


def _over(average: str) -> str:
    words = {"token": "all tokens", "sample": "each completion's tokens", "constant": "a constant number of tokens"}
    return words[average]


def _advantage(settings: Reader) -> None:
    norm = NORMALISATIONS.get(str(settings.get("scale_rewards")), "prompt")
    settings.as_ours("scale_rewards", "advantage.normalisation.name", norm)
    if norm != "batch":
        by = "each group's standard deviation" if norm == "prompt" else "nothing"
        settings.differs(
            "normalisation", "advantage.normalisation", f"advantages are divided by {by}, not by the batch's",
            'scale_rewards="batch"',
        )  # fmt: skip


def _head(settings: Reader) -> None:
    cast, vllm = settings.flag("cast_lm_head_to_fp32"), settings.flag("use_vllm")
    ours = "none" if not cast else "learner" if vllm else "both"
    settings.as_ours("cast_lm_head_to_fp32", "model.fp32_head", ours)
    if ours == "none":
        settings.differs(
            "fp32_head", "model.fp32_head", "logits are computed in the model's own precision",
            "cast_lm_head_to_fp32=True, and the head of vLLM in FP32 too",
        )  # fmt: skip
    elif ours == "learner":
        settings.differs(
            "fp32_one_side", "model.fp32_head",
            "the head is in FP32 at the learner only, while vLLM samples in lower precision: one side alone can be "
            "worse than none",
            "start vLLM with an FP32 head, or cast_lm_head_to_fp32=False",
        )  # fmt: skip


def _steps(settings: Reader) -> None:
    """Translate the regime: k optimizer steps on each batch of completions are PPO-off-policy-k."""
    accumulation = settings.number("gradient_accumulation_steps") or 1
    per_generation = settings.number("steps_per_generation") or accumulation
    num = max(round((settings.number("num_iterations") or 1) * per_generation / accumulation), 1)
    settings.as_ours("num_iterations", "pipeline.push_every", num)
    settings.as_ours("steps_per_generation", "pipeline.max_lag", num - 1)
    settings.differs(
        "not_streaming", "pipeline",
        f"generation and training take turns ({'synchronous' if num == 1 else f'PPO-off-policy-{num}'}); ScaleRL "
        "streams (PipelineRL-8)",
    )  # fmt: skip
    if num == 1:
        settings.differs(
            "clip_never_acts", "loss",
            "with one step per generation the ratio is against the learner's own log-probs and always 1: neither clip "
            "nor cap ever acts",
            "num_iterations=2 or more steps_per_generation, where off-policy steps are wanted",
        )  # fmt: skip
    else:
        settings.differs(
            "anchor", "loss",
            "the ratio is against log-probs that the learner recomputed, not those that the generator sampled with",
        )  # fmt: skip
