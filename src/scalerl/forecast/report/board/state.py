"""The board: watches the named paths, has workers take snapshots of what has changed, and keeps the latest of each.

watcher thread    calls update() again and again: discover sources, collect what workers made, ask for what changed
server threads    call page(), which makes a page of the latest snapshots
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import WorkerDied
from scalerl.forecast.report.board.pages import overview_page, source_page
from scalerl.forecast.report.board.snapshot import Snapshot, files_of, take_snapshot, unreadable
from scalerl.forecast.report.document import Say
from scalerl.forecast.report.safe_files import Root, read_object
from scalerl.forecast.report.sources import Source, discover
from scalerl.forecast.report.workers import Workers
from scalerl.processes import num_cores
from scalerl.runfolder.store import STATUS, current_status

LOOK_EVERY_S = 0.25
"""Time between looks at the files of a source."""
DISCOVER_EVERY_S = 1.0
"""Time between searches of the named paths for sources."""
WORKER_BYTES = 2 << 30
"""Memory that a worker may use: it reads files that anyone may have written."""
SNAPSHOT_S = 300.0
"""Seconds that a snapshot may take before its worker is ended."""
SLOW_S = 5.0
"""A source whose last snapshot took longer is read again only if another worker stays free."""
MOST_WORKERS = 4
MOST_TOGETHER = 12
"""Runs and logs that are compared with each other in the overview."""
PAUSE = 8.0
MOST_PAUSE_S = 60.0
"""Pause after a snapshot of a source: so many times as long as it took, and at most so many seconds."""
OVERVIEW = ""
"""The key of the page of everything."""


@dataclass(slots=True)
class Item:
    """A source that is followed, with its latest `Snapshot` and the job that makes the next one."""

    source: Source
    snapshot: Snapshot | None = None
    """None until it has been looked at."""
    future: Future[Any] | None = None
    """The job of a worker that is looking at it; None while no one does."""
    asked_at: float = 0.0
    next_at: float = 0.0
    """Earliest time of the next snapshot."""
    done_for: Any = None
    """Its files, status and source when a snapshot was last asked for."""
    took_s: float = 0.0
    """Time from asking for the last snapshot to collecting it."""
    version: int = 0
    """Version of the board at its last change."""
    status: Any = None
    """Its status now. It may change without its files: a process that is killed writes nothing."""

    @property
    def is_shown(self) -> bool:
        """Whether it has something to show: a file in a named folder may turn out to be no log."""
        return self.snapshot is not None and not (self.source.quiet and self.snapshot.is_empty)


class Board:
    """Everything that is followed. Only one thread may call `update`; any thread may call the other methods."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        end_compute: float | None = None,
        on_snapshot: Callable[[Snapshot], None] = lambda snapshot: None,
    ) -> None:
        """Follow the sources at these paths; `on_snapshot` is called with every new `Snapshot`."""
        self._on_snapshot = on_snapshot
        self.roots = [Root(path) for path in paths]
        self.version = 1
        self.started = f"{os.getpid()}-{time.time_ns()}"
        """Differs between two starts of the server, whose versions have nothing to do with each other."""
        self.lock = threading.RLock()
        self._end_compute = end_compute
        self._items: dict[str, Item] = {}
        self._notes: list[Say] = []
        self._next_discovery = 0.0
        self._num_workers = min(max(num_cores() - 1, 2), MOST_WORKERS)
        self._workers = Workers(self._num_workers, retry_here=False, most_bytes=WORKER_BYTES)

    def close(self) -> None:
        self._workers.__exit__()

    # Looking

    def update(self) -> None:
        """Collect the snapshots that workers have taken, and ask for one of what has changed since."""
        now = time.monotonic()
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

    def _num_free(self) -> int:
        return self._num_workers - sum(item.future is not None for item in self._items.values())

    def _ask(self, item: Item, now: float) -> None:
        """Have a worker take a snapshot of an item, unless nothing has changed."""
        item.next_at = now + LOOK_EVERY_S
        seen_now = files_of(item.source), str(item.status), item.source
        if item.done_for == seen_now:
            return
        item.done_for = seen_now
        item.asked_at = now
        item.future = self._workers.submit(take_snapshot, item.source, self._end_compute, most_s=SNAPSHOT_S)

    def _collect(self, item: Item, now: float) -> None:
        """Keep the snapshot that a worker has taken of an item; if the worker died, one that says so."""
        assert item.future is not None
        try:
            made = item.future.result()
        except (WorkerDied, OSError, EOFError) as error:
            reason = "ended"
            if isinstance(error, WorkerDied):
                reason = str(error)
            made = unreadable(item.source, f"its reader {reason}")
        item.snapshot = made
        item.took_s = now - item.asked_at
        item.future = None
        item.next_at = now + min(PAUSE * item.took_s, MOST_PAUSE_S)
        self.version += 1
        item.version = self.version
        self._on_snapshot(made)

    def _discover(self) -> None:
        """Search the paths for sources; keep the items of those that are still there."""
        sources, notes = discover(self.roots)
        shown = {key for key, item in self._items.items() if item.is_shown}
        # Compared with each other: what is not in a study, and named or with something to show.
        single: list[Source] = []
        for each in sources:
            is_named_or_shown = not each.quiet or each.key in shown
            if each.kind != "study" and each.study is None and is_named_or_shown:
                single.append(each)
        if 1 < len(single) <= MOST_TOGETHER:
            sources.append(Source(path=Path("all"), root=Root(), kind="all", name="all", members=tuple(single)))
        before = {key: item.source for key, item in self._items.items()}, self._notes
        # In the order of discovery, which is the order on the page.
        earlier = self._items
        self._items = {}
        self._notes = notes
        for source in sources:
            item = earlier.get(source.key)
            if item is None or item.source.kind != source.kind:
                item = Item(source)
            if item.source != source:
                item.source = source
                item.version = self.version + 1
            if source.kind == "run":
                item.status = current_status(read_object(source.path / STATUS, source.root)[0])
            self._items[source.key] = item
        if before != ({key: item.source for key, item in self._items.items()}, notes):
            self.version += 1

    # What the server asks for

    def page(self, key: str, known: str = "") -> tuple[str, str | None] | None:
        """Return the version of a page and the page, which is None if its version is `known`; None for no such page.

        The overview of a single run is the page of that run.
        """
        with self.lock:
            shown = [item for item in self._items.values() if item.is_shown]
            is_settled = all(item.snapshot is not None for item in self._items.values())
            if key == OVERVIEW and len(shown) == 1 and is_settled:
                key = shown[0].source.key
            item = next((item for item in shown if item.source.key == key), None)
            if item is None and key != OVERVIEW:
                return None
            version = f'"{self.started}-{self.version if item is None else item.version}"'
            snapshots = [item.snapshot for item in shown if item.snapshot is not None]
            notes = list(self._notes)
        if version == known:
            return version, None
        if item is not None and item.snapshot is not None:
            return version, source_page(item.snapshot)
        return version, overview_page(snapshots, notes, [str(root.path) for root in self.roots])
