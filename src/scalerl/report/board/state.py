"""The board: looks at the named paths again and again, has workers read what has changed, and keeps their answers.

watcher thread:   discover -> collect finished looks, raise versions -> ask for looks at what has changed
server threads:   listing(), detail(), samples() under the lock; listeners tell the event streams of changes
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.errors import WorkerDied
from scalerl.report import samples
from scalerl.report.board.looks import File, Look, files_of, look_at, study_look, unreadable
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
MOST_WORKERS = 4
# After a look, a source is left alone for so many times the CPU time of the look, and at most so many seconds.
PAUSES = {"run": (2.0, 20.0), "log": (10.0, 30.0), "study": (4.0, 60.0)}


@dataclass(slots=True)
class Item:
    """A run, a log or a study, with what the last look at it has found."""

    source: Source
    look: Look | None = None
    """None until it has been read for the first time: it is not shown until then."""
    version: int = 0
    files: list[File] | None = None
    """Its files at that look."""
    status: Any = None
    """What its status.json says now: a run's process can be killed without a word in its files."""
    has_history: bool = False
    wanted_until: float = 0.0
    """Time until which a page is showing this run, so that its history is computed."""
    asked: Future[Look] | None = None
    """A look at what has changed; while `fitting` makes the fits of the look before."""
    fitting: Future[Look] | None = None
    fitted_files: list[File] | None = None
    asked_at: float = 0.0
    next_at: float = 0.0

    def is_wanted(self, now: float) -> bool:
        """Return whether a page shows this run."""
        return now < self.wanted_until and self.source.kind != "study"

    def lacks_history(self, now: float) -> bool:
        """Return whether a page shows this run without the whole history of its forecasts."""
        return self.is_wanted(now) and not self.has_history


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
                if item.fitting is not None and item.fitting.done():
                    self._collect_fits(item, now)
                if item.asked is not None and item.asked.done():
                    self._collect(item, self._result(item, item.asked), now)
                    item.asked = None
            num_fitting = sum(item.fitting is not None for item in self._items.values())
            free = self._num_workers - num_fitting - sum(item.asked is not None for item in self._items.values())
            items = sorted(self._items.values(), key=lambda item: (item.wanted_until < now, item.asked_at))
        for item in items if free > 0 else ():
            is_due = item.asked is None and (now >= item.next_at or item.lacks_history(now))
            # One worker is left to show what is new.
            if free > 0 and is_due and self._ask(item, now, can_fit=num_fitting < self._num_workers - 1):
                free -= 1
                num_fitting = sum(each.fitting is not None for each in items)
        if self.version != before:
            with self._changed:
                self._changed.notify_all()

    def _discover(self) -> None:
        sources, notes = discover(self.roots)
        before = {key: item.source for key, item in self._items.items()}, self._notes
        # In the order of discovery, which is the order of the list on the page.
        known, self._items, self._notes = self._items, {}, notes
        for source in sources:
            item = known.get(source.key)
            if item is None or item.source.kind != source.kind:
                item = Item(source, study_look(source) if source.kind == "study" else None)
            if item.source != source:
                item.source, item.version = source, self.version + 1
            if source.kind == "run":
                item.status = current_status(read_object(source.path / STATUS, source.root)[0])
            self._items[source.key] = item
        if before != ({key: item.source for key, item in self._items.items()}, notes):
            self.version += 1

    def _ask(self, item: Item, now: float, *, can_fit: bool) -> bool:
        """Have a worker look at something, if it has changed or lacks fits; return whether it does."""
        files = [*files_of(item.source), (str(item.status), 0, 0)]
        item.next_at = now + (LOOK_EVERY_S if now < item.wanted_until else OTHERS_EVERY_S)
        has_changed = files != item.files
        lacks_fits = item.lacks_history(now) or (item.look is not None and item.look.more)
        if not has_changed and (item.fitting is not None or not lacks_fits or not can_fit):
            return False
        item.files, item.has_history, item.asked_at = files, item.is_wanted(now), now
        memory = {} if item.look is None else item.look.memory
        look = partial(look_at, with_history=item.has_history, has_changed=has_changed)
        future = self._workers.submit(look, item.source, self._end_compute, memory)
        future.add_done_callback(lambda _: self.woken.set())
        if has_changed:
            item.asked = future
        else:
            item.fitting, item.fitted_files = future, files
        return True

    def _result(self, item: Item, future: Future[Look]) -> Look:
        try:
            return future.result()
        except (WorkerDied, OSError, EOFError):
            return unreadable(item.source, "its reader ran out of memory")

    def _collect(self, item: Item, look: Look, now: float) -> None:
        times, most = PAUSES[item.source.kind]
        item.look, item.next_at = look, now + min(times * look.read_s, most) * (not look.more)
        self.version += 1
        item.version = self.version

    def _collect_fits(self, item: Item, now: float) -> None:
        assert item.fitting is not None
        look, item.fitting = self._result(item, item.fitting), None
        if item.files == item.fitted_files:
            self._collect(item, look, now)
        elif item.look is not None:  # of rows to which others have been added: they serve the next look
            item.look.memory.update(look.memory)

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
        rows = [(item.source.kind, look.summary | {"version": item.version}) for item, look in self._shown()]
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
            return self._cached(key, item.version, lambda: look.summary | {"version": item.version} | look.detail)

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
