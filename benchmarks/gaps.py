"""Where the time of a step goes: whom the device works for, when it has nothing to do, and what the host does then.

    device   engine + learner + push + idle                       = a step
    host     submit + sample + grade + learn + push + rest + waits = a step

The device's share comes from a trace of a few steps, the rest from the loop's own clock without the profiler, which
slows a host that launches small kernels. On a CPU the device is the host: what a role takes is the time of its calls.
Used by gpu_parts.py.
"""

import contextlib
import json
import tempfile
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from scalerl.training.loop.pipeline import StepDone

ROLES = {"engine": ("poll", "submit"), "learner": ("step",), "push": ("push_weights",)}
"""The methods of engine and learner whose kernels count for a role."""
HOST = {"submit": "submit_s", "sample": "poll_s", "grade": "grade_s", "learn": "step_s", "push": "push_s"}
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
MOST_KERNELS = 8
"""Kernels that are listed by name for each role."""

T = TypeVar("T")
Event = Mapping[str, Any]
"""An event of a trace in Chrome's format, in microseconds."""


class Roles:
    """Engine and learner whose calls are named in a trace and counted, with the seconds that the host waits."""

    def __init__(self, engine: Any, learner: Any) -> None:
        self._made = [
            (part, name, self._named(role, getattr(part, name)))
            for role, names in ROLES.items()
            for name in names
            for part in (engine, learner)
            if hasattr(part, name) and (part is learner) == (role == "learner")
        ]
        self.calls_s: dict[str, float] = defaultdict(float)
        self.waits_s: dict[str, float] = defaultdict(float)
        """By role in whose call the host waited."""
        self._now = ""

    def _named(self, role: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def named(*args: Any, **settings: Any) -> Any:
            before, self._now = self._now, role
            start = time.perf_counter()
            try:
                with torch.profiler.record_function(role):
                    return call(*args, **settings)
            finally:
                self.calls_s[role] += time.perf_counter() - start
                self._now = before

        return named

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the calls, and the waits for the device, within this context."""
        wait = torch.cuda.Event.synchronize

        def counted_wait(event: Any) -> None:
            start = time.perf_counter()
            wait(event)
            self.waits_s[self._now] += time.perf_counter() - start

        self.calls_s.clear()
        self.waits_s.clear()
        torch.cuda.Event.synchronize = counted_wait  # pyright: ignore[reportAttributeAccessIssue]
        for part, name, call in self._made:
            setattr(part, name, call)
        try:
            yield
        finally:
            torch.cuda.Event.synchronize = wait
            for part, name, _ in self._made:
                delattr(part, name)


def traced(work: Callable[[], T]) -> tuple[T, list[Event]]:
    """Run `work` under the profiler; return its result and the trace."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        result = work()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return result, json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def by_role(events: Sequence[Event]) -> dict[str, list[tuple[float, float, str]]]:
    """Return start, end and name of what the device did, by the role in whose call it was launched; "" for none."""
    calls = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"] in ROLES
    )
    starts = [start for start, _, _ in calls]

    def role_at(time: float) -> str:
        place = bisect_right(starts, time) - 1
        return calls[place][2] if place >= 0 and time < calls[place][1] else ""

    launches = (event for event in events if event.get("cat") in _LAUNCHES)
    launched = {event.get("args", {}).get("correlation"): event["ts"] for event in launches}
    work: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _ON_DEVICE:
            role = role_at(launched.get(event["args"].get("correlation"), event["ts"]))
            work[role].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    return work


def busy_s(work: Sequence[tuple[float, float, str]]) -> float:
    """Return the seconds in which at least one of these was on the device."""
    total, reached = 0.0, float("-inf")
    for start, end, _ in sorted(work):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total / 1e6


def kernels(work: Sequence[tuple[float, float, str]], num_steps: int) -> dict[str, list[float]]:
    """Return milliseconds and number per step of the kernels that take longest, by the beginning of their name."""
    spent: dict[str, float] = defaultdict(float)
    num: Counter[str] = Counter()
    for start, end, name in work:
        spent[name[:70]] += end - start
        num[name[:70]] += 1
    return {
        name: [round(time / num_steps / 1e3, 4), num[name] / num_steps]
        for name, time in sorted(spent.items(), key=lambda item: -item[1])[:MOST_KERNELS]
    }


def device_figures(events: Sequence[Event], num_steps: int) -> dict[str, Any]:
    """Return the milliseconds of a step that the device works for each role, and for what; {} if a trace has none."""
    work = by_role(events)
    if not work:
        return {}
    figures: dict[str, Any] = {f"{role}_ms": 1e3 * busy_s(work[role]) / num_steps for role in ROLES}
    figures["other_ms"] = 1e3 * busy_s(work[""]) / num_steps
    return figures | {f"{role}_kernels": kernels(work[role], num_steps) for role in ("engine", "learner")}


def host_figures(steps: Sequence[StepDone], elapsed_s: float, waits_s: Mapping[str, float]) -> dict[str, float]:
    """Return the milliseconds of a step that the host spends on each part, and waits for the device."""
    num = len(steps)
    spent = {part: sum(getattr(step.timings, name) for step in steps) for part, name in HOST.items()}
    waits = {"sample": waits_s.get("engine", 0.0), "learn": waits_s.get("learner", 0.0), "push": waits_s.get("push", 0)}
    rest = elapsed_s - sum(spent.values())
    parts = {part: value - waits.get(part, 0.0) for part, value in spent.items()} | {"rest": rest}
    figures = {f"host_{part}_ms": 1e3 * value / num for part, value in parts.items()}
    return figures | {
        "step_ms": 1e3 * elapsed_s / num,
        "host_ms": sum(figures.values()),
        "wait_ms": 1e3 * sum(waits.values()) / num,
    }
