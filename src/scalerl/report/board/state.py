"""The board: looks at the named paths again and again, has workers read and fit, and keeps what the page asks for.

watcher thread:   discover -> poll run folders -> submit reads and fits -> collect results -> raise versions
server threads:   listing(), detail(), samples() under the lock; wait_for_change() tells the event streams
"""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.errors import WorkerDied
from scalerl.report.board import samples
from scalerl.report.board.charts import columns_json
from scalerl.report.board.fits import fit_curve, history
from scalerl.report.board.followed import Curve, Followed
from scalerl.report.board.reading.foreign import MAX_BYTES, LogReading, files_of, read_log
from scalerl.report.board.reading.inside import Root
from scalerl.report.board.reading.sources import Source, Study, discover
from scalerl.report.board.study_view import StudyView
from scalerl.report.workers import Workers, num_cores
from scalerl.store import SAMPLES

LOOK_EVERY_S = 0.1
DISCOVER_EVERY_S = 1.0
WANTED_S = 30.0
MOST_READERS = 2
WORKER_BYTES = 2 << 30
"""Memory of a worker: it reads files that anyone may have written."""
MOST_FITTERS = 4
_SHARE = 10.0  # a log, or a curve, is left alone for this many times as long as it took
_HISTORY_CHUNK = 4


@dataclass(slots=True)
class _Log:
    """When a log was read, and when it may be read again."""

    files: list[tuple[str, int, int]] = field(default_factory=list)
    next_read_at: float = 0.0
    busy: bool = False


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    finish: Callable[[Any], None]
    """Called with the result, or with None if the worker ended."""
    workers: Workers


