"""The board: looks at the named paths again and again, has workers read and fit what has changed, keeps their answers.

watcher thread:   discover -> collect finished jobs, raise versions -> ask for what has changed
server threads:   listing(), detail(), samples() under the lock; listeners tell the event streams of changes
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.errors import WorkerDied
from scalerl.report import samples
from scalerl.report.board.looks import Look, conclude, files_of, look_at, make_look, shown, unreadable
from scalerl.report.files import Root, read_object
from scalerl.report.json import plain
from scalerl.report.runs import settings_that_differ
from scalerl.report.sources import Source, discover
from scalerl.report.workers import Workers, num_cores
from scalerl.store import SAMPLES, STATUS, current_status

LOOK_EVERY_S = 0.03
"""Time between looks at the files of a run that a page shows."""
OTHERS_EVERY_S = 0.1
DISCOVER_EVERY_S = 1.0
WANTED_S = 30.0
WORKER_BYTES = 2 << 30
"""Memory of a worker: it reads files that anyone may have written."""
LOOK_S = {"run": 600.0, "log": 90.0, "study": 600.0}
"""Time for a look, after which its worker is ended: a log's own reader has a limit of 60 s."""
SLOW_S = 5.0
"""What took longer is looked at again only while another worker stays free for the rest."""
MOST_WORKERS = 4
# After a look or its fits, a source is left alone for so many times their CPU time, and at most so many seconds.
PAUSES = {"run": (2.0, 20.0), "log": (10.0, 30.0), "study": (4.0, 60.0)}


@dataclass(slots=True)
class Job:
    """What a worker does for an item again and again."""

    future: Future[Any] | None = None
    asked_at: float = 0.0
    next_at: float = 0.0
    done_for: Any = None
    """What it was asked for last: it is asked again for something else."""
    value: Any = None
    took_s: float = 0.0


