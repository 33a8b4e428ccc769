"""Runs in every layout, killed at random moments and resumed: nothing is lost, trained twice, or left behind.

    pytest -m slow tests/training/run/test_kills.py -s        5 kills in each layout, and a line about each

A kill hits the driver, or any process that it started. Moments and victims are drawn from a seed: SCALERL_KILL_SEED.
What no kill shows is in FAULTS: a process that is stopped, and Ray's own servers.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray_processes import (
    LOOPBACK,
    command_line,
    listening,
    processes_with,
    shared_memory,
    shared_memory_of,
)
from ray_runs import kinds_of_loss
from small_runs import SHORT, SMALL, check_lineage
from until import wait_until

from scalerl.runfolder import store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_KILLS = 5
SEED = int(os.environ.get("SCALERL_KILL_SEED", "0"))
PATIENCE_S = 600.0
"""For what takes seconds on a machine that does nothing else."""
MARK = "SCALERL_KILL_TEST"

PROGRAMS = (
    'task=""',
    'tasks.code={name="programs", num_problems=24, max_steps=2, show_example=false}',
    "model.path=tiny-code-base",
    "rollout.max_prompt_tokens=38",
    "rollout.context=112",
    "length.thinking_min=64",
    "length.thinking_max=68",
)
CHILDREN = ("rollout.generators=2", "rollout.max_replacements=100")
RANKS = ("learner.ranks=2", "learner.sharding=full")
RAY = ("cluster.address=local",)
TALKING = ('task.environment="own_environments:Nudge"',)
"""A process per conversation."""
TOOLS = ("model.path=tiny-tools-base", 'task.environment={name="calculator", max_turns=4}', "rollout.context=96")
SUPPORT = Path(__file__).parents[2] / "support"
CRITIC = ("critic.lr=1e-3", 'advantage.credit="gae"', "filter.zero_variance=false")
PARTS = ("kl.coefficient=0.01", 'imitation="correct"', 'correction="band"', 'entropy="clip_cov"')
REFILL = ("filter.refill=2",)
FEW_BITS = ("model.lora.rank=4", "model.lora.bits=4", "optimizer.bits=8")
ON_HOST = ("optimizer.bits=8", "optimizer.on_host=true")
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "one device": (),
    "critic": CRITIC,
    "parts of a loss": PARTS,
    "refill": REFILL,
    "adapters over 4 bits": FEW_BITS,
    "state on the host": ON_HOST,
    "tools": TOOLS,
    "sandboxes": PROGRAMS,
    "conversations": TALKING,
    "generators": CHILDREN,
    "generators with conversations": CHILDREN + TALKING,
    "generators on ray": CHILDREN + RAY,
    "ranks": RANKS,
    "ranks and generators": RANKS + CHILDREN,
    "ranks and generators on ray": RANKS + CHILDREN + RAY,
    "vllm": ("rollout.engine=vllm",),
}


class Killed:
    """A run as a command of its own, with a temporary folder and a mark by which all of its processes are found."""

    def __init__(self, layout: str, folder: Path, temporary: Path) -> None:
        self.folder, self.temporary, self.log = folder, temporary, folder.with_suffix(".log")
        self._settings = (*SMALL, *SHORT, *LAYOUTS[layout])
        self._mark = f"{MARK}={folder}"
        self._memory: set[str] = set()

    @contextmanager
    def started(self, steps: int) -> Iterator["subprocess.Popen[bytes]"]:
        words = [word for setting in (*self._settings, f"budget.steps={steps}") for word in ("--set", setting)]
        command = [sys.executable, "-m", "scalerl", "train", "tiny-cpu", "--no-plots", "--out", str(self.folder)]
        name, _, value = self._mark.partition("=")
        # A cache of torch that is meant to stay is elsewhere.
        own = {"TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": f"{self.folder}-cache", name: value}
        own["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(SUPPORT)])
        command += [*words, *["--resume"] * self.folder.exists()]
        with (
            self.log.open("ab") as log,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | own) as driver,
        ):
            try:
                yield driver
            finally:
                driver.kill()

    def num_rows(self) -> int:
        path = self.folder / store.METRICS
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def processes(self) -> set[int]:
        """Return the processes of the run, and note the shared memory that they have."""
        found = processes_with(self._mark)
        self._memory |= shared_memory_of(found)
        return found

    def check_nothing_left(self) -> float:
        """Wait until no process, file or shared memory of the run is left; return the seconds that it took."""
        begun = time.monotonic()
        wait_until(lambda: not self.processes(), PATIENCE_S, "the end of all processes")
        wait_until(lambda: not list(self.temporary.iterdir()), PATIENCE_S, "the end of temporary files")
        wait_until(lambda: not self._memory & shared_memory(), PATIENCE_S, "the end of shared memory")
        return time.monotonic() - begun


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short name: those of Ray's sockets must be."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_run_loses_no_row_and_leaves_no_process(tmp_path: Path, temporary: Path, layout: str):
    if "ray" in layout:
        pytest.importorskip("ray")
    if layout == "vllm":
        pytest.importorskip("vllm")
    draw = random.Random(f"{SEED} {layout}")
    run = Killed(layout, tmp_path / "run", temporary)
    for number in range(1, NUM_KILLS + 1):
        before, begun = run.num_rows(), time.monotonic()
        with run.started(steps=100_000) as driver:
            moment = when_to_kill(run, driver, draw, before)
            victim, processes = driver.pid, sorted(run.processes())
            if moment != "starting" and draw.random() < 0.5:
                victim = draw.choice(processes)
            what = "driver" if victim == driver.pid else command_line(victim)[:60] or "a process that had ended"
            at_s, rows = time.monotonic() - begun, run.num_rows() - before
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                what += " (it had ended)"
            followed = "ended with it" if victim == driver.pid else what_followed(run, driver)
        left_s = run.check_nothing_left()
        status = store.read_status(run.folder) if (run.folder / store.STATUS).exists() else None
        assert status is None or status["status"] == "failed", status
        print(
            f"{layout} | {number} | {moment}, {at_s:.1f} s, {rows} rows | {what} | {followed} | nothing left after "
            f"{left_s:.1f} s | {'no status yet' if status is None else status['status'] + ': ' + status['reason']}"
        )
    # Enough for two epochs, so that one of them is certainly complete.
    steps = max(run.num_rows() + 3, 14)
    with run.started(steps) as driver:
        assert driver.wait(PATIENCE_S) == 0, run.log.read_text()
    run.check_nothing_left()
    assert (store.read_status(run.folder) or {})["status"] == "done"
    check_lineage(run.folder, steps)


RANK = r"has given no sign of life for 15 s"
FAULTS = {
    ("ranks", r".*scalerl\.remote\.child", signal.SIGSTOP): f"of the learner {RANK}: it was stopped",
    ("ranks and generators on ray", "ray::LearnerRank", signal.SIGSTOP): RANK,
    ("ranks and generators on ray", "ray::LearnerRank", signal.SIGKILL): r"process \d+ on node .* died",
    ("generators on ray", "ray::Generator", signal.SIGSTOP): "",
    ("generators on ray", r"\S*/raylet ", signal.SIGKILL): "Ray on this machine",
    ("generators on ray", r"\S*/gcs_server ", signal.SIGKILL): "Ray on this machine",
}
"""Layout, command line of the victim and signal; then why the run ends, empty where it goes on."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: " ".join(map(str, fault)))
def test_lost_process_is_replaced_or_ends_the_run(
    tmp_path: Path, temporary: Path, fault: tuple[str, str, signal.Signals]
):
    layout, victims, number = fault
    if "ray" in layout:
        pytest.importorskip("ray")
    run = Killed(layout, tmp_path / "run", temporary)
    with run.started(steps=100_000) as driver:
        wait_until(lambda: driver.poll() is not None or run.num_rows() >= 3, PATIENCE_S, "step 3")
        assert listening(run.processes()) <= LOOPBACK
        *_, victim = sorted(pid for pid in run.processes() if re.match(victims, command_line(pid)))
        os.kill(victim, number)
        if FAULTS[fault]:
            assert what_followed(run, driver) == "ended"
        else:
            wait_until(lambda: "silent" in kinds_of_loss(run.folder), PATIENCE_S, "the loss")
            assert what_followed(run, driver) == "went on"
    run.check_nothing_left()
    assert "Traceback" not in run.log.read_text()
    if FAULTS[fault]:
        assert re.search(FAULTS[fault], (store.read_status(run.folder) or {})["reason"])
    # Other devices may continue it.
    steps = max(run.num_rows() + 3, 14)
    with Killed("one device", run.folder, temporary).started(steps) as driver:
        assert driver.wait(PATIENCE_S) == 0, run.log.read_text()
    check_lineage(run.folder, steps)


def when_to_kill(run: Killed, driver: "subprocess.Popen[bytes]", draw: random.Random, before: int) -> str:
    """Wait for a random moment, while the run starts or after some more rows; return which."""
    if draw.random() < 0.3:
        time.sleep(draw.uniform(0.0, 10.0))
        return "starting"
    rows = before + draw.randint(1, 5)

    def there() -> bool:
        assert driver.poll() is None, run.log.read_text()
        return run.num_rows() >= rows

    wait_until(there, PATIENCE_S, f"row {rows}")
    time.sleep(draw.uniform(0.0, 1.0))
    return "training"


def what_followed(run: Killed, driver: "subprocess.Popen[bytes]") -> str:
    """Wait until the run continues or ends after the loss of a process; check the reason if it ended."""
    rows = run.num_rows() + 8
    wait_until(lambda: driver.poll() is not None or run.num_rows() >= rows, PATIENCE_S, "the end, or more rows")
    if driver.poll() is None:
        return "went on"
    assert driver.returncode == 1, run.log.read_text()
    status = store.read_status(run.folder)
    assert status is not None
    assert status["status"] == "failed"
    assert "--resume" in status["reason"], status
    return "ended"
