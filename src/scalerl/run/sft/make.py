"""Make a base model from a task's demonstrations (the paper's SFT stage).

    demonstrations -> tokens (demonstrations.py) -> steps (learner.py) -> a Hugging Face folder + made_by.json

Starts from a model's folder, or builds a small Llama (inputs.py). While it runs, checkpoints are in OUT.checkpoints; a
run that was stopped or killed continues from the newest, to the same weights.
"""

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from safetensors import SafetensorError

from scalerl.atomic_files import new_folder, write_errors
from scalerl.config import Recipe, body_dtype
from scalerl.config.parts import NEW_MODEL
from scalerl.config.recipe import replaced
from scalerl.config.secrets import hidden
from scalerl.errors import LearnerError, RecipeError, RunFolderError
from scalerl.models.tiny import TinyShape
from scalerl.run import checkpoint as checkpoints
from scalerl.run.derive import derive
from scalerl.run.host import environment
from scalerl.run.parts import build_tasks
from scalerl.run.resume import lock_folder
from scalerl.run.sft.demonstrations import Examples, plan_batches
from scalerl.run.sft.inputs import load_inputs
from scalerl.run.sft.learner import batch_of, sft_learner, take_weights
from scalerl.run.sft.measure import measure
from scalerl.store import check_place

MADE_BY = "made_by.json"
LR = 3e-5
"""The paper's, for a pretrained model."""
NEW_LR = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SftProgress:
    """One point of the loss curve, in nats per completion token."""

    step: int
    train_loss: float
    """Mean since the previous point; nan at step 0."""
    heldout_loss: float
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SftPlan:
    """What a run of SFT will do."""

    num_steps: int
    num_demonstrations: int
    num_heldout: int
    num_too_long: int
    """Demonstrations left out because they have more tokens than the context."""
    epochs: float
    batch_tokens: float
    """Mean over the steps."""
    lr: float
    first_step: int
    """0, or the step of the checkpoint from which the run continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """The model that was made, and its loss curve."""

    folder: Path
    num_parameters: int
    plan: SftPlan
    curve: tuple[SftProgress, ...]
    pass_rates: Mapping[str, Any]
    """Pass rates on the evaluation problems, by task where there are several; empty where none was measured."""

    @property
    def gain_last_fifth(self) -> float:
        """Share by which the held-out loss fell in the last fifth of the steps; below 0.02 it has flattened."""
        last = self.curve[-1]
        before = max((point for point in self.curve if point.step <= 0.8 * last.step), key=lambda point: point.step)
        return 1.0 - last.heldout_loss / before.heldout_loss


class SftObserver(Protocol):
    """Sees a run of SFT, and may ask it to stop; what is not overridden does nothing."""

    def drawing(self, num: int) -> None:
        """Called before so many demonstrations are drawn."""

    def started(self, plan: SftPlan) -> None:
        """Called before the first step."""

    def stepped(self, step: int) -> None:
        """Called after each step."""

    def measured(self, progress: SftProgress) -> None:
        """Called after each measurement of the held-out loss."""

    def stopping(self) -> object:
        return False


class _Silent(SftObserver):
    """Shows nothing and never asks to stop."""


def sft(
    recipe: Recipe,
    out: Path,
    *,
    model: str = "",
    shape: TinyShape | None = None,
    record: Mapping[str, Any] | None = None,
    resume: bool = False,
    observer: SftObserver | None = None,
) -> SftResult | None:
    """Train a model on the demonstrations of a recipe's tasks and save it; made_by.json keeps `record` too.

    `model` is used instead of the recipe's; "new" builds a small Llama of `shape`. Of several tasks, each gives a share
    of the demonstrations by its weight. None if the observer asked to stop: then there is a checkpoint, and `resume`
    continues.
    """
    settings, base, observer = recipe.sft, model or recipe.sft.model or recipe.model.path, observer or _Silent()
    if not base:
        raise RecipeError(
            "model.path is not set, so there is nothing to start from: set it, or sft.model, or add --model new"
        )
    folder, shape, new = out.with_name(f"{out.name}.checkpoints"), shape or TinyShape(), base == NEW_MODEL
    _check_folders(out, folder, resume=resume)
    if not new:
        recipe, _ = derive(replaced(recipe, {"model.path": base}))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Ranks have the model on devices of their own.
    has_ranks = recipe.learner.sharding != "none"
    tasks = build_tasks(recipe)
    trained, text, examples = load_inputs(recipe, tasks, base, shape, "cpu" if has_ranks else device, observer.drawing)
    batches = plan_batches(examples, settings, seed=recipe.seed, new=new)
    identity = {"settings": settings.model_dump(mode="json"), "seed": recipe.seed, "examples": examples.content_hash}
    lr = settings.lr or (NEW_LR if new else LR)
    learner = sft_learner(
        trained,
        settings,
        recipe.learner,
        lr=lr,
        num_steps=len(batches),
        dtype=getattr(torch, body_dtype(recipe, gpu=device == "cuda")),
        device=torch.device(device),
    )
    with ExitStack() as opened:
        if has_ranks:
            opened.callback(learner.close)
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        opened.enter_context(lock_folder(folder))
        curve = _restore(learner, folder, identity)
        plan = _plan(examples, batches, lr=lr, first_step=learner.version)
        observer.started(plan)
        if not _train(learner, examples, batches, curve, observer, folder, identity):
            return None
        if has_ranks:
            take_weights(learner, trained)
    trained.to(device)  # pyright: ignore[reportArgumentType]
    # Half as long again as any demonstration: what has not ended by then never will.
    max_new_tokens = max(example.num_targets for example in examples.training) * 3 // 2
    few = {
        name: dataclasses.replace(task, evaluation=task.evaluation[: settings.num_measured])
        for name, task in tasks.items()
    }
    rates = {
        name: measure(trained, text, task, grading=recipe.grading, max_new_tokens=max_new_tokens)
        for name, task in few.items()
        if task.evaluation
    }
    result = SftResult(
        folder=out,
        num_parameters=sum(p.numel() for p in trained.parameters()),
        plan=plan,
        curve=tuple(curve),
        pass_rates=rates if len(tasks) > 1 else next(iter(rates.values()), {}),
    )
    made_by = {
        "made_by": "scalerl sft",
        "settings": settings.model_dump(mode="json"),
        "model": base,
        **({"shape": asdict(shape)} if new else {}),
        "seed": recipe.seed,
        "plan": asdict(plan),
        "num_parameters": result.num_parameters,
        "vocabulary_size": len(text.tokenizer),
        "gain_last_fifth": round(result.gain_last_fifth, 5),
        "curve": [{key: value and round(value, 5) for key, value in _finite(asdict(p)).items()} for p in curve],
        "pass_rates": dict(result.pass_rates),
        "environment": environment(torch.device(device)),
        **(record or {}),
    }
    with new_folder(out, failures=(SafetensorError,)) as unfinished:
        trained.to("cpu").save_pretrained(unfinished)  # pyright: ignore[reportArgumentType]
        text.tokenizer.save_pretrained(unfinished)
        (unfinished / MADE_BY).write_text(json.dumps(hidden(made_by), indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _plan(examples: Examples, batches: list[list[int]], *, lr: float, first_step: int) -> SftPlan:
    return SftPlan(
        num_steps=len(batches),
        num_demonstrations=len(examples.training),
        num_heldout=len(examples.heldout),
        num_too_long=examples.num_too_long,
        epochs=sum(map(len, batches)) / len(examples.training),
        batch_tokens=sum(examples.training[i].num_inputs for batch in batches for i in batch) / len(batches),
        lr=lr,
        first_step=first_step,
    )


def _check_folders(out: Path, checkpoint_folder: Path, *, resume: bool) -> None:
    check_place(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise RunFolderError(f"{out} exists and is not empty: give another folder for the model")
    has_checkpoint = checkpoint_folder.is_dir() and any(checkpoint_folder.iterdir())
    if has_checkpoint and not resume:
        raise RunFolderError(
            f"{checkpoint_folder} has the checkpoint of a run that did not finish: add --resume to continue it, or "
            f"remove that folder"
        )
    if resume and not has_checkpoint:
        raise RunFolderError(f"there is nothing to resume: {checkpoint_folder} has no checkpoint")


def _restore(learner: Any, folder: Path, identity: Mapping[str, Any]) -> list[SftProgress]:
    """Load the newest checkpoint, if there is one; return the loss curve up to it."""
    path = checkpoints.latest(folder)
    if path is None:
        return []
    checkpoint = checkpoints.load(path, verify=False)
    for name, value in identity.items():
        if checkpoint.meta[name] != value:
            what = {"settings": "settings", "seed": "seed", "examples": "demonstrations"}[name]
            raise RunFolderError(f"{folder} was started with other {what}: resume with the same, or remove that folder")
    learner.load_state_dict(checkpoint.read_tensors)
    points = checkpoint.meta["curve"]
    # JSON has no NaN: a loss that was not measured yet is null there.
    filled: list[dict[str, Any]] = [
        {key: math.nan if value is None else value for key, value in point.items()} for point in points
    ]
    return [SftProgress(**point) for point in filled]


def _train(
    learner: Any,
    examples: Examples,
    batches: list[list[int]],
    curve: list[SftProgress],
    observer: SftObserver,
    folder: Path,
    identity: Mapping[str, Any],
) -> bool:
    """Train to the end, adding to the curve; False if the observer asked to stop, with a checkpoint."""
    started = time.monotonic() - (curve[-1].elapsed_s if curve else 0.0)
    every = max(1, len(batches) // 20)
    losses: list[Mapping[str, float]] = []

    def save() -> None:
        points = [_finite(asdict(point)) for point in curve]
        kept = checkpoints.Checkpoint(
            step=learner.version, tensors=learner.state_dict(), meta={**identity, "curve": points}
        )
        checkpoints.save(folder, kept, keep=1)

    while True:
        step = learner.version
        due = step % every == 0 or step == len(batches)
        if due and (not curve or curve[-1].step < step):
            train_loss = fmean(each.get("loss/value", math.nan) for each in losses) if losses else math.nan
            losses.clear()
            heldout_loss = learner.mean_loss(batch_of(examples.heldout, step))
            if not math.isfinite(heldout_loss):
                # Before it is saved: the checkpoint of an earlier step stays.
                raise LearnerError(
                    f"the held-out loss is {heldout_loss} after step {step}: training has diverged, so start again "
                    f"with a lower sft.lr"
                )
            elapsed_s = time.monotonic() - started
            curve.append(SftProgress(step=step, train_loss=train_loss, heldout_loss=heldout_loss, elapsed_s=elapsed_s))
            observer.measured(curve[-1])
            if step < len(batches):
                save()
        if step == len(batches):
            return True
        if observer.stopping():
            save()
            return False
        losses.append(learner.step(batch_of([examples.training[index] for index in batches[step]], step)))
        observer.stepped(learner.version)


def _finite(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point of the curve for JSON, which has no nan."""
    return {key: None if value != value else value for key, value in point.items()}
