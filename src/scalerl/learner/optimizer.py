"""AdamW with its state in FP32 or 8 bits, on the device or in host memory.

    FP32 on the device    one fused kernel over all weights: the numbers of torch.optim.AdamW(fused=True)
    8 bits                the two moments in blocks with a scale each (models/blocks.py). An update decodes a portion of
                          them, updates in FP32 and rounds without bias
    on the host           master weights and moments. An update brings a portion of them to the device, while the
                          portion before is updated and the one before that goes back

The last two combine, and what is on the host gives the same numbers as on the device. A bad gradient changes nothing:
the kernel itself reads whether there is one, so the host does not wait.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from scalerl.config.parts import OptimizerSettings
from scalerl.learner.state import local
from scalerl.models.blocks import decode, from_blocks, in_blocks, mean_shares, square_shares, unbiased
from scalerl.types import derive_seed

BLOCK = 128
"""Numbers of a moment in 8 bits that share a scale; fewer where rows are shorter."""
PORTION = 2**24
"""Numbers that are decoded, or brought from the host, at a time."""
_ALIGNMENT = 256
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Some rows of a weight, or all, and what an update of them needs."""

    name: str
    rows: slice
    step: Tensor
    weight: Tensor
    is_hosted: bool
    """Whether the weight is in host memory."""
    copy: Tensor | None
    """What follows the weight, in the dtype of the body."""
    moments: tuple[Tensor, ...]
    """Two in FP32, or codes and scales of each."""


class AdamW:
    """The optimiser of named FP32 weights. Norms and biases decay like all others: the paper names no exceptions."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        settings: OptimizerSettings,
        *,
        device: torch.device,
        hosted: Collection[str] = (),
        copies: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """`hosted` are the weights that are in host memory; `copies` on the device follow their weights."""
        self._settings, self._device = settings, device
        self._steps = torch.zeros(len(weights), device=device)
        self.state: dict[str, dict[str, Tensor]] = {}
        """By weight: the number of its updates, and its moments."""
        for (name, weight), step in zip(weights.items(), self._steps, strict=True):
            self.state[name] = {"step": step, **_no_moments(weight, settings, device)}
        whole = settings.bits == 32 and not settings.on_host
        parts = [
            _Part(
                name=name,
                rows=rows,
                step=self.state[name]["step"],
                weight=local(weight.detach())[rows],
                is_hosted=name in hosted,
                copy=copies[name].detach()[rows] if name in copies else None,
                moments=tuple(local(moment)[rows] for key, moment in self.state[name].items() if key != "step"),
            )
            for name, weight in weights.items()
            for rows in ([slice(None)] if whole or weight.ndim < 2 else _row_slices(weight))
        ]
        self._portions = [parts] if whole else list(_portions(parts))
        self._lanes = _Lanes(self._portions, device) if settings.on_host else None

    @torch.no_grad()
    def update(self, gradients: Mapping[str, Tensor], *, lr: float, is_bad: Tensor, seed: int) -> None:
        """Update the weights that have a gradient, unless `is_bad`, a float that is 1 or 0. `seed` is for rounding."""
        changed: Any = 1
        if len(gradients) < len(self.state):
            changed = torch.tensor([float(name in gradients) for name in self.state], device=self._device)
        self._steps.add_(changed)
        portions = self._portions if self._lanes is None else self._lanes.carry(self._portions)
        for number, parts in enumerate(portions):
            parts = [part for part in parts if part.name in gradients]
            with self._decoded(parts, is_bad, derive_seed("moments", seed, number)) as (means, squares):
                torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
                    [part.weight for part in parts],
                    [local(gradients[part.name])[part.rows] for part in parts],
                    means,
                    squares,
                    [],
                    [part.step for part in parts],
                    lr=lr,
                    beta1=self._settings.beta1,
                    beta2=self._settings.beta2,
                    weight_decay=self._settings.weight_decay,
                    eps=self._settings.eps,
                    amsgrad=False,
                    maximize=False,
                    found_inf=is_bad,
                )
            if followers := [part for part in parts if part.copy is not None]:
                copies: Any = [part.copy for part in followers]
                torch._foreach_copy_(copies, [part.weight for part in followers])  # pyright: ignore[reportPrivateImportUsage]
        self._steps.sub_(is_bad * changed)

    def settle(self) -> None:
        """Wait until what is on the host is up to date."""
        if self._lanes is not None:
            self._lanes.settle()

    @contextlib.contextmanager
    def _decoded(
        self, parts: Sequence[_Part], is_bad: Tensor, seed: int
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Give the moments in FP32; afterwards what became of them is rounded to 8 bits again, unless `is_bad`."""
        if self._settings.bits == 32:
            yield [part.moments[0] for part in parts], [part.moments[1] for part in parts]
            return
        tables = mean_shares(self._device), square_shares(self._device)
        codes_and_scales = [part.moments[:2] for part in parts], [part.moments[2:] for part in parts]
        means, squares = (
            [
                from_blocks(decode(codes, scale, table), part.weight.shape[-1]).contiguous()
                for part, (codes, scale) in zip(parts, rounded, strict=True)
            ]
            for table, rounded in zip(tables, codes_and_scales, strict=True)
        )
        yield means, squares
        generator = torch.Generator(self._device).manual_seed(seed)
        for table, rounded, moments in zip(tables, codes_and_scales, (means, squares), strict=True):
            for (codes, scale), moment in zip(rounded, moments, strict=True):
                blocks = in_blocks(moment, codes.shape[-1])
                noise = torch.empty_like(blocks).uniform_(generator=generator)
                new_codes, new_scale = unbiased(blocks, table, noise)
                codes.copy_(torch.where(is_bad > 0, codes, new_codes))
                scale.copy_(new_scale)


