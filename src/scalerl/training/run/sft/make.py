"""Make a base model from a task's demonstrations (the paper's SFT stage).

    demonstrations -> remove contaminated ones (cleaning.py) -> tokens (demonstrations.py) -> steps (learner.py)
                   -> a Hugging Face folder + made_by.json

It starts from a model's folder, or builds a small Llama. Checkpoints are in OUT.checkpoints until the run is done. A
run that was stopped or killed continues from the newest checkpoint and ends with the same weights. `scalerl eval`
measures the model.
"""

import itertools
import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from safetensors import SafetensorError

from scalerl.errors import LearnerError, RecipeError, RunFolderError, TaskError
from scalerl.recipe.parts import NEW_MODEL, CheckpointSettings
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
from scalerl.training.run.sft.cleaning import Drawn, Removed, decontaminate
from scalerl.training.run.sft.demonstrations import Examples, draw, encode, num_inputs, plan_batches
from scalerl.training.run.sft.learner import batch_of, sft_learner, take_weights
from scalerl.training.run.sft.trivial import solved_once, without_trivial
from scalerl.training.tasks.build import build_task, build_tasks
from scalerl.training.tasks.rows import hide_hub_warnings
from scalerl.training.tasks.task import Task, shared_answer
from scalerl.training.types import Completion, Problem, derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MADE_BY = "made_by.json"
SOLVED = "solved.json"
"""Problems that the starting model solves, in the folder of checkpoints."""
DEFAULTS = {"lr": 3e-5, "num_demonstrations": 10_000}
"""Settings of a pretrained model; the learning rate is the paper's."""
NEW_DEFAULTS = {"lr": 2e-3, "num_demonstrations": 250_000, "batch_tokens": 9_000, "steps": 5_000}
"""Settings of a new model."""
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
        earlier = [point for point in self.curve if point.step <= 0.8 * last.step]
        before = max(earlier, key=lambda point: point.step)
        return 1.0 - last.heldout_loss / before.heldout_loss


class Material(NamedTuple):
    """The model to train and the demonstrations that it learns from."""

    network: "PreTrainedModel"
    text: Text
    examples: Examples


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
    checkpoint_folder = out.with_name(f"{out.name}.checkpoints")
    base = model or recipe.sft.model or recipe.model.path
    if not base:
        raise RecipeError("model.path is not set, so there is nothing to start from: set it, or sft.model")
    new = base == NEW_MODEL
    _check_folders(out, checkpoint_folder, resume=resume)
    if not new:
        # Settings that the recipe leaves open follow from the config of the model.
        recipe, _ = derive(replaced(recipe, {"model.path": base}))
    # What made_by.json records, and what a resumed run must agree with.
    started_with = {"settings": recipe.sft.model_dump(mode="json"), "model": base, "seed": recipe.seed}
    if new:
        started_with["shape"] = asdict(shape)
    recipe = with_defaults(recipe, new=new)
    material = load_material(recipe, base, shape, observer, solved=checkpoint_folder / SOLVED)
    outcome = _train(material, recipe, checkpoint_folder, started_with, observer)
    if outcome is None:
        return None
    plan, curve = outcome
    num_parameters = sum(parameter.numel() for parameter in material.network.parameters())
    result = SftResult(folder=out, num_parameters=num_parameters, plan=plan, curve=curve)
    _save(result, material, {**started_with, **(record or {})})
    shutil.rmtree(checkpoint_folder, ignore_errors=True)
    return result


def with_defaults(recipe: Recipe, *, new: bool) -> Recipe:
    """Return the recipe with defaults for the settings of SFT that it leaves open; a new model has others."""
    settings = recipe.sft
    defaults = dict(NEW_DEFAULTS if new else DEFAULTS)
    if settings.epochs is not None:
        # A number of epochs takes the place of a number of steps.
        defaults.pop("steps", None)
    missing = {f"sft.{name}": value for name, value in defaults.items() if getattr(settings, name) is None}
    return replaced(recipe, missing)


