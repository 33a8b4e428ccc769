"""Measure for how long the device works on prompts and on chunks, without waiting for it."""

import itertools
import time
from collections import defaultdict
from collections.abc import Mapping

import torch


class Stopwatch:
    """Sums the seconds between points in the device's queue of work; on a CPU, which has none, between calls."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._points: list[tuple[str, float | torch.cuda.Event]] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> Mapping[str, float]:
        return dict(self._seconds)

    def begin(self) -> None:
        """Mark the first point."""
        self._points = [("", self._now())]

    def lap(self, name: str) -> None:
        """Mark a point; the time since the point before belongs to `name`."""
        self._points.append((name, self._now()))

    def read(self, *, prefix: str = "") -> None:
        """Add the times between the points, whose work must be done, to the sums."""
        points = self._points
        self._points = []
        for (_, start), (name, end) in itertools.pairwise(points):
            if isinstance(start, float) and isinstance(end, float):
                self._seconds[prefix + name] += end - start
            elif isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
                end.synchronize()
                self._seconds[prefix + name] += start.elapsed_time(end) / 1e3

    def _now(self) -> "float | torch.cuda.Event":
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
