"""AdamW with its state in FP32 or 8 bits, on the device or in host memory.

    FP32 on the device    one fused kernel over all weights, with the results of torch.optim.AdamW(fused=True)
    8 bits                the two moments are in blocks with one scale each (models/blocks.py). An update decodes a
                          portion of them, updates in FP32 and rounds without bias
    on the host           master weights and moments are in host memory. An update copies a portion of them to the
                          device while the previous portion is updated and the one before is copied back

The last two can be combined; hosted values give the same results as on the device. A bad gradient changes nothing: the
kernel reads the flag on the device, so the host does not wait.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from scalerl.recipe.parts import OptimizerSettings
from scalerl.training.learner.state import local
from scalerl.training.models.blocks import decode, mean_shares, square_shares, unbiased
from scalerl.training.types import derive_seed

BLOCK = 128
"""Numbers that share a scale, in a moment in 8 bits."""
PORTION = 2**24
"""Numbers that are decoded, or copied from the host, at a time."""
_ALIGNMENT = 256
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Some or all rows of a weight, with what an update of them needs."""

    name: str
    rows: slice
    step: Tensor
    weight: Tensor
    is_hosted: bool
    """Whether the weight is in host memory."""
    copy: Tensor | None
    """A rounded copy in the dtype of the body, which is updated with the weight."""
    cells: slice
    """Position of its moments among those of the portion, in numbers or blocks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Portion:
    """Parts that are updated together."""

    parts: Sequence[_Part]
    moments: Sequence[Tensor]
    """Two tensors in FP32, or codes and scales of each; none if each weight has its own moments."""

    @property
    def hosted(self) -> list[Tensor]:
        """The tensors on the host, if the moments are there."""
        return [*self.moments, *(part.weight for part in self.parts if part.is_hosted)]


class AdamW:
    """AdamW over named FP32 weights. Norms and biases decay like all other weights: the paper names no exceptions."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        settings: OptimizerSettings,
        *,
        device: torch.device,
        hosted: Collection[str] = (),
        copies: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """`hosted` names the weights in host memory; `copies` are rounded copies on the device, by weight."""
        self._settings = settings
        self._device = device
        self._steps = torch.zeros(len(weights), device=device)
        self.state: dict[str, dict[str, Tensor]] = {
            name: {"step": step} for name, step in zip(weights, self._steps, strict=True)
        }
        """The number of updates and the moments of each weight."""

        def part(name: str, rows: slice, cells: slice) -> _Part:
            return _Part(
                name=name,
                rows=rows,
                step=self.state[name]["step"],
                weight=local(weights[name].detach())[rows],
                is_hosted=name in hosted,
                copy=copies[name].detach()[rows] if name in copies else None,
                cells=cells,
            )

        self._lanes: _Lanes | None = None
        self._portions: list[_Portion] = []
        if settings.bits == 32 and not settings.on_host:
            for name, weight in weights.items():
                self.state[name] |= {key: torch.zeros_like(weight.detach()) for key in _MOMENTS}
            whole = [part(name, slice(None), slice(None)) for name in weights]
            self._portions.append(_Portion(parts=whole, moments=()))
            return
        self._divide({name: _cells(weight, settings) for name, weight in weights.items()}, part)
        if settings.on_host:
            self._lanes = _Lanes(self._portions, device)

    def _divide(self, cells: Mapping[str, tuple[int, ...]], part: Callable[[str, slice, slice], _Part]) -> None:
        """Create the moments of all weights, and divide them into portions; `cells` are the shapes of weights."""
        settings = self._settings
        moments = _no_moments(sum(map(math.prod, cells.values())), settings, self._device)
        pending = list[_Part]()
        first = 0
        end = 0
        for name, shape in cells.items():
            for key, flat in moments.items():
                self.state[name][key] = flat[end : end + math.prod(shape)].view(*shape, *flat.shape[1:])
            for rows, num in _row_slices(shape, settings):
                if pending and (end + num - first) * _numbers(settings) > PORTION:
                    self._portions.append(_portion(pending, moments, slice(first, end)))
                    pending = []
                    first = end
                pending.append(part(name, rows, slice(end - first, end - first + num)))
                end += num
        self._portions.append(_portion(pending, moments, slice(first, end)))

    @torch.no_grad()
    def update(self, gradients: Mapping[str, Tensor], *, lr: float, is_bad: Tensor, seed: int) -> None:
        """Update the weights that have a gradient, unless `is_bad` (a float, 1 or 0). `seed` is for rounding."""
        changed: Any = 1
        if len(gradients) < len(self.state):
            changed = torch.tensor([float(name in gradients) for name in self.state], device=self._device)
        self._steps.add_(changed)
        portions = self._portions if self._lanes is None else self._lanes.carry(self._portions)
        for number, portion in enumerate(portions):
            with self._decoded(portion, is_bad, derive_seed("moments", seed, number)) as (means, squares):
                self._step(portion.parts, gradients, means, squares, lr, is_bad)
        self._steps.sub_(is_bad * changed)

    def settle(self) -> None:
        """Wait until hosted values are up to date."""
        if self._lanes is not None:
            self._lanes.settle()

    def _step(
        self,
        parts: Sequence[_Part],
        gradients: Mapping[str, Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        lr: float,
        is_bad: Tensor,
    ) -> None:
        """Update parts with their moments; parts without a gradient do not change."""
        settings = self._settings
        used = [number for number, part in enumerate(parts) if part.name in gradients]
        chosen = [parts[number] for number in used]
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            [part.weight for part in chosen],
            [local(gradients[part.name])[part.rows] for part in chosen],
            [means[number] for number in used],
            [squares[number] for number in used],
            [],
            [part.step for part in chosen],
            lr=lr,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            amsgrad=False,
            maximize=False,
            found_inf=is_bad,
        )
        if followed := [(part.copy, part.weight) for part in chosen if part.copy is not None]:
            copies, weights = map(list, zip(*followed, strict=True))
            torch._foreach_copy_(copies, weights)  # pyright: ignore[reportPrivateImportUsage]

    def _own_moments(self, portion: _Portion, key: str) -> list[Tensor]:
        return [local(self.state[part.name][key]) for part in portion.parts]

    @contextlib.contextmanager
    def _decoded(self, portion: _Portion, is_bad: Tensor, seed: int) -> Iterator[list[list[Tensor]]]:
        """Yield both moments of each part in FP32; then round the updated moments, unless `is_bad`."""
        if not portion.moments:
            yield [self._own_moments(portion, key) for key in _MOMENTS]
            return
        if self._settings.bits == 32:
            yield [_of_parts(portion, flat) for flat in portion.moments]
            return
        tables = mean_shares(self._device), square_shares(self._device)
        rounded = [portion.moments[:2], portion.moments[2:]]
        flats = [decode(codes, scale, table) for (codes, scale), table in zip(rounded, tables, strict=True)]
        moments = [_of_parts(portion, flat) for flat in flats]
        yield moments
        generator = torch.Generator(self._device).manual_seed(seed)
        for (codes, scale), flat, table, parts in zip(rounded, flats, tables, moments, strict=True):
            for part, moment in zip(portion.parts, parts, strict=True):
                if moment.shape[-1] % BLOCK:
                    # This is not a view, because rows end inside a block.
                    _of_part(part, flat).copy_(moment)
            noise = torch.empty_like(flat).uniform_(generator=generator)
            new_codes, new_scale = unbiased(flat, table, noise)
            codes.copy_(torch.where(is_bad > 0, codes, new_codes))
            scale.copy_(new_scale)


