"""scalerl study: run the arms of a question and report on them."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scalerl.cli import options as opt
from scalerl.cli.console import new_console, print_json
from scalerl.cli.options import argument, flag, option
from scalerl.cli.recipe import gpu_visible
from scalerl.cli.watch import board_beside

if TYPE_CHECKING:
    from rich.console import Console

    from scalerl.study.plan import Plan
    from scalerl.study.probe import Cost, Pace
    from scalerl.study.runner import RunStatus

TRAIN = (sys.executable, "-m", "scalerl", "train", "--no-plots")
INTERRUPTED = 130
MISTAKEN = 2


def study(
    name: str | None = argument("NAME|FILE", "A study's name or a TOML file. Left out: list all names.", None),
    out: Path | None = option("DIR", "Study folder to write. Unset: runs/NAME."),
    overrides: list[str] | None = option(
        "KEY=VALUE",
        "Change a setting of every arm that does not set it, one of an arm (arms.NAME.KEY), or seeds, compute, "
        "fit, holdout or budget.policy (uniform, halving, forecast); may be repeated.",
        "--set",
    ),
    jobs: int = option("N", "Runs at the same time, each on a GPU of its own if there are enough.", default=1, min=1),
    resume: bool = flag("--resume", "Continue the study in --out; arms and seeds may be added, and budgets raised."),
    dry_run: bool = flag("--dry-run", "Print the arms and what they will cost; run nothing."),
    as_json: bool = opt.JSON,
    board: bool = opt.BOARD,
    trust_remote_code: bool = opt.TRUST,
) -> None:
    """Run every arm and seed of a study as a run of its own, then write a report that compares them.

    After Ctrl-C or a kill, --resume continues and repeats nothing that is done. See also: report, watch, plan.

    A file of your own names a base recipe, what each arm changes in it, seeds and a budget:

    [dim]base = "tiny-cpu"
    seeds = \\[0, 1]
    budget.steps = 60
    \\[arms.dapo]
    loss = "dapo"[/dim]

    [dim]scalerl study tiny-loo --out runs/tiny-loo[/dim]
    """
    # As in "scalerl recipe list".
    if name in (None, "list"):
        _list(as_json)
        return
    from scalerl.study.plan import check_runnable, make_plan
    from scalerl.study.spec import divided, load_study

    gpus = visible_gpus()
    of_study, of_recipes = divided(overrides or ())
    plan = make_plan(*load_study(name, of_study), of_recipes, gpu=gpu_visible())
    out = out or Path("runs") / plan.name
    allowed = ["--trust-remote-code"] if trust_remote_code else []
    train = (*TRAIN, *allowed)
    if dry_run:
        num = len(gpus) or 1
        raise typer.Exit(_show_plan(plan, out, train, jobs=jobs, num_devices=num, resume=resume, as_json=as_json))
    check_runnable(plan)
    again = _again(name, out, overrides or (), jobs, allowed)
    with board_beside(out, wanted=board):
        raise typer.Exit(_run(plan, out, train, jobs=jobs, gpus=gpus, resume=resume, as_json=as_json, again=again))


def _again(name: str, out: Path, overrides: Sequence[str], jobs: int, allowed: Sequence[str] = ()) -> str:
    """Return the command that resumes a study."""
    changes = [word for text in overrides for word in ("--set", text)]
    at_once = ["--jobs", str(jobs)] if jobs > 1 else []
    return shlex.join(["scalerl", "study", name, "--out", str(out), *changes, *at_once, *allowed, "--resume"])


def visible_gpus() -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES may name, without importing torch; empty if there are none."""
    if not gpu_visible():
        return []
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [name.strip() for name in chosen.split(",") if name.strip()]
    # Numbered anew by CUDA: in a container /dev/nvidia5 may be its first.
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _list(as_json: bool) -> None:
    from scalerl.study.spec import list_studies, load_study

    studies = {name: load_study(name)[1] for name in list_studies()}
    if as_json:
        print_json("study", studies={name: one.description for name, one in studies.items()})
        return
    width = max(map(len, studies), default=0)
    for name, one in studies.items():
        typer.echo(f"{name:{width}}  {one.description}")


def _say(console: "Console", text: str, style: str | None = None) -> None:
    # Never wrapped, and a bracket is a bracket: in a log file a line stays what it was.
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


# Running --------------------------------------------------------------------------------------------------------------


