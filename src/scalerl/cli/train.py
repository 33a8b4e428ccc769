"""scalerl train | eval | export: train, measure and export models."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer

from scalerl.api import check_can_train
from scalerl.cli import options as opt
from scalerl.cli.conclusion import conclude, resumes_from
from scalerl.cli.console import RunTerminal, ended_by_ctrl_c, say, show, table
from scalerl.cli.options import argument, flag, option, rare
from scalerl.cli.watch import board_beside
from scalerl.errors import StoreError, UsageError, UserError
from scalerl.runfolder import store

if TYPE_CHECKING:
    from scalerl.forecast.report.results import CurveResult
    from scalerl.recipe.recipe import Recipe
    from scalerl.training.run.derive import Derived
    from scalerl.training.run.memory import Gpus
    from scalerl.training.run.run import TrainingRun


def train(
    recipe: str = opt.RECIPE,
    overrides: list[str] | None = opt.OVERRIDES,
    out: Path = option("DIR", "Run folder to write.", default=Path("runs/run")),
    resume: bool = flag("--resume", "Continue from the newest checkpoint in --out."),
    check: bool = flag("--check", "Try the problems, the graders and one step; write nothing."),
    gpus: str | None = option(
        "NUMxGB", "With --check: estimate the memory on these GPUs, such as 8x80; they need not be here."
    ),
    price: float | None = option("MONEY", "With --check: price of a GPU-hour, to add costs.", check=opt.positive),
    hung_after: float | None = rare("S", "End the run if a call does not return within this time. Unset: 600.", min=1),
    plots: bool = flag("--plots/--no-plots", "Draw the curve at the end.", default=True, hidden=True),
    board: bool = opt.BOARD,
    notify: str | None = opt.NOTIFY,
    trust_remote_code: bool = opt.TRUST,
    help_all: bool = opt.HELP_ALL,
) -> None:
    """Train a recipe into a run folder and forecast, while it trains, where the reward will level off.

    [dim]scalerl train tiny-cpu --out runs/first --set optimizer.lr=1e-3
    scalerl train own-model --set model.path=MODEL --set task=problems.jsonl --check[/dim]

    Ctrl-C stops after the current step, and SIGTERM at once, with a checkpoint; --resume continues.

    See also: recipe list, recipe show; eval and sft for the model to start from; fit, report, export for the run.
    """
    if gpus is not None and not check:
        raise UsageError("--gpus estimates memory without training: add --check")
    if price is not None and not check:
        raise UsageError("--price adds costs to an estimate: add --check")
    settings = load(recipe, overrides, trust_remote_code=trust_remote_code)
    _say_what_is_not_read(settings, overrides or ())
    terminal = Terminal(notify, out.resolve().name, settings.model_dump(mode="json"))
    (store.check_resumable if resume else store.check_new)(out)
    if settings.cluster.address and gpus is None:
        from scalerl.training.run.cluster.connect import check_address

        check_address(settings.cluster.address)
    with setting_up():
        from scalerl.training.run.derive import derive
        from scalerl.training.run.memory import Gpus
        from scalerl.training.run.resume import as_started
        from scalerl.training.run.run import TrainingRun
        from scalerl.training.run.start_up import StartUp

        start_up = StartUp()
        devices = None if gpus is None else Gpus.parse(gpus)
        settings, derived = (as_started(settings, out), ()) if resume else derive(settings, devices)
        start_up.done("settings")
        make_run = partial(
            TrainingRun,
            settings,
            out,
            observer=terminal,
            resume=resume,
            hung_s=hung_after,
            start_up=start_up,
        )
        if check:
            _check(recipe, settings, derived, devices, price, make_run)
            return
        run = make_run()
    _train(run, terminal, board=board, plots=plots)


def _say_what_is_not_read(settings: "Recipe", overrides: Sequence[str]) -> None:
    from scalerl.recipe.effects import only_for_sft
    from scalerl.recipe.load import given_keys

    for sentence in only_for_sft(settings, given_keys(overrides)):
        typer.echo(sentence)


def _check(
    recipe: str,
    settings: "Recipe",
    derived: "Sequence[Derived]",
    gpus: "Gpus | None",
    price: float | None,
    make_run: "Callable[[], TrainingRun]",
) -> None:
    """Print the derived settings and the memory; without `gpus`, also try the graders, the environments and a step."""
    from scalerl.cli.layout import check_layout
    from scalerl.recipe.recipe import mode_name
    from scalerl.training.run.trial import try_parts

    if derived:
        rows = [(each.key, json.dumps(each.value), each.reason) for each in derived]
        say(table(("derived setting", "value", "because"), rows))
    if check_layout(recipe, settings, gpus, price):
        return
    with closing(make_run()) as run:
        trials = try_parts(run.parts, run.recipe)
    regime = f"{mode_name(run.recipe.pipeline)}, {run.recipe.loss.name}"
    say(f"{recipe} can be trained: {summary(run)}, {regime}", slots_line(run), *run.notices, *trials)


def _train(run: "TrainingRun", terminal: "Terminal", *, board: bool, plots: bool) -> None:
    """Train, and print what the run has learned or how to resume it."""
    from scalerl.training.loop.slots import seen_words

    out = run.folder
    try:
        with (
            terminal.running(lambda: f"Stopped at once{resumes_from(out)}"),
            board_beside(out, wanted=board),
            terminal.notifier,
        ):
            end = run.train()
            lag = seen_words(run.parts.lag, run.rows.metrics)
            if lag:
                terminal.print(lag)
            word = "Stopped" if end.kind == "stopped" else "Done"
            ended = f"{word} at step {run.pipeline.version}"
            terminal.notifier.send("\n".join([f"{ended}: {end.reason}", *terminal.last_lines]))
    except StoreError as error:
        raise StoreError(f"{error}{resumes_from(out)}") from error
    text = f"{ended}, with a checkpoint: the same command with --resume continues"
    if run.unsaved is not None:
        text = f"{ended}; the last checkpoint failed ({run.unsaved}){resumes_from(out)}"
    if end.kind == "stopped":
        terminal.leave(text)
    typer.echo(f"\nDone: {end.reason}. The run is in {out}")
    if run.unsaved is not None:
        typer.echo(f"Warning: the last checkpoint failed: {run.unsaved}{resumes_from(out)}")
    conclude(out, plots=plots)
    typer.echo(model_line(run))


def model_line(run: "TrainingRun") -> str:
    """Say which checkpoint is the best one, how to export it, and where samples are."""
    from scalerl.training.run.checkpoint import steps
    from scalerl.training.run.resume import best_step

    out = run.folder
    set_name = run.recipe.best_set
    kept = steps(out / store.CHECKPOINTS)
    best = best_step(run.rows.evals, set_name)
    words = f"Its samples: {out / store.SAMPLES}, or in a browser with scalerl watch {out}"
    if best is not None and best in kept:
        reward = next(row["reward"] for row in run.rows.evals if (row["step"], row["set"]) == (best, set_name))
        return (
            f"Best checkpoint: step {best}, reward {reward:.3f} on {set_name}. Export it: scalerl export {out} --step "
            f"best --out MODEL. {words}"
        )
    if not kept:
        return words
    return f"Last checkpoint: step {max(kept)}. Export it: scalerl export {out} --out MODEL. {words}"


def evaluate(
    model: str = argument("MODEL", "Model folder, hub name, .gguf file, or name of an embedded base."),
    recipe: str = option("RECIPE", "Recipe with the task and the evaluation settings.", default="tiny-cpu"),
    overrides: list[str] | None = option(
        "KEY=VALUE|NAME", "Change a setting, or measure on the evaluation set NAME alone; may be repeated.", "--set"
    ),
    as_json: bool = opt.JSON,
    trust_remote_code: bool = opt.TRUST,
    help_all: bool = opt.HELP_ALL,
) -> None:
    """Measure a model on a recipe's evaluation sets: the pass rate (mean@n) with its 90% interval, and pass@n.

    --set NAME, without a value, measures on that set alone; the task's own set is called main.

    [dim]scalerl eval models/base --recipe tiny-cpu --set evaluation.samples_per_prompt=8[/dim]
    """
    sets = [text for text in overrides or () if "=" not in text]
    changed = [text for text in overrides or () if "=" in text]
    settings = load(recipe, [*changed, f"model.path={json.dumps(model)}"], trust_remote_code=trust_remote_code)
    with setting_up():
        from scalerl.training.run.evaluate import evaluate_model

        rows = evaluate_model(settings, sets)
    show("eval", as_json, {"sets": rows}, lambda: chain.from_iterable(map(_measured, rows)))


def _measured(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on the result of one evaluation set."""
    low, high = row["interval"]
    words = f"{row['set']}: {_number(row['reward'])}, 90% between {low:.3f} and {high:.3f}, over "
    words += f"{row['num_samples']:,} samples of {row['num_prompts']:,} problems"
    num = row["samples_per_prompt"]
    if num > 1:
        largest = max(row["pass_at"], key=int)
        words += f"; mean@{num}, and pass@{largest} is {row['pass_at'][largest]:.3f}"
    yield words
    for more in (conversation_words(row), outcome_words(row)):
        if more:
            yield f"  {more}"
    unjudged = row["without_verdict"]
    if unjudged:
        reasons = ", ".join(f"{num} x {name}" for name, num in unjudged.items())
        yield f"  {sum(unjudged.values()):,} of them have no verdict and count as wrong: {reasons}"


