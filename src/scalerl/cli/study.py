"""scalerl study: run the arms of a study and report on them."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scalerl.cli import options as opt
from scalerl.cli.console import new_console, print_json, show
from scalerl.cli.options import argument, flag, option
from scalerl.cli.recipe import gpu_visible
from scalerl.cli.watch import board_beside
from scalerl.runfolder import store

if TYPE_CHECKING:
    from rich.console import Console

    from scalerl.study.plan import StudyPlan
    from scalerl.study.probe import Cost, Pace
    from scalerl.study.runner import Runner, RunStatus
    from scalerl.web.notify import Notifier

TRAIN = (sys.executable, "-P", "-m", "scalerl", "train", "--no-plots")
INTERRUPTED = 130
MISTAKEN = 2


def study(
    name: str | None = argument("NAME|FILE", "A study's name or a TOML file. Left out: list all names.", None),
    out: Path | None = option("DIR", "Study folder to write. Unset: runs/NAME."),
    overrides: list[str] | None = option(
        "KEY=VALUE",
        "Change a setting of all arms, of one arm (arms.NAME.KEY), or base, seeds, compute, fit, holdout.",
        "--set",
    ),
    jobs: int = option("N", "Number of simultaneous runs, each on its own GPU if there are enough.", default=1, min=1),
    resume: bool = flag("--resume", "Continue in --out; you may add arms and seeds, and raise budgets."),
    dry_run: bool = flag("--dry-run", "Print the arms and their cost; run nothing."),
    price: float | None = option("MONEY", "With --dry-run: price of a GPU-hour, to add costs.", check=opt.positive),
    as_json: bool = opt.JSON,
    board: bool = opt.BOARD,
    notify: str | None = opt.NOTIFY,
    trust_remote_code: bool = opt.TRUST,
    help_all: bool = opt.HELP_ALL,
) -> None:
    """Run every arm of a study with every seed, then write a report that compares them.

    [dim]scalerl study loo --set base=tiny-cpu --out runs/loo[/dim]

    A study file names a base recipe, the changes of each arm, seeds and a budget:

    [dim]base = "tiny-cpu"
    seeds = \\[0, 1]
    budget.steps = 60
    \\[arms.dapo]
    loss = "dapo"[/dim]

    After Ctrl-C or a kill, --resume continues the unfinished runs. See also: report, watch, plan.
    """
    # "list" works too, as in "scalerl recipe list".
    if name in (None, "list"):
        _list(as_json)
        return
    from scalerl.errors import UsageError
    from scalerl.recipe.import_path import announce
    from scalerl.recipe.recipe import code_outside
    from scalerl.study.folder import check_folder
    from scalerl.study.plan import check_runnable, make_plan
    from scalerl.study.spec import divided, load_study
    from scalerl.web.notify import Notifier

    if price is not None and not dry_run:
        raise UsageError("--price adds costs to an estimate: add --dry-run")
    of_study, of_recipes = divided(overrides or ())
    plan = make_plan(*load_study(name, of_study), of_recipes, gpu=gpu_visible())
    out = out or Path("runs") / plan.name
    command = StudyCommand(
        plan=plan,
        out=out,
        train=(*TRAIN, *["--trust-remote-code"] * trust_remote_code),
        jobs=jobs,
        gpus=visible_gpus(),
        resume=resume,
        # Each run posts its own alarms and its end.
        variables={opt.NOTIFY_VARIABLE: notify} if notify else {},
        console=new_console(stderr=as_json),
    )
    check_folder(out, resume)
    # Announce it here: the output of the runs is in files.
    announce(*chain.from_iterable(code_outside(run.recipe) for run in plan.runs))
    if dry_run:
        content, code = _show_plan(command, price)
    else:
        check_runnable(plan)
        with board_beside(out, wanted=board), Notifier(notify, plan.name, warn=command.say) as notifier:
            content, code = _run(command, notifier)
    if as_json:
        print_json("study", **content)
    raise typer.Exit(code)


def visible_gpus() -> list[str]:
    """Return the visible GPUs as CUDA_VISIBLE_DEVICES names them, without importing torch; empty without GPUs."""
    if not gpu_visible():
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen:
        return [name.strip() for name in chosen.split(",") if name.strip()]
    # CUDA numbers them from 0: in a container its first GPU may be /dev/nvidia5.
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _list(as_json: bool) -> None:
    from scalerl.recipe.load import shipped
    from scalerl.study.spec import load_study

    studies = {name: load_study(name)[1].description for name in shipped("study")}
    width = max(map(len, studies), default=0)
    lines = [f"{name:{width}}  {description}" for name, description in studies.items()]
    show("study", as_json, {"studies": studies}, lambda: lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCommand:
    """The options of the command, resolved on this machine."""

    plan: "StudyPlan"
    out: Path
    train: Sequence[str]
    """The command that trains."""
    jobs: int
    gpus: Sequence[str]
    resume: bool
    variables: Mapping[str, str]
    """Environment variables of each run."""
    console: "Console"

    @property
    def num_devices(self) -> int:
        return max(len(self.gpus), 1)

    @property
    def shares_device(self) -> bool:
        """Whether several runs use one device at the same time."""
        return self.jobs > self.num_devices

    @property
    def hours_name(self) -> str:
        return store.hours_name("" if self.gpus else "cpu")

    def say(self, text: str, style: str | None = None) -> None:
        # Do not wrap lines, and do not interpret brackets as markup.
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def check_arms_start(self) -> None:
        """Raise StudyError if an arm cannot start: its turn may come only after days."""
        from scalerl.study.probe import arms_to_check, check_arms

        arms = arms_to_check(self.plan, self.out)
        if arms:
            self.say(f"Checking that {', '.join(arm.name for arm in arms)} can start ...")
            check_arms(arms, self.train)

    def print_skipped(self) -> None:
        """Print the arms that are not run, one line per reason."""
        skipped = [arm for arm in self.plan.arms if arm.skipped is not None]
        for reason in dict.fromkeys(arm.skipped for arm in skipped):
            names = [arm.name for arm in skipped if arm.skipped == reason]
            self.say(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not run: {reason}.", style="yellow")


# Running --------------------------------------------------------------------------------------------------------------


def _run(command: StudyCommand, notifier: "Notifier") -> tuple[dict[str, Any], int]:
    """Run the unfinished runs of a study; return the outcome for --json and the exit code."""
    from scalerl.study.folder import open_study

    plan = command.plan
    out = command.out
    command.check_arms_start()
    with open_study(plan, out, jobs=command.jobs, shares_device=command.shares_device, resume=command.resume) as lock:
        if plan.adds_base:
            command.say(
                f"The base, {plan.base.name}, is added as an arm, because no arm of the study file is the base."
            )
        command.print_skipped()
        runner = _run_all(command, lock)
        report = None if runner.interrupted else _report(command)
    statuses = runner.statuses
    _print_outcome(command, notifier, statuses, report)
    content = summary(plan, out, statuses, report)
    if runner.interrupted:
        command.say(f"For a report on the results so far: scalerl report {shlex.quote(str(out))}")
        return content, INTERRUPTED
    return content, int(any(status.state != "done" for status in statuses))


def _run_all(command: StudyCommand, lock: int) -> "Runner":
    """Run the unfinished runs of a study and print their events."""
    from scalerl.study.runner import Runner

    events = EventLines(command)
    runner = Runner(
        command.plan,
        command.out,
        command=command.train,
        lock=lock,
        observer=events,
        jobs=command.jobs,
        variables=command.variables,
        devices=command.gpus if command.jobs > 1 else (),
    )
    events.already_done(sum(status.state == "done" for status in runner.statuses))
    runner.run()
    return runner


class EventLines:
    """Prints a line for each event of a study."""

    def __init__(self, command: StudyCommand) -> None:
        self._command = command
        self._num_runs = len(command.plan.runs)
        self._num_finished = 0

    def already_done(self, num: int) -> None:
        self._num_finished = num
        if num:
            self._command.say(f"{num} of {self._num_runs} runs are already done.")

    def started(self, status: "RunStatus") -> None:
        self._command.say(f"{status.run.name} started")

    def finished(self, status: "RunStatus") -> None:
        self._num_finished += status.state in ("done", "failed")
        self._command.say(f"[{self._num_finished}/{self._num_runs}] {end_of_run(status)}")

    def stopping(self, num_running: int, at_once: bool) -> None:
        if at_once:
            self._command.say("Stopping at once.")
        else:
            runs = counted(num_running, "run")
            self._command.say(f"Stopping {runs} after this step, with a checkpoint; Ctrl-C again stops at once.")


def end_of_run(status: "RunStatus") -> str:
    """Say in one line how a run ended."""
    from scalerl.forecast.report.wording import duration

    ended = f"{status.run.name} {status.state} after {duration(status.seconds)}"
    if status.state == "failed":
        return f"{ended}: {status.reason}"
    if status.reward is None:
        return ended
    return f"{ended}, reward {status.reward:.3f}"


def _print_outcome(
    command: StudyCommand, notifier: "Notifier", statuses: "Sequence[RunStatus]", report: Path | None
) -> None:
    """Print and post how the runs ended, and print how to continue."""
    from scalerl.study.folder import log_file

    num_done = sum(status.state == "done" for status in statuses)
    lines = [f"{num_done} of {len(statuses)} runs are done."]
    for status in statuses:
        if status.state == "failed":
            log = log_file(command.out, status.run)
            lines.append(f"{status.run.name} failed: {status.reason}; its log is {log}")
    notifier.send("\n".join(lines))
    for line in lines:
        command.say(line)
    if report is not None:
        command.say(f"The report is {report}")
    if num_done < len(statuses):
        command.say("To continue: the same command with --resume")


def _report(command: StudyCommand) -> Path | None:
    """Write a report on the runs so far and return its page; if that fails, print why and return None."""
    from scalerl.errors import InputError
    from scalerl.forecast.report.build import write_report

    try:
        written = write_report([command.out])
    except InputError as error:
        command.say(f"No report: {error}")
        return None
    for warning in written.warnings:
        command.say(f"warning: {warning}", style="yellow")
    return written.page


def summary(plan: "StudyPlan", out: Path, statuses: "Sequence[RunStatus]", report: Path | None) -> dict[str, Any]:
    """Return the outcome of a study as JSON types."""
    rows = [
        {
            "arm": status.run.arm,
            "seed": status.run.seed,
            "folder": str(status.folder),
            "state": status.state,
            "reason": status.reason,
            "seconds": round(status.seconds, 1),
            "step": status.step,
            "reward": status.reward,
        }
        for status in statuses
    ]
    return {
        "study": plan.name,
        "folder": str(out),
        "report": None if report is None else str(report),
        "runs": rows,
        "skipped": {arm.name: arm.skipped for arm in plan.arms if arm.skipped is not None},
    }


# The plan -------------------------------------------------------------------------------------------------------------


def _show_plan(command: StudyCommand, price: float | None) -> tuple[dict[str, Any], int]:
    """Print the plan of a study and its remaining cost; return both for --json, and the exit code."""
    from scalerl.errors import StudyError
    from scalerl.study.folder import plan_record
    from scalerl.study.plan import check_runnable, show_changes
    from scalerl.study.probe import Cost, cost, probe, runs_left

    plan = command.plan
    say = command.say
    say(f"{plan.name}: {plan.study.description}".removesuffix(": "))
    for arm in plan.arms:
        changes = show_changes(arm) or f"the base, {plan.study.base}"
        say(f"  {arm.name}: {changes}{' (not run)' * (arm.skipped is not None)}")
    command.print_skipped()
    num_runs = len(plan.runs)
    num_left = len(runs_left(plan, command.out))
    num_seeds = len(plan.study.seeds)
    num_arms = sum(arm.skipped is None for arm in plan.arms)
    units = {"steps": "steps", "gpu_hours": command.hours_name, "flops": "FLOPs"}
    budget = ", ".join(f"{value:,g} {units[key]}" for key, value in plan.base.recipe.budget if value is not None)
    say(f"{counted(num_arms, 'arm')} x {counted(num_seeds, 'seed')} = {counted(num_runs, 'run')} of {budget}")
    content = plan_record(plan, jobs=command.jobs, shared_device=command.shares_device)
    content |= {"num_done": num_runs - num_left, "cost": asdict(Cost()), "problems": []}
    try:
        check_runnable(plan)
        command.check_arms_start()
        if command.resume:
            left = "the cost below is that of the others" if num_left else "nothing is left to run"
            say(f"{num_runs - num_left} of {num_runs} runs are already done: {left}.")
        if num_left:
            say(f"Timing a few steps of {plan.base.name} ...")
            pace = probe(plan.base.recipe, command.train)
            total = cost(plan, command.out, pace)
            content["cost"] = asdict(total)
            _print_cost(command, total, pace)
            if price is not None:
                content["cost"]["money"] = price * total.device_hours
                command.say(f"That costs about {price * total.device_hours:,.2f}, evaluations and start-up included.")
    except StudyError as error:
        content |= {"cost": None, "problems": list(error.problems)}
        say(f"This study cannot run: {error}")
    return {"plan": content}, MISTAKEN if content["problems"] else 0


def counted(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'s' * (num != 1)}"


def _print_cost(command: StudyCommand, total: "Cost", pace: "Pace") -> None:
    from scalerl.forecast.report.wording import duration

    at_once = min(command.jobs, command.num_devices)
    hours = max(total.hours / at_once, total.longest_run_hours)
    command.say(
        f"About {duration(hours * 3600)} and {total.gpu_hours:,.3g} {command.hours_name} of training "
        f"({counted(total.steps, 'step')}), at {pace.step_s:.3g} s per step and {pace.sample_s:.3g} s per "
        f"evaluated completion, measured just now on {command.plan.base.name}; longer completions cost more."
    )
    if command.jobs > at_once:
        command.say(
            f"--jobs {command.jobs} is not faster than --jobs {at_once}, because there is no other device; the report "
            f"will compare by FLOPs, because runs that share a device slow each other down."
        )
