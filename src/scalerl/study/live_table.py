"""Show a study on the terminal: a live table of all runs, or a line per event if the output is not a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalerl.forecast.report.numbers import duration, fixed, interval_text
from scalerl.study.plan import PlannedRun
from scalerl.study.progress import RunStatus

STYLES = {
    "waiting": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "paused": "magenta",
}


class Screen:
    """Shows the events of a Runner. Lines are printed above the table, on the same console."""

    def __init__(self, console: Console, num_runs: int) -> None:
        self.console, self._num_runs, self._num_finished = console, num_runs, 0
        # Refreshed by hand: a refresh thread would be copied into every process that is started.
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        if self._live is not None:
            self._live.start()

    def already_done(self, num: int) -> None:
        self._num_finished = num
        if num:
            self._say(f"{num} of {self._num_runs} runs are already done.")

    def started(self, status: RunStatus) -> None:
        if self._live is None:
            self._say(f"{status.run.name} started")

    def finished(self, status: RunStatus) -> None:
        self._num_finished += status.state in ("done", "failed")
        if self._live is None or status.state == "failed":
            self._say(f"[{self._num_finished}/{self._num_runs}] {event_line(status)}")

    def progressed(self, statuses: Sequence[RunStatus]) -> None:
        if self._live is not None:
            self._live.update(table(statuses), refresh=True)

    def stopping(self, num_running: int, at_once: bool) -> None:
        if at_once:
            self._say("Stopping at once.")
        else:
            runs = f"{num_running} run{'s' * (num_running != 1)}"
            self._say(f"Stopping {runs} after this step, with a checkpoint; Ctrl-C again stops at once.")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


def event_line(status: RunStatus) -> str:
    """Say in one line how a run ended."""
    words = f"{status.run.name} {status.state} after {duration(status.seconds)}"
    if status.state == "failed":
        return f"{words}: {status.reason}"
    if status.progress.reward is not None:
        words += f", reward {status.progress.reward:.3f}"
    if status.progress.ceiling is not None:
        words += f", ceiling {interval_text(status.progress.ceiling, fixed(3))}"
    if status.progress.decision is not None:
        words += f", {status.progress.decision.state}"
    return words


def table(statuses: Sequence[RunStatus]) -> Table:
    """Return a table of all runs with their state, step, time, reward, ceiling and the state of their curve."""
    made = Table(box=box.SIMPLE_HEAD)
    for header in ("arm", "seed", "state", "step", "time", "reward", "ceiling", "curve"):
        made.add_column(header, no_wrap=header == "arm", overflow="fold")
    for status in statuses:
        progress = status.progress
        made.add_row(
            Text(status.run.arm),
            str(status.run.seed),
            Text(status.state, style=STYLES[status.state]),
            _steps(status.run, progress.step),
            duration(status.seconds) if status.seconds else "",
            "" if progress.reward is None else f"{progress.reward:.3f}",
            Text("" if progress.ceiling is None else interval_text(progress.ceiling, fixed(3))),
            Text("" if progress.decision is None else progress.decision.state),
        )
    return made


def _steps(run: PlannedRun, step: int | None) -> str:
    if step is None:
        return ""
    total = run.recipe.budget.steps
    return str(step) if total is None else f"{step}/{total}"
