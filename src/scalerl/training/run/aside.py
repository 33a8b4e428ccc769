"""Copy a learner's state aside in host memory, so that it can be written while training changes it.

    state on the device -> copies, in the order of the device's own work -> host memory -> files, by another thread

On a GPU the copies are queued behind the kernels of the last step and before those of the next one. So they hold the
state between the two steps, and the host does not wait for them. They go to pinned memory, at the speed of the bus.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from scalerl.training.learner.saved import file_name, write_tensors
from scalerl.training.learner.state import State
from scalerl.training.rollout.memory import host_free_bytes

PINNED_SHARE = 0.5
"""Largest share of the free host memory for pinned memory, which the system cannot move."""
COPY_SHARE = 0.8
"""Largest share of the free host memory for any copy."""
_PIECE_BYTES = 1 << 30
"""Host memory is allocated in pieces of this size. For pinned memory, torch rounds sizes up to powers of two."""
_ALIGNMENT = 64
_COPYING_THREADS = 4


class StateCopy:
    """A copy of a state in host memory."""

    def __init__(self, tensors: Mapping[str, Mapping[str, Tensor]], arrived: "list[torch.cuda.Event]") -> None:
        """The values are complete when the events `arrived` have happened."""
        self._tensors = tensors
        self._arrived = arrived

    @property
    def num_bytes(self) -> int:
        return state_bytes(self._tensors)

    def write(self, folder: Path) -> dict[str, int]:
        """Write a file for each kind of tensors; return the CRC-32 of each file."""
        for event in self._arrived:
            event.synchronize()
        names = [file_name(kind) for kind in self._tensors]
        # Together: checksums of one file are computed while another one is written.
        with ThreadPoolExecutor(len(names)) as threads:
            checksums = threads.map(write_tensors, [folder / name for name in names], self._tensors.values())
            return dict(zip(names, checksums, strict=True))


class StateCopier:
    """Host memory for one copy of a state; it is allocated once, while something else happens."""

    def __init__(self) -> None:
        self._allocated: Future[dict[tuple[str, str], Tensor]] | None = None
        self._allocator = ThreadPoolExecutor(1, "state-copy")

    def prepare(self, state: State) -> None:
        """Begin to allocate memory for copies of states like this one."""
        if self._allocated is None:
            self._allocated = self._allocator.submit(_allocate, _flat(state))

    def copy(self, state: State) -> StateCopy | None:
        """Return a copy of the state as it is now; None if the host has no memory for it.

        The values of an earlier copy are overwritten, so it must have been written.
        """
        self.prepare(state)
        assert self._allocated is not None
        memory = self._allocated.result()
        if not memory:
            return None
        copies: dict[str, dict[str, Tensor]] = {kind: {} for kind in state}
        on_host: list[tuple[Tensor, Tensor]] = []
        devices = set[torch.device]()
        for (kind, name), values in _flat(state).items():
            target = memory[kind, name]
            copies[kind][name] = target
            if values.is_cuda:
                target.copy_(values.detach(), non_blocking=True)
                devices.add(values.device)
            else:
                on_host.append((target, values.detach()))
        with ThreadPoolExecutor(_COPYING_THREADS) as threads:
            list(threads.map(lambda pair: pair[0].copy_(pair[1]), on_host))
        return StateCopy(copies, [_end_of_queue(device) for device in devices])


def _end_of_queue(device: torch.device) -> "torch.cuda.Event":
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def state_bytes(state: State) -> int:
    """Return the size of a state."""
    return sum(values.nbytes for values in _flat(state).values())


def _flat(state: State) -> dict[tuple[str, str], Tensor]:
    """Return the tensors of a state by kind and name."""
    flat: dict[tuple[str, str], Tensor] = {}
    for kind, named in state.items():
        for name, values in named.items():
            flat[kind, name] = values
    return flat


def _allocate(state: Mapping[tuple[str, str], Tensor]) -> dict[tuple[str, str], Tensor]:
    """Return host memory for each tensor of a state; nothing if the host has not enough."""
    needed = sum(_padded(values) for values in state.values())
    free = host_free_bytes()
    if free is not None and needed > COPY_SHARE * free:
        return {}
    has_device = any(values.is_cuda for values in state.values())
    pinned = has_device and (free is None or needed <= PINNED_SHARE * free)
    memory: dict[tuple[str, str], Tensor] = {}
    piece = torch.empty(0, dtype=torch.uint8)
    place = 0
    for key, values in state.items():
        if place + values.nbytes > len(piece):
            piece = _piece(min(max(_PIECE_BYTES, values.nbytes), needed), pinned=pinned)
            place = 0
        memory[key] = piece[place : place + values.nbytes].view(values.dtype).view(values.shape)
        place += _padded(values)
        needed -= _padded(values)
    return memory


def _piece(num_bytes: int, *, pinned: bool) -> Tensor:
    if pinned:
        # The system may limit pinned memory.
        with suppress(RuntimeError):
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    # The system gives memory at its first use, which would otherwise be the first copy.
    return torch.zeros(num_bytes, dtype=torch.uint8).fill_(0)


def _padded(values: Tensor) -> int:
    return -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
