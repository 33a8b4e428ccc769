"""Make a base model from a task's demonstrations (the paper's SFT stage).

    demonstrations -> remove some (cleaning.py) -> tokens (demonstrations.py) -> steps (learner.py)
                   -> a Hugging Face folder + made_by.json

It starts from a model's folder, or builds a small Llama. Checkpoints are in OUT.checkpoints until the run is done. A
run that was stopped or killed continues from the newest checkpoint and ends with the same weights. `scalerl eval`
measures the model.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError

from scalerl.errors import GraderError, LearnerError, RecipeError, RunFolderError, TaskError
from scalerl.recipe.parts import NEW_MODEL, CheckpointSettings, SftSettings
from scalerl.recipe.recipe import Recipe, replaced
from scalerl.recipe.secrets import hidden
from scalerl.runfolder.atomic_files import new_folder, write_errors
from scalerl.runfolder.store import check_place
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.environments.build import offer_tools
from scalerl.training.loop.requests import Text
from scalerl.training.models.load import LoadedModel, load_model
from scalerl.training.models.tiny import TinyShape, build_model, build_tokenizer
from scalerl.training.models.vocabulary import add_tokens, missing_tokens
from scalerl.training.run.checkpoint import Checkpoint, Checkpoints, latest
from scalerl.training.run.derive import derive
from scalerl.training.run.hooks import Hook, RunEnd, train
from scalerl.training.run.host import environment, keep_compiled_code
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.resume import lock_folder
from scalerl.training.run.sft.cleaning import Drawn, Removed, decontaminate, solved_once, without_trivial
from scalerl.training.run.sft.demonstrations import Examples, draw, encode, num_inputs, plan_batches
from scalerl.training.run.sft.learner import batch_of, sft_learner, take_weights
from scalerl.training.tasks.build import build_task, build_tasks
from scalerl.training.tasks.rows import hide_hub_warnings
from scalerl.training.tasks.task import Task, shared_answer
from scalerl.training.types import Completion, derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MADE_BY = "made_by.json"
SOLVED = "solved.json"
"""Problems that the starting model solves, in the folder of checkpoints."""
LR = 3e-5
"""The paper's learning rate, for a pretrained model."""
NEW_LR = 2e-3
NUM_DEMONSTRATIONS, NEW_NUM_DEMONSTRATIONS = 10_000, 250_000
NUM_MEASUREMENTS = 20
"""Points of the loss curve after the first; a checkpoint is written at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftProgress:
    """One point of the loss curve, in nats per completion token."""

    step: int
    train_loss: float | None
    """Mean since the previous point; None at step 0 and if no step had a finite loss."""
    heldout_loss: float
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SftPlan:
    """What a run of SFT will do."""

    num_steps: int
    num_demonstrations: int
    num_heldout: int
    removed: tuple[Removed, ...]
    """Demonstrations that were removed, by step of cleaning."""
    epochs: float
    batch_tokens: float
    """Mean tokens per batch."""
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

    @property
    def gain_last_fifth(self) -> float:
        """Share by which the held-out loss fell in the last fifth of the steps; below 0.02 the curve is flat."""
        last = self.curve[-1]
        before = max((point for point in self.curve if point.step <= 0.8 * last.step), key=lambda point: point.step)
        return 1.0 - last.heldout_loss / before.heldout_loss


def sft(
    recipe: Recipe,
    out: Path,
    *,
    model: str = "",
    shape: TinyShape | None = None,
    record: Mapping[str, Any] | None = None,
    resume: bool = False,
    observer: RunObserver | None = None,
) -> SftResult | None:
    """Train a model on the demonstrations of a recipe's tasks and save it; made_by.json keeps `record` too.

    `model` replaces the recipe's; "new" builds a small Llama of `shape`. Several tasks share the number of
    demonstrations by their weights. Return None if the observer asked to stop; `resume` then continues from the
    checkpoint.
    """
    shape = shape or TinyShape()
    observer = observer or RunObserver()
    base = model or recipe.sft.model or recipe.model.path
    if not base:
        raise RecipeError("model.path is not set, so there is nothing to start from: set it, or sft.model")
    new = base == NEW_MODEL
    checkpoint_folder = out.with_name(f"{out.name}.checkpoints")
    _check_folders(out, checkpoint_folder, resume=resume)
    if not new:
        # Settings that the recipe leaves open follow from the config of the model.
        recipe, _ = derive(replaced(recipe, {"model.path": base}))
    lr = recipe.sft.lr or (NEW_LR if new else LR)
    network, text, examples = load_inputs(recipe, base, shape, observer.drawing, solved=checkpoint_folder / SOLVED)
    batches = plan_batches(examples, recipe.sft, seed=recipe.seed, new=new)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    keep_compiled_code()
    learner = sft_learner(network, recipe, lr=lr, num_steps=len(batches), device=device)
    inputs = {
        "settings": recipe.sft.model_dump(mode="json"),
        "model": base,
        **({"shape": asdict(shape)} if new else {}),
        "seed": recipe.seed,
    }
    must_match = {**inputs, "demonstrations": examples.content_hash}
    with closing(learner):
        outcome = _train(learner, examples, batches, checkpoint_folder, must_match, lr=lr, observer=observer)
        if outcome is None:
            return None
        # The network has the trained weights after this.
        if recipe.learner.sharding == "none":
            learner.settle()
        else:
            take_weights(learner, network)
    plan, curve = outcome
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    result = SftResult(folder=out, num_parameters=num_parameters, plan=plan, curve=curve)
    made_by = {
        "made_by": "scalerl sft",
        **inputs,
        "plan": asdict(plan),
        "num_parameters": num_parameters,
        "vocabulary_size": len(text.tokenizer),
        "gain_last_fifth": round(result.gain_last_fifth, 5),
        "curve": [{key: value and round(value, 5) for key, value in asdict(point).items()} for point in curve],
        "environment": environment(device),
        **(record or {}),
    }
    with new_folder(out, failures=(SafetensorError,)) as unfinished:
        network.to("cpu").save_pretrained(unfinished)  # pyright: ignore[reportArgumentType]
        text.tokenizer.save_pretrained(unfinished)
        (unfinished / MADE_BY).write_text(json.dumps(hidden(made_by), indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(checkpoint_folder, ignore_errors=True)
    return result


def _train(
    learner: Any,
    examples: Examples,
    batches: Sequence[Sequence[int]],
    folder: Path,
    must_match: Mapping[str, Any],
    *,
    lr: float,
    observer: RunObserver,
) -> tuple[SftPlan, tuple[SftProgress, ...]] | None:
    """Train with checkpoints in `folder`; return the plan and the loss curve, or None if the observer asked to stop.

    A checkpoint is continued only if its values of `must_match` are these.
    """
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        restored = _restore(learner, folder, must_match)
        plan = SftPlan(
            num_steps=len(batches),
            num_demonstrations=len(examples.training),
            num_heldout=len(examples.heldout),
            removed=examples.removed,
            epochs=sum(map(len, batches)) / len(examples.training),
            batch_tokens=sum(num_inputs(examples.training[i]) for batch in batches for i in batch) / len(batches),
            lr=lr,
            first_step=learner.version,
        )
        observer.planned(plan)
        every = max(1, len(batches) // NUM_MEASUREMENTS)
        losses = _HeldoutLosses(
            learner=learner,
            heldout=examples.heldout,
            every=every,
            observer=observer,
            curve=[SftProgress(**point) for point in restored.get("curve", ())],
            losses=list(restored.get("losses", ())),
        )
        checkpoints = Checkpoints(
            folder=folder,
            settings=CheckpointSettings(every=every, keep=1),
            step=lambda: learner.version,
            content=lambda: Checkpoint(
                step=learner.version, tensors=learner.state_dict(), meta={**must_match, **losses.state()}
            ),
            saved=learner.version if restored else -1,  # -1: no step has been saved
        )

        def steps() -> Iterator[Mapping[str, float]]:
            for step, batch in enumerate(batches[plan.first_step :], start=plan.first_step):
                yield learner.step(batch_of([examples.training[index] for index in batch], step))

        def end() -> RunEnd | None:
            if learner.version == len(batches):
                return RunEnd(kind="budget", reason="all steps taken")
            return RunEnd(kind="stopped", reason="asked to stop") if observer.stopping() else None

        ended = train(steps(), [losses, checkpoints], end)
        checkpoints.wait()
    return None if ended.kind == "stopped" else (plan, tuple(losses.curve))


def load_inputs(
    recipe: Recipe, base: str, shape: TinyShape, on_drawing: Callable[[int], None], *, solved: Path
) -> tuple["PreTrainedModel", Text, Examples]:
    """Load or build the model, draw demonstrations and encode them; `on_drawing` is called with their number.

    `solved` is the file that keeps which problems the model solves, for a resumed run.
    """
    settings = recipe.sft
    new = base == NEW_MODEL
    tasks = build_tasks(recipe.task, recipe.tasks, recipe.evaluation)
    answer = shared_answer(tasks)
    trust = recipe.model.trust_remote_code
    # The model first: a wrong path then shows at once, before demonstrations are drawn.
    with hide_hub_warnings():
        loaded = None if new else load_model(base, dtype=torch.float32, device="cpu", trust_remote_code=trust)
    wanted = settings.num_demonstrations or (NEW_NUM_DEMONSTRATIONS if new else NUM_DEMONSTRATIONS)
    on_drawing(wanted)
    weights = {name: recipe.tasks[name].weight if recipe.tasks else 1.0 for name in tasks}
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    drawn, removed = _cleaned(
        {name: draw(task, round(shares[name] * wanted), recipe.seed) for name, task in tasks.items()},
        tasks,
        recipe,
        solved_file=None if new else solved,
    )
    # A new model, and rows that are added to a vocabulary, begin with random weights.
    torch.manual_seed(derive_seed("sft weights", recipe.seed))
    model, text = _with_vocabulary(loaded, drawn, answer, settings, shape)
    max_tokens = min(settings.max_tokens or math.inf, getattr(model.config, "max_position_embeddings", math.inf))
    encoded = [
        encode(
            drawn[name],
            offer_tools(task, text),
            text,
            num_heldout=round(shares[name] * settings.num_heldout),
            max_tokens=max_tokens,
        )
        for name, task in tasks.items()
    ]
    if num := sum(part.num_too_long for part in encoded):
        total = sum(map(len, drawn.values()))
        removed.append(Removed(kind="too_long", num=num, total=total, limit=int(max_tokens)))
    examples = Examples(
        training=[example for part in encoded for example in part.training],
        heldout=[example for part in encoded for example in part.heldout],
        removed=tuple(removed),
    )
    return model, text, examples


def _with_vocabulary(
    loaded: LoadedModel | None,
    drawn: Drawn,
    answer: AnswerFormat,
    settings: SftSettings,
    shape: TinyShape,
) -> tuple["PreTrainedModel", Text]:
    """Return the model and its tokenizer with the tokens that sft.new_tokens adds; without a model, build both."""
    demonstrations = [item for items in drawn.values() for item in items]
    texts = [text for item in demonstrations for text in (item.problem.prompt, *item.earlier, item.completion)]
    tokenizer = cast(
        "PreTrainedTokenizerFast", build_tokenizer(iter(texts), answer) if loaded is None else loaded.tokenizer
    )
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if settings.new_tokens != "none":
        tags = [tag for tag in (answer.thinking_start, answer.thinking_end) if tag]
        added = missing_tokens(tokenizer, texts, words=settings.new_tokens == "words", tags=tags)
        add_tokens(tokenizer, added, None if loaded is None else loaded.model, tags=tags)
    stop_tokens = (cast(int, tokenizer.eos_token_id),) if loaded is None else loaded.stop_tokens
    model = build_model(tokenizer, shape) if loaded is None else loaded.model
    return model, Text(tokenizer=tokenizer, stop_tokens=stop_tokens)


def _cleaned(
    drawn: Drawn, tasks: Mapping[str, Task], recipe: Recipe, *, solved_file: Path | None
) -> tuple[Drawn, list[Removed]]:
    """Return the demonstrations without contaminated and trivial ones, and a list of what was removed.

    Without a `solved_file` the model is new and solves nothing.
    """
    settings, removals = recipe.sft, list[Removed]()
    if settings.ngram_words:
        others = {name: build_task(part, recipe.evaluation) for name, part in recipe.evaluation.sets.items()}
        problems = {name: task.evaluation for name, task in {**tasks, **others}.items()}
        drawn, removed = decontaminate(drawn, problems, settings.ngram_words)
        removals.append(removed)
        _check_left(drawn, removals)
    if settings.trivial_samples and solved_file is not None:
        try:
            solved = solved_once(solved_file, recipe, tasks, drawn, settings.trivial_samples)
        except GraderError as error:
            raise GraderError(f"{error}; or set sft.trivial_samples = 0, which grades nothing") from error
        drawn, removed = without_trivial(drawn, solved, settings.trivial_samples)
        removals.append(removed)
    _check_left(drawn, removals)
    return drawn, [each for each in removals if each.num]


def _check_left(drawn: Drawn, removals: Sequence[Removed]) -> None:
    """Raise TaskError if a task has too few demonstrations left to train and to measure on."""
    for name, items in drawn.items():
        if len(items) < 2:
            raise TaskError(
                f"{len(items)} demonstrations of {name} are left, and two are needed "
                f"({', '.join(f'{each.num} {each.kind}' for each in removals if each.num)}): change sft.ngram_words or "
                f"sft.trivial_samples, or give more"
            )


def _check_folders(out: Path, checkpoint_folder: Path, *, resume: bool) -> None:
    """Raise RunFolderError if the model would overwrite something, or if `resume` and the checkpoints disagree."""
    check_place(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise RunFolderError(f"{out} exists and is not empty: give another folder for the model")
    has_checkpoint = checkpoint_folder.is_dir() and any(checkpoint_folder.iterdir())
    if has_checkpoint and not resume:
        raise RunFolderError(
            f"{checkpoint_folder} has a checkpoint of an unfinished run: add --resume to continue it, or "
            f"remove that folder"
        )
    if resume and not has_checkpoint:
        raise RunFolderError(f"there is nothing to resume: {checkpoint_folder} has no checkpoint")


def _restore(learner: Any, folder: Path, must_match: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load the newest checkpoint into the learner and return its meta data; empty if there is no checkpoint.

    Raise RunFolderError if a value of `must_match` has changed since the checkpoint was written.
    """
    checkpoint = latest(folder)
    if checkpoint is None:
        return {}
    for name, value in must_match.items():
        if checkpoint.meta.get(name) != value:
            raise RunFolderError(f"{folder} was started with other {name}: resume with the same, or remove that folder")
    learner.load_state_dict(checkpoint.read_tensors)
    return checkpoint.meta