def _run(
    plan: "Plan",
    out: Path,
    train: Sequence[str],
    *,
    jobs: int,
    gpus: Sequence[str],
    resume: bool,
    as_json: bool,
    again: str,
) -> int:
    from scalerl.report.decisions import choice_json, choice_text, last_choice
    from scalerl.study.controller import Controller
    from scalerl.study.folder import check_asked, fair_axis, opened, policy_record
    from scalerl.study.live_table import Screen
    from scalerl.study.runner import Runner

    console = new_console(stderr=as_json)
    check_asked(out, resume)
    _try_out(console, plan, out, train)
    with opened(plan, out, jobs=jobs, shares_device=jobs > max(len(gpus), 1), resume=resume) as lock:
        if plan.adds_base:
            base = plan.base.name
            _say(console, f"The base, {base}, is added as an arm: no arm of the study file is the base itself.")
        _say_skipped(console, plan)
        screen = Screen(console, len(plan.runs))
        try:
            runner = Runner(
                plan,
                out,
                command=train,
                lock=lock,
                observer=screen,
                axis=fair_axis(out, plan.study.compute),
                jobs=jobs,
                devices=gpus if jobs > 1 else (),
                controller=Controller(plan, out) if policy_record(plan) is not None else None,
            )
            screen.already_done(sum(status.state == "done" for status in runner.statuses))
            runner.run()
        finally:
            screen.close()
        report = None if runner.interrupted else _report(console, out)
    choice = None if policy_record(plan) is None else last_choice(out)
    if choice is not None:
        _say(console, choice_text(choice))
    _conclude(console, runner.statuses, out, report, again, is_chosen=choice is not None)
    if runner.interrupted:
        _say(console, f"On what there is so far: scalerl report {shlex.quote(str(out))}")
    if as_json:
        print_json("study", **summary(plan, out, runner.statuses, report), choice=choice_json(choice))
    if runner.interrupted:
        return INTERRUPTED
    # A policy that has made its choice leaves runs paused on purpose.
    ended = ("done", "paused", "waiting", "stopped") if choice is not None else ("done",)
    return int(any(status.state not in ended for status in runner.statuses))


def _try_out(console: "Console", plan: "Plan", out: Path, train: Sequence[str]) -> None:
    """Refuse a study of which some arm cannot begin: its turn may come after days of others."""
    from scalerl.study.probe import check_arms, untried

    if arms := untried(plan, out):
        names = ", ".join(arm.name for arm in arms)
        _say(console, f"Looking whether {names} can be set up ...")
        check_arms(arms, train)


def _say_skipped(console: "Console", plan: "Plan") -> None:
    """Say which arms are not run, by reason."""
    for reason in dict.fromkeys(arm.skipped for arm in plan.arms if arm.skipped is not None):
        names = [arm.name for arm in plan.arms if arm.skipped == reason]
        are = "is" if len(names) == 1 else "are"
        _say(console, f"{', '.join(names)} {are} not run: {reason}.", style="yellow")


def _report(console: "Console", out: Path) -> Path | None:
    """Write a report on the runs so far and return its page; if that fails, print why and return None."""
    from scalerl.errors import InputError
    from scalerl.report.write import write_report

    try:
        written = write_report([out])
    except InputError as error:
        _say(console, f"No report: {error}")
        return None
    for warning in written.warnings:
        _say(console, f"warning: {warning}", style="yellow")
    return written.page


def _conclude(
    console: "Console",
    statuses: "Sequence[RunStatus]",
    out: Path,
    report: Path | None,
    again: str,
    is_chosen: bool = False,
) -> None:
    from scalerl.study.folder import log_file

    num_done = sum(status.state == "done" for status in statuses)
    lines = [f"{num_done} of {len(statuses)} runs are done."]
    for status in statuses:
        if status.state == "failed":
            lines.append(f"{status.run.name} failed: {status.reason}; its log is {log_file(out, status.run)}")
    if report is not None:
        lines.append(f"The report is {report}")
    if num_done < len(statuses) and not is_chosen:
        lines.append(f"To go on: {again}")
    for line in lines:
        _say(console, line)


