"""Run a plan: each arm and seed is a command with its own run folder. Finished runs are kept, others continue.

waiting -> running -> done | failed | stopped        --resume continues failed and stopped runs
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Literal, Protocol

from scalerl.processes import dying_with_parent, start
from scalerl.runfolder import store
from scalerl.study.failure_reason import failure_reason
from scalerl.study.folder import is_done, last_reward, last_row, log_file, recipe_file, run_folder, run_status
from scalerl.study.plan import PlannedRun, StudyPlan

_POLL_S = 0.1
_SIGNALS = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]

State = Literal["waiting", "running", "done", "failed", "stopped"]


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """A run of the study and its current state."""

    run: PlannedRun
    folder: Path
    state: State
    reason: str = ""
    """Why it failed."""
    seconds: float = 0.0
    """Time that this study has spent on the run."""
    step: int | None = None
    """Its last step; None if it has made none."""
    reward: float | None = None
    """Reward of its latest evaluation, on the first set; None if there is none."""

    def read_progress(self) -> None:
        """Read the last step and the latest reward from the run's folder."""
        self.step = last_row(self.folder).get("step")
        self.reward = last_reward(self.folder)


class StudyObserver(Protocol):
    """Receives the events of a study while its runs train."""

    def started(self, status: RunStatus) -> None: ...
    def finished(self, status: RunStatus) -> None: ...
    def stopping(self, num_running: int, at_once: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The process of a run."""

    status: RunStatus
    process: subprocess.Popen[bytes]
    slot: int
    """Number of its place among the runs at the same time."""
    began: float
    """Monotonic time at which it started."""
    log_start: int
    """Size of its log when it started."""
    status_before: Mapping[str, Any]
    """The run's status.json when it started."""


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
        jobs: int = 1,
        devices: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`command` trains; RECIPE --out DIR [--resume] is appended to it.

        `lock` is the descriptor of the study's lock file, which runs inherit: the study stays locked while any of them
        lives. `devices` are GPUs, assigned in turn; `variables` are set in the environment of each run.
        """
        self._folder = folder
        self._command = command
        self._lock = lock
        self._observer = observer
        self._max_jobs = jobs
        self._devices = devices
        self._variables = variables
        self.statuses = [self._initial_status(run) for run in plan.runs]
        self._jobs: list[_Job] = []
        self._num_stop_requests = 0

    @property
    def interrupted(self) -> bool:
        return self._num_stop_requests > 0

    def _initial_status(self, run: PlannedRun) -> RunStatus:
        state: State = "done" if is_done(self._folder, run) else "waiting"
        status = RunStatus(run=run, folder=run_folder(self._folder, run), state=state)
        status.read_progress()
        return status

    def run(self) -> None:
        """Run until all runs are done or failed, or until asked to stop; a second request ends runs at once."""
        with self._signals():
            try:
                self._loop()
            finally:
                self._signal_all(signal.SIGKILL)
                for job in list(self._jobs):
                    job.process.wait()
                    self._close(job)

    def _loop(self) -> None:
        num_requests_passed_on = 0
        while True:
            if self._num_stop_requests > num_requests_passed_on:
                num_requests_passed_on = self._num_stop_requests
                self._stop_all(at_once=num_requests_passed_on > 1)
            if not self.interrupted:
                self._start_waiting()
            if not self._jobs:
                return
            for job in list(self._jobs):
                if job.process.poll() is not None:
                    self._close(job)
            time.sleep(_POLL_S)

    # One run ----------------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        for status in self.statuses:
            if len(self._jobs) >= self._max_jobs:
                return
            if status.state != "waiting":
                continue
            try:
                self._start(status)
            except OSError as fault:
                # Usually a full disk. Other runs may still start.
                status.state = "failed"
                status.reason = f"cannot write {fault.filename}: {fault.strerror}"
                self._observer.finished(status)

    def _start(self, status: RunStatus) -> None:
        is_resumed = self._prepare_folder(status)
        taken = {job.slot for job in self._jobs}
        slot = min(set(range(self._max_jobs)) - taken)
        command = [*self._command, str(recipe_file(self._folder, status.run)), "--out", str(status.folder)]
        if is_resumed:
            command.append("--resume")
        # Read both before the process starts and writes to them.
        status_before = run_status(status.folder)
        with log_file(self._folder, status.run).open("ab") as log:
            log_start = log.tell()
            process = start(
                dying_with_parent(command),
                environment=self._environment(slot),
                descriptors=(self._lock,),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        status.state = "running"
        status.reason = ""
        self._jobs.append(
            _Job(
                status=status,
                process=process,
                slot=slot,
                began=time.monotonic(),
                log_start=log_start,
                status_before=status_before,
            )
        )
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
        environment = dict(self._variables)
        if self._devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices[slot % len(self._devices)]
        elif self._max_jobs > 1:
            # If each run used every core, together they would be slower than one after the other.
            num_threads = max((os.cpu_count() or 1) // self._max_jobs, 1)
            environment.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", str(num_threads)))
        return environment

    def _close(self, job: _Job) -> None:
        """Record the outcome of a run whose process has ended."""
        self._jobs.remove(job)
        status = job.status
        status.seconds += time.monotonic() - job.began
        status.read_progress()
        status.state, status.reason = self._outcome(job)
        # A killed run cannot record its end, and its folder may be read on another machine.
        store.end_status(status.folder, status.state, status.reason)
        self._observer.finished(status)

    def _outcome(self, job: _Job) -> tuple[State, str]:
        """Return the state in which a process has left its run, and why the run failed."""
        code = job.process.returncode
        written = run_status(job.status.folder)
        state = written.get("status")
        if code == 0 and state == "done":
            return "done", ""
        if self.interrupted or state == "stopped":
            return "stopped", ""
        reason = " ".join(str(written.get("reason")).split())
        # A killed run has recorded no reason, but the exit code has the signal.
        if state == "failed" and reason != store.KILLED and written != job.status_before:
            return "failed", reason
        printed = log_file(self._folder, job.status.run).read_bytes()[job.log_start :]
        return "failed", failure_reason(printed.decode("utf-8", errors="replace"), code, job.status.step)

    # Stopping ---------------------------------------------------------------------------------------------------------

    def _stop_all(self, *, at_once: bool) -> None:
        """Ask all runs to stop after their step, or end them at once."""
        self._signal_all(signal.SIGKILL if at_once else signal.SIGINT)
        self._observer.stopping(len(self._jobs), at_once)

    def _signal_all(self, how: signal.Signals) -> None:
        for job in self._jobs:
            if job.process.poll() is None:
                job.process.send_signal(how)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Count requests to stop instead of ending this process."""

        def request_stop(number: int, frame: FrameType | None) -> None:
            self._num_stop_requests += 1

        before = {}
        for number in _SIGNALS:
            # Keep ignoring hang-ups under nohup.
            if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, request_stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
