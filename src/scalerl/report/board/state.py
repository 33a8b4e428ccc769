"""The board: looks at the named paths again and again, has workers read and fit, and keeps what the page asks for.

watcher thread:   discover -> poll run folders -> submit reads and fits -> collect results -> raise versions
server threads:   listing(), detail(), samples() under the lock; listeners tell the event streams of changes
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import WorkerDied
from scalerl.report import samples
from scalerl.report.board.charts import columns_json
from scalerl.report.board.fits import fit_curve, history
from scalerl.report.board.followed import Followed, Slot
from scalerl.report.board.foreign import MAX_BYTES, LogReading, files_of, read_log
from scalerl.report.board.study_view import StudyView, study_report
from scalerl.report.files import Root
from scalerl.report.json import plain
from scalerl.report.runs import settings_that_differ
from scalerl.report.sources import Source, Study, discover
from scalerl.report.workers import Workers, num_cores
from scalerl.store import SAMPLES

LOOK_EVERY_S = 0.1
DISCOVER_EVERY_S = 1.0
WANTED_S = 30.0
MOST_READERS = 2
WORKER_BYTES = 2 << 30
"""Memory of a worker: it reads files that anyone may have written."""
MOST_FITTERS = 4
_HISTORY_CHUNK = 4
# A log, a curve or a study is left alone for so many times as long as its answer took, and at most so many seconds.
_LOG_PAUSE, _CURVE_PAUSE, _STUDY_PAUSE = (10.0, 30.0), (2.0, 20.0), (10.0, 60.0)


class _Job(NamedTuple):
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
        now, before = time.monotonic(), self.version
        with self.lock:
            self._collect()
            if now >= self._next_discovery:
                self._next_discovery = now + DISCOVER_EVERY_S
                self._discover()
        for item in list(self._items.values()):
            # One at a time: a request waits for one run at most.
            with self.lock:
                if item.run is None:
                    self._look_at_log(item, now)
                elif item.poll():
                    self._touch(item)
        with self.lock:
            for view in self._studies.values():
                if view.poll():
                    self._touch(view)
            free = self._num_fitters - sum(job.workers is self._fitters for job in self._jobs)
            for task in islice(self._tasks(now), max(free, 0)):
                self._fitters.start(self._num_fitters)
                task()
        if self.version != before:
            for listener in list(self._listeners):
                listener()

    def _touch(self, item: Followed | StudyView) -> None:
        """Give something that has changed a new version; its study has changed with it."""
        self.version += 1
        item.version = self.version
        if isinstance(item, Followed) and (study := self._studies.get(item.source.study or "")) is not None:
            study.version = self.version
            study.is_stale = True

    def _discover(self) -> None:
        discovery = discover(self.roots)
        before = {key: item.source for key, item in self._items.items()}, self._notes, self._plans()
        items: dict[str, Followed] = {}
        # In the order of discovery, which is the order of the list on the page.
        for source in discovery.sources:
            item = self._items.get(source.key)
            if item is None or item.source.kind != source.kind:
                item = Followed(source, self._end_compute)
            item.source = source
            items[source.key] = item
        self._items, self._notes = items, discovery.notes
        self._studies = {study.key: self._studies.get(study.key) or StudyView(study) for study in discovery.studies}
        for study in discovery.studies:
            self._studies[study.key].study = study
        if before != ({key: item.source for key, item in items.items()}, self._notes, self._plans()):
            self.version += 1

    def _plans(self) -> dict[str, Study]:
        return {key: view.study for key, view in self._studies.items()}

    def _look_at_log(self, item: Followed, now: float) -> None:
        if item.slot.busy or now < item.slot.next_at:
            return
        item.slot.next_at = now + LOOK_EVERY_S
        files = files_of(item.source.path)
        if files == item.files:
            return
        item.files = files

        def take(reading: LogReading | None) -> float:
            problem = "The log could not be read: its reader ran out of memory."
            reading = reading or LogReading(problem=problem, cpu_s=3.0)
            item.take_log(reading)
            self._touch(item)
            return reading.cpu_s

        if problem := _refusal(item.source, files):
            take(LogReading(problem=problem))
            return
        self._readers.start(MOST_READERS)
        self._ask(self._readers, item.slot, _LOG_PAUSE, take, read_log, item.source.path)

    # Workers

    def _ask(
        self,
        workers: Workers,
        slot: Slot,
        pause: tuple[float, float],
        take: Callable[[Any], float | None],
        function: Callable[..., Any],
        *arguments: Any,
    ) -> None:
        """Have a worker call a function, and `take` its result, or None if the worker ended.

        `take` may return how long the answer took; otherwise that is the time until it came.
        """
        began = time.monotonic()
        slot.busy = True

        def finish(result: Any) -> None:
            times, most = pause
            slot.busy = False
            seconds = take(result)
            seconds = time.monotonic() - began if seconds is None else seconds
            slot.next_at = time.monotonic() + min(times * seconds, most)

        future = workers.submit(function, *arguments)
        future.add_done_callback(lambda _: self.woken.set())
        self._jobs.append(_Job(future, finish, workers))

    def _collect(self) -> None:
        done = [job for job in self._jobs if job.future.done()]
        self._jobs = [job for job in self._jobs if not job.future.done()]
        for job in done:
            try:
                result = job.future.result()
            except (WorkerDied, OSError, EOFError):
                result = None
            job.finish(result)

    def _tasks(self, now: float) -> Iterator[Callable[[], None]]:
        """Yield what workers should fit: first what is being looked at, the histories and studies last."""
        items = sorted(self._items.values(), key=lambda item: (item.wanted_until < now, -item.version))
        curves = [(item, curve) for item in items for curve in item.curves.values() if len(curve.series.compute)]
        for item, curve in curves:
            mark, slot = item.fit_mark(curve), curve.slot
            if not slot.busy and curve.fitted != mark and now >= slot.next_at:

                def take(result: dict[str, Any] | None, item=item, curve=curve, mark=mark) -> None:
                    curve.fit, curve.fitted = result, mark
                    self._touch(item)

                asked = (curve.series, item.end_compute, item.unit(curve))
                yield partial(self._ask, self._fitters, slot, _CURVE_PAUSE, take, fit_curve, *asked)
        for item, curve in curves:
            if curve.slot.busy or curve.fit is None or item.wanted_until < now:
                continue
            # The latest ones first: they show best how much to trust the present forecast.
            if missing := item.missing_history(curve)[-_HISTORY_CHUNK:]:

                def keep(rows: list[dict[str, Any]] | None, item=item, curve=curve, missing=missing) -> None:
                    curve.history |= {mark: row for (_, mark), row in zip(missing, rows or (), strict=False)}
                    self._touch(item)

                asked = (curve.series, [num for num, _ in missing], item.end_compute)
                yield partial(self._ask, self._fitters, curve.slot, (0.0, 0.0), keep, history, *asked)
        for view in self._studies.values():
            if view.is_stale and not view.slot.busy and now >= view.slot.next_at:
                view.is_stale = False

                def show(result: dict[str, Any] | None, view=view) -> None:
                    view.report = result or view.report
                    self._touch(view)

                if view.is_inside():
                    asked = (study_report, view.study.path)
                    yield partial(self._ask, self._fitters, view.slot, _STUDY_PAUSE, show, *asked)

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
        recipes = {item.source.key: item.run.settings for item in items if item.run is not None and item.run.recipe}
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
            "settings": {"runs": list(recipes), "rows": plain(settings_that_differ(list(recipes.values())))},
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
            if item is None or item.run is None:
                return None
            path, root, offsets = item.source.path / SAMPLES, item.source.root, item.run.sample_offsets[:]
        if number is not None:
            return samples.one_sample(path, root, offsets, number)
        return samples.search(path, root, offsets, query)


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
