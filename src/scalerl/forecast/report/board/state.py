"""The board: watches the named paths, has workers make a document when files change, and keeps the latest.

    watcher thread    calls look() again and again: discover sources, collect what workers made, ask for what changed
    server threads    call part() and samples(); event streams wait in versions()

What there is to show of a source is a `Look`. The version of an item, and of the board, rises with each new one.
"""

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
from scalerl.forecast.report import samples
from scalerl.forecast.report.board.look import Look, files_of, look, unreadable
from scalerl.forecast.report.board.pages import article, navigation, overview
from scalerl.forecast.report.document import Document, Json
from scalerl.forecast.report.inside import Root, read_object
from scalerl.forecast.report.markup import Markup, tag
from scalerl.forecast.report.page import html
from scalerl.forecast.report.places import Source, discover
from scalerl.forecast.report.workers import Workers
from scalerl.processes import num_cores
from scalerl.runfolder.store import SAMPLES, STATUS, current_status

LOOK_EVERY_S = 0.1
"""Time between looks at the files of a source."""
DISCOVER_EVERY_S = 1.0
"""Time between searches of the named paths for sources."""
WORKER_BYTES = 2 << 30
"""Memory that a worker may use: it reads files that anyone may have written."""
LOOK_S = {"run": 600.0, "log": 90.0, "study": 600.0, "all": 600.0}
"""Seconds that a look may take before its worker is ended; the reader of a log has a limit of 60 s itself."""
SLOW_S = 5.0
"""A source whose last look took longer is looked at again only if another worker stays free."""
MOST_WORKERS = 4
MOST_TOGETHER = 12
"""Runs and logs that are compared with each other in the overview."""
# Pause after a look at a source: this many times as long as it took, but at most this many seconds.
PAUSES = {"run": (2.0, 20.0), "log": (10.0, 30.0), "study": (4.0, 60.0), "all": (8.0, 60.0)}


@dataclass(slots=True)
class Item:
    """A source that is followed, with its latest `Look` and the job that makes the next one."""

    source: Source
    look: Look | None = None
    """None until it has been looked at."""
    future: Future[Any] | None = None
    """The job of a worker that is looking at it; None while no one does."""
    asked_at: float = 0.0
    next_at: float = 0.0
    """Earliest time of the next look."""
    done_for: Any = None
    """Its files, status and source when a look was last asked for."""
    took_s: float = 0.0
    """Time from asking for the last look to collecting it."""
    version: int = 0
    """Version of the board at its last change."""
    status: Any = None
    """Its status now. It may change without its files: a process that is killed writes nothing."""

    @property
    def is_hidden(self) -> bool:
        """Whether it is a file in a named folder that is not, or not yet, known to be a log."""
        return self.source.quiet and (self.look is None or self.look.is_empty)