def conversation_words(row: Mapping[str, Any]) -> str:
    """Say the turns, tool calls and pass@(1, T) of an evaluation with conversations; "" without conversations."""
    if "turns_mean" not in row:
        return ""
    words = f"{row['turns_mean']:.2f} turns and {row['tool_calls_mean']:.2f} tool calls on average"
    if row["tool_calls_mean"]:
        words += f", {row['tool_errors_frac']:.0%} of them failed"
    for turns, by_k in row.get("pass_at_turns", {}).items():
        words += f"; {by_k['1']:.3f} within {turns}"
    return words


def export(
    run: Path = argument("RUN", "Folder of a run of scalerl train."),
    out: Path = option("DIR", "Folder for the model.", default=...),
    step: str = option("N|best|last", "The checkpoint: a step, best (by evaluations) or last.", default="last"),
    trust_remote_code: bool = opt.TRUST,
    help_all: bool = opt.HELP_ALL,
) -> None:
    """Write the model of a run's checkpoint as a Hugging Face folder.

    The best checkpoint has the highest reward on the task's own evaluation set, or on that of checkpoint.best.

    [dim]scalerl export runs/first --step best --out models/first[/dim]
    """
    with setting_up():
        from scalerl.training.run.export import export

        exported = export(run, out, step, trust_remote_code=trust_remote_code)
    typer.echo(f"The model after step {exported.step} is in {exported.folder}")


