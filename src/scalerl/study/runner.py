"""Run a plan: each arm and seed is a command with its own run folder. Finished runs are kept, others continue.

waiting -> running -> done | failed | stopped        --resume continues failed and stopped runs
               ^ |
               | v
              paused      a policy pauses runs at stages and continues some of them
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Protocol

from scalerl.forecast.logs.axes import Axis
from scalerl.runfolder import store
from scalerl.study.controller import Controller
from scalerl.study.die_with_parent import dying_with_parent
from scalerl.study.failure_reason import failure_reason
from scalerl.study.folder import is_done, log_file, recipe_file, run_folder, run_status
from scalerl.study.plan import PlannedRun, StudyPlan
from scalerl.study.progress import Progress, RunStatus, State, read_progress

_POLL_S = 0.1
_UPDATE_S = 1.0  # time between two readings of the run folders
_SIGNALS = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]


class StudyObserver(Protocol):
    """Receives the events of a study while its runs train."""

    def started(self, status: RunStatus) -> None: ...
    def finished(self, status: RunStatus) -> None: ...
    def progressed(self, statuses: Sequence[RunStatus]) -> None:
        """Called about every second with the state of all runs."""
        ...

    def stopping(self, num_running: int, at_once: bool) -> None: ...


class Runner:
    """Runs the unfinished runs of a plan, at most `jobs` at a time."""

    def __init__(
        self,
        plan: StudyPlan,
        folder: Path,
        *,
        command: Sequence[str],
        lock: int,
        observer: StudyObserver,
        axis: Axis,
        jobs: int = 1,
        devices: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        controller: Controller | None = None,
    ) -> None:
        """`command` trains; RECIPE --out DIR [--resume] is appended to it. `axis` is the compute axis of the forecasts.

        `devices` are GPUs, assigned in turn; `variables` are set in the environment of each run. Without a
        `controller` every run is trained to its end.
        """
        self._controller = controller
        self._folder, self._command, self._lock = folder, command, lock
        self._observer, self._jobs, self._devices, self._variables = observer, jobs, devices, variables
        self.statuses = [self._initial_status(run) for run in plan.runs]
        self._axis: Axis = axis
        self._num_stop_requests = 0

    @property
    def _running(self) -> list[tuple[RunStatus, subprocess.Popen[bytes]]]:
        return [(status, status.process) for status in self.statuses if status.process is not None]

    @property
    def interrupted(self) -> bool:
        return self._num_stop_requests > 0

    def _initial_status(self, run: PlannedRun) -> RunStatus:
        state: State = "done" if is_done(self._folder, run) else "waiting"
        return RunStatus(run=run, folder=run_folder(self._folder, run), state=state)

    def run(self) -> None:
        """Run until all runs are done or failed, or until asked to stop; a second request ends runs at once."""
        with self._signals():
            try:
                self._loop()
            finally:
                self._end_all(signal.SIGKILL)
                for status, process in self._running:
                    process.wait()
                    self._close(status, process.returncode)
        self._update_progress()

    def _loop(self) -> None:
        passed_on, last_update = 0, 0.0
        while True:
            if self._num_stop_requests > passed_on:
                passed_on = self._num_stop_requests
                at_once = passed_on > 1
                self._end_all(signal.SIGKILL if at_once else signal.SIGINT)
                self._observer.stopping(len(self._running), at_once)
            if not self._num_stop_requests:
                self._start_waiting()
            if not self._running:
                return
            for status, process in self._running:
                if process.poll() is not None:
                    self._close(status, process.returncode)
            if time.monotonic() - last_update > _UPDATE_S:
                self._update_progress()
                last_update = time.monotonic()
            time.sleep(_POLL_S)

    def _update_progress(self) -> None:
        for status in self.statuses:
            if status.state == "running" or status.progress == Progress():
                status.progress = read_progress(status.folder, self._axis, status.progress)
        for status, _ in self._running:
            status.seconds = time.monotonic() - status.began
        self._observer.progressed(self.statuses)

    # One run ----------------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while len(self._running) < self._jobs:
            status, until = self._next()
            if status is None:
                return
            try:
                self._start(status, until)
            except OSError as fault:
                # Usually a full disk. Other runs may still start.
                status.state, status.reason = "failed", f"cannot write {fault.filename}: {fault.strerror}"
                self._observer.finished(status)

    def _next(self) -> tuple[RunStatus | None, float]:
        """Return the run to start and the share of its budget to run until; None if there is nothing to start now."""
        if self._controller is None:
            return next((status for status in self.statuses if status.state == "waiting"), None), 1.0
        return self._controller.next(self.statuses) or (None, 1.0)

    def _start(self, status: RunStatus, until: float) -> None:
        is_begun = self._prepare_folder(status)
        status.slot = min(set(range(self._jobs)) - {other.slot for other, _ in self._running})
        command_line = [
            *dying_with_parent(
                [*self._command, str(recipe_file(self._folder, status.run)), "--out", str(status.folder)]
            ),
            *["--resume"][: int(is_begun)],
            *(["--pause-at", f"{until:.9g}"] if until < 1 else []),
        ]
        # Read both before the process starts and writes to them.
        status.status_before = run_status(status.folder)
        with log_file(self._folder, status.run).open("ab") as log:
            status.log_start = log.tell()
            status.process = subprocess.Popen(
                command_line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(status.slot),
                # In its own session, a run gets Ctrl-C only from this process, and only once.
                start_new_session=True,
                pass_fds=(self._lock,),
            )
        status.state, status.reason, status.began = "running", "", time.monotonic() - status.seconds
        self._observer.started(status)

    def _prepare_folder(self, status: RunStatus) -> bool:
        """Return whether the run resumes from its folder; remove a folder that cannot be resumed."""
        if not status.folder.exists():
            return False
        if (status.folder / store.RECIPE).is_file():
            return True
        if any((status.folder / name).exists() for name in (store.METRICS, store.EVALS, store.CHECKPOINTS)):
            # Only its recipe is missing, and the study has a copy.
            shutil.copyfile(recipe_file(self._folder, status.run), status.folder / store.RECIPE)
            return True
        # The run was killed while it created its folder: there is nothing to resume, and a new run needs an empty one.
        shutil.rmtree(status.folder)
        return False

    def _environment(self, slot: int) -> dict[str, str]:
        environment = {**os.environ, **self._variables}
        if self._devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices[slot % len(self._devices)]
        elif self._jobs > 1:
            # If each run used every core, together they would be slower than one after the other.
            environment.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // self._jobs, 1)))
        return environment

    def _close(self, status: RunStatus, code: int) -> None:
        status.process, status.seconds = None, time.monotonic() - status.began
        status.progress = read_progress(status.folder, self._axis, status.progress)
        status.state, status.reason = self._outcome(status, code)
        # A killed run cannot record its end, and its folder may be read on another machine.
        store.end_status(status.folder, status.state, status.reason)
        self._observer.finished(status)

    def _outcome(self, status: RunStatus, code: int) -> tuple[State, str]:
        written = run_status(status.folder)
        state = written.get("status")
        if code == 0 and state == "done":
            return "done", ""
        if self._num_stop_requests or state == "stopped":
            return ("stopped" if self._num_stop_requests or code else "paused"), ""
        reason = " ".join(str(written.get("reason")).split())
        # A killed run has recorded no reason, but the exit code has the signal.
        if state == "failed" and reason != store.KILLED and written != status.status_before:
            return "failed", reason
        printed = log_file(self._folder, status.run).read_bytes()[status.log_start :]
        return "failed", failure_reason(printed.decode("utf-8", errors="replace"), code, status.progress.step)

    # Stopping ---------------------------------------------------------------------------------------------------------

    def _end_all(self, how: signal.Signals) -> None:
        for _, process in self._running:
            if process.poll() is None:
                process.send_signal(how)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def request_stop(number: int, frame: FrameType | None) -> None:
            self._num_stop_requests += 1

        # Keep ignoring hang-ups under nohup.
        handled = [
            number for number in _SIGNALS if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN
        ]
        before = {number: signal.signal(number, request_stop) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
