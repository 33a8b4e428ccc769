"""Make a base model from a task's demonstrations (the paper's SFT stage).

    demonstrations -> tokens (demonstrations.py) -> steps (learner.py) -> a Hugging Face folder + made_by.json

Starts from a model's folder, or builds a small Llama. While it runs, checkpoints are in OUT.checkpoints; a run that was
stopped or killed continues from the newest, to the same weights. `scalerl eval` measures the model.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from safetensors import SafetensorError

from scalerl.atomic_files import new_folder, write_errors
from scalerl.config import Recipe
from scalerl.config.parts import NEW_MODEL
from scalerl.config.recipe import replaced
from scalerl.config.secrets import hidden
from scalerl.environments.build import offer_tools
from scalerl.errors import LearnerError, RecipeError, RunFolderError
from scalerl.loop.requests import Text
from scalerl.models.load import load_model
from scalerl.models.tiny import TinyShape, build_model, build_tokenizer
from scalerl.models.vocabulary import add_tokens, missing_tokens
from scalerl.run import checkpoint as checkpoints
from scalerl.run.derive import derive
from scalerl.run.host import environment
from scalerl.run.parts import build_tasks
from scalerl.run.resume import lock_folder
from scalerl.run.sft.demonstrations import Examples, draw, encode, num_inputs, plan_batches
from scalerl.run.sft.learner import batch_of, sft_learner, take_weights
from scalerl.store import check_place
from scalerl.tasks.rows import hide_hub_warnings
from scalerl.tasks.task import shared_answer
from scalerl.types import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MADE_BY = "made_by.json"
LR = 3e-5
"""The paper's, for a pretrained model."""
NEW_LR = 2e-3
NUM_DEMONSTRATIONS, NEW_NUM_DEMONSTRATIONS = 10_000, 250_000
NUM_MEASUREMENTS = 20
"""Points of the loss curve after its first; each is also a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftProgress:
    """One point of the loss curve, in nats per completion token."""

    step: int
    train_loss: float | None
    """Mean since the previous point; None at step 0, and where no step had a finite one."""
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
    base, shape, observer = model or recipe.sft.model or recipe.model.path, shape or TinyShape(), observer or _Silent()
    if not base:
        raise RecipeError("model.path is not set, so there is nothing to start from: set it, or sft.model")
    folder, new = out.with_name(f"{out.name}.checkpoints"), base == NEW_MODEL
    _check_folders(out, folder, resume=resume)
    if not new:
        recipe, _ = derive(replaced(recipe, {"model.path": base}))
    settings, lr = recipe.sft, recipe.sft.lr or (NEW_LR if new else LR)
    trained, text, examples = load_inputs(recipe, base, shape, observer.drawing)
    batches = plan_batches(examples, settings, seed=recipe.seed, new=new)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    learner = sft_learner(trained, recipe, lr=lr, num_steps=len(batches), device=device)
    with ExitStack() as opened:
        opened.callback(getattr(learner, "close", lambda: None))
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        opened.enter_context(lock_folder(folder))
        identity = {"settings": settings.model_dump(mode="json"), "seed": recipe.seed}
        run = _Run(learner, folder, {**identity, "demonstrations": examples.content_hash})
        plan = SftPlan(
            num_steps=len(batches),
            num_demonstrations=len(examples.training),
            num_heldout=len(examples.heldout),
            num_too_long=examples.num_too_long,
            epochs=sum(map(len, batches)) / len(examples.training),
            batch_tokens=sum(num_inputs(examples.training[i]) for batch in batches for i in batch) / len(batches),
            lr=lr,
            first_step=learner.version,
        )
        observer.started(plan)
        if not run.train(examples, batches, observer):
            return None
        if recipe.learner.sharding == "none":
            learner.settle()
        else:
            take_weights(learner, trained)
    num_parameters = sum(parameter.numel() for parameter in trained.parameters())
    result = SftResult(folder=out, num_parameters=num_parameters, plan=plan, curve=tuple(run.curve))
    made_by = {
        "made_by": "scalerl sft",
        "settings": identity["settings"],
        "model": base,
        **({"shape": asdict(shape)} if new else {}),
        "seed": recipe.seed,
        "plan": asdict(plan),
        "num_parameters": num_parameters,
        "vocabulary_size": len(text.tokenizer),
        "gain_last_fifth": round(result.gain_last_fifth, 5),
        "curve": [{key: value and round(value, 5) for key, value in asdict(point).items()} for point in run.curve],
        "environment": environment(device),
        **(record or {}),
    }
    with new_folder(out, failures=(SafetensorError,)) as unfinished:
        trained.to("cpu").save_pretrained(unfinished)  # pyright: ignore[reportArgumentType]
        text.tokenizer.save_pretrained(unfinished)
        (unfinished / MADE_BY).write_text(json.dumps(hidden(made_by), indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    return result


def load_inputs(
    recipe: Recipe, base: str, shape: TinyShape, drawing: Callable[[int], None]
) -> tuple["PreTrainedModel", Text, Examples]:
    """Load or build the model, draw the demonstrations and encode them; `drawing` is told how many are drawn."""
    settings, new, seed, tasks = recipe.sft, base == NEW_MODEL, recipe.seed, build_tasks(recipe)
    answer, trust = shared_answer(tasks), recipe.model.trust_remote_code
    # The model before the demonstrations: a wrong path shows at once, and drawing them takes a while.
    with hide_hub_warnings():
        given = None if new else load_model(base, dtype=torch.float32, device="cpu", trust_remote_code=trust)
    wanted = settings.num_demonstrations or (NEW_NUM_DEMONSTRATIONS if new else NUM_DEMONSTRATIONS)
    drawing(wanted)
    weights = {name: recipe.tasks[name].weight if recipe.tasks else 1.0 for name in tasks}
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    drawn = {name: draw(task, round(shares[name] * wanted), seed) for name, task in tasks.items()}
    said = [(item.problem.prompt, *item.earlier, item.completion) for items in drawn.values() for item in items]
    texts = [each for of_item in said for each in of_item]
    torch.manual_seed(derive_seed("sft weights", seed))
    tokenizer = cast(
        "PreTrainedTokenizerFast", build_tokenizer(iter(texts), answer) if given is None else given.tokenizer
    )
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if settings.new_tokens != "none":
        tags = [tag for tag in (answer.thinking_start, answer.thinking_end) if tag]
        added = missing_tokens(tokenizer, texts, words=settings.new_tokens == "words", tags=tags)
        add_tokens(tokenizer, added, given and given.model, tags=tags)
    stop_tokens = (cast(int, tokenizer.eos_token_id),) if given is None else given.stop_tokens
    text = Text(tokenizer=tokenizer, stop_tokens=stop_tokens)
    model = build_model(tokenizer, shape) if given is None else given.model
    context = getattr(model.config, "max_position_embeddings", math.inf)
    encoded = []
    for name, task in tasks.items():
        num_heldout = round(shares[name] * settings.num_heldout)
        encoded.append(encode(drawn[name], offer_tools(task, text), text, num_heldout=num_heldout, context=context))
    examples = Examples(
        training=[example for part in encoded for example in part.training],
        heldout=[example for part in encoded for example in part.heldout],
        num_too_long=sum(part.num_too_long for part in encoded),
    )
    return model, text, examples


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


class _Run:
    """The steps of a run, with its checkpoints; as the newest of those left it, if there is one."""

    def __init__(self, learner: Any, folder: Path, identity: Mapping[str, Any]) -> None:
        """`identity` is what a resumed run must have in common with the one that was stopped."""
        self.curve: list[SftProgress] = []
        self._learner, self._folder, self._identity = learner, folder, identity
        checkpoint = checkpoints.latest(folder)
        if checkpoint is None:
            return
        for name, value in identity.items():
            if checkpoint.meta.get(name) != value:
                raise RunFolderError(
                    f"{folder} was started with other {name}: resume with the same, or remove that folder"
                )
        learner.load_state_dict(checkpoint.read_tensors)
        self.curve = [SftProgress(**point) for point in checkpoint.meta["curve"]]

    def train(self, examples: Examples, batches: list[list[int]], observer: SftObserver) -> bool:
        """Train to the end, adding to the curve; False if the observer asked to stop, with a checkpoint."""
        started = time.monotonic() - (self.curve[-1].elapsed_s if self.curve else 0.0)
        every = max(1, len(batches) // NUM_MEASUREMENTS)
        losses: list[float] = []
        while True:
            step = self._learner.version
            is_due = step % every == 0 or step == len(batches)
            if is_due and (not self.curve or self.curve[-1].step < step):
                train_loss = fmean(losses) if losses else None
                losses.clear()
                heldout_loss = self._learner.mean_loss(batch_of(examples.heldout, step))
                if not math.isfinite(heldout_loss):
                    # Before it is saved: the checkpoint of an earlier step stays.
                    raise LearnerError(
                        f"the held-out loss is {heldout_loss} after step {step}: training has diverged, so start "
                        f"again with a lower sft.lr"
                    )
                point = {"train_loss": train_loss, "heldout_loss": heldout_loss}
                self.curve.append(SftProgress(step=step, elapsed_s=time.monotonic() - started, **point))
                observer.measured(self.curve[-1])
                if step < len(batches):
                    self._save()
            if step == len(batches):
                return True
            if observer.stopping():
                self._save()
                return False
            batch = batch_of([examples.training[index] for index in batches[step]], step)
            metrics = self._learner.step(batch)
            # A step whose loss is not finite was skipped, and has none.
            losses += [metrics["loss/value"]] if "loss/value" in metrics else []
            observer.stepped(self._learner.version)

    def _save(self) -> None:
        meta = {**self._identity, "curve": [asdict(point) for point in self.curve]}
        state = checkpoints.Checkpoint(step=self._learner.version, tensors=self._learner.state_dict(), meta=meta)
        checkpoints.save(self._folder, state, keep=1)