def summary(plan: "Plan", out: Path, statuses: "Sequence[RunStatus]", report: Path | None) -> dict[str, Any]:
    """Return the outcome of a study as JSON types."""
    rows = []
    for status in statuses:
        progress = status.progress
        rows.append(
            {
                "arm": status.run.arm,
                "seed": status.run.seed,
                "folder": str(status.folder),
                "state": status.state,
                "reason": status.reason,
                "seconds": round(status.seconds, 1),
                "step": progress.step,
                "reward": progress.reward,
                "ceiling": None if progress.ceiling is None else asdict(progress.ceiling),
            }
        )
    skipped = {arm.name: arm.skipped for arm in plan.arms if arm.skipped is not None}
    return {
        "study": plan.name,
        "folder": str(out),
        "report": None if report is None else str(report),
        "runs": rows,
        "skipped": skipped,
    }


# The plan -------------------------------------------------------------------------------------------------------------


def _show_plan(
    plan: "Plan", out: Path, train: Sequence[str], *, jobs: int, num_devices: int, resume: bool, as_json: bool
) -> int:
    """Show the plan of a study and what is left to pay for; return the exit code."""
    from scalerl.errors import StudyError
    from scalerl.study.folder import check_asked, record
    from scalerl.study.plan import check_runnable
    from scalerl.study.probe import Cost, cost, probe, runs_left

    check_asked(out, resume)
    console = new_console(stderr=as_json)
    _print_plan(console, plan)
    num_left = len(runs_left(plan, out))
    content = record(plan, jobs=jobs, shared_device=jobs > num_devices)
    content |= {"num_done": len(plan.runs) - num_left, "cost": None, "problems": []}
    try:
        check_runnable(plan)
        _try_out(console, plan, out, train)
        if resume:
            left = "the cost below is that of the others" if num_left else "nothing is left to pay for"
            _say(console, f"{len(plan.runs) - num_left} of {len(plan.runs)} runs are done already: {left}.")
        content["cost"] = asdict(Cost())
        if num_left:
            _say(console, f"Timing a few steps of {plan.base.name} ...")
            pace = probe(plan.base.recipe, train)
            total = cost(plan, out, pace)
            content["cost"] = asdict(total)
            _print_cost(console, plan, total, pace, jobs=jobs, num_devices=num_devices)
    except StudyError as error:
        content |= {"cost": None, "problems": list(error.problems)}
        _say(console, f"It cannot be run as it is: {error}")
    if as_json:
        print_json("study", plan=content)
    return MISTAKEN if content["problems"] else 0


def _print_plan(console: "Console", plan: "Plan") -> None:
    from scalerl.study.plan import show_changes

    num_arms, num_seeds, num_runs = len(plan.arms), len(plan.study.seeds), len(plan.runs)
    num_arms -= sum(arm.skipped is not None for arm in plan.arms)
    _say(console, f"{plan.name}: {plan.study.description}".removesuffix(": "))
    for arm in plan.arms:
        words = show_changes(arm) or f"the base, {plan.study.base}"
        _say(console, f"  {arm.name}: {words}{' (not run)' * (arm.skipped is not None)}")
    _say_skipped(console, plan)
    _say(
        console,
        f"{counted(num_arms, 'arm')} x {counted(num_seeds, 'seed')} = {counted(num_runs, 'run')} of {_budget(plan)}",
    )


def _budget(plan: "Plan") -> str:
    units = {"gpu_hours": _hours_name(), "flops": "FLOPs"}
    limits = [(key, value) for key, value in plan.base.recipe.budget if value is not None]
    return ", ".join(counted(value, "step") if key == "steps" else f"{value:,g} {units[key]}" for key, value in limits)


def _hours_name() -> str:
    return "GPU-hours" if gpu_visible() else "CPU-hours"


def counted(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'s' * (num != 1)}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _print_cost(console: "Console", plan: "Plan", total: "Cost", pace: "Pace", *, jobs: int, num_devices: int) -> None:
    from scalerl.report.numbers import duration

    hours = max(total.hours / min(jobs, num_devices), total.longest_run_hours)
    _say(
        console,
        f"About {duration(hours * 3600)} and {total.gpu_hours:,.3g} {_hours_name()} of training "
        f"({counted(total.steps, 'step')}), at {_seconds(pace.step_s)} a step and {_seconds(pace.sample_s)} an "
        f"evaluated completion, as timed just now on {plan.base.name}. A completion is taken to cost the same in every "
        f"arm and at every step; longer ones cost more.",
    )
    if jobs > num_devices:
        _say(
            console,
            f"--jobs {jobs} is counted as no faster than --jobs {num_devices}, since there is no further device; the "
            f"report will then compare by FLOPs, for runs that share a device distort each other's time.",
        )