@dataclass(slots=True)
class Item:
    """A run, a log or a study, with what its files say, and what is concluded from that."""

    source: Source
    reading: Job = field(default_factory=Job)
    """Makes a Look: nothing is shown of an item until then."""
    fitting: Job = field(default_factory=Job)
    version: int = 0
    status: Any = None
    """What its status.json says now: a run's process can be killed without a word in its files."""
    wanted_until: float = 0.0
    """Time until which a page is showing this run, so that its history is computed."""

    @property
    def look(self) -> Look | None:
        return self.reading.value

    @property
    def jobs(self) -> tuple[Job, Job]:
        return self.reading, self.fitting


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what a function returns, and its CPU time."""
    began = time.process_time()
    return function(*arguments), time.process_time() - began


class Board:
    """Everything that is followed. `look` is called by one thread; the rest may be called by any."""

    def __init__(self, paths: Sequence[Path], *, end_compute: float | None = None) -> None:
        self.roots = [Root(path) for path in paths]
        self.version = 1
        self.epoch = f"{os.getpid()}-{time.time_ns()}"
        """Differs between two starts of the server: a page that sees a new one asks for everything again."""
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.woken = threading.Event()
        """Set when a worker has finished: the next look need not wait."""
        self._end_compute = end_compute
        self._items: dict[str, Item] = {}
        self._notes: list[str] = []
        self._next_discovery = 0.0
        self._num_workers = min(max(num_cores() - 1, 2), MOST_WORKERS)
        self._workers = Workers(self._num_workers, retry_here=False, most_bytes=WORKER_BYTES)
        self._cache: dict[str, tuple[int, bytes]] = {}

    def close(self) -> None:
        self._workers.__exit__()

    # Looking

    def look(self) -> None:
        """Collect what workers have found, and ask for a look at what has changed since."""
        now, before = time.monotonic(), self.version
        with self.lock:
            if now >= self._next_discovery:
                self._next_discovery = now + DISCOVER_EVERY_S
                self._discover()
            for item in self._items.values():
                for job in item.jobs:
                    if job.future is not None and job.future.done():
                        self._collect(item, job, now)
            items = sorted(self._items.values(), key=lambda item: (item.wanted_until < now, item.reading.asked_at))
        for item in items:
            is_slow = item.reading.took_s > SLOW_S
            if item.reading.future is None and now >= item.reading.next_at and self._num_free() > is_slow:
                item.reading.next_at = now + (LOOK_EVERY_S if now < item.wanted_until else OTHERS_EVERY_S)
                files = files_of(item.source), str(item.status), item.source
                self._ask(
                    item.reading, now, files, look_at, item.source, self._end_compute, most_s=LOOK_S[item.source.kind]
                )
            # One worker is left to show what is new.
            if item.look is not None and item.look.key and now >= item.fitting.next_at and self._num_free() > 1:
                wanted = item.look.key, now < item.wanted_until and item.source.kind != "study"
                known = (item.fitting.value or {"known": {}})["known"]
                concluded = partial(conclude, with_history=wanted[1])
                # A history that is there does no harm where none is asked for.
                if item.fitting.future is None and item.fitting.done_for not in (wanted, (item.look.key, True)):
                    self._ask(item.fitting, now, wanted, concluded, item.source, self._end_compute, known)
        if self.version != before:
            with self._changed:
                self._changed.notify_all()

    def _num_free(self) -> int:
        return self._num_workers - sum(job.future is not None for item in self._items.values() for job in item.jobs)

    def _ask(
        self,
        job: Job,
        now: float,
        wanted: Any,
        function: Callable[..., Any],
        *arguments: Any,
        most_s: float = math.inf,
    ) -> None:
        """Have a worker do a job, unless it was done for the same thing."""
        if job.done_for != wanted:
            job.done_for, job.asked_at = wanted, now
            job.future = self._workers.submit(_timed, function, *arguments, most_s=most_s)
            job.future.add_done_callback(lambda _: self.woken.set())

    def _collect(self, item: Item, job: Job, now: float) -> None:
        assert job.future is not None
        try:
            job.value, cpu_s = job.future.result()
        except (WorkerDied, OSError, EOFError) as error:
            reason = str(error) if isinstance(error, WorkerDied) else "ended"
            job.value = unreadable(item.source, f"its reader {reason}") if job is item.reading else None
            cpu_s = math.inf
        times, most = PAUSES[item.source.kind]
        job.took_s = now - job.asked_at
        job.future, job.next_at = None, now + min(times * cpu_s, most)
        self.version += 1
        item.version = self.version

    def _discover(self) -> None:
        sources, notes = discover(self.roots)
        before = {key: item.source for key, item in self._items.items()}, self._notes
        # In the order of discovery, which is the order of the list on the page.
        known, self._items, self._notes = self._items, {}, notes
        for source in sources:
            item = known.get(source.key)
            if item is None or item.source.kind != source.kind:
                item = Item(source)
                item.reading.value = make_look(source, []) if source.kind == "study" else None
            if item.source != source:
                item.source, item.version = source, self.version + 1
            if source.kind == "run":
                item.status = current_status(read_object(source.path / STATUS, source.root)[0])
            self._items[source.key] = item
        if before != ({key: item.source for key, item in self._items.items()}, notes):
            self.version += 1

    # What the page asks for

    def _shown(self) -> Iterator[tuple[Item, Look]]:
        """Yield what there is to show: files beside a log that are not logs are not."""
        for item in self._items.values():
            if item.look is not None and not (item.source.quiet and item.look.is_empty):
                yield item, item.look

    def versions(self, after: int = 0, wait_s: float = 0.0) -> dict[str, Any]:
        """Return the version of everything, as soon as it is another than `after` or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != after, wait_s)
            items = {item.source.key: item.version for item, _ in self._shown()}
            return {"epoch": self.epoch, "version": self.version, "items": items}

    def listing(self) -> bytes:
        """Return a row for each run and log, what is watched, and the settings that differ."""
        with self.lock:
            return self._cached("", self.version, self._listing_json)

    def _listing_json(self) -> dict[str, Any]:
        rows = [
            (item.source.kind, shown(look, item.fitting.value)[0] | {"version": item.version})
            for item, look in self._shown()
        ]
        recipes = {item.source.key: look.settings for item, look in self._shown() if look.settings}
        return {
            "epoch": self.epoch,
            "version": self.version,
            "time": time.time(),
            "paths": [str(root.path) for root in self.roots],
            "notes": self._notes,
            "runs": [row for kind, row in rows if kind != "study"],
            "num_unread": sum(item.look is None for item in self._items.values()),
            "studies": [row for kind, row in rows if kind == "study"],
            "settings": {"runs": list(recipes), "rows": plain(settings_that_differ(list(recipes.values())))},
        }

    def detail(self, key: str) -> bytes | None:
        """Return what the page of a run or a study shows; None if there is no such thing."""
        with self.lock:
            item = self._items.get(key)
            look = None if item is None else item.look
            if item is None or look is None:
                return None
            item.wanted_until = time.monotonic() + WANTED_S
            fits, version = item.fitting.value, {"version": item.version}
            return self._cached(key, item.version, lambda: shown(look, fits)[1] | version)

    def columns(self, key: str, names: Sequence[str]) -> dict[str, Any] | None:
        """Return some columns of a run over its steps, as far as they were logged; None if there is no such run."""
        with self.lock:
            item = self._items.get(key)
            columns = {} if item is None or item.look is None else item.look.columns
        shown = {name: columns[name] for name in names if name in columns}
        return None if item is None else {"step": columns.get("step", []), "columns": shown}

    def _cached(self, key: str, version: int, make: Callable[[], dict[str, Any]]) -> bytes:
        known = self._cache.get(key)
        if known is not None and known[0] == version:
            return known[1]
        content = json.dumps(make(), separators=(",", ":"), allow_nan=False).encode()
        self._cache[key] = (version, content)
        return content

    def samples(self, key: str, query: samples.Query, number: int | None = None) -> dict[str, Any] | None:
        """Return a page of samples, or one sample; None if there is no such run or sample."""
        with self.lock:
            item = self._items.get(key)
        if item is None or item.source.kind != "run":
            return None
        path, root = item.source.path / SAMPLES, item.source.root
        return samples.search(path, root, query) if number is None else samples.one_sample(path, root, number)
