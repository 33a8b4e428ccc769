"""The state of a learner as tensors: weights, optimiser moments and random state, whole or this rank's part of each.

With FSDP2 a weight is a DTensor, of which each rank has some rows; all functions here also accept plain tensors. States
are read by rows, so they may come from another number of ranks.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalerl.training.learner.saved import SavedKind

State = Mapping[str, Mapping[str, Tensor]]
"""Tensors by kind and name, or by weight and name."""


def whole(values: Tensor) -> Tensor:
    """Return all values of a tensor that is divided among ranks; all ranks call this together."""
    sharded = [dim for dim, placement in enumerate(getattr(values, "placements", ())) if placement.is_shard(0)]
    if sharded:
        group = values.device_mesh.get_group(sharded[0])  # pyright: ignore[reportAttributeAccessIssue]
        if dist.get_backend(group) == "gloo":
            return _all_rows(values, group)
    gather = getattr(values, "full_tensor", None)
    return values if gather is None else gather()


def _all_rows(values: Tensor, group: Any) -> Tensor:
    """Gather the rows of all ranks on the host; on a GPU, DTensor's own gathering crashes with gloo."""
    part = local(values)
    size = dist.get_world_size(group)
    # Each rank has as many rows as the first one, except that the last ranks may have fewer or none.
    rows = -(-len(values) // size)
    own = torch.zeros((rows, *values.shape[1:]), dtype=part.dtype)
    own[: len(part)] = part.detach()
    gathered = own.new_empty(size * rows, *values.shape[1:])
    dist.all_gather(list(gathered.chunk(size)), own, group=group)
    return gathered[: len(values)].to(part.device)


def local(values: Tensor) -> Tensor:
    """Return this rank's rows of a tensor, sharing its memory; a plain tensor is returned whole."""
    take = getattr(values, "to_local", None)
    return values if take is None else take()


def first_row(values: Tensor) -> int:
    """Return the index of this rank's first row."""
    placements = getattr(values, "placements", None)
    if placements is None:
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh: Any = values.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    _, offset = compute_local_shape_and_global_offset(values.shape, mesh, placements)
    return int(offset[0]) if offset else 0


def state_of(parameters: Mapping[str, Tensor], moments: State, device: torch.device) -> dict[str, Mapping[str, Tensor]]:
    """Return weights, moments and random state without copying."""
    flat: dict[str, Tensor] = {}
    for name, by_key in moments.items():
        flat |= {f"{name}/{key}": value for key, value in by_key.items()}
    rng = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state(device)
    return {"weights": {name: p.detach() for name, p in parameters.items()}, "optimizer": flat, "rng": rng}


@torch.no_grad()
def load_state(
    state: State,
    parameters: Mapping[str, Tensor],
    moments: State,
    device: torch.device,
) -> None:
    """Copy this rank's rows of weights and moments into these tensors, and set the random state."""
    weights = state["weights"]
    saved = state["optimizer"]
    if differing := weights.keys() ^ parameters.keys():
        raise ValueError(f"the saved weights belong to another model: only one of the two has {sorted(differing)[0]}")
    for name, parameter in parameters.items():
        _copy_rows(parameter, weights, name)
    for name, by_key in moments.items():
        for key, moment in by_key.items():
            if f"{name}/{key}" in saved:
                _copy_rows(moment, saved, f"{name}/{key}")
            else:
                # The weight had no gradient before the state was saved.
                moment.zero_()
    torch.set_rng_state(state["rng"]["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state["rng"]:
        torch.cuda.set_rng_state(state["rng"]["cuda"].cpu(), device)


def _copy_rows(target: Tensor, source: Mapping[str, Tensor], name: str) -> None:
    """Copy this rank's rows of a saved tensor."""
    part = local(target)
    start = first_row(target)
    if part.ndim == 0:
        part.copy_(source[name])
    elif part.numel():
        if isinstance(source, SavedKind):
            part.copy_(source.rows(name, start, len(part)))
        else:
            part.copy_(source[name][start : start + len(part)])
