"""A training run, from a recipe to a run folder: the only place where the parts are wired together.

Setup (model, task, engine) -> learner, curriculum -> Pipeline.steps() -> metrics, evaluations, checkpoints
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from scalerl import store
from scalerl.choose import choose
from scalerl.config import Recipe, RecipeError, settings_of
from scalerl.rollout.engine import Work
from scalerl.tasks.curriculum import CURRICULA, Curriculum
from scalerl.train import checkpoint as checkpoints
from scalerl.train.ask import Asker
from scalerl.train.compute import Clock, ModelShape, devices_held, larger
from scalerl.train.live import Outlook, alarms, outlook
from scalerl.train.model import load_model, save_model
from scalerl.train.pipeline import Pipeline, PipelineState, StepDone, pack_groups, unpack_groups
from scalerl.train.setup import MAIN_SET, EvalSet, Setup, environment, resolve_model, sample_rows
from scalerl.train.step import TorchLearner

SAMPLES_KEPT = 4  # completions written to samples.jsonl at each evaluation
ASKED = "asked to stop"


class Watcher(Protocol):
    """Who looks on: a terminal, or nobody."""

    def started(self, run: "Run") -> None: ...
    def stepped(self, row: Mapping[str, Any]) -> None: ...
    def evaluating(self, finished: int, total: int) -> None: ...
    def evaluated(self, rows: Sequence[Mapping[str, Any]], found: Outlook | None, said: Sequence[str]) -> None: ...
    def stopping(self) -> bool:
        """Whether the run is to stop after this step."""
        ...


class Nobody:
    """Looks on in silence."""

    def started(self, run: "Run") -> None: ...
    def stepped(self, row: Mapping[str, Any]) -> None: ...
    def evaluating(self, finished: int, total: int) -> None: ...
    def evaluated(self, rows: Sequence[Mapping[str, Any]], found: Outlook | None, said: Sequence[str]) -> None: ...
    def stopping(self) -> bool:
        return False


class Run:
    """One attempt at a run: new, or resumed from the newest checkpoint of its folder."""

    def __init__(self, recipe: Recipe, folder: Path, *, watcher: Watcher | None = None, resume: bool = False) -> None:
        self.recipe, self.folder, self.watcher = recipe, folder, watcher or Nobody()
        if resume:
            check_same(recipe, folder)
        self.setup = Setup(recipe)
        torch.manual_seed(recipe.seed)
        self.learner = TorchLearner.from_recipe(self.setup.loaded.model, recipe)
        # Nothing is written before all that can be wrong with the settings has been found.
        saved = self._open(resume)
        self.evals = store.read_evals(folder)
        self.metrics = store.read_metrics(folder)
        self.attempt = 1 + max((row.get("attempt", 0) for row in (*self.evals, *self.metrics)), default=0)
        self.clock = Clock(
            devices=devices_held([str(self.setup.device)]),
            spent=larger(*([saved.meta["clock"]] if saved else []), *self.metrics[-1:], *self.evals[-1:]),
        )
        if saved is not None:
            self.learner.load_state_dict(saved.tensors)
        self.engine, self.eval_engine = self.setup.engine(), self.setup.engine()
        self._work = Work()
        self.pipeline = self._pipeline(saved)
        # What was evaluated past the checkpoint is evaluated again, by the lineage that survives.
        self._evaluated = max((row["step"] for row in self.evals if saved and row["step"] <= saved.step), default=-1)

    @property
    def shape(self) -> ModelShape:
        return self.learner.shape

    @property
    def device(self) -> torch.device:
        return self.setup.device

    def _open(self, resume: bool) -> checkpoints.Checkpoint | None:
        path = None
        if resume:
            store.reopen_run(self.folder)
            path = checkpoints.latest(self.folder / store.CHECKPOINTS)
        else:
            store.create_run(self.folder)
        store.write_json(self.folder / store.RECIPE, self.recipe.model_dump(mode="json"))
        store.write_json(self.folder / store.ENV, environment(self.setup.device))
        self._say("running", "")
        return checkpoints.load(path, verify=False) if path is not None else None

    def _say(self, status: str, reason: str) -> None:
        store.write_json(self.folder / store.STATUS, {"status": status, "reason": reason})

    def _pipeline(self, saved: checkpoints.Checkpoint | None) -> Pipeline:
        problems = self.setup.training_problems()
        retires = choose(CURRICULA, self.recipe.curriculum)
        state = None
        if saved is None:
            curriculum = Curriculum(list(problems), seed=self.recipe.seed, retires=retires)
        else:
            meta = saved.meta["pipeline"]
            curriculum = Curriculum.restore(meta["curriculum"], list(problems), retires=retires)
            state = PipelineState(meta=meta, groups=unpack_groups(saved.arrays["groups"], saved.meta["groups"]))
        asker = Asker(
            recipe=self.recipe,
            text=self.setup.text,
            judge=self.setup.sets[0].judge,
            length=self.setup.length,
            problems=problems,
        )
        settings = self.recipe.pipeline
        return Pipeline(
            engine=self.engine,
            curriculum=curriculum,
            learner=self.learner,
            make_requests=asker.requests,
            grade=asker.grade,
            groups_per_batch=settings.groups_per_batch,
            max_lag=settings.max_lag,
            push_every=settings.push_every,
            drain=settings.drain,
            state=state,
        )

    def train(self) -> str:
        """Train to the end of the budget or of the data, or until asked to stop; why it ended."""
        self.watcher.started(self)
        try:
            reason = self._train()
        except BaseException as error:
            self._say("failed", f"{type(error).__name__}: {error}".removesuffix(": "))
            raise
        finally:
            self.engine.close()
            self.eval_engine.close()
        self._say("stopped" if reason == ASKED else "done", reason)
        return reason

    def _train(self) -> str:
        self._evaluate(())
        self.clock.start_training()
        if (reason := self._ended()) is not None:
            return reason
        for done in self.pipeline.steps():
            self._log(done)
            reason = self._ended()
            if done.version % self.recipe.evaluation.every == 0 or reason not in (None, ASKED):
                self._evaluate(done.batch.groups)
            if done.version % self.recipe.checkpoint.every == 0 or reason is not None:
                self.save()
            if reason is not None:
                return reason
        self._evaluate(())
        self.save()
        return "data exhausted"

    def _ended(self) -> str | None:
        budget, spent = self.recipe.budget, self.clock.row()
        if budget.steps is not None and self.pipeline.version >= budget.steps:
            return f"budget of {budget.steps} steps spent"
        if budget.gpu_hours is not None and spent["gpu_hours"] >= budget.gpu_hours:
            return f"budget of {budget.gpu_hours:g} GPU-hours spent"
        if budget.flops is not None and spent["flops"] >= budget.flops:
            return f"budget of {budget.flops:.3g} FLOPs spent"
        return ASKED if self.watcher.stopping() else None

    def _log(self, done: StepDone) -> None:
        work = self.engine.work
        self.clock.add(
            generator_flops=work_flops(self.shape, self._work, work),
            learner_flops=done.metrics.get("batch/flops", 0.0),
            tokens=work.decoded - self._work.decoded,
        )
        self._work = work
        row = {
            "step": done.version,
            "attempt": self.attempt,
            **self.clock.row(),
            **done.metrics,
            "time/step_s": done.timings.step_s,
            "time/wait_s": done.timings.wait_s,
            "time/push_s": done.timings.push_s,
            "groups": [group.key for group in done.batch.groups],
        }
        store.append_row(self.folder / store.METRICS, row)
        self.metrics.append(row)
        self.watcher.stepped(row)

    def _evaluate(self, groups: Sequence[Any]) -> None:
        step = self.pipeline.version
        if self._evaluated >= step:
            return
        with self.clock.aside("evaluation"):
            spent = self.clock.row()
            self.eval_engine.push_weights(self.learner.weights(), step)
            rows = [self._evaluate_set(one, step, spent) for one in self.setup.sets]
            for row in rows:
                store.append_row(self.folder / store.EVALS, row)
            for row in sample_rows(self.setup, groups, SAMPLES_KEPT):
                store.append_row(self.folder / store.SAMPLES, {"step": step, "attempt": self.attempt, **row})
            self.evals = [old for old in self.evals if old["step"] != step] + rows
            self._evaluated = step
            found = outlook([row for row in self.evals if row["set"] == MAIN_SET], self._end_compute())
            self.watcher.evaluated(rows, found, alarms(self.metrics, found))

    def _evaluate_set(self, one: EvalSet, step: int, spent: Mapping[str, float]) -> store.Row:
        result = self.setup.evaluate(one, self.eval_engine, step, self.watcher.evaluating)
        return {
            "step": step,
            "attempt": self.attempt,
            "set": one.name,
            **{key: spent[key] for key in ("gpu_hours", "flops", "tokens")},
            "reward": result.reward,
            "num_samples": result.num_graded,
            "prompts_hash": result.prompts_hash,
            "num_correct": list(result.num_correct),
            "truncated_frac": result.num_truncated / max(result.num_samples, 1),
            "length_mean": result.mean_length,
        }

    def _end_compute(self) -> float | None:
        """GPU-hours at the end of the budget, at the pace so far."""
        budget, steps = self.recipe.budget, self.pipeline.version
        ends = [budget.gpu_hours] if budget.gpu_hours is not None else []
        if budget.steps is not None and steps:
            ends.append(self.clock.gpu_hours * budget.steps / steps)
        return min(ends, default=None)

    def save(self) -> Path:
        """A checkpoint of everything, between two steps."""
        with self.clock.aside("checkpoint"):
            state = self.pipeline.state()
            arrays, groups = pack_groups(state.groups)
            return checkpoints.save(
                self.folder / store.CHECKPOINTS,
                checkpoints.Checkpoint(
                    step=self.pipeline.version,
                    tensors=self.learner.state_dict(),
                    arrays={"groups": arrays},
                    meta={"pipeline": state.meta, "groups": groups, "clock": self.clock.row()},
                ),
                keep=self.recipe.checkpoint.keep,
            )


def work_flops(shape: ModelShape, before: Work, after: Work) -> float:
    """FLOPs of what an engine computed in between (the formula stands in compute.py)."""
    logits = after.decoded - before.decoded
    tokens, attended = after.prefilled - before.prefilled + logits, after.attended - before.attended
    body = 2.0 * shape.body_params * tokens + 4.0 * shape.layers * shape.attention_width * attended
    return body + 2.0 * shape.head_params * logits


def check_same(recipe: Recipe, folder: Path) -> None:
    """A resumed run is the same run; only its budget may differ."""
    written = store.read_recipe(folder)
    if written is None:
        raise RecipeError(f"{folder} holds no run to resume: it has no {store.RECIPE}")
    before, now = settings_of(Recipe.model_validate_json(json.dumps(written))), settings_of(recipe)
    for key in sorted(before.keys() | now.keys()):
        old, new = (one[key].value if key in one else None for one in (before, now))
        if old != new and not key.startswith("budget.") and key != "description":
            raise RecipeError(
                f"{folder} was started with {key} = {old!r}, and now it is {new!r}: resume with the same recipe, or "
                f"start another run with another --out"
            )


def export(folder: Path, out: Path) -> Path:
    """The model of a run's newest checkpoint as a normal Hugging Face folder."""
    written = store.read_recipe(folder)
    if written is None:
        raise RecipeError(f"{folder} is no run folder: it has no {store.RECIPE}")
    path = checkpoints.latest(folder / store.CHECKPOINTS)
    if path is None:
        raise RecipeError(f"{folder} has no checkpoint yet, so there is no model to export")
    base = load_model(resolve_model(written["model"]["path"]), dtype=torch.float32, device="cpu")
    weights = checkpoints.load(path, verify=False).tensors["weights"]
    with torch.no_grad():
        for name, parameter in base.model.named_parameters():
            parameter.copy_(weights[name])
    return save_model(base.model, base.tokenizer, out)
