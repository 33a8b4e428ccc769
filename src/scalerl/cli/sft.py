"""scalerl sft: make a base model from demonstrations."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scalerl.cli import options as opt
from scalerl.cli.console import RunTerminal
from scalerl.cli.options import flag, option
from scalerl.cli.train import load, setting_up
from scalerl.errors import UsageError
from scalerl.recipe.keys import is_at

if TYPE_CHECKING:
    from scalerl.training.run.sft.cleaning import Removed
    from scalerl.training.run.sft.make import SftPlan, SftProgress, SftResult

_READ = (
    *("sft", "task", "tasks", "learner", "model.path", "model.dtype", "seed", "description"),
    *("evaluation.num_prompts", "evaluation.seed", "evaluation.sets"),
    # The model samples to find trivial prompts.
    *("rollout", "length", "reward.threshold", "grading", "optimizer.bits", "optimizer.on_host"),
)
_SHOWN = 60
"""Number of characters shown of a prompt."""


def sft(
    recipe: str = opt.RECIPE,
    out: Path = option("DIR", "Folder for the model.", default=...),
    overrides: list[str] | None = opt.OVERRIDES,
    resume: bool = flag("--resume", "Continue in --out after a stop or a kill."),
    trust_remote_code: bool = opt.TRUST,
    help_all: bool = opt.HELP_ALL,
) -> None:
    """Make a base model by supervised fine-tuning on the demonstrations of a recipe's tasks.

    [dim]scalerl sft mine.toml --set sft.lr=1e-4 --set sft.epochs=2 --out models/base[/dim]

    Its settings are in the recipe's table \\[sft]; --set sft.model=new builds a small Llama.

    Ctrl-C, SIGTERM or SIGHUP stops with a checkpoint; --resume continues.

    See also: eval to measure the model; train --set model.path=DIR to train it further.
    """
    _check_read(overrides or ())
    settings = load(recipe, overrides, trust_remote_code=trust_remote_code)
    terminal = SftTerminal()
    resumes = "the same command with --resume continues"
    with terminal.running(lambda: f"Stopped at once: {resumes} from the last checkpoint"), setting_up():
        from scalerl.training.run.sft.make import sft as make

        record = {"recipe": recipe, "set": overrides or []}
        result = make(settings, out, record=record, resume=resume, observer=terminal)
    if result is None:
        terminal.leave(f"Stopped, with a checkpoint: {resumes}")
    typer.echo(reached(result, recipe))


def _check_read(overrides: Sequence[str]) -> None:
    """Raise UsageError for a setting that SFT does not use, instead of ignoring it."""
    for text in overrides:
        key = text.partition("=")[0].strip()
        if not any(is_at(key, read) for read in _READ):
            raise UsageError(f"--set {text}: sft does not use {key}; it uses {', '.join(_READ)}")


def reached(result: "SftResult", recipe: str) -> str:
    """Say the result of a run of SFT in a few lines."""
    first = result.curve[0]
    last = result.curve[-1]
    plan = result.plan
    folder = result.folder
    return (
        f"The held-out loss went from {first.heldout_loss:.4f} to {last.heldout_loss:.4f} in {last.step:,} steps "
        f"({plan.epochs:.3g} epochs of {plan.num_demonstrations:,} demonstrations, "
        f"{timedelta(seconds=round(last.elapsed_s))}); it fell by {result.gain_last_fifth:.1%} in the last fifth of "
        f"the steps (a base that still improves a lot breaks under RL).\n"
        f"{result.num_parameters:,} parameters in {folder}. Next: scalerl eval {folder} --recipe {recipe}, then "
        f"scalerl train {recipe} --set model.path={folder}"
    )


def removed_words(removed: "Removed") -> str:
    """Say what a step of cleaning removed, with an example."""
    sets = ", ".join(f"{num:,} with {name}" for name, num in removed.by_set.items())
    why = {
        "contaminated": f"share {removed.limit} words in a row, or all, with an evaluation problem ({sets})",
        "trivial": f"have a prompt that the model answers correctly in {removed.limit} of {removed.limit} samples",
        "too_long": f"have more than {removed.limit:,} tokens",
    }[removed.kind]
    example = " ".join(removed.example.split())
    shown = ""
    if example:
        shown = f": {example[:_SHOWN]}..." if len(example) > _SHOWN else f": {example}"
    return f"{removed.num:,} of {removed.total:,} demonstrations are removed, because they {why}{shown}"


class SftTerminal(RunTerminal):
    """Shows a run of SFT: a bar, and a line per measurement of the held-out loss."""

    def drawing(self, num: int) -> None:
        self.print(f"Drawing up to {num:,} demonstrations, which may take a minute")

    def planned(self, plan: "SftPlan") -> None:
        self.print(
            f"{plan.num_steps:,} steps of {plan.batch_tokens:,.0f} tokens on {plan.num_demonstrations:,} "
            f"demonstrations ({plan.epochs:.3g} epochs), {plan.num_heldout:,} held out, learning rate {plan.lr:g}"
        )
        for removed in plan.removed:
            self.print(removed_words(removed))
        if plan.first_step:
            self.print(f"Continuing after step {plan.first_step:,}")
        self.show_bar("step {task.completed:.0f}/{task.total:.0f}", total=plan.num_steps, completed=plan.first_step)

    def stepped(self, row: Mapping[str, Any]) -> None:
        self.update(completed=row["step"])

    def measured(self, progress: "SftProgress") -> None:
        training = "" if progress.train_loss is None else f"  training {progress.train_loss:.4f}"
        self.print(f"step {progress.step:6d}  held out {progress.heldout_loss:.4f}{training}")
