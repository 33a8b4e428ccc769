"""A training run: steps, evaluations and checkpoints into a run folder, from the parts of parts.py; its observers."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from scalerl import store
from scalerl.config import Recipe
from scalerl.config.secrets import hidden, redact, secrets_in
from scalerl.errors import StoreError
from scalerl.learner.late import LateMetrics
from scalerl.learner.step import compilation_s
from scalerl.loop.evaluate import EvalResult, conversation_means, conversation_sums
from scalerl.loop.pipeline import StepDone
from scalerl.loop.watchdog import Watchdog
from scalerl.models.shape import ModelShape, work_flops
from scalerl.report.alarms import Alarm
from scalerl.report.outlook import Axis
from scalerl.report.results import CurveResult
from scalerl.run import checkpoint as checkpoints
from scalerl.run.clock import Clock, larger, step_times
from scalerl.run.derive import derive
from scalerl.run.evaluate import begin_evaluation, check_verdicts, eval_rows, outcome_columns, sample_rows
from scalerl.run.health import Health
from scalerl.run.host import environment, frozen_objects, machine_load
from scalerl.run.pack import pack_groups
from scalerl.run.parts import build
from scalerl.run.resume import Earlier, best_step, check_same, lock_folder, read_earlier
from scalerl.run.sinks import Sinks, check_sinks
from scalerl.types import Group, Work

SAMPLES_KEPT = 4  # completions written to samples.jsonl at each evaluation
_REPORT_S = 5.0  # how long a run that hangs may take to report it
Outlooks = Mapping[str, CurveResult | None]
"""The forecast of each evaluation set, None before there is one."""


class RunObserver(Protocol):
    """Is told what happens in a run, and may ask it to stop; what is not overridden does nothing."""

    def started(self, run: "Run") -> None:
        """Called when everything is loaded, before the folder is written."""

    def stepped(self, row: Mapping[str, Any]) -> None:
        """Called with each row of metrics.jsonl."""

    def evaluating(self, finished: int, total: int) -> None:
        """Called with the number of completions that are graded, and of all of a set."""

    def evaluated(self, rows: Sequence[Mapping[str, Any]], outlooks: Outlooks, alarms: Sequence[Alarm]) -> None:
        """Called with the rows of an evaluation, its forecasts, and the alarms that are new."""

    def hung(self, reason: str) -> None:
        """Called from another thread, immediately before the process ends."""

    def stopping(self) -> bool | Literal["now"]:
        """Return whether the run should stop after this step, without an evaluation, or "now": within a step."""
        return False


class _Silent(RunObserver):
    """Ignores everything and never asks the run to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why a run ended."""

    kind: Literal["budget", "data", "stopped", "paused"]
    """The budget is spent, the data is exhausted, the observer asked it to stop, or it came to where it pauses."""
    reason: str


class Run:
    """One attempt at a run: new, or resumed from the newest checkpoint of its folder.

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
        pause_at: float | None = None,
    ) -> None:
        """`pause_at` is the share of the budget at which the run pauses, with a checkpoint. An engine or grader call
        that takes `hung_s` ends the process; see watchdog.py for the default.
        """
        started = time.monotonic()
        recipe, _ = derive(recipe)
        self.recipe = recipe
        self.folder = folder
        self.observer = observer or _Silent()
        self._resumes = resume
        self._pause_at = pause_at
        if resume:
            check_same(recipe, folder)
            store.check_place(folder)
        else:
            store.check_new(folder)
        check_sinks(recipe.sinks)
        self._watchdog = Watchdog(self._on_hung, limit_s=hung_s)
        with ExitStack() as opened:
            earlier = Earlier(folder=folder, spent=larger())
            if resume:
                opened.enter_context(lock_folder(folder))
                earlier = read_earlier(folder)
            self.parts = build(recipe, watchdog=self._watchdog, earlier=earlier)
            self._opened = opened.pop_all()
        self._opened.callback(self.parts.close)
        self.learner = self.parts.learner
        self.pipeline = self.parts.pipeline
        self.attempt = earlier.attempt + 1
        self.clock = Clock(devices=self.parts.place.num_devices, since=started, spent=earlier.spent)
        self.metrics = list(earlier.metrics)
        self.evals = list(earlier.evals)
        self._last_evaluated = self._last_complete_evaluation()
        self._last_saved = -1 if earlier.checkpoint is None else earlier.checkpoint.step
        self._saved_at = time.monotonic()
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[Path] | None = None
        self._work = Work()
        self._unwritten: Callable[[], dict[str, Any]] | None = None
        self._health = Health(recipe, trained_s=self.clock.row()["time/training_s"])

    def close(self) -> None:
        """End the processes of a run that will not be trained."""
        self._opened.close()

    def _last_complete_evaluation(self) -> int:
        """Return the last step of which every evaluation set has a row; -1 if there is none."""
        num_sets = Counter(row["step"] for row in self.evals)
        num_wanted = len(self.parts.inputs.eval_sets)
        return max((step for step, num in num_sets.items() if num == num_wanted), default=-1)

    @property
    def shape(self) -> ModelShape:
        return self.learner.shape

    @property
    def device(self) -> torch.device:
        return self.parts.place.computes_on

    @property
    def share_spent(self) -> float:
        """The share of the budget that is spent, by the limit that will be reached first; the run ends at 1."""
        return max(spent / limit for spent, limit, _ in self._limits())

    def train(self) -> RunEnd:
        """Train until the budget is spent, the data is exhausted or the observer asks to stop; return why it ended."""
        with self._opened:
            self.observer.started(self)
            self._open_folder()
            try:
                with self._watchdog, frozen_objects():
                    end = self._train()
                    self._wait_for_checkpoint()
            except BaseException as error:
                # The row of the step before; a device that failed may not give it.
                with suppress(Exception):
                    self._write_row()
                if isinstance(error, KeyboardInterrupt):
                    self._record_failure("stopped", "stopped at once: what came after the last checkpoint is repeated")
                else:
                    self._record_failure("failed", f"{type(error).__name__}: {error}".removesuffix(": "))
                raise
            store.write_status(self.folder, "stopped" if end.kind in ("stopped", "paused") else "done", end.reason)
            return end

    def _open_folder(self) -> None:
        if self._resumes:
            store.reopen_run(self.folder)
        else:
            store.create_run(self.folder)
            self._opened.enter_context(lock_folder(self.folder))
        recipe = hidden(self.recipe.model_dump(mode="json"))
        store.write_json(self.folder / store.RECIPE, recipe)
        hardware = environment(self.device, self.parts.place.device_name)
        store.write_env(self.folder, hardware | {"slots": self.parts.lag.slots})
        store.write_status(self.folder, "running")
        self._sinks = Sinks(self.recipe.sinks, self.folder, recipe, self.attempt)
        self._opened.callback(self._sinks.close)

    def _record_failure(self, status: str, reason: str) -> None:
        # If even this cannot be written, the error that led here is the one to report.
        with suppress(StoreError):
            secrets = [value for _, value in secrets_in(self.recipe.model_dump(mode="json"))]
            store.write_status(self.folder, status, redact(reason, secrets))

    def _on_hung(self, reason: str) -> None:
        self._record_failure("failed", reason)
        # In a thread: a terminal that accepts no more text must not keep the process alive.
        reporter = threading.Thread(target=self.observer.hung, args=(reason,), daemon=True)
        reporter.start()
        reporter.join(_REPORT_S)
        # The main thread is in a call that does not return: no exception would reach it.
        os._exit(1)

    def _train(self) -> RunEnd:
        self.parts.make_ready(self.folder)
        if (end := self._between_steps(())) is not None:
            return end
        self.clock.start_training()
        compiled_s = compilation_s()
        for done in self.pipeline.steps(stop=self._stops_now):
            self.clock.recount("compilation", compilation_s() - compiled_s)
            tools = self._count_tools()
            self.clock.recount("stalled", self._health.stalled_s(self.clock.row()["time/training_s"]))
            self._log(done, tools)
            if (end := self._between_steps(done.batch.groups)) is not None:
                return end
            compiled_s = compilation_s()
        if (end := self._end()) is None:
            end = RunEnd(kind="data", reason="data exhausted")
            self._evaluate(())
        self.save()
        return end

    def _stops_now(self) -> bool:
        return self.observer.stopping() == "now"

    def _between_steps(self, groups: Sequence[Group]) -> RunEnd | None:
        """Evaluate and save where it is due; return why the run ends here, or None if it goes on."""
        step, end = self.pipeline.version, self._end()
        is_last = end is not None and end.kind == "budget"
        # A run that was asked to stop ends without an evaluation, which may take long; a resumed one catches up on it.
        if (step % self.recipe.evaluation.every == 0 or is_last) and not self.observer.stopping():
            self._evaluate(groups)
        # The observer may have asked to stop during the evaluation.
        end = end or self._end()
        if end is not None or self._best_step() == step > 0 or self._checkpoint_is_due(step):
            self.save()
        return end

    def _checkpoint_is_due(self, step: int) -> bool:
        settings = self.recipe.checkpoint
        is_late = self._last_saved < step and time.monotonic() - self._saved_at > 60 * settings.every_minutes
        return step > 0 and (step % settings.every == 0 or is_late)

    def _limits(self) -> list[tuple[float, float, str]]:
        """Return (spent, limit, unit) for each limit of the budget."""
        budget, spent = self.recipe.budget, self.clock.row()
        limits = (
            (self.pipeline.version, budget.steps, "steps"),
            (spent["gpu_hours"], budget.gpu_hours, "GPU-hours" if self.device.type == "cuda" else "CPU-hours"),
            (spent["flops"], budget.flops, "FLOPs"),
        )
        return [(done, limit, unit) for done, limit, unit in limits if limit is not None]

    def _end(self) -> RunEnd | None:
        stopped = RunEnd(kind="stopped", reason="asked to stop") if self.observer.stopping() else None
        for spent, limit, unit in self._limits():
            if spent >= limit:
                # The last evaluation is part of the budget: without it a resumed run has something to do.
                lacks_evaluation = self._last_evaluated < self.pipeline.version
                end = RunEnd(kind="budget", reason=f"budget of {limit:,.8g} {unit} spent")
                return stopped if stopped and lacks_evaluation else end
        if self._pause_at is not None and self.share_spent >= self._pause_at:
            return RunEnd(kind="paused", reason=f"paused at {self._pause_at:.0%} of its budget")
        return stopped

    def _count_tools(self) -> dict[str, float]:
        """Count the seconds in which nothing was sampled because every conversation waited for its environment.

        Return the columns on environments; `rollout/tool_s` is all that their steps took, beside sampling or not.
        """
        turns = self.parts.turns
        if turns is None:
            return {}
        tool_s, waited_s = turns.take_seconds()
        self.clock.recount("tools", waited_s)
        return {"rollout/tool_s": tool_s}

    def _log(self, done: StepDone, tools: Mapping[str, float]) -> None:
        work = self.parts.engine.work
        self.clock.add(
            {
                "flops/generator": work_flops(self.shape, self._work, work),
                "flops/learner": done.metrics.get("batch/flops", 0.0),
                "tokens": work.decoded - self._work.decoded,
            }
        )
        self._work = work
        grading = self.parts.grading
        known = {"step": done.version, "attempt": self.attempt, **self.clock.row()}
        sums = conversation_sums([each for group in done.batch.groups for each in group.completions])
        others = {
            **{f"grader/{reason}": num for reason, num in grading.num_without_verdict.items()},
            **({} if self.parts.meter is None else self.parts.meter.row()),
            **outcome_columns(grading.num_outcomes),
            **self.pipeline.curriculum_metrics,
            **{f"rollout/{name}": value for name, value in conversation_means(sums).items()},
            **tools,
            **machine_load(self.device),
            "groups": [group.key for group in done.batch.groups],
        }
        grading.num_without_verdict.clear()
        grading.num_outcomes.clear()
        self._write_row()
        self._unwritten = lambda: {**known, **done.metrics, **step_times(done), **others}
        if not isinstance(done.metrics, LateMetrics):
            self._write_row()

    def _write_row(self) -> None:
        """Write the last step's row, unless that is done: on a GPU when the next step is under way, or it is needed."""
        make, self._unwritten = self._unwritten, None
        if make is None:
            return
        row = make()
        store.append_row(self.folder / store.METRICS, row)
        self._sinks.log(row, "train")
        self.metrics.append(row)
        self.observer.stepped(row)

    def _evaluate(self, groups: Sequence[Group]) -> None:
        """Evaluate this step, once, while training is paused."""
        step, engine, before = self.pipeline.version, self.parts.engine, self.parts.engine.eval_work
        if self._last_evaluated >= step:
            return
        self._write_row()
        with self.clock.aside("evaluation"), engine.paused():
            engine.push_weights(self.learner.weights(), step)
            spent = self.clock.row()
            evaluation = begin_evaluation(engine, self.parts.inputs, step=step, on_progress=self._on_progress)
            with self._watchdog.watching("the grader"):
                if not evaluation.finish(lambda: bool(self.observer.stopping())):
                    # A resumed run evaluates this step again.
                    return
            self._last_evaluated = step
            self._record(evaluation.results(), spent, groups)
        self.clock.add({"flops/evaluation": work_flops(self.shape, before, engine.eval_work)})
        if self.parts.turns is not None:
            # What environments took here is time of the evaluation.
            self.parts.turns.take_seconds()

    def _record(self, results: Mapping[str, EvalResult], spent: Mapping[str, float], groups: Sequence[Group]) -> None:
        """Write the rows of an evaluation and report them; `groups` are training groups to show beside it."""
        step = self.pipeline.version
        if step == 0:
            # Training may make answers readable; a grader that fails on every answer stays broken.
            check_verdicts(results, self.parts.inputs, allowed=["no_answer"])
        rows = eval_rows(results, step, self.attempt, spent)
        for row in rows:
            store.append_row(self.folder / store.EVALS, row)
            self._sinks.log(row, "eval")
        for row in sample_rows(groups[:SAMPLES_KEPT], self.parts.inputs.text):
            store.append_row(self.folder / store.SAMPLES, {"step": step, "attempt": self.attempt, **row})
        self.evals = [row for row in self.evals if row["step"] != step] + rows
        names = [each.name for each in self.parts.inputs.eval_sets]
        outlooks = self._health.outlooks(self.evals, names, self._end_compute)
        turns = self.parts.turns
        errors = self.parts.inputs.graders.first_errors | ({} if turns is None else turns.first_errors)
        self.observer.evaluated(rows, outlooks, self._health.alarms(self.metrics, self.evals, outlooks, errors))

    def _on_progress(self, finished: int, total: int) -> None:
        # Not watched: a blocked terminal is not a grader that hangs.
        with self._watchdog.watching(None):
            self.observer.evaluating(finished, total)

    def _end_compute(self, axis: Axis) -> float | None:
        """Return the compute at the end of the budget, at the pace so far; None before the first step."""
        share = self.share_spent
        spent = self.pipeline.version if axis == "step" else self.clock.row()[axis]
        return spent / share if share > 0 else None

    def _best_step(self) -> int | None:
        """Return the step with the best evaluation so far, of the set that checkpoint.best names."""
        return best_step(self.evals, self.recipe.checkpoint.best)

    def save(self) -> None:
        """Write a checkpoint between two steps, at most once per step."""
        self._write_row()
        if self._last_saved == self.pipeline.version:
            return
        fleet = None if self.parts.meter is None else self.parts.meter.fleet
        with nullcontext() if fleet is None else fleet.paused(), self.clock.aside("checkpoint"):
            state = self.pipeline.state()
            arrays, groups = pack_groups(state.groups)
            # Before the state is copied: a rank has room for one copy.
            self._wait_for_checkpoint()
            problems = self.parts.problem_hashes
            checkpoint = checkpoints.Checkpoint(
                step=self.pipeline.version,
                tensors=self.learner.state_dict(),
                arrays={"groups": arrays},
                meta={"pipeline": state.meta, "groups": groups, "clock": self.clock.row(), "problems": problems},
            )
            self._written = self._writer.submit(
                checkpoints.save,
                self.folder / store.CHECKPOINTS,
                checkpoint,
                keep=self.recipe.checkpoint.keep,
                keep_step=self._best_step(),
            )
            if not isinstance(checkpoint.tensors, checkpoints.WritesTensors):
                # Others have a copy of their state, and training goes on while they write it.
                self._wait_for_checkpoint()
            self._last_saved, self._saved_at = self.pipeline.version, time.monotonic()

    def _wait_for_checkpoint(self) -> None:
        """Return when no checkpoint is being written; raise what stopped the last one."""
        written, self._written = self._written, None
        if written is not None:
            written.result()
