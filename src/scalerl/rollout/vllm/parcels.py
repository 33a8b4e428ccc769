"""How weights get from the learner into vLLM's workers, which are other processes.

    HostSender    copies them into a block of memory that the workers map: any device, no file that could stay behind
    CudaSender    sends handles of the learner's own GPU memory, which the workers read (CUDA IPC); one machine

A sender makes a parcel, a small value that travels through pipes; in the worker, `open_parcel` gives the tensors. They
are valid until the learner's process goes on, that is, until push_weights returns.
"""

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParcel:
    """The tensors themselves, for a worker in the same process."""

    tensors: tuple[tuple[str, Tensor], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParcel:
    """Where the tensors lie in a block of shared memory."""

    path: str
    num_bytes: int
    layout: tuple[tuple[str, str, tuple[int, ...], int], ...]
    """Name, dtype, shape and offset of each tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaParcel:
    """Handles of tensors on a GPU of this machine."""

    device: str
    """The GPU's UUID; its number may be another one in another process."""
    handles: tuple[tuple[str, tuple[Any, ...]], ...]
    """Name, and the arguments of torch's rebuild_cuda_tensor."""


Parcel = LocalParcel | HostParcel | CudaParcel


class HostSender:
    """Copies weights into one block of anonymous shared memory, which ends with the processes that map it."""

    def __init__(self) -> None:
        self._file = os.memfd_create("scalerl-weights")
        self._block: mmap.mmap | None = None

    def send(self, weights: Mapping[str, Tensor]) -> HostParcel:
        layout, num_bytes = [], 0
        for name, weight in weights.items():
            dtype = str(weight.dtype).removeprefix("torch.")
            layout.append((name, dtype, tuple(weight.shape), num_bytes))
            num_bytes += -(-weight.numel() * weight.element_size() // _ALIGNMENT) * _ALIGNMENT
        block = self._with_room(num_bytes)
        for (_, view), weight in zip(_views(block, layout), weights.values(), strict=True):
            view.copy_(weight.detach())
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        return HostParcel(path=path, num_bytes=len(block), layout=tuple(layout))

    def close(self) -> None:
        """Free the block. A second call does nothing: the number of the file may be that of another one by then."""
        self._block = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _with_room(self, num_bytes: int) -> mmap.mmap:
        if self._block is None or len(self._block) < num_bytes:
            os.ftruncate(self._file, num_bytes)
            self._block = mmap.mmap(self._file, num_bytes)
        return self._block


class CudaSender:
    """Sends handles of GPU memory. Nothing is copied here; the workers copy what they need."""

    def send(self, weights: Mapping[str, Tensor]) -> CudaParcel:
        from torch.multiprocessing.reductions import reduce_tensor

        handles = tuple((name, reduce_tensor(weight.detach())[1]) for name, weight in weights.items())
        device = next(iter(weights.values())).device
        # The step that made these weights must be complete before another process reads them.
        torch.cuda.synchronize(device)
        return CudaParcel(device=str(torch.cuda.get_device_properties(device).uuid), handles=handles)


def open_parcel(parcel: Parcel, blocks: dict[str, mmap.mmap]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a parcel by name. `blocks` keeps mappings from one push to the next."""
    match parcel:
        case LocalParcel():
            yield from parcel.tensors
        case HostParcel():
            yield from _views(_mapped(parcel, blocks), parcel.layout)
        case CudaParcel():
            from torch.multiprocessing.reductions import rebuild_cuda_tensor

            number = _device_number(parcel.device)
            for name, handle in parcel.handles:
                # The seventh argument is the number of the device in the process that sent the handle.
                arguments: list[Any] = [*handle[:6], number, *handle[7:]]
                yield name, rebuild_cuda_tensor(*arguments)


def _mapped(parcel: HostParcel, blocks: dict[str, mmap.mmap]) -> mmap.mmap:
    block = blocks.get(parcel.path)
    if block is None or len(block) != parcel.num_bytes:
        file = os.open(parcel.path, os.O_RDWR)
        try:
            blocks[parcel.path] = block = mmap.mmap(file, parcel.num_bytes)
        finally:
            os.close(file)
    return block


def _device_number(uuid: str) -> int:
    for number in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(number).uuid) == uuid:
            return number
    raise RuntimeError(
        f"the learner's GPU {uuid} is not visible to vLLM, which reads the weights from its memory: "
        f"let CUDA_VISIBLE_DEVICES have it"
    )


def _views(block: mmap.mmap, layout: Any) -> Iterator[tuple[str, Tensor]]:
    for name, dtype, shape, offset in layout:
        count = 1
        for size in shape:
            count *= size
        yield name, torch.frombuffer(block, dtype=getattr(torch, dtype), count=count, offset=offset).view(shape)
