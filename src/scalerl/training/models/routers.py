"""The routers of a mixture of experts: record the experts that an engine chose, and replay them in the learner.

Generator and learner round differently, so they may route near ties differently: another expert computes the token, and
its log-prob differs by far more than rounding. With model.router_replay, an engine returns the experts of every
computed token, and the learner uses them (with its own probabilities of them, which keep their gradient).
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scalerl.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def routers_of(model: "PreTrainedModel") -> list[nn.Module]:
    """Return the routers, one per layer with experts; ModelError if their choice cannot be replaced."""
    kind = getattr(model.config, "model_type", type(model).__name__)
    routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    if not routers:
        raise ModelError(f"model.router_replay: a {kind} model has no routers that can be replayed; set it to false")
    for router in routers:
        if not _can_replay(router):
            raise ModelError(
                f"model.router_replay: only routers that weigh experts by the softmax of their logits are supported, "
                f"and those of a {kind} model do not; set it to false"
            )
    return routers


def _hook(model: "PreTrainedModel", hook: Callable[..., Any]) -> int:
    """Call the hook after every router with the router's columns; return the number of columns, experts per token."""
    start = 0
    for router in routers_of(model):
        end = start + int(router.top_k)  # pyright: ignore[reportArgumentType]
        router.register_forward_hook(functools.partial(hook, columns=slice(start, end)))
        start = end
    return start


class RouterRecorder:
    """Writes the experts of every token that a model computes into a buffer, [tokens, all layers x top_k]."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._target: tuple[Tensor, Tensor] | None = None
        """A buffer, and the row in it of each token of the next pass."""
        self.num_routed = _hook(model, self._record)
        """Number of experts chosen for a token in all layers together."""

    def into(self, buffer: Tensor, places: Tensor) -> None:
        """Write the experts of the next pass's tokens to these rows of the buffer."""
        self._target = buffer, places

    def _record(self, router: nn.Module, given: Any, returned: tuple[Tensor, ...], *, columns: slice) -> None:
        assert self._target is not None
        buffer, places = self._target
        buffer[:, columns].index_copy_(0, places, returned[2].to(buffer.dtype))


class RouterReplay:
    """Replaces the choices of a model's routers, and counts the choices that would have differed."""

    def __init__(self, model: "PreTrainedModel", device: torch.device, *, replays: bool) -> None:
        """Without `replays`, routers choose as usual, and nothing is counted."""
        self._experts: Tensor | None = None
        self._counts = torch.zeros(2, dtype=torch.float64, device=device)
        """Numbers of choices that differed and of all choices, per router and token."""
        if replays:
            _hook(model, self._replace)

    def use(self, experts: Tensor | None) -> None:
        """Use these experts, [tokens, all layers x top_k], in the next pass and its recomputation; None: as usual."""
        self._experts = experts

    def take_counts(self) -> Tensor:
        """Return the numbers of choices that differed and of all choices since the last call."""
        counts = self._counts.clone()
        self._counts.zero_()
        return counts

    def _replace(
        self, router: nn.Module, given: Any, returned: tuple[Tensor, ...], *, columns: slice
    ) -> tuple[Tensor, ...] | None:
        if self._experts is None:
            return None
        logits, _, own = returned
        experts = self._experts[:, columns].long()
        with torch.no_grad():
            differs = (own.sort(dim=-1).values != experts.sort(dim=-1).values).any(dim=-1)
            self._counts += torch.stack([differs.sum(), torch.full_like(differs.sum(), len(differs))])
        return logits, _scores(router, logits, experts), experts


def _scores(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """Return the weights of given experts, computed as transformers' routers do for their own choice."""
    chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, experts)
    if getattr(router, "norm_topk_prob", True):
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    return chosen.to(logits.dtype)


@torch.no_grad()
def _can_replay(router: Any) -> bool:
    """Return whether replaying the router's own choice gives its own weights."""
    weight = router.weight
    if weight.is_meta:
        return True
    hidden = torch.randn(4, weight.shape[-1], generator=torch.Generator().manual_seed(0)).to(weight)
    returned = router(hidden)
    if not isinstance(returned, tuple) or len(returned) != 3:
        return False
    logits, scores, experts = returned
    if scores.shape != experts.shape:
        return False
    tolerance = 1e-2 if weight.dtype == torch.bfloat16 else 1e-5
    return torch.allclose(_scores(router, logits, experts).float(), scores.float(), atol=tolerance)
