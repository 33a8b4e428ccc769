"""A training run: from a recipe to a run folder, by the parts of parts.py and the hooks of hooks.py."""

import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from scalerl.errors import StoreError, failure_text
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.secrets import hidden, redact, secrets_in
from scalerl.runfolder import store
from scalerl.training.learner.step import compilation_s
from scalerl.training.loop.evaluate import conversation_means, conversation_sums
from scalerl.training.loop.pipeline import StepDone
from scalerl.training.loop.watchdog import Watchdog
from scalerl.training.models.shape import ModelShape, work_flops
from scalerl.training.run.aside import state_bytes
from scalerl.training.run.budget import Budget
from scalerl.training.run.checkpoint import Checkpoint, Checkpoints, WritesTensors
from scalerl.training.run.clock import Clock, StallDetector, larger
from scalerl.training.run.derive import derive
from scalerl.training.run.evaluate import Evaluations, outcome_columns
from scalerl.training.run.hooks import Hook, RunEnd, state_of, train
from scalerl.training.run.host import CpuTime, environment, frozen_objects, machine_load
from scalerl.training.run.memory import checkpoint_words
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.pack import pack_groups
from scalerl.training.run.parts import Parts, build
from scalerl.training.run.resume import Earlier, as_started, best_step, check_same, lock_folder, read_earlier
from scalerl.training.run.rows import Rows
from scalerl.training.run.sinks import Sinks, check_sinks
from scalerl.training.run.start_up import StartUp
from scalerl.training.types import Work

_REPORT_S = 5.0  # time limit for reporting that a run hangs