class _Lanes:
    """Brings portions of what is on the host to the device and back, on two streams of their own on a GPU.

    A lane is a buffer on the device with room for any portion. There are two, so that the next portion arrives while
    one is updated.
    """

    def __init__(self, portions: Sequence[Sequence[_Part]], device: torch.device) -> None:
        largest = max(sum(_padded(each) for part in parts for each in _hosted(part)) for parts in portions)
        self._buffers = [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(2)]
        self._streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else None
        self._stored = [torch.cuda.Event() for _ in range(2)] if self._streams else []

    def carry(self, portions: Sequence[Sequence[_Part]]) -> Iterator[list[_Part]]:
        """Yield each portion on the device; when the next is asked for, what became of it goes back to the host."""
        if self._streams:
            # What the last update sent back must have arrived.
            self._streams[0].wait_stream(self._streams[1])
        fetched = self._fetch(portions[0], 0)
        for number, parts in enumerate(portions):
            here, is_here = fetched
            if number + 1 < len(portions):
                fetched = self._fetch(portions[number + 1], (number + 1) % 2)
            if is_here is not None:
                torch.cuda.current_stream(self._buffers[0].device).wait_event(is_here)
            yield here
            self._store(here, parts, number % 2)

    def settle(self) -> None:
        """Wait until the host has all that was sent back."""
        if self._streams:
            self._streams[1].synchronize()

    def _fetch(self, parts: Sequence[_Part], lane: int) -> tuple[list[_Part], "torch.cuda.Event | None"]:
        if not self._streams:
            return self._copied_in(parts, lane), None
        arriving, event = self._streams[0], torch.cuda.Event()
        arriving.wait_event(self._stored[lane])
        with torch.cuda.stream(arriving):
            here = self._copied_in(parts, lane)
            event.record()
        return here, event

    def _store(self, here: Sequence[_Part], parts: Sequence[_Part], lane: int) -> None:
        if not self._streams:
            _copy_back(here, parts)
            return
        leaving = self._streams[1]
        leaving.wait_stream(torch.cuda.current_stream(self._buffers[0].device))
        with torch.cuda.stream(leaving):
            _copy_back(here, parts)
            self._stored[lane].record()

    def _copied_in(self, parts: Sequence[_Part], lane: int) -> list[_Part]:
        place, here = 0, []
        for part in parts:
            copies = []
            for source in _hosted(part):
                room = self._buffers[lane][place : place + source.nbytes]
                copies.append(room.view(source.dtype).view(source.shape).copy_(source, non_blocking=True))
                place += _padded(source)
            weight = copies.pop() if part.is_hosted else part.weight
            here.append(replace(part, weight=weight, moments=tuple(copies)))
        return here


def _copy_back(here: Sequence[_Part], parts: Sequence[_Part]) -> None:
    for new, part in zip(here, parts, strict=True):
        for source, target in zip(_hosted(new), _hosted(part), strict=True):
            target.copy_(source, non_blocking=True)


def _hosted(part: _Part) -> tuple[Tensor, ...]:
    """Return what of a part is on the host."""
    return (*part.moments, part.weight) if part.is_hosted else part.moments


def _padded(values: Tensor) -> int:
    return -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT


def _row_slices(weight: Tensor) -> Iterator[slice]:
    """Yield slices of rows with at most PORTION numbers each."""
    num, rows = len(weight), max(PORTION // max(weight[0].numel(), 1), 1)
    for start in range(0, num, rows):
        yield slice(start, min(start + rows, num))


def _portions(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Divide parts, in order, into lists with at most PORTION numbers each, or of one part."""
    portion, size = [], 0
    for part in parts:
        if portion and size + part.weight.numel() > PORTION:
            yield portion
            portion, size = [], 0
        portion.append(part)
        size += part.weight.numel()
    if portion:
        yield portion


def _no_moments(weight: Tensor, settings: OptimizerSettings, device: torch.device) -> dict[str, Tensor]:
    """Return the moments of a weight before its first update."""
    place: Any = {"device": device}
    if settings.on_host:
        place = {"device": "cpu", "pin_memory": device.type == "cuda"}
    if settings.bits == 32:
        if not settings.on_host:
            return {name: torch.zeros_like(weight.detach()) for name in _MOMENTS}
        return {name: torch.zeros(weight.shape, dtype=weight.dtype, **place) for name in _MOMENTS}
    length = weight.shape[-1]
    blocks = (*weight.shape[:-1], -(-length // BLOCK), min(BLOCK, length))
    moments = {}
    for name in _MOMENTS:
        moments[f"{name}_codes"] = torch.zeros(blocks, dtype=torch.uint8, **place)
        moments[f"{name}_scale"] = torch.zeros(blocks[:-1], **place)
    return moments
