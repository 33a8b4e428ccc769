"""A training run: steps, evaluations and checkpoints into a run folder, over the parts that parts.py builds."""

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from scalerl import store
from scalerl.analysis.outlook import Axis
from scalerl.config import Recipe
from scalerl.errors import StoreError
from scalerl.graders.pool.pool import Reason
from scalerl.learner.step import compilation_s
from scalerl.loop.pipeline import StepDone
from scalerl.loop.requests import Text
from scalerl.loop.watchdog import Watchdog
from scalerl.models.shape import ModelShape, work_flops
from scalerl.run import checkpoint as checkpoints
from scalerl.run.clock import Clock, devices_held, larger
from scalerl.run.evaluate import counts, evaluate_set, no_verdicts, outcome_columns
from scalerl.run.health import Health
from scalerl.run.host import environment, frozen_objects
from scalerl.run.observer import NullObserver, RunObserver
from scalerl.run.pack import pack_groups
from scalerl.run.parts import build
from scalerl.run.prompts import EvalSet
from scalerl.run.resume import Earlier, best_step, check_same, lock_folder, read_earlier
from scalerl.run.sinks import Sinks, check_sinks
from scalerl.types import Group, Work

SAMPLES_KEPT = 4  # completions written to samples.jsonl at each evaluation
_REPORT_S = 5.0  # how long a run that hangs may take to report it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why a run ended."""

    kind: Literal["budget", "data", "stopped"]
    """The budget is spent, the data is exhausted, or the observer asked it to stop."""
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
    ) -> None:
        """An engine or grader call that takes `hung_s` ends the process; see watchdog.py for the default."""
        started = time.monotonic()
        self.recipe = recipe
        self.folder = folder
        self.observer = observer or NullObserver()
        self._resumes = resume
        if resume:
            check_same(recipe, folder)
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
        self.clock = Clock(devices=devices_held([str(self.device)]), since=started, spent=earlier.spent)
        self.metrics = list(earlier.metrics)
        self.evals = list(earlier.evals)
        self._last_evaluated = self._last_complete_evaluation()
        self._last_saved = -1 if earlier.checkpoint is None else earlier.checkpoint.step
        self._work = Work()
        self._num_without_verdict: Counter[Reason] = Counter()
        self._num_outcomes: Counter[str] = Counter()
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
        return self.parts.inputs.device

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
            except KeyboardInterrupt:
                self._record_failure("stopped", "stopped at once: what came after the last checkpoint is repeated")
                raise
            except BaseException as error:
                self._record_failure("failed", f"{type(error).__name__}: {error}".removesuffix(": "))
                raise
            store.write_status(self.folder, "stopped" if end.kind == "stopped" else "done", end.reason)
            return end

    def _open_folder(self) -> None:
        if self._resumes:
            store.reopen_run(self.folder)
        else:
            store.create_run(self.folder)
            self._opened.enter_context(lock_folder(self.folder))
        recipe = self.recipe.model_dump(mode="json")
        store.write_json(self.folder / store.RECIPE, recipe)
        store.write_env(self.folder, environment(self.device) | {"slots": self.parts.lag.slots})
        store.write_status(self.folder, "running")
        self._sinks = Sinks(self.recipe.sinks, self.folder, recipe, self.attempt)
        self._opened.callback(self._sinks.close)

    def _record_failure(self, status: str, reason: str) -> None:
        # If even this cannot be written, the error that led here is the one to report.
        with suppress(StoreError):
            store.write_status(self.folder, status, reason)

    def _on_hung(self, reason: str) -> None:
        self._record_failure("failed", reason)
        # In a thread: a terminal that accepts no more text must not keep the process alive.
        reporter = threading.Thread(target=self.observer.hung, args=(reason,), daemon=True)
        reporter.start()
        reporter.join(_REPORT_S)
        # The main thread is in a call that does not return: no exception would reach it.
        os._exit(1)

    def _train(self) -> RunEnd:
        if (end := self._between_steps(())) is not None:
            return end
        self.clock.start_training()
        compiled_s = compilation_s()
        for done in self.pipeline.steps():
            self.clock.recount("compilation", compilation_s() - compiled_s)
            self.clock.recount("stalled", self._health.stalled_s(self.clock.row()["time/training_s"]))
            self._log(done)
            if (end := self._between_steps(done.batch.groups)) is not None:
                return end
            compiled_s = compilation_s()
        self._evaluate(())
        self.save()
        return RunEnd(kind="data", reason="data exhausted")

    def _between_steps(self, groups: Sequence[Group]) -> RunEnd | None:
        """Evaluate and save where it is due; return why the run ends here, or None if it goes on."""
        step, end = self.pipeline.version, self._end()
        if step % self.recipe.evaluation.every == 0 or (end is not None and end.kind == "budget"):
            self._evaluate(groups)
        # The observer may have asked to stop during the evaluation.
        end = end or self._end()
        if (step and step % self.recipe.checkpoint.every == 0) or end is not None or self._best_step() == step > 0:
            self.save()
        return end

    def _limits(self) -> list[tuple[float, float, str]]:
        """Return (spent, limit, unit) for each limit of the budget."""
        budget, spent = self.recipe.budget, self.clock.row()
        limits = (
            (self.pipeline.version, budget.steps, "steps"),
            (spent["gpu_hours"], budget.gpu_hours, "GPU-hours"),
            (spent["flops"], budget.flops, "FLOPs"),
        )
        return [(done, limit, unit) for done, limit, unit in limits if limit is not None]

    def _end(self) -> RunEnd | None:
        for spent, limit, unit in self._limits():
            if spent >= limit:
                return RunEnd(kind="budget", reason=f"budget of {limit:,.8g} {unit} spent")
        return RunEnd(kind="stopped", reason="asked to stop") if self.observer.stopping() else None

    def _log(self, done: StepDone) -> None:
        work = self.parts.engine.work
        self.clock.add(
            generator_flops=work_flops(self.shape, self._work, work),
            learner_flops=done.metrics.get("batch/flops", 0.0),
            tokens=work.decoded - self._work.decoded,
        )
        self._work = work
        before, self._num_without_verdict = self._num_without_verdict, Counter(self.parts.grading.num_without_verdict)
        seen, self._num_outcomes = self._num_outcomes, Counter(self.parts.grading.num_outcomes)
        row = {
            "step": done.version,
            "attempt": self.attempt,
            **self.clock.row(),
            **done.metrics,
            "time/step_s": done.timings.step_s,
            "time/wait_s": done.timings.wait_s,
            "time/push_s": done.timings.push_s,
            **{f"grader/{reason}": num for reason, num in (self._num_without_verdict - before).items()},
            **outcome_columns(self._num_outcomes - seen),
            "groups": [group.key for group in done.batch.groups],
        }
        store.append_row(self.folder / store.METRICS, row)
        self._sinks.log(row, "train")
        self.metrics.append(row)
        self.observer.stepped(row)

    def _evaluate(self, groups: Sequence[Group]) -> None:
        step, eval_sets = self.pipeline.version, self.parts.inputs.eval_sets
        if self._last_evaluated >= step:
            return
        with self.clock.aside("evaluation"):
            spent = self.clock.row()
            self.parts.eval_engine.push_weights(self.learner.weights(), step)
            rows = [self._evaluate_set(eval_set, step, spent) for eval_set in eval_sets]
            for row in rows:
                store.append_row(self.folder / store.EVALS, row)
                self._sinks.log(row, "eval")
            for row in sample_rows(groups[:SAMPLES_KEPT], self.parts.inputs.text):
                store.append_row(self.folder / store.SAMPLES, {"step": step, "attempt": self.attempt, **row})
            self.evals = [row for row in self.evals if row["step"] != step] + rows
            self._last_evaluated = step
            outlooks = self._health.outlooks(self.evals, [each.name for each in eval_sets], self._end_compute)
            errors = self.parts.inputs.graders.first_errors
            self.observer.evaluated(rows, outlooks, self._health.alarms(self.metrics, outlooks, errors))

    def _evaluate_set(self, eval_set: EvalSet, step: int, spent: Mapping[str, float]) -> store.Row:
        inputs, settings = self.parts.inputs, self.recipe.evaluation
        with self._watchdog.watching("the grader"):
            result = evaluate_set(
                eval_set, self.parts.eval_engine, inputs, settings, step=step, on_progress=self._on_progress
            )
        if step == 0 and result.num_graded == 0 and result.num_without_verdict.keys() - {"no_answer"}:
            # Training may make answers readable; a grader that fails on every answer stays broken.
            raise no_verdicts(eval_set, result, inputs)
        return {
            "step": step,
            "attempt": self.attempt,
            "set": eval_set.name,
            **{key: spent[key] for key in ("gpu_hours", "flops", "tokens")},
            "reward": result.reward,
            "num_correct": list(result.num_correct),
            **counts(result),
        }

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
        if self._last_saved == self.pipeline.version:
            return
        with self.clock.aside("checkpoint"):
            state = self.pipeline.state()
            arrays, groups = pack_groups(state.groups)
            checkpoints.save(
                self.folder / store.CHECKPOINTS,
                checkpoints.Checkpoint(
                    step=self.pipeline.version,
                    tensors=self.learner.state_dict(),
                    arrays={"groups": arrays},
                    meta={
                        "pipeline": state.meta,
                        "groups": groups,
                        "clock": self.clock.row(),
                        "problems": self.parts.problem_hashes,
                    },
                ),
                keep=self.recipe.checkpoint.keep,
                keep_step=self._best_step(),
            )
            self._last_saved = self.pipeline.version


def sample_rows(groups: Sequence[Group], text: Text) -> list[dict[str, Any]]:
    """Return the first completion of each group, for people to read."""
    return [
        {
            "problem": group.problem.id,
            "prompt": group.problem.prompt,
            "completion": text.decode(group.completions[0].tokens.tolist()),
            "answer": group.problem.answer,
            "correct": group.correct[0],
            "reward": group.rewards[0],
        }
        for group in groups
    ]
