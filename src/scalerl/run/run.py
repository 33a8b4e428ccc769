"""A training run, from a recipe to a run folder: the only place where the parts are wired together.

Setup (model, task, engine) -> learner, curriculum -> Pipeline.steps() -> metrics, evaluations, checkpoints
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from scalerl import store
from scalerl.analysis.outlook import Outlook, alarms, outlook
from scalerl.choose import choose
from scalerl.config import Recipe
from scalerl.errors import GraderError, RecipeError, StoreError
from scalerl.graders.pool.pool import Reason
from scalerl.learner.step import TorchLearner, compilation_s
from scalerl.loop.pipeline import Pipeline, PipelineState, StepDone
from scalerl.loop.watchdog import Watchdog, WatchedEngine, WatchedGrading
from scalerl.models.shape import ModelShape, work_flops
from scalerl.run import checkpoint as checkpoints
from scalerl.run.clock import Clock, devices_held, larger
from scalerl.run.pack import pack_groups, unpack_groups
from scalerl.run.resume import check_same, newest_checkpoint, only_trainer
from scalerl.run.setup import EvalSet, Setup, counts, environment, hash_problems, sample_rows, settled
from scalerl.run.sinks import Sinks, check_sinks
from scalerl.tasks.curriculum import CURRICULA, Curriculum
from scalerl.tasks.mixture import Mixture
from scalerl.types import Group, Work

SAMPLES_KEPT = 4  # completions written to samples.jsonl at each evaluation
ASKED = "asked to stop"
_SPEAK_S = 5.0  # for the last words of a run that hangs

Outlooks = Mapping[str, Outlook | None]
"""What the curve of each evaluation set says."""


class Watcher(Protocol):
    """Who looks on: a terminal, or nobody."""

    def started(self, run: "Run") -> None: ...
    def stepped(self, row: Mapping[str, Any]) -> None: ...
    def evaluating(self, finished: int, total: int) -> None: ...
    def evaluated(self, rows: Sequence[Mapping[str, Any]], found: Outlooks, said: Sequence[str]) -> None: ...
    def hung(self, reason: str) -> None:
        """Called from another thread, right before the process ends."""
        ...

    def stopping(self) -> bool:
        """Whether the run is to stop after this step."""
        ...


class Nobody:
    """Looks on in silence."""

    def started(self, run: "Run") -> None: ...
    def stepped(self, row: Mapping[str, Any]) -> None: ...
    def evaluating(self, finished: int, total: int) -> None: ...
    def evaluated(self, rows: Sequence[Mapping[str, Any]], found: Outlooks, said: Sequence[str]) -> None: ...
    def hung(self, reason: str) -> None: ...
    def stopping(self) -> bool:
        return False


class Run:
    """One attempt at a run: new, or resumed from the newest checkpoint of its folder.

    To make one reads everything that can be wrong and writes nothing; `train` writes, and closes it.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        watcher: Watcher | None = None,
        resume: bool = False,
        hung_s: float | None = None,
    ) -> None:
        """A call of the engine or the grader that takes `hung_s` ends the process; by default see watch.py."""
        started = time.monotonic()
        self.recipe, self.folder, self.watcher, self._resumes = recipe, folder, watcher or Nobody(), resume
        if resume:
            check_same(recipe, folder)
        else:
            store.check_new(folder)
        check_sinks(recipe.sinks)
        with ExitStack() as opened:
            saved = None
            if resume:
                opened.enter_context(only_trainer(folder))
                saved = newest_checkpoint(folder)
            self.setup = Setup(recipe)
            opened.callback(self.setup.marking.close)
            torch.manual_seed(recipe.seed)
            self.learner = TorchLearner.from_recipe(self.setup.loaded.model, recipe)
            if saved is not None:
                self.learner.load_state_dict(saved.tensors)
            self._read_rows(saved, started)
            self._watchdog = Watchdog(self._hung, limit_s=hung_s)
            self.engine, self.eval_engine = (WatchedEngine(self.setup.engine(), self._watchdog) for _ in range(2))
            opened.callback(self.engine.close)
            opened.callback(self.eval_engine.close)
            self._grading = self.setup.grading()
            self.pipeline = self._pipeline(saved)
            self._opened = opened.pop_all()
        self._work = Work()
        self._num_without_verdict: Counter[Reason] = Counter()
        self._grader_errors: dict[str, str] = {}
        self._saved = -1 if saved is None else saved.step

    def close(self) -> None:
        """End its processes; for a run that is not to be trained."""
        self._opened.close()

    def _read_rows(self, saved: checkpoints.Checkpoint | None, started: float) -> None:
        """What earlier attempts have written: all of it was spent, but only what led to the checkpoint counts on."""
        metrics, evals = store.read_metrics(self.folder), store.read_evals(self.folder)
        self.attempt = 1 + max((row.get("attempt", 0) for row in (*metrics, *evals)), default=0)
        self.clock = Clock(
            devices=devices_held([str(self.setup.device)]),
            since=started,
            spent=larger(*([saved.meta["clock"]] if saved else []), *metrics, *evals),
        )
        self.metrics, self.evals = (
            [row for row in rows if row["step"] <= self.learner.version] for rows in (metrics, evals)
        )
        num_sets = Counter(row["step"] for row in self.evals)
        self._evaluated = max((step for step, num in num_sets.items() if num == len(self.setup.sets)), default=-1)

    @property
    def shape(self) -> ModelShape:
        return self.learner.shape

    @property
    def device(self) -> torch.device:
        return self.setup.device

    @property
    def share_spent(self) -> float:
        """Of the budget, by the limit that will be reached first; the run ends at 1."""
        return max(spent / limit for spent, limit, _ in self._limits())

    def _pipeline(self, saved: checkpoints.Checkpoint | None) -> Pipeline:
        prompts = self.setup.training_prompts()
        self._problems = {name: hash_problems(of_task) for name, of_task in prompts.items()}
        self._check_problems(saved)
        ids = {name: [problem.id for problem in of_task] for name, of_task in prompts.items()}
        state = None
        if saved is not None:
            groups = unpack_groups(saved.arrays["groups"], saved.meta["groups"])
            state = PipelineState(meta=saved.meta["pipeline"], groups=groups)
        settings = self.recipe.pipeline
        return Pipeline(
            engine=self.engine,
            curriculum=self._curriculum(ids, None if state is None else state.meta["curriculum"]),
            learner=self.learner,
            make_requests=self.setup.asker(prompts).requests,
            grading=WatchedGrading(self._grading, self._watchdog),
            groups_per_batch=settings.groups_per_batch,
            max_lag=settings.max_lag,
            push_every=settings.push_every,
            drain=settings.drain,
            state=state,
        )

    def _check_problems(self, saved: checkpoints.Checkpoint | None) -> None:
        """Those of a resumed run are the ones it was started with: a file may have changed under the same settings."""
        asked = self._problems if saved is None else saved.meta.get("problems", self._problems)
        changed = [f"the training problems of {name}" for name in asked if asked[name] != self._problems.get(name)]
        hashes = {one.name: one.prompts_hash for one in self.setup.sets}
        measured = {row["set"]: row["prompts_hash"] for row in self.evals}
        changed += [f"the evaluation problems of {name}" for name in measured if measured[name] != hashes.get(name)]
        if changed:
            raise RecipeError(
                f"{' and '.join(changed)} are not those {self.folder} was started with: resume with the same, or start "
                f"another run with another --out"
            )

    def _curriculum(self, ids: Mapping[str, list[str]], state: Mapping[str, Any] | None) -> Curriculum | Mixture:
        retires = choose(CURRICULA, self.recipe.curriculum)
        if self.recipe.tasks:
            weights = {name: task.weight for name, task in self.recipe.tasks.items()}
            if state is None:
                return Mixture(ids, weights=weights, seed=self.recipe.seed, retires=retires)
            return Mixture.restore(state, ids, weights=weights, retires=retires)
        (only,) = ids.values()
        if state is None:
            return Curriculum(only, seed=self.recipe.seed, retires=retires)
        return Curriculum.restore(state, only, retires=retires)

    def train(self) -> str:
        """Train to the end of the budget or of the data, or until asked to stop; why it ended."""
        with self._opened:
            self.watcher.started(self)
            self._open()
            try:
                with self._watchdog, settled():
                    reason = self._train()
            except KeyboardInterrupt:
                self._say_failed("stopped", "stopped at once: what came after the last checkpoint is repeated")
                raise
            except BaseException as error:
                self._say_failed("failed", f"{type(error).__name__}: {error}".removesuffix(": "))
                raise
            store.write_status(self.folder, "stopped" if reason == ASKED else "done", reason)
            return reason

    def _open(self) -> None:
        if self._resumes:
            store.reopen_run(self.folder)
        else:
            store.create_run(self.folder)
            self._opened.enter_context(only_trainer(self.folder))
        recipe = self.recipe.model_dump(mode="json")
        store.write_json(self.folder / store.RECIPE, recipe)
        store.write_json(self.folder / store.ENV, environment(self.setup.device))
        store.write_status(self.folder, "running")
        self._sinks = Sinks(self.recipe.sinks, self.folder, recipe, self.attempt)
        self._opened.callback(self._sinks.close)

    def _say_failed(self, status: str, reason: str) -> None:
        # Where even that cannot be written, the error that led here is the one to report.
        with suppress(StoreError):
            store.write_status(self.folder, status, reason)

    def _hung(self, reason: str) -> None:
        self._say_failed("failed", reason)
        # Not here: a terminal that takes no more text must not keep the process alive.
        speaker = threading.Thread(target=self.watcher.hung, args=(reason,), daemon=True)
        speaker.start()
        speaker.join(_SPEAK_S)
        # The main thread is in a call that does not return: no exception would reach it.
        os._exit(1)

    def _train(self) -> str:
        if (reason := self._between_steps(())) is not None:
            return reason
        self.clock.start_training()
        compiled_s = compilation_s()
        for done in self.pipeline.steps():
            self.clock.recount("compilation", compilation_s() - compiled_s)
            self._log(done)
            if (reason := self._between_steps(done.batch.groups)) is not None:
                return reason
            compiled_s = compilation_s()
        self._evaluate(())
        self.save()
        return "data exhausted"

    def _between_steps(self, groups: Sequence[Group]) -> str | None:
        """Evaluate and save where it is due; why the run ends here, if it does."""
        step, ended = self.pipeline.version, self._ended()
        if step % self.recipe.evaluation.every == 0 or ended not in (None, ASKED):
            self._evaluate(groups)
        # It may have been asked to stop during the evaluation.
        ended = ended or self._ended()
        if (step and step % self.recipe.checkpoint.every == 0) or ended is not None:
            self.save()
        return ended

    def _limits(self) -> list[tuple[float, float, str]]:
        """(spent, limit, unit) of each limit of the budget."""
        budget, spent = self.recipe.budget, self.clock.row()
        limits = (
            (self.pipeline.version, budget.steps, "steps"),
            (spent["gpu_hours"], budget.gpu_hours, "GPU-hours"),
            (spent["flops"], budget.flops, "FLOPs"),
        )
        return [(done, limit, unit) for done, limit, unit in limits if limit is not None]

    def _ended(self) -> str | None:
        for spent, limit, unit in self._limits():
            if spent >= limit:
                return f"budget of {limit:,.8g} {unit} spent"
        return ASKED if self.watcher.stopping() else None

    def _log(self, done: StepDone) -> None:
        work = self.engine.work
        self.clock.add(
            generator_flops=work_flops(self.shape, self._work, work),
            learner_flops=done.metrics.get("batch/flops", 0.0),
            tokens=work.decoded - self._work.decoded,
        )
        self._work = work
        ungraded, self._num_without_verdict = self._num_without_verdict, Counter(self._grading.num_without_verdict)
        row = {
            "step": done.version,
            "attempt": self.attempt,
            **self.clock.row(),
            **done.metrics,
            "time/step_s": done.timings.step_s,
            "time/wait_s": done.timings.wait_s,
            "time/push_s": done.timings.push_s,
            **{f"grader/{reason}": num for reason, num in (self._num_without_verdict - ungraded).items()},
            "groups": [group.key for group in done.batch.groups],
        }
        store.append_row(self.folder / store.METRICS, row)
        self._sinks.log(row, "train")
        self.metrics.append(row)
        self.watcher.stepped(row)

    def _evaluate(self, groups: Sequence[Group]) -> None:
        step = self.pipeline.version
        if self._evaluated >= step:
            return
        with self.clock.aside("evaluation"):
            spent = self.clock.row()
            self.eval_engine.push_weights(self.learner.weights(), step)
            rows = [self._evaluate_set(one, step, spent) for one in self.setup.sets]
            for row in rows:
                store.append_row(self.folder / store.EVALS, row)
                self._sinks.log(row, "eval")
            for row in sample_rows(self.setup, groups, SAMPLES_KEPT):
                store.append_row(self.folder / store.SAMPLES, {"step": step, "attempt": self.attempt, **row})
            self.evals = [row for row in self.evals if row["step"] != step] + rows
            self._evaluated = step
            end = self._end_compute()
            found = {
                one.name: outlook([row for row in self.evals if row["set"] == one.name], end) for one in self.setup.sets
            }
            self.watcher.evaluated(rows, found, [*alarms(self.metrics, found), *self._grader_alarms()])

    def _evaluate_set(self, one: EvalSet, step: int, spent: Mapping[str, float]) -> store.Row:
        with self._watchdog.watching("the grader"):
            result = self.setup.evaluate(one, self.eval_engine, step, self._evaluating)
        if step == 0 and result.num_graded == 0 and result.num_without_verdict.keys() - {"no_answer"}:
            # Answers that cannot be read may come to be; a grader that fails on every one will not.
            raise GraderError(self.setup.no_verdict(one, result))
        return {
            "step": step,
            "attempt": self.attempt,
            "set": one.name,
            **{key: spent[key] for key in ("gpu_hours", "flops", "tokens")},
            "reward": result.reward,
            "num_correct": list(result.num_correct),
            **counts(result),
        }

    def _evaluating(self, finished: int, total: int) -> None:
        # A terminal that is held up is no grader that hangs.
        with self._watchdog.watching(None):
            self.watcher.evaluating(finished, total)

    def _grader_alarms(self) -> list[str]:
        """The first exception of each grader, once."""
        errors = self.setup.marking.first_errors
        new, self._grader_errors = errors.items() - self._grader_errors.items(), errors
        return [f"the grader {name} raised: {said}" for name, said in sorted(new)]

    def _end_compute(self) -> float | None:
        """GPU-hours at the end of the budget, at the pace so far; None before the first step."""
        share = self.share_spent
        return self.clock.gpu_hours / share if share > 0 else None

    def save(self) -> None:
        """A checkpoint of everything, between two steps; once a step, since nothing changes in between."""
        if self._saved == self.pipeline.version:
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
                        "problems": self._problems,
                    },
                ),
                keep=self.recipe.checkpoint.keep,
            )
            self._saved = self.pipeline.version
