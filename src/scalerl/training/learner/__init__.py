"""Learners: a batch in, new weights and metrics out. Heavy packages are imported inside the function."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerl.training.learner.critic import Critic
    from scalerl.training.learner.references import Reference
    from scalerl.training.learner.step import TorchLearner
    from scalerl.training.learner.team import Team


def torch_learner(
    model: Any,
    *,
    learner: Any,
    dtype: Any,
    fp32_head: bool,
    compiled: bool | None = None,
    router_replay: bool = False,
    merges: bool = True,
    reference: "Callable[..., Reference] | None" = None,
    critic: "Callable[..., Critic] | None" = None,
    team: "Team | None" = None,
    optimizer: Any,
    version: int = 0,
    **settings: Any,
) -> "TorchLearner":
    """Return a learner in this process, on the model's device; it trains `model`, the master weights, in place.

    `dtype` is the dtype of the body, `reference` a function of learner.references and `critic` the class of
    learner.critic, with their settings bound. With optimizer.on_host the model moves to host memory.
    """
    from scalerl.training.learner.critic import ValueModel, value_model
    from scalerl.training.learner.policy import LocalPolicy
    from scalerl.training.learner.references import Trained
    from scalerl.training.learner.step import TorchLearner

    common: dict[str, Any] = {"dtype": dtype, "fp32_head": fp32_head}
    # Build these before the policy, which may move the model.
    made = None if reference is None else reference(Trained(model=model, **common))
    common |= {"compiled": compiled, "router_replay": router_replay, "on_host": optimizer.on_host}
    judge = None
    if critic is not None:
        values = ValueModel(value_model(model), learner, **common)
        judge = critic(values, learner=learner, team=team, version=version)
    policy = LocalPolicy(model, learner, merges=merges, **common)
    return TorchLearner(
        policy,
        learner=learner,
        optimizer=optimizer,
        reference=made,
        critic=judge,
        team=team,
        version=version,
        **settings,
    )
