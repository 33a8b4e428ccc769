"""prime-rl's rl.toml, with its tables [trainer], [orchestrator] and [inference].

Its ratio is against the generator's log-probs. Groups beyond max_off_policy_steps are thrown away rather than avoided.
"""

from scalerl.config.peers.values import Reader

_LAG, _LEVEL = "orchestrator.max_off_policy_steps", "max_async_level"
_BATCH, _GROUP = "orchestrator.batch_size", "orchestrator.group_size"
_LOSS = "trainer.loss.type"

DEFAULTS = {
    _LOSS: "default",
    "trainer.loss.dppo_mask_low": 0.2,
    "trainer.loss.dppo_mask_high": 0.2,
    "trainer.loss.kl_tau": 1e-3,
    "trainer.optim.lr": 1e-6,
    _LAG: 8,
    _LEVEL: 1,
    _BATCH: 128,
    _GROUP: 8,
    "orchestrator.oversampling_factor": 1.0,
    "orchestrator.sampling.temperature": 1.0,
}
NAMES = ("orchestrator", "trainer.loss", "inference.model", "trainer.model")


def check(settings: Reader) -> None:
    """Note how each setting translates, and where it differs from ScaleRL."""
    name = str(settings.get(_LOSS))
    settings.as_ours(_LOSS, "loss.name", "cispo" if name == "cispo" else "-")
    low, high = settings.get("trainer.loss.dppo_mask_low"), settings.get("trainer.loss.dppo_mask_high")
    if name != "cispo":
        settings.differs(
            "loss", "loss",
            f"tokens whose probability moved by more than {low} or {high} are masked and lose their gradient; "
            "ScaleRL's CISPO caps their ratio at 5 and keeps it",
            'trainer.loss.type = "custom" with a CISPO of your own',
        )  # fmt: skip
    tau = settings.number("trainer.loss.kl_tau") or 0.0
    if tau:
        settings.differs(
            "start_kl", "learner.start_kl", f"a KL term of {tau:g} towards the generator's policy is added to the loss",
            "trainer.loss.kl_tau = 0",
        )  # fmt: skip
    settings.differs(
        "average", "weights", "the loss is averaged over all tokens; ScaleRL's over the tokens of each prompt"
    )
    settings.differs(
        "normalisation", "advantage.normalisation", "advantages are divided by nothing, not by the batch's deviation"
    )
    _head(settings)
    _filters(settings)
    _lag(settings)
    settings.differs("no_interruption", "length", "thinking is cut off at the length limit, not interrupted")
    settings.as_ours("trainer.optim.lr", "optimizer.lr", settings.get("trainer.optim.lr"))
    settings.as_ours(_GROUP, "pipeline.completions_per_group", _group_size(settings))
    temperature = settings.get("orchestrator.sampling.temperature")
    settings.as_ours("orchestrator.sampling.temperature", "rollout.temperature", temperature)


def _group_size(settings: Reader) -> float:
    older = settings.number("orchestrator.rollouts_per_example")
    return settings.number(_GROUP) or 8 if older is None else older


def _head(settings: Reader) -> None:
    sides = {
        side: next((key for key in settings.names() if key.startswith(side) and _is_fp32_head(key)), None)
        for side in ("trainer", "inference")
    }
    on = {side: key is not None and settings.flag(key) for side, key in sides.items()}
    ours = {(True, True): "both", (True, False): "learner", (False, True): "generator", (False, False): "none"}
    head = ours[on["trainer"], on["inference"]]
    named = next((key for key in sides.values() if key is not None), "trainer.model.fp32_lm_head")
    settings.as_ours(named, "model.fp32_head", head)
    if head == "none":
        settings.differs("fp32_head", "model.fp32_head", "the head is computed in the body's precision at both ends")
    elif head != "both":
        settings.differs(
            "fp32_one_side", "model.fp32_head",
            f"the head is in FP32 at the {head} only: one side alone can be worse than none",
            f"the same for [{'inference' if head == 'learner' else 'trainer'}.model]",
        )  # fmt: skip


def _is_fp32_head(key: str) -> bool:
    return "head" in key and ("fp32" in key or "float32" in key)


def _filters(settings: Reader) -> None:
    keys = settings.names()
    zero = any("zero_advantage" in key or "zero_advantage" in str(settings.get(key)) for key in keys)
    zero = zero or any(key.endswith("online_difficulty_filtering") and settings.flag(key) for key in keys)
    if not zero:
        settings.differs(
            "no_zero_variance_filter", "filter.zero_variance",
            "groups whose rewards are all equal stay in the batch and in the loss's denominator",
            'a filter of type "zero_advantage" in [orchestrator]',
        )  # fmt: skip
    if not any("easy" in key for key in keys):
        settings.differs(
            "no_curriculum", "curriculum",
            "problems that are solved nearly always keep returning (no-positive-resampling)",
            "orchestrator.buffer.easy_threshold = 0.9",
        )  # fmt: skip


def _lag(settings: Reader) -> None:
    most, level = settings.number(_LAG) or 0.0, settings.number(_LEVEL) or 0.0
    settings.as_ours(_LAG, "pipeline.max_lag", int(most))
    if most != 8:
        settings.differs("lag", "pipeline.max_lag", f"groups may be {most:g} steps old; ScaleRL's 8", f"{_LAG} = 8")
    settings.differs(
        "discards", "pipeline",
        "groups that would become too old are thrown away, long answers most often; ScaleRL paces generation instead",
    )  # fmt: skip
    in_flight = settings.number("orchestrator.max_inflight_rollouts")
    batch = settings.number(_BATCH) or 1.0
    if in_flight is None:
        in_flight = batch * (settings.number("orchestrator.oversampling_factor") or 1.0)
    deepest = in_flight / batch + level
    if most > 0 and deepest < most:
        settings.differs(
            "lag_cannot_bind", "pipeline.max_lag",
            f"{in_flight:g} rollouts in flight are {in_flight / batch:.2g} batches: at an even pace no group gets "
            f"older than about {deepest:.2g} steps, so that a bound of {most:g} hardly ever acts",
            f"orchestrator.max_inflight_rollouts = {round(batch * (most + 1))} for the lag that the bound allows",
        )  # fmt: skip