class Board:
    """Everything that is followed. `look` is called by one thread; the rest may be called by any."""

    def __init__(self, paths: Sequence[Path], *, end_compute: float | None = None) -> None:
        self.roots = [Root(path) for path in paths]
        self.version = 1
        self.epoch = f"{os.getpid()}-{time.time_ns()}"
        """Differs between two starts of the server: a page that sees a new one asks for everything again."""
        self.lock = threading.RLock()
        self.woken = threading.Event()
        """Set when a worker has finished: the next look need not wait."""
        self._end_compute = end_compute
        self._items: dict[str, Followed] = {}
        self._logs: dict[str, _Log] = {}
        self._studies: dict[str, StudyView] = {}
        self._notes: list[str] = []
        self._next_discovery = 0.0
        self._jobs: list[_Job] = []
        self._listeners: set[Callable[[], None]] = set()
        self._num_fitters = min(max(num_cores() - 1, 1), MOST_FITTERS)
        self._readers = Workers(retry_here=False, most_bytes=WORKER_BYTES)
        self._fitters = Workers(retry_here=False, most_bytes=WORKER_BYTES)
        self._cache: dict[str, tuple[int, bytes]] = {}

    def close(self) -> None:
        for workers in (self._readers, self._fitters):
            workers.__exit__()

    # Looking

    def look(self) -> None:
        """Take one look: read what was added, collect what workers have finished, and ask for more."""
        now = time.monotonic()
        with self.lock:
            changed = self._collect()
            if now >= self._next_discovery:
                self._next_discovery = now + DISCOVER_EVERY_S
                changed |= self._discover()
        for item in list(self._items.values()):
            # One at a time: a request waits for one run at most.
            with self.lock:
                if item.follower is not None:
                    if item.poll():
                        changed |= self._touch(item)
                else:
                    self._look_at_log(item, now)
        with self.lock:
            for view in self._studies.values():
                if view.poll():
                    self.version += 1
                    view.version = self.version
                    changed = True
            self._submit_fits(now)
        if changed:
            self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _touch(self, item: Followed) -> bool:
        self.version += 1
        item.version = self.version
        if (study := self._studies.get(item.source.study or "")) is not None:
            study.version = self.version
            study.is_stale = True
        return True

    def _discover(self) -> bool:
        discovery = discover(self.roots)
        current = {source.key: source for source in discovery.sources}
        changed = False
        for key in [key for key in self._items if key not in current]:
            del self._items[key]
            self._logs.pop(key, None)
            changed = True
        for key, source in current.items():
            item = self._items.get(key)
            if item is None or item.source.kind != source.kind:
                self._items[key] = Followed(source, self._end_compute)
                self._logs[key] = _Log()
                changed = True
            elif item.source != source:
                item.source = source
                changed = True
        # In the order of discovery, which is the order of the list on the page.
        self._items = {key: self._items[key] for key in current}
        changed |= self._take_studies(discovery.studies)
        if changed or discovery.notes != self._notes:
            self._notes = discovery.notes
            self.version += 1
            return True
        return False

    def _take_studies(self, studies: Sequence[Study]) -> bool:
        before = {key: view.study for key, view in self._studies.items()}
        for study in studies:
            view = self._studies.setdefault(study.key, StudyView(study))
            view.study = study
        for key in self._studies.keys() - {study.key for study in studies}:
            del self._studies[key]
        return before != {study.key: study for study in studies}

    # Logs of other trainers

    def _look_at_log(self, item: Followed, now: float) -> None:
        log = self._logs[item.source.key]
        if log.busy or now < log.next_read_at:
            return
        log.next_read_at = now + LOOK_EVERY_S
        files = files_of(item.source.path)
        if files == log.files:
            return
        log.files = files
        if problem := _refusal(item.source, files):
            item.take_log(LogReading(problem=problem), _changed_at(files))
            self._touch(item)
            self._tell()
            return
        log.busy = True
        self._readers.start(MOST_READERS)

        def finish(reading: LogReading | None) -> None:
            log.busy = False
            problem = "The log could not be read: its reader ran out of memory."
            reading = reading or LogReading(problem=problem, cpu_s=3.0)
            log.next_read_at = time.monotonic() + min(_SHARE * reading.cpu_s, 30.0)
            item.take_log(reading, _changed_at(files))
            self._touch(item)

        self._ask(self._readers, finish, read_log, item.source.path)

    # Workers

    def _ask(self, workers: Workers, finish: Callable[[Any], None], function: Any, *arguments: Any) -> None:
        future = workers.submit(function, *arguments)
        future.add_done_callback(lambda _: self.woken.set())
        self._jobs.append(_Job(future=future, finish=finish, workers=workers))

    def _collect(self) -> bool:
        done = [job for job in self._jobs if job.future.done()]
        self._jobs = [job for job in self._jobs if not job.future.done()]
        for job in done:
            try:
                result = job.future.result()
            except (WorkerDied, OSError, EOFError):
                result = None
            job.finish(result)
        return bool(done)

    def _submit_fits(self, now: float) -> None:
        """Keep the workers busy, with what is being looked at first."""
        free = self._num_fitters - sum(job.workers is self._fitters for job in self._jobs)
        if free <= 0:
            return
        items = sorted(self._items.values(), key=lambda item: (item.wanted_until < now, -item.version))
        tasks = [self._fit_task(item, curve, now) for item in items for curve in item.curves.values()]
        tasks += [self._history_task(item, curve) for item in items if item.wanted_until >= now
                  for curve in item.curves.values()]  # fmt: skip
        tasks += [self._study_task(view, now) for view in self._studies.values()]
        for task in [task for task in tasks if task is not None][:free]:
            self._fitters.start(self._num_fitters)
            task()

    def _fit_task(self, item: Followed, curve: Curve, now: float) -> Callable[[], None] | None:
        mark = item.fit_mark(curve)
        if curve.busy or curve.fitted == mark or now < curve.next_fit_at or not len(curve.series.compute):
            return None

        def submit() -> None:
            curve.busy = True
            began = time.monotonic()

            def finish(result: dict[str, Any] | None) -> None:
                curve.busy = False
                curve.fit, curve.fitted = result, mark
                curve.next_fit_at = time.monotonic() + min(2.0 * (time.monotonic() - began), 20.0)
                self._touch(item)

            self._ask(self._fitters, finish, fit_curve, curve.series, item.end_compute, item.unit(curve))

        return submit

    def _history_task(self, item: Followed, curve: Curve) -> Callable[[], None] | None:
        if curve.busy or curve.fit is None or not len(curve.series.compute):
            return None
        missing = item.missing_history(curve)
        if not missing:
            return None
        # The latest ones first: they show best how much to trust the present forecast.
        chunk = missing[-_HISTORY_CHUNK:]

        def submit() -> None:
            curve.busy = True

            def finish(rows: list[dict[str, Any]] | None) -> None:
                curve.busy = False
                for (_, mark), row in zip(chunk, rows or (), strict=False):
                    curve.history[mark] = row
                self._touch(item)

            counts = [num for num, _ in chunk]
            self._ask(self._fitters, finish, history, curve.series, counts, item.end_compute)

        return submit

    def _study_task(self, view: StudyView, now: float) -> Callable[[], None] | None:
        if not view.is_due(now):
            return None

        def submit() -> None:
            call = view.comparison()
            if call is None:
                return
            function, arguments = call
            began = time.monotonic()

            def finish(result: dict[str, Any] | None) -> None:
                view.take(result, seconds=time.monotonic() - began)
                self.version += 1
                view.version = self.version

            view.busy = True
            self._ask(self._fitters, finish, function, *arguments)

        return submit

    # What the page asks for

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change, from the watcher's thread; return how to stop that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def versions(self) -> dict[str, Any]:
        """Return the version of everything."""
        with self.lock:
            return {
                "epoch": self.epoch,
                "version": self.version,
                "runs": {item.source.key: item.version for item in self._items.values() if item.is_shown},
                "studies": {key: view.version for key, view in self._studies.items()},
            }

    def listing(self) -> bytes:
        with self.lock:
            return self._cached("", self.version, self._listing_json)

    def _listing_json(self) -> dict[str, Any]:
        items = [item for item in self._items.values() if item.is_shown]
        return {
            "epoch": self.epoch,
            "version": self.version,
            "time": time.time(),
            "paths": [str(root.path) for root in self.roots],
            "notes": self._notes,
            "runs": [item.summary_json() for item in items],
            "studies": [
                view.summary_json([item for item in items if item.source.study == key])
                for key, view in self._studies.items()
            ],
        }

    def detail(self, key: str) -> bytes | None:
        with self.lock:
            item = self._items.get(key)
            if item is None:
                return None
            item.wanted_until = time.monotonic() + WANTED_S
            return self._cached(key, item.version, item.detail_json)

    def columns(self, key: str, names: Sequence[str]) -> dict[str, Any] | None:
        """Return some columns of a run over its steps; None if there is no such run."""
        with self.lock:
            item = self._items.get(key)
            return None if item is None else columns_json(item.columns, names)

    def study(self, key: str) -> bytes | None:
        with self.lock:
            view = self._studies.get(key)
            if view is None:
                return None
            members = [item for item in self._items.values() if item.source.study == key]
            return self._cached(key, self.version, lambda: view.detail_json(members))

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
            if item is None or item.follower is None:
                return None
            path, root, offsets = item.source.path / SAMPLES, item.source.root, item.follower.sample_offsets[:]
        if number is not None:
            return samples.one_sample(path, root, offsets, number)
        return samples.search(path, root, offsets, query)


def _changed_at(files: Sequence[tuple[str, int, int]]) -> float:
    return max((changed for _, _, changed in files), default=0) / 1e9


def _refusal(source: Source, files: Sequence[tuple[str, int, int]]) -> str:
    """Return why a log is not read; empty where it may be."""
    if any(not source.root.holds(Path(name)) for name, _, _ in files):
        return f"{source.name} is not read: it holds a link to a file outside the folder that was named."
    if not source.path.is_dir() and not source.path.is_file():
        return f"{source.name} is not read: it is not a regular file."
    size = sum(size for _, size, _ in files)
    if size > MAX_BYTES:
        return (
            f"{source.name} is {size / 1e6:,.0f} MB long and is not followed: logs of up to {MAX_BYTES / 1e6:,.0f} MB "
            "are. Cut it, or use scalerl forecast."
        )
    return ""