# Shared ---------------------------------------------------------------------------------------------------------------


def load(recipe: str, overrides: Sequence[str] | None, *, trust_remote_code: bool = False) -> "Recipe":
    """Read and check the recipe before anything heavy is imported."""
    from scalerl.recipe.load import load_recipe
    from scalerl.recipe.recipe import trusting

    return trusting(load_recipe(recipe, list(overrides or ())), trust_remote_code=trust_remote_code)


@contextmanager
def setting_up() -> Iterator[None]:
    """Import heavy libraries without their log output, and report their ValueErrors as mistakes of the user."""
    check_can_train()
    with ended_by_ctrl_c():
        import torch  # noqa: F401
        from transformers.utils import logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


def summary(run: "TrainingRun") -> str:
    """Say the size of the model, the device and the size of a batch."""
    from scalerl.training.run.pace import size_words

    size = size_words(run.shape.body_params + run.shape.head_params)
    pipeline = run.recipe.pipeline
    answers = f"{pipeline.groups_per_batch} x {pipeline.completions_per_group} answers per step"
    return f"{size} parameters on {run.device}, {answers}"


def slots_line(run: "TrainingRun") -> str:
    """Say the number of slots and the lag to expect from it."""
    from scalerl.training.loop.slots import full_slots, lag_words

    lag = run.parts.lag
    rollout = run.recipe.rollout
    full = full_slots(run.recipe.pipeline)
    is_short = rollout.slots is None and lag.slots < full
    words = lag_words(lag, beside=rollout.generators > 0)
    return words + (f" (max_lag could use {full:,}, but memory is too small)" if is_short else "")