def _train(
    material: Material, recipe: Recipe, folder: Path, started_with: Mapping[str, Any], observer: RunObserver
) -> tuple[SftPlan, tuple[SftProgress, ...]] | None:
    """Train the network with checkpoints in `folder`; return the plan and the loss curve, or None if stopped.

    A checkpoint is continued only if it was started with these values of `started_with` and these demonstrations.
    """
    examples = material.examples
    training = examples.training
    batches = plan_batches(examples, recipe.sft, seed=recipe.seed)
    lr = recipe.sft.lr
    assert lr is not None, "it has a default"
    steps_between = max(1, len(batches) // NUM_MEASUREMENTS)
    must_match = {**started_with, "demonstrations": examples.content_hash}
    keep_compiled_code()
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    learner = sft_learner(material.network, recipe, lr=lr, num_steps=len(batches), device=_device())
    with closing(learner), lock_folder(folder):
        restored = _restore(learner, folder, must_match)
        plan = _planned(examples, batches, lr=lr, first_step=learner.version)
        observer.planned(plan)
        losses = _HeldoutLosses(
            learner=learner,
            heldout=examples.heldout,
            every=steps_between,
            observer=observer,
            curve=[SftProgress(**point) for point in restored.get("curve", ())],
            losses=list(restored.get("losses", ())),
        )

        def checkpoint() -> Checkpoint:
            meta = {**must_match, **losses.state()}
            return Checkpoint(step=learner.version, tensors=learner.state_dict(), meta=meta)

        checkpoints = Checkpoints(
            folder=folder,
            settings=CheckpointSettings(every=steps_between, keep=1),
            step=lambda: learner.version,
            content=checkpoint,
            saved=learner.version if restored else -1,  # -1: no step has been saved
        )

        def steps() -> Iterator[Mapping[str, float]]:
            for step in range(plan.first_step, len(batches)):
                chosen = [training[index] for index in batches[step]]
                yield learner.step(batch_of(chosen, step))

        def end() -> RunEnd | None:
            if learner.version == len(batches):
                return RunEnd(kind="budget", reason="all steps taken")
            if observer.stopping():
                return RunEnd(kind="stopped", reason="asked to stop")
            return None

        ended = train(steps(), [losses, checkpoints], end)
        checkpoints.wait()
        if ended.kind == "stopped":
            return None
        # The network has the trained weights after this.
        if recipe.learner.sharding == "none":
            learner.settle()
        else:
            take_weights(learner, material.network)
    return plan, tuple(losses.curve)


def _planned(examples: Examples, batches: Sequence[Sequence[int]], *, lr: float, first_step: int) -> SftPlan:
    lengths = [num_inputs(example) for example in examples.training]
    # An example that several batches choose counts in each.
    chosen = [lengths[index] for index in itertools.chain(*batches)]
    return SftPlan(
        num_steps=len(batches),
        num_demonstrations=len(lengths),
        num_heldout=len(examples.heldout),
        removed=examples.removed,
        epochs=len(chosen) / len(lengths),
        batch_tokens=sum(chosen) / len(batches),
        lr=lr,
        first_step=first_step,
    )


def _save(result: SftResult, material: Material, record: Mapping[str, Any]) -> None:
    """Write the model, its tokenizer and how it was made."""
    made_by = {
        "made_by": "scalerl sft",
        **record,
        "plan": asdict(result.plan),
        "num_parameters": result.num_parameters,
        "vocabulary_size": len(material.text.tokenizer),
        "gain_last_fifth": round(result.gain_last_fifth, 5),
        "curve": [asdict(point) for point in result.curve],
        "environment": environment(_device()),
    }
    with new_folder(result.folder, failures=(SafetensorError,)) as unfinished:
        material.network.to("cpu").save_pretrained(unfinished)  # pyright: ignore[reportArgumentType]
        material.text.tokenizer.save_pretrained(unfinished)
        (unfinished / MADE_BY).write_text(json.dumps(hidden(made_by), indent=1) + "\n", encoding="utf-8")


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_material(recipe: Recipe, base: str, shape: TinyShape, observer: RunObserver, *, solved: Path) -> Material:
    """Load or build the model, draw demonstrations and encode them.

    `solved` is the file that keeps which problems the model solves, for a resumed run.
    """
    settings = recipe.sft
    tasks = build_tasks(recipe.task, recipe.tasks, recipe.evaluation)
    answer = shared_answer(tasks)
    model = None
    if base != NEW_MODEL:
        # The model first: a wrong path then shows at once, before demonstrations are drawn.
        with hide_hub_warnings():
            trust = recipe.model.trust_remote_code
            model = load_model(base, dtype=torch.float32, device="cpu", trust_remote_code=trust)
    wanted = settings.num_demonstrations
    assert wanted is not None, "it has a default"
    observer.drawing(wanted)
    shares = _shares(recipe, tasks)
    drawn: Drawn = {name: draw(task, round(shares[name] * wanted), recipe.seed) for name, task in tasks.items()}
    drawn, removals = _cleaned(drawn, recipe, tasks, has_model=model is not None, solved=solved)
    # A new model, and rows that are added to a vocabulary, begin with random weights.
    torch.manual_seed(derive_seed("sft weights", recipe.seed))
    tokenizer = _tokenizer(model, drawn, answer, new_tokens=settings.new_tokens)
    if model is None:
        network = build_model(tokenizer, shape)
        stop_tokens = (cast(int, tokenizer.eos_token_id),)
    else:
        network = model.model
        stop_tokens = model.stop_tokens
    text = Text(tokenizer=tokenizer, stop_tokens=stop_tokens)
    context = getattr(network.config, "max_position_embeddings", math.inf)
    longest = min(settings.max_tokens or math.inf, context)
    num_heldout = {name: round(shares[name] * settings.num_heldout) for name in tasks}
    encoded = _encoded(drawn, tasks, text, num_heldout, longest)
    if encoded.num_too_long:
        total = sum(len(items) for items in drawn.values())
        removals.append(Removed(kind="too_long", num=encoded.num_too_long, total=total, limit=int(longest)))
    removed = tuple(each for each in removals if each.num)
    return Material(network, text, Examples(training=encoded.training, heldout=encoded.heldout, removed=removed))


def _cleaned(
    drawn: Drawn, recipe: Recipe, tasks: Mapping[str, Task], *, has_model: bool, solved: Path
) -> tuple[Drawn, list[Removed]]:
    """Return the demonstrations without contaminated and trivial ones, and what each step removed.

    Raise TaskError if too few are left. Only a model that exists already finds problems trivial.
    """
    settings = recipe.sft
    removals: list[Removed] = []
    if settings.ngram_words:
        problems = _evaluation_problems(recipe, tasks)
        drawn, contaminated = decontaminate(drawn, problems, settings.ngram_words)
        removals.append(contaminated)
        # Check before the model samples answers, which may take long.
        _check_left(drawn)
    if settings.trivial_samples and has_model:
        found = solved_once(solved, recipe, tasks, drawn, settings.trivial_samples)
        drawn, trivial = without_trivial(drawn, found, settings.trivial_samples)
        removals.append(trivial)
    _check_left(drawn)
    return drawn, removals


def _encoded(
    drawn: Drawn, tasks: Mapping[str, Task], text: Text, num_heldout: Mapping[str, int], longest: float
) -> Examples:
    """Return the examples of all tasks."""
    training: list[Completion] = []
    heldout: list[Completion] = []
    num_too_long = 0
    for name, task in tasks.items():
        part = encode(drawn[name], offer_tools(task, text), text, num_heldout=num_heldout[name], max_tokens=longest)
        training += part.training
        heldout += part.heldout
        num_too_long += part.num_too_long
    return Examples(training=training, heldout=heldout, num_too_long=num_too_long)


def _shares(recipe: Recipe, tasks: Mapping[str, Task]) -> dict[str, float]:
    """Return the share of each task in the demonstrations."""
    if not recipe.tasks:
        return dict.fromkeys(tasks, 1.0)
    total = sum(recipe.tasks[name].weight for name in tasks)
    return {name: recipe.tasks[name].weight / total for name in tasks}


def _evaluation_problems(recipe: Recipe, tasks: Mapping[str, Task]) -> dict[str, Sequence[Problem]]:
    """Return the problems of every evaluation set: of each task of the recipe, and of each of evaluation.sets."""
    other_sets = {name: build_task(part, recipe.evaluation) for name, part in recipe.evaluation.sets.items()}
    return {name: task.evaluation for name, task in {**tasks, **other_sets}.items()}


def _tokenizer(
    model: LoadedModel | None, drawn: Drawn, answer: AnswerFormat, *, new_tokens: str
) -> "PreTrainedTokenizerFast":
    """Return the tokenizer with the tokens that sft.new_tokens adds, to the model too; without a model, a new one."""
    texts: list[str] = []
    for item in itertools.chain(*drawn.values()):
        texts += [item.problem.prompt, *item.earlier, item.completion]
    tokenizer = build_tokenizer(iter(texts), answer) if model is None else model.tokenizer
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if new_tokens != "none":
        tags = [tag for tag in (answer.thinking_start, answer.thinking_end) if tag]
        added = missing_tokens(tokenizer, texts, words=new_tokens == "words", tags=tags)
        # The rows of a model that is yet to be built follow from the tokenizer.
        network = None if model is None else model.model
        add_tokens(tokenizer, added, network, tags=tags)
    return cast("PreTrainedTokenizerFast", tokenizer)


def _check_left(drawn: Drawn) -> None:
    """Raise TaskError if a task has too few demonstrations left to train and to measure on."""
    for name, items in drawn.items():
        if len(items) < 2:
            raise TaskError(
                f"{len(items)} demonstrations of {name} are left, and two are needed: the others show problems of an "
                f"evaluation set, or have trivial prompts; change sft.ngram_words or sft.trivial_samples, or give more"
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
        before_s = self.curve[-1].elapsed_s if self.curve else 0.0
        # As if the earlier attempts had just been running.
        self._started_at = time.monotonic() - before_s

    def after_step(self, done: Mapping[str, float] | None, end: RunEnd | None) -> None:
        step = self.learner.version
        if done is not None:
            # A step with a non-finite loss was skipped and reports none.
            if "loss/value" in done:
                self.losses.append(done["loss/value"])
            self.observer.stepped({"step": step})
        is_last = end is not None and end.kind == "budget"
        is_due = is_last or step % self.every == 0
        last_measured = self.curve[-1].step if self.curve else -1
        if is_due and last_measured < step:
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