class TrainingRun:
    """One attempt at a training run: new, or resumed from the newest checkpoint in its folder.

    Construction validates and loads; it writes nothing. `train` writes the folder and closes the run.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        observer: RunObserver | None = None,
        resume: bool = False,
        hung_s: float | None = None,
        start_up: StartUp | None = None,
    ) -> None:
        """If a call of the engine or a grader takes longer than `hung_s`, the process ends; see watchdog.py for the
        default. `start_up` has what the caller measured before.
        """
        started = time.monotonic()
        self.start_up = start_up or StartUp()
        self.recipe = as_started(recipe, folder) if resume else derive(recipe)[0]
        self.folder = folder
        self.observer = observer or RunObserver()
        self._resumes = resume
        if resume:
            store.check_resumable(folder)
            check_same(self.recipe, folder)
        else:
            store.check_new(folder)
        check_sinks(self.recipe.sinks)
        self._watchdog = Watchdog(self._on_hung, limit_s=hung_s)
        with ExitStack() as opened:
            earlier = Earlier(folder=folder, spent=larger())
            if resume:
                opened.enter_context(lock_folder(folder))
                earlier = read_earlier(folder)
            self.start_up.done("recipe")
            self.parts = build(self.recipe, watchdog=self._watchdog, earlier=earlier, start_up=self.start_up)
            self._opened = opened.pop_all()
        self._opened.callback(self.parts.close)
        self.learner = self.parts.learner
        self.pipeline = self.parts.pipeline
        self.attempt = earlier.attempt + 1
        self.clock = _clock(self.recipe, self.parts, since=started, spent=earlier.spent)
        hours = store.hours_name(self.device.type)
        self.budget = Budget(self.recipe.budget, self._spent, hours=hours)
        self._columns = _StepColumns(self.parts)
        self.rows = Rows(
            folder,
            attempt=self.attempt,
            metrics=[*earlier.metrics],
            evals=[*earlier.evals],
            spent=self.clock.row,
            columns=self._columns.of,
            on_row=self.observer.stepped,
        )
        self.evaluations = Evaluations(
            parts=self.parts,
            rows=self.rows,
            clock=self.clock,
            settings=self.recipe.evaluation,
            observer=self.observer,
            watchdog=self._watchdog,
        )
        self.unsaved: str | None = None
        """Why the checkpoint at the end could not be written; None if it was."""
        self._saved = -1 if earlier.checkpoint is None else earlier.checkpoint.step

    def _spent(self) -> dict[str, float]:
        return {"step": self.pipeline.version, **self.clock.at_step}

    def close(self) -> None:
        """End the processes of a run on which `train` is not called."""
        self._opened.close()

    @property
    def shape(self) -> ModelShape:
        return self.learner.shape

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings for the user, shown before training begins."""
        return (*self.parts.notices, *self._disk_notice())

    def _disk_notice(self) -> Iterator[str]:
        """Yield a warning if the disk has no room for the checkpoints that are kept."""
        state = self.learner.state_dict()
        if isinstance(state, WritesTensors):
            return
        size = state_bytes(state)
        keep = self.recipe.checkpoint.keep
        keeps_best = self.recipe.best_set is not None
        existing = next(folder for folder in (self.folder, *self.folder.absolute().parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        if free < (keep + keeps_best + 1) * size:
            words = checkpoint_words(size, keep, keeps_best=keeps_best)
            yield f"{words}; {existing} has {free / 1e9:.0f} GB: lower checkpoint.keep, or use another disk"

    @property
    def device(self) -> torch.device:
        return self.parts.place.computes_on

    def train(self) -> RunEnd:
        """Train until the budget is spent, the data is exhausted or the observer asks to stop; return why it ended."""
        with self._opened:
            self.observer.started(self)
            sinks = self._open_folder()
            hooks: list[Hook] = [self.clock, self.rows, self.evaluations, sinks]
            checkpoints = self._columns.checkpoints = self._checkpoints(hooks)
            # Host memory for copies is allocated while the first evaluation runs.
            checkpoints.prepare(self.learner.state_dict())
            try:
                with self._watchdog, frozen_objects():
                    self.parts.make_ready(self.folder)
                    end = train(self._steps(), [*hooks, checkpoints], self._end)
                    checkpoints.wait()
            except BaseException as error:
                # A checkpoint that is being written is worth its seconds.
                with suppress(Exception):
                    checkpoints.wait()
                # Write the row of the last step, unless the device that holds its metrics has failed.
                with suppress(Exception):
                    self.rows.flush()
                if isinstance(error, KeyboardInterrupt):
                    self._record_failure("stopped", "stopped at once: steps after the last checkpoint are repeated")
                else:
                    self._record_failure("failed", failure_text(error))
                raise
            self.unsaved = checkpoints.failure
            reason = end.reason
            if self.unsaved is not None:
                reason += f"; the last checkpoint failed: {self.unsaved}"
            store.write_status(self.folder, "stopped" if end.kind == "stopped" else "done", reason)
            return end

    def _steps(self) -> Iterator[StepDone]:
        self.clock.start_training()
        yield from self.pipeline.steps(stop=lambda: self.observer.stopping() == "now")

    def _end(self) -> RunEnd | None:
        """Return why the run ends here; None if it continues."""
        end = self.budget.end
        if not self.observer.stopping():
            return end
        # The last evaluation belongs to the budget. If the user skips it, a resumed run still has to do it.
        if end is None or self.evaluations.open_sets(self.pipeline.version, is_last=True):
            return RunEnd(kind="stopped", reason="asked to stop")
        return end

    def _open_folder(self) -> Sinks:
        if self._resumes:
            store.reopen_run(self.folder)
        else:
            store.create_run(self.folder)
            self._opened.enter_context(lock_folder(self.folder))
        recipe = hidden(self.recipe.model_dump(mode="json"))
        store.write_json(self.folder / store.RECIPE, recipe)
        hardware = environment(self.device, self.parts.place.device_name)
        lag = self.parts.lag
        expected = {"mean": lag.mean, "largest": lag.largest}
        known = {"slots": lag.slots, "expected_lag": expected, "start_up": self.start_up.seconds}
        store.write_env(self.folder, hardware | known)
        store.write_status(self.folder, "running")
        sinks = Sinks(self.recipe.sinks, self.rows, folder=self.folder, recipe=recipe, attempt=self.attempt)
        self._opened.callback(sinks.close)
        return sinks

    def _checkpoints(self, hooks: list[Hook]) -> Checkpoints:
        """Return the hook that saves the run, with the state of the other hooks."""

        def content() -> Checkpoint:
            state = self.pipeline.state()
            arrays, groups = pack_groups(state.groups)
            meta = {"pipeline": state.meta, "groups": groups, "problems": self.parts.problem_hashes}
            return Checkpoint(
                step=self.pipeline.version,
                tensors=self.learner.state_dict(),
                arrays={"groups": arrays},
                meta={**meta, **state_of(hooks)},
            )

        @contextmanager
        def paused() -> Iterator[None]:
            self.rows.flush()
            with self.parts.paused(), self.clock.aside("checkpoint"):
                yield

        return Checkpoints(
            folder=self.folder / store.CHECKPOINTS,
            settings=self.recipe.checkpoint,
            step=lambda: self.pipeline.version,
            content=content,
            best=lambda: best_step(self.rows.evals, self.recipe.best_set),
            paused=paused,
            saved=self._saved,
            on_failure=self.observer.checkpoint_failed,
        )

    def _record_failure(self, status: str, reason: str) -> None:
        # If this cannot be written either, report the first error.
        with suppress(StoreError):
            secrets = [value for _, value in secrets_in(self.recipe.model_dump(mode="json"))]
            store.write_status(self.folder, status, redact(reason, secrets))

    def _on_hung(self, reason: str) -> None:
        self._record_failure("failed", reason)
        # Report from another thread: a blocked terminal must not keep the process alive.
        reporter = threading.Thread(target=self.observer.hung, args=(reason,), daemon=True)
        reporter.start()
        reporter.join(_REPORT_S)
        # The main thread hangs in a call, so no exception can reach it.
        os._exit(1)


def _clock(recipe: Recipe, parts: Parts, *, since: float, spent: Mapping[str, float]) -> Clock:
    """Return the clock of a run; it counts the work of the engine and the learner."""
    turns = parts.turns
    engine = parts.engine
    pipeline = recipe.pipeline
    before = Work()

    def work(done: StepDone) -> dict[str, float]:
        nonlocal before
        earlier = before
        before = engine.work
        return {
            "flops/generator": work_flops(parts.learner.shape, earlier, before),
            "flops/learner": done.metrics.get("batch/flops", 0.0),
            "tokens": before.decoded - earlier.decoded,
        }

    on_cpu = parts.place.computes_on.type == "cpu"
    return Clock(
        num_devices=parts.place.num_devices,
        cpu_s=CpuTime(lambda: parts.pids) if on_cpu else None,
        since=since,
        spent=spent,
        within={"compilation": compilation_s, **({} if turns is None else {"tools": lambda: turns.waited_s})},
        # CPU time has no stalls.
        stalls=None if on_cpu else StallDetector(round_steps=pipeline.push_every if pipeline.drain else 1),
        work=work,
    )


class _StepColumns:
    """Collects the columns of a step's row that come from other parts than the learner."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tool_s = 0.0
        self._device_times: Mapping[str, float] = {}
        self.checkpoints: Checkpoints | None = None

    def of(self, done: StepDone) -> dict[str, Any]:
        parts = self._parts
        grading = self._parts.grading
        row: dict[str, Any] = {"groups": [group.key for group in done.batch.groups]}
        before = self._device_times
        self._device_times = parts.device_times()
        for kind, now in self._device_times.items():
            row[f"time/{kind}_s"] = now - before.get(kind, 0.0)
        if parts.turns is not None:
            row["rollout/tool_s"] = parts.turns.tool_s - self._tool_s
            self._tool_s = parts.turns.tool_s
        if parts.meter is not None:
            row |= parts.meter.row()
        if self.checkpoints is not None:
            row |= self.checkpoints.take_row()
        completions = itertools.chain.from_iterable(group.completions for group in done.batch.groups)
        sums = conversation_sums(list(completions))
        row |= {f"rollout/{name}": value for name, value in conversation_means(sums).items()}
        row |= grading.num_without_verdict
        row |= outcome_columns(grading.num_outcomes)
        grading.num_without_verdict.clear()
        grading.num_outcomes.clear()
        row |= parts.pipeline.curriculum_metrics
        row |= done.refill
        row |= machine_load(parts.place.computes_on)
        return row
