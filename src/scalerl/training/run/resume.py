"""Continue a run: read earlier attempts, and check that the recipe and the problems have not changed."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalerl.errors import RecipeError, RunFolderError
from scalerl.recipe.keys import leaves
from scalerl.recipe.load import load_written, with_derived
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.secrets import hidden
from scalerl.recipe.tree import differences
from scalerl.runfolder import store
from scalerl.runfolder.atomic_files import locked
from scalerl.training.run import checkpoint as checkpoints
from scalerl.training.run.clock import larger

# Settings that may change when a run is resumed: when it ends, where it is recorded, the number of graders, and the
# devices that do the work.
_FREE = (
    *("budget.", "checkpoint.", "sft.", "sinks", "description", "grading.num_workers"),
    # How the work of a step is divided: this changes only the order of sums.
    *("learner.ranks", "learner.sharding", "learner.shard_size"),
    *("learner.gradient_checkpointing", "learner.silent_s", "learner.start_s", "optimizer.on_host"),
    *("cluster.", "rollout.generators", "rollout.gpus_per_generator"),
    *("rollout.max_replacements", "rollout.silent_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What earlier attempts at a run left in its folder; empty for a new run."""

    folder: Path
    checkpoint: checkpoints.Checkpoint | None = None
    attempt: int = 0
    """The latest attempt; 0 if there was none."""
    spent: Mapping[str, float]
    """Compute spent by all attempts, in the fields of Clock, including steps after the checkpoint."""
    metrics: Sequence[store.Row] = ()
    """Rows of the steps up to the checkpoint."""
    evals: Sequence[store.Row] = ()

    def check_problems(self, training: Mapping[str, str], evaluation: Mapping[str, str]) -> None:
        """Raise RecipeError if these hashes differ from the first attempt's: a file of problems may have changed."""
        trained = {} if self.checkpoint is None else self.checkpoint.meta.get("problems", training)
        measured = {row["set"]: row["prompts_hash"] for row in self.evals}
        changed = [f"the training problems of {name}" for name in trained if trained[name] != training.get(name)]
        changed += [f"the evaluation problems of {name}" for name in measured if measured[name] != evaluation.get(name)]
        if changed:
            raise RecipeError(
                f"{' and '.join(changed)} have changed since {self.folder} was started: resume with the same problems, "
                f"or start another run with another --out"
            )


def read_earlier(folder: Path) -> Earlier:
    """Read the newest checkpoint of a run and the rows of all its attempts."""
    checkpoint = checkpoints.latest(folder / store.CHECKPOINTS)
    step = 0 if checkpoint is None else checkpoint.step
    try:
        metrics = store.read_metrics(folder)
        evals = store.read_evals(folder)
    except RunFolderError as error:
        raise RunFolderError(
            f"{error}: remove that line and resume; steps after checkpoint {step} are repeated anyway"
        ) from None
    return Earlier(
        folder=folder,
        checkpoint=checkpoint,
        attempt=max((row.get("attempt", 0) for row in (*metrics, *evals)), default=0),
        spent=larger(*([checkpoint.meta["clock"]] if checkpoint else []), *metrics, *evals),
        metrics=[row for row in metrics if row["step"] <= step],
        evals=[row for row in evals if row["step"] <= step],
    )


def lock_folder(folder: Path) -> AbstractContextManager[int]:
    """Hold a lock on a run's folder, so that two processes cannot mix their rows and checkpoints."""
    sentence = f"another process is training into {folder}: wait until it ends, or stop it first"
    return locked(folder, RunFolderError(sentence))


def latest_step(folder: Path) -> int | None:
    """Return the step of a run's newest checkpoint without verifying it; None if there is none."""
    return max(checkpoints.steps(folder / store.CHECKPOINTS), default=None)


def check_same(recipe: Recipe, folder: Path) -> None:
    """Raise RecipeError if a setting that must stay the same differs from the one the run was started with."""
    for key, values in sorted(differences(written_recipe(folder, "resume"), recipe).items()):
        # The written recipe has no secrets.
        old, new = (hidden(value, key) for value in values)
        if old != new and not key.startswith(_FREE):
            raise RecipeError(
                f"{folder} was started with {key} = {old!r}, and now it is {new!r}: resume with the same recipe, or "
                f"start another run with another --out"
            )


def as_started(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe with the derived settings of the run's first attempt: another machine might derive other values.

    Settings that the recipe's length control does not have are left out.
    """
    if not recipe.derived:
        return recipe
    values = dict(leaves(written_recipe(folder, "resume").model_dump(mode="json")))
    return with_derived(recipe, {key: values[key] for key in recipe.derived if key in values})


def written_recipe(folder: Path, purpose: Literal["resume", "export"]) -> Recipe:
    """Return the recipe that a run was started with."""
    if store.read_recipe(folder) is None:
        raise RecipeError(f"{folder} does not contain a run to {purpose}: it has no {store.RECIPE}")
    try:
        return load_written(folder / store.RECIPE)
    except RecipeError as error:
        raise RecipeError(f"{error}: {purpose} with that version") from None


def best_step(evals: Sequence[store.Row], set_name: str | None) -> int | None:
    """Return the step after 0 with the highest reward on an evaluation set; of equal rewards, the first."""
    rows = [row for row in evals if row["set"] == set_name and row["step"] > 0 and row["reward"] is not None]
    return max(rows, key=lambda row: (row["reward"], -row["step"]), default={"step": None})["step"]
