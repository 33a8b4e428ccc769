"""Learners: a batch in, new weights and metrics out.

LEARNERS holds a function per name that a recipe can give as learner.kind. Each one takes the model and the functions
and settings of a step, and returns an object with the methods of loop/seams.Learner that can also be saved. Heavy
packages are imported inside it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerl.learner.step import TorchLearner


def torch_learner(model: Any, **settings: Any) -> "TorchLearner":
    """Return a learner in this process, on the model's device."""
    from scalerl.learner.step import TorchLearner

    return TorchLearner(model, **settings)


LEARNERS: dict[str, Callable[..., Any]] = {"torch": torch_learner}