class _Lanes:
    """Copies hosted portions to the device and back, on two extra streams on a GPU.

    A lane is a buffer on the device with room for any portion. With two lanes, the next portion arrives while one is
    updated.
    """

    def __init__(self, portions: Sequence[_Portion], device: torch.device) -> None:
        largest = max(sum(map(_padded, portion.hosted)) for portion in portions)
        self._buffers = [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(2)]
        self._streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else None
        for stream in self._streams or ():
            # Kernels that are queued may still use memory that these buffers have from now on.
            stream.wait_stream(torch.cuda.current_stream(device))
        self._stored = [torch.cuda.Event() for _ in range(2)] if self._streams else []

    def carry(self, portions: Sequence[_Portion]) -> Iterator[_Portion]:
        """Yield each portion on the device; when the next one is requested, copy the updated values to the host."""
        if self._streams:
            # The values that the last update sent back must have arrived.
            self._streams[0].wait_stream(self._streams[1])
        fetched = self._fetch(portions[0], 0)
        for number, portion in enumerate(portions):
            here, is_here = fetched
            if number + 1 < len(portions):
                fetched = self._fetch(portions[number + 1], (number + 1) % 2)
            if is_here is not None:
                torch.cuda.current_stream(self._buffers[0].device).wait_event(is_here)
            yield here
            self._store(here, portion, number % 2)

    def settle(self) -> None:
        """Wait until all updated values have arrived on the host."""
        if self._streams:
            self._streams[1].synchronize()

    def _fetch(self, portion: _Portion, lane: int) -> tuple[_Portion, "torch.cuda.Event | None"]:
        if not self._streams:
            return self._copied_in(portion, lane), None
        arriving = self._streams[0]
        event = torch.cuda.Event()
        arriving.wait_event(self._stored[lane])
        with torch.cuda.stream(arriving):
            here = self._copied_in(portion, lane)
            event.record()
        return here, event

    def _store(self, here: _Portion, portion: _Portion, lane: int) -> None:
        if not self._streams:
            _copy_back(here, portion)
            return
        leaving = self._streams[1]
        leaving.wait_stream(torch.cuda.current_stream(self._buffers[0].device))
        with torch.cuda.stream(leaving):
            _copy_back(here, portion)
            self._stored[lane].record()

    def _copied_in(self, portion: _Portion, lane: int) -> _Portion:
        place = 0
        copies = list[Tensor]()
        for source in portion.hosted:
            room = self._buffers[lane][place : place + source.nbytes]
            copies.append(room.view(source.dtype).view(source.shape).copy_(source, non_blocking=True))
            place += _padded(source)
        num = len(portion.moments)
        weights = iter(copies[num:])
        parts = [replace(part, weight=next(weights)) if part.is_hosted else part for part in portion.parts]
        return _Portion(parts=parts, moments=copies[:num])