@dataclass(kw_only=True)
class _HeldoutLosses(Hook):
    """Measures the held-out loss at the start, every `every` steps and at the end."""

    learner: Any
    heldout: Sequence[Completion]
    every: int
    observer: RunObserver
    curve: list[SftProgress]
    losses: list[float]
    """Losses of the steps since the last point of the curve."""

    def __post_init__(self) -> None:
        # As if the earlier attempts had just been running.
        self._started_at = time.monotonic() - (self.curve[-1].elapsed_s if self.curve else 0.0)

    def after_step(self, done: Mapping[str, float] | None, end: RunEnd | None) -> None:
        step = self.learner.version
        if done is not None:
            # A step with a non-finite loss was skipped and reports none.
            if "loss/value" in done:
                self.losses.append(done["loss/value"])
            self.observer.stepped({"step": step})
        is_due = step % self.every == 0 or (end is not None and end.kind == "budget")
        if is_due and (not self.curve or self.curve[-1].step < step):
            self._measure(step)

    def state(self) -> dict[str, Any]:
        return {"curve": [asdict(point) for point in self.curve], "losses": self.losses}

    def _measure(self, step: int) -> None:
        heldout_loss = self.learner.mean_loss(batch_of(self.heldout, step))
        if not math.isfinite(heldout_loss):
            # Raise before the checkpoint is written, so that an earlier one remains.
            raise LearnerError(
                f"the held-out loss is {heldout_loss} after step {step}: training has diverged, so start again with a "
                f"lower sft.lr"
            )
        train_loss = fmean(self.losses) if self.losses else None
        self.losses = []
        elapsed_s = time.monotonic() - self._started_at
        self.curve.append(SftProgress(step=step, train_loss=train_loss, heldout_loss=heldout_loss, elapsed_s=elapsed_s))
        self.observer.measured(self.curve[-1])