class Terminal(RunTerminal):
    """Shows a run on the terminal: a bar with live numbers, and a line per evaluation."""

    _reward: float | None = None

    def __init__(self, webhook: str | None = None, name: str = "", recipe: Mapping[str, Any] = MappingProxyType({})):
        """Also post news of the run to `webhook`, under its `name` and without the recipe's secrets."""
        from scalerl.recipe.secrets import secrets_in
        from scalerl.web.notify import Notifier

        super().__init__()
        self.notifier = Notifier(webhook, name, warn=self.print, secrets=[value for _, value in secrets_in(recipe)])
        self.last_lines: list[str] = []
        """The lines on the last evaluation, one per set."""
        self._decided: dict[str, tuple[str, str]] = {}
        """State and action of each set that were posted last."""

    def started(self, run: "TrainingRun") -> None:
        from scalerl.callbacks.health import RunHealth

        self._run = run
        self._health = RunHealth(run)
        for line in (f"{summary(run)} (train --check says more)", run.start_up.words(), *run.notices):
            self.print(line)
        done = run.budget.share
        step = run.pipeline.version
        self.show_bar("step {task.fields[step]}", total=1.0, completed=done, step=step)
        self.update(description="starting")

    def stepped(self, row: Mapping[str, Any]) -> None:
        for loss in row.get("lost", ()):
            self.print(f"Generator {loss['generator']} was lost ({loss['reason']}) and is being replaced.")
        parts = [f"train {_number(row.get('reward/correct_frac'))}"]
        if self._reward is not None:
            parts.append(f"eval {self._reward:.3f}")
        parts.append(f"lag {row.get('rollout/lag_mean', 0):.1f}")
        parts.append(f"entropy {_number(row.get('loss/entropy'), 2)}")
        if row.get("outcome/stopped_frac"):
            parts.append(f"stopped {row['outcome/stopped_frac']:.0%}")
        self.update(completed=self._run.budget.share, description="  ".join(parts), step=row["step"])

    def evaluating(self, finished: int, total: int) -> None:
        self.update(description=f"evaluating {finished}/{total}")

    def evaluated(self, rows: Sequence[Mapping[str, Any]]) -> None:
        outlooks = self._health.outlooks(rows)
        first, *others = self._run.recipe.eval_sets
        self.last_lines = []
        for row in rows:
            if row["set"] == first:
                self._reward = row["reward"]
            name = f"{row['set']} " if others else ""
            hours = store.hours_name(self._run.device.type).removesuffix("ours")
            words = f"step {row['step']}  {row['gpu_hours']:.4g} {hours}  {name}reward {_number(row['reward'])}"
            self.last_lines.append(words + forecast_words(outlooks[row["set"]]))
            self.print(self.last_lines[-1])
            self._post_decision(row["set"], outlooks[row["set"]])
            outcomes = outcome_words(row)
            if outcomes:
                self.print(f"  {name}{outcomes}")
        for alarm in self._health.alarms():
            if alarm.state == "over":
                self.print(alarm.text)
                self.notifier.send(alarm.text)
            else:
                text = f"Warning: {alarm.text}"
                self.print(text, style="red")
                self.notifier.send(text)

    def checkpoint_failed(self, reason: str) -> None:
        text = f"Warning: no checkpoint was written: {reason}. Training continues, and the next checkpoint is tried."
        self.print(text, style="red")
        self.notifier.send(text)

    def _post_decision(self, name: str, outlook: "CurveResult | None") -> None:
        """Post the state of a run and what to do, if they have changed."""
        from scalerl.forecast.curves import State

        if outlook is None or outlook.decision is None or outlook.decision.state == State.TOO_EARLY:
            return
        before = self._decided.get(name)
        self._decided[name] = (outlook.decision.state, outlook.decision.action)
        if self._decided[name] != before:
            self.notifier.send(f"{name} is {outlook.decision.state}: {outlook.to_do}\n{self.last_lines[-1]}")

    def hung(self, reason: str) -> None:
        self.close()
        sys.stderr.write(f"error: {reason}\n")
        sys.stderr.flush()
        self.notifier.send(f"failed: {reason}")
        self.notifier.close()


def outcome_words(row: Mapping[str, Any]) -> str:
    """Count the answers by the outcomes that their grader named; "" without outcomes."""
    counts = {key.removeprefix("outcome/"): num for key, num in row.items() if key.startswith("outcome/")}
    counts.pop("stopped_frac", None)
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{num:,} {name.replace('_', ' ')}" for name, num in ordered)


def forecast_words(outlook: "CurveResult | None") -> str:
    """Return the forecast as the end of a line."""
    from scalerl.forecast.report.wording import fixed, interval_text

    if outlook is None or outlook.decision is None:
        return ""
    parts = ["", str(outlook.decision.state)]
    if outlook.ceiling is not None:
        parts.append(f"ceiling {interval_text(outlook.ceiling, fixed(3))}")
    if outlook.at_end is not None:
        parts.append(f"end {interval_text(outlook.at_end.reward, fixed(3))}")
    return "  ".join(parts)


def _number(value: float | None, digits: int = 3) -> str:
    return "none" if value is None else f"{value:.{digits}f}"