def _copy_back(here: _Portion, portion: _Portion) -> None:
    for source, target in zip(here.hosted, portion.hosted, strict=True):
        target.copy_(source, non_blocking=True)


def _padded(values: Tensor) -> int:
    return -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT


def _portion(parts: Sequence[_Part], moments: Mapping[str, Tensor], cells: slice) -> _Portion:
    return _Portion(parts=parts, moments=[flat[cells] for flat in moments.values()])


def _of_part(part: _Part, flat: Tensor) -> Tensor:
    """Return the view of one part of a portion's moment, in the shape of the weight."""
    *rows, length = part.weight.shape
    return flat[part.cells].view(*rows, -1)[..., :length]


def _of_parts(portion: _Portion, flat: Tensor) -> list[Tensor]:
    """Return one moment of each part: a view, or a copy if rows end inside a block."""
    return [_of_part(part, flat).contiguous() for part in portion.parts]


def _numbers(settings: OptimizerSettings) -> int:
    """Return the numbers per cell, the smallest part of a moment that is stored separately."""
    return 1 if settings.bits == 32 else BLOCK


def _cells(weight: Tensor, settings: OptimizerSettings) -> tuple[int, ...]:
    """Return the shape of a weight in cells; every row starts a new block."""
    *rows, length = weight.shape
    return *rows, -(-length // _numbers(settings))


def _row_slices(shape: tuple[int, ...], settings: OptimizerSettings) -> Iterator[tuple[slice, int]]:
    """Yield slices of rows with at most PORTION numbers each, or of one row, and the cells of each."""
    num_rows = shape[0] if len(shape) > 1 else 1
    per_row = math.prod(shape) // num_rows
    step = max(PORTION // (per_row * _numbers(settings)), 1)
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        rows = slice(start, stop) if len(shape) > 1 else slice(None)
        yield rows, (stop - start) * per_row


def _no_moments(num_cells: int, settings: OptimizerSettings, device: torch.device) -> dict[str, Tensor]:
    """Return the moments of all weights before the first update, concatenated."""
    place: Any = {"device": device}
    if settings.on_host:
        place = {"device": "cpu", "pin_memory": device.type == "cuda"}
    if settings.bits == 32:
        return {name: torch.zeros(num_cells, **place) for name in _MOMENTS}
    moments = {}
    for name in _MOMENTS:
        moments[f"{name}_codes"] = torch.zeros(num_cells, BLOCK, dtype=torch.uint8, **place)
        moments[f"{name}_scale"] = torch.zeros(num_cells, **place)
    return moments
