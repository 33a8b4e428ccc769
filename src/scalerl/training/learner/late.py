"""Metrics that are read from the device only when they are needed, so that a step does not wait for its kernels."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor


class LateMetrics(Mapping[str, float]):
    """The metrics of a step. Those known to the host are available at once; reading others waits for the device."""

    def __init__(self, known: Mapping[str, float], read: Callable[[], dict[str, float]]) -> None:
        """`read` waits for the device and returns all metrics, including the known ones."""
        self._known = known
        self._read = read
        self._all: dict[str, float] | None = None

    def read(self) -> dict[str, float]:
        """Return all metrics; the first call waits for the device."""
        if self._all is None:
            self._all = self._read()
        return self._all

    def __getitem__(self, name: str) -> float:
        if self._all is None and name in self._known:
            return self._known[name]
        return self.read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())


class HostCopy:
    """A vector that is being copied from the device to the host."""

    def __init__(self, values: Tensor) -> None:
        self._host = values
        self._arrived = None
        if values.is_cuda:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def wait(self) -> Tensor:
        """Wait for the copy and return the values on the host."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host


class StepTimer:
    """Measures the time from the first to the last kernel of a step on a GPU; measures nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._events: Any = None
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()

    def stop(self) -> None:
        if self._events is not None:
            self._events[1].record()

    def metrics(self) -> dict[str, float]:
        """Return the step's seconds when it is done; they replace the host's, which cover only the launches."""
        return {} if self._events is None else {"time/step_s": self._events[0].elapsed_time(self._events[1]) / 1e3}


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for its queue; a copy from pageable memory would wait."""
    if device.type == "cuda" and values.device.type == "cpu" and values.numel():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def moved(record: Any, device: torch.device) -> Any:
    """Return a dataclass with its own tensors on a device; tensors inside other fields are not moved."""
    parts = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: sent(part, device) for name, part in parts.items() if isinstance(part, Tensor)})