class Board:
    """Everything that is followed. Only one thread may call `look`; any thread may call the other methods."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        end_compute: float | None = None,
        on_look: Callable[[Look], None] = lambda look: None,
    ) -> None:
        """Follow the sources at these paths; `on_look` is called with every new `Look`."""
        self._on_look = on_look
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
        self._notes: list[Any] = []
        self._next_discovery = 0.0
        self._num_workers = min(max(num_cores() - 1, 2), MOST_WORKERS)
        self._workers = Workers(self._num_workers, retry_here=False, most_bytes=WORKER_BYTES)
        self._cache: dict[str, tuple[int, bytes]] = {}

    def close(self) -> None:
        self._workers.__exit__()

    # Looking

    def look(self) -> None:
        """Collect the looks that workers have made, and ask for looks at what has changed since."""
        now, before = time.monotonic(), self.version
        with self.lock:
            if now >= self._next_discovery:
                self._next_discovery = now + DISCOVER_EVERY_S
                self._discover()
            for item in self._items.values():
                if item.future is not None and item.future.done():
                    self._collect(item, now)
            items = sorted(self._items.values(), key=lambda item: item.asked_at)
        for item in items:
            is_slow = item.took_s > SLOW_S or item.source.kind == "all"
            if item.future is None and now >= item.next_at and self._num_free() > is_slow:
                self._ask(item, now)
        if self.version != before:
            with self._changed:
                self._changed.notify_all()

    def _num_free(self) -> int:
        return self._num_workers - sum(item.future is not None for item in self._items.values())

    def _ask(self, item: Item, now: float) -> None:
        """Have a worker look at an item, unless nothing has changed."""
        item.next_at = now + LOOK_EVERY_S
        seen_now = files_of(item.source), str(item.status), item.source
        if item.done_for == seen_now:
            return
        item.done_for, item.asked_at = seen_now, now
        item.future = self._workers.submit(look, item.source, self._end_compute, most_s=LOOK_S[item.source.kind])
        item.future.add_done_callback(lambda _: self.woken.set())

    def _collect(self, item: Item, now: float) -> None:
        """Take the look that a worker has made of an item; if the worker died, one that says so."""
        assert item.future is not None
        try:
            made = item.future.result()
        except (WorkerDied, OSError, EOFError) as error:
            reason = str(error) if isinstance(error, WorkerDied) else "ended"
            made = unreadable(item.source, f"its reader {reason}")
        item.look = made
        factor, most = PAUSES[item.source.kind]
        item.took_s = now - item.asked_at
        item.future, item.next_at = None, now + min(factor * item.took_s, most)
        self.version += 1
        item.version = self.version
        self._on_look(made)

    def _discover(self) -> None:
        """Search the paths for sources; keep the items of those that are still there."""
        sources, notes = discover(self.roots)
        # Compared with each other: what is not in a study, and named or with something to show.
        known = {key for key, item in self._items.items() if not item.is_hidden}
        single = tuple(
            each
            for each in sources
            if each.kind != "study" and each.study is None and (not each.quiet or each.key in known)
        )
        if 1 < len(single) <= MOST_TOGETHER:
            sources.append(Source(path=Path("all"), root=Root(), kind="all", name="all", members=single))
        before = {key: item.source for key, item in self._items.items()}, self._notes
        # In the order of discovery, which is the order of the list on the page.
        earlier, self._items, self._notes = self._items, {}, notes
        for source in sources:
            item = earlier.get(source.key)
            if item is None or item.source.kind != source.kind:
                item = Item(source)
            if item.source != source:
                item.source, item.version = source, self.version + 1
            if source.kind == "run":
                item.status = current_status(read_object(source.path / STATUS, source.root)[0])
            self._items[source.key] = item
        if before != ({key: item.source for key, item in self._items.items()}, notes):
            self.version += 1

    # What the page asks for

    def _shown(self) -> Iterator[tuple[Item, Look]]:
        """Yield the items with a look."""
        for item in self._items.values():
            if item.look is not None and not item.is_hidden:
                yield item, item.look

    def versions(self, after: int = 0, wait_s: float = 0.0) -> Json:
        """Return the versions of board and items, once that of the board is not `after` or the time is over.

        `pending` says whether a source has not been read yet.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.version != after, wait_s)
            items = {item.source.key: item.version for item, _ in self._shown()}
            pending = any(item.look is None for item in self._items.values())
            return {"epoch": self.epoch, "version": self.version, "items": items, "pending": pending}

    def part(self, key: str) -> bytes | None:
        """Return a part of the page as HTML: `list`, `overview`, or that of the key of a run or study."""
        with self.lock:
            item = self._items.get(key)
            if item is not None and item.look is not None:
                return self._cached(key, item.version, partial(article, item.look))
            make = {"list": self._navigation, "overview": self._overview}.get(key)
            return None if make is None else self._cached(key, self.version, make)

    def _navigation(self) -> Markup:
        rows = [look.row for _, look in self._shown()]
        return navigation(*([row for row in rows if row["kind"] in kinds] for kinds in (("run", "log"), ("study",))))

    def _overview(self) -> Markup:
        """Return all runs and logs in a table, and everything together where that is compared."""
        paths = tuple(str(root.path) for root in self.roots)
        looks = [look for _, look in self._shown()]
        together: Document = next((look.document for look in looks if look.row["kind"] == "all"), ())
        table = overview([look for look in looks if look.lines], self._notes, paths)
        return tag("article", html((*table, *together)))

    def _cached(self, key: str, version: int, make: Callable[[], Markup]) -> bytes:
        """Return what `make` returns; it is called once for each version of a key."""
        known = self._cache.get(key)
        if known is not None and known[0] == version:
            return known[1]
        content = make().encode(errors="replace")
        self._cache[key] = (version, content)
        return content

    def samples(self, key: str, query: samples.Query) -> Json | None:
        """Return a page of samples; None if there is no such run."""
        with self.lock:
            item = self._items.get(key)
        if item is None or item.source.kind != "run":
            return None
        return samples.search(item.source.path / SAMPLES, item.source.root, query)
