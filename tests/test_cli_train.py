"""The training commands as a user types them: whole runs, signals, faults of the machine, mistakes."""

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from commands import checked_json
from safetensors import SafetensorError
from small_runs import SHORT, USUAL

from scalerl import store
from scalerl.cli import main
from scalerl.cli.train import Terminal
from scalerl.errors import EngineError
from scalerl.graders.pool import GraderPool
from scalerl.rollout.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("terminal_signals")

SHORT_TASK = 'tasks.a={name="arithmetic", num_problems=8}'
OTHER_TAGS = 'tasks.b={name="arithmetic", num_problems=8, thinking_start="<t>"}'
TINY = (
    "task.num_problems=8",
    "pipeline.groups_per_batch=2",
    "pipeline.completions_per_group=2",
    "pipeline.max_lag=1",
    "rollout.slots=8",
    "evaluation.num_prompts=2",
    "evaluation.samples_per_prompt=2",
    "evaluation.every=2",
    "checkpoint.every=1",
    "curriculum=uniform",
    *SHORT,
)


@dataclass(frozen=True, kw_only=True)
class Left:
    """How a command left."""

    code: int
    out: str
    err: str


Command = Callable[..., Left]


def settings(*more: str) -> list[str]:
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]


@pytest.fixture
def scalerl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The console script, in this process: what is heavy is imported once."""

    def call(*words: object) -> Left:
        monkeypatch.setattr(sys, "argv", ["scalerl", *map(str, words)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as error:
            code = error.code or 0
        return Left(code=code, **capsys.readouterr()._asdict())

    return call


def train(scalerl: Command, out: Path, *words: str, steps: int = 3) -> Left:
    return scalerl("train", "tiny-cpu", "--out", out, *settings(f"budget.steps={steps}"), *words)


def status(folder: Path) -> tuple[str, str]:
    found = store.read_status(folder)
    assert found is not None
    return found["status"], found["reason"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def when_stepped(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], None]) -> None:
    """Act once the row of this step is written."""
    stepped = Terminal.stepped

    def then_act(terminal: Terminal, row: Any) -> None:
        stepped(terminal, row)
        if row["step"] == step:
            act()

    monkeypatch.setattr(Terminal, "stepped", then_act)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps; not to be written into."""
    from scalerl.config import load_recipe
    from scalerl.run.run import Run

    folder = tmp_path_factory.mktemp("runs") / "finished"
    Run(load_recipe("tiny-cpu", [*TINY, "budget.steps=2"]), folder).train()
    return folder


# What works ----------------------------------------------------------------------------------------------------------


def test_a_run_is_checked_trained_resumed_and_exported(scalerl: Command, tmp_path: Path):
    out = tmp_path / "runs" / "a"
    checked = train(scalerl, out, "--check")
    assert checked.code == 0
    assert checked.out == (
        "tiny-cpu can be trained: 0.855M parameters on cpu, 2 x 2 answers a step, PipelineRL-1, cispo\n"
        "8 slots for batches of 4: expected mean lag 1, largest 1 steps\n"
        "optimizer.warmup_steps = 10 is not below budget.steps = 3: the learning rate is still rising when the run "
        "ends\n"
    )
    assert not out.parent.exists()
    trained = train(scalerl, out, steps=2)
    assert (trained.code, trained.err) == (0, "")
    assert "Done: budget of 2 steps spent" in trained.out
    assert status(out) == ("done", "budget of 2 steps spent")
    assert train(scalerl, out, "--resume", "--check", steps=3).code == 0
    assert status(out) == ("done", "budget of 2 steps spent")
    assert train(scalerl, out, "--resume", steps=3).code == 0
    assert [row["step"] for row in store.read_metrics(out)] == [1, 2, 3]
    exported = scalerl("export", out, "--out", tmp_path / "model")
    assert exported.out == f"Written to {tmp_path / 'model'}\n"
    measured = scalerl("eval", tmp_path / "model", *settings(), "--json")
    (row,) = checked_json(measured.out)["sets"]
    assert (row["set"], row["num_samples"]) == ("main", 4)
    assert scalerl("eval", tmp_path / "model", *settings()).out.startswith("main: ")


def test_progress_is_short_lines_in_a_log(scalerl: Command, tmp_path: Path):
    left = train(scalerl, tmp_path / "run", steps=10)
    lines = [line for line in left.out.splitlines() if line.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == [f"step {step}" for step in range(0, 11, 2)]
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("step 0  0 CPU-h  ")
    # Ten steps and four samples prove nothing, and so it says.
    assert {"Nothing learned beyond noise", "How sure", "Next"} <= {
        line.split(":")[0] for line in left.out.splitlines()
    }


@pytest.mark.parametrize(
    "changes, alarm, why",
    [
        (
            ("loss=own_code:infinite_loss", "filter.zero_variance=false"),
            "100% of the last steps changed no weight",
            "a loss or gradient",
        ),
        (("task.grader=own_code:wrong",), "100% of the last batches had nothing to train on", "an empty batch"),
    ],
)
def test_run_without_an_update_is_not_called_learned(scalerl: Command, tmp_path: Path, changes, alarm, why):
    words = [word for change in (*changes, "evaluation.every=3") for word in ("--set", change)]
    left = train(scalerl, tmp_path / "run", *words, steps=6)
    assert left.code == 0
    assert left.out.count(alarm) == 1
    assert f"Not trained: none of 6 steps changed a weight (6 had {why}" in left.out
    assert "Learned" not in left.out
    assert "How sure" not in left.out


def test_several_tasks_are_shown_and_fitted_separately(scalerl: Command, tmp_path: Path):
    out = tmp_path / "run"
    task = '{{name="arithmetic", num_problems=8, min_terms={0}, max_terms={0}, max_number=20, weight={1}}}'
    mixed = ('task=""', f"tasks.short={task.format(3, '3.0')}", f"tasks.long={task.format(4, '1.0')}")
    words = [word for one in (*TINY[1:], *mixed, "evaluation.every=1", "budget.steps=6") for word in ("--set", one)]
    trained = scalerl("train", "tiny-cpu", "--out", out, *words, "--no-plots")
    assert (trained.code, trained.err) == (0, "")
    lines = [line.split("  ") for line in trained.out.splitlines() if line.startswith("step ")]
    assert [(line[0], line[2].split(" ")[0]) for line in lines] == [
        (f"step {step}", name) for step in range(7) for name in ("short", "long")
    ]
    assert not list(out.glob("curve.*"))
    fitted = scalerl("fit", out, "--json")
    assert fitted.code == 0
    names = [curve["name"] for curve in checked_json(fitted.out)["curves"]]
    assert len(names) == 2
    assert all(any(name in one for one in names) for name in ("short", "long"))
    rows = checked_json(scalerl("eval", "tiny-base", *words, "--json").out)["sets"]
    assert [row["set"] for row in rows] == ["short", "long"]


def test_a_check_ends_the_processes_it_started(scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from scalerl.loop import grading

    pools: list[GraderPool] = []
    monkeypatch.setattr(grading, "GraderPool", lambda **limits: pools.append(GraderPool(**limits)) or pools[-1])
    left = train(scalerl, tmp_path / "run", "--check", "--set", 'task.grader="math"')
    assert left.code == 0
    (pool,) = pools
    assert pool.pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pool.pids)


# Signals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_first_signal_stops_with_a_checkpoint(
    scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
):
    out, before = tmp_path / "run", signal.getsignal(number)
    with monkeypatch.context() as patched:
        when_stepped(patched, 1, lambda: os.kill(os.getpid(), number))
        left = train(scalerl, out)
    assert left.code == code
    assert "Stopped at step 1, with a checkpoint: the same command with --resume goes on" in left.out
    assert status(out) == ("stopped", "asked to stop")
    assert (out / store.CHECKPOINTS / "step-00000001").is_dir()
    assert signal.getsignal(number) is before
    assert train(scalerl, out, "--resume").code == 0
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(out)] == [(1, 1), (2, 2), (3, 2)]
    assert [row["step"] for row in store.read_evals(out)] == [0, 2, 3]


@pytest.mark.parametrize("place", ["sampling", "evaluation"])
def test_sigterm_saves_within_a_step(scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str):
    """What sends SIGTERM soon kills: a step whose sampling takes an hour must not delay the checkpoint."""
    out, polls = tmp_path / "run", []
    # Completions of different lengths, so that the second batch is not there at once.
    words = [word for setting in (*USUAL, "checkpoint.every=100") for word in ("--set", setting)]
    with monkeypatch.context() as patched:
        poll = TorchEngine.poll

        def slow(engine: TorchEngine) -> Any:
            # The first evaluation and step pass; then no completion ever ends.
            ended = (out / store.METRICS).exists() if place == "sampling" else len(polls) > 2
            if not ended:
                polls.append(None)
                return poll(engine)
            os.kill(os.getpid(), signal.SIGTERM) if len(polls) < 100 else pytest.fail("it sampled on")
            polls.extend([None] * 100)
            return []

        patched.setattr(TorchEngine, "poll", slow)
        left = train(scalerl, out, *words)
    assert left.code == 143
    assert "Stopping now, with a checkpoint" in left.out
    step = 1 if place == "sampling" else 0
    assert (out / store.CHECKPOINTS / f"step-{step:08}").is_dir()
    assert status(out) == ("stopped", "asked to stop")
    assert train(scalerl, out, "--resume", *words).code == 0
    assert [row["step"] for row in store.read_evals(out)] == [0, 2, 3]
    assert [row["step"] for row in store.read_metrics(out)] == [1, 2, 3]


def test_second_signal_stops_at_once(scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "run"

    def twice() -> None:
        try:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            # An impatient user: these must not interrupt what the second one has to write.
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        when_stepped(patched, 2, twice)
        left = train(scalerl, out)
    assert left.code == 130
    assert "Stopped at once; the same command with --resume goes on after step 1, its last checkpoint" in left.out
    assert status(out)[0] == "stopped"
    assert not [path for path in out.rglob("*") if "unfinished" in path.name]
    assert [row["step"] for row in store.read_metrics(out)] == [1, 2]
    assert [path.name for path in (out / store.CHECKPOINTS).iterdir()] == ["step-00000001"]
    assert train(scalerl, out, "--resume").code == 0
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(out)] == [(1, 1), (2, 2), (3, 2)]


def test_ctrl_c_does_not_wait_for_an_evaluation(scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(
            Terminal, "evaluating", lambda terminal, *_: setattr(terminal._signals, "number", signal.SIGINT)
        )
        assert train(scalerl, out).code == 130
    assert store.read_evals(out) == []
    assert (out / store.CHECKPOINTS / "step-00000000").is_dir()
    with monkeypatch.context() as patched:
        # The evaluation after the second step, and the one at the end.
        when_stepped(patched, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert train(scalerl, out, "--resume").code == 130
    assert [row["step"] for row in store.read_evals(out)] == [0]
    assert (out / store.CHECKPOINTS / "step-00000002").is_dir()
    with monkeypatch.context() as patched:
        when_stepped(patched, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert train(scalerl, out, "--resume").code == 130
    assert status(out) == ("stopped", "asked to stop")
    assert train(scalerl, out, "--resume").code == 0
    assert [(row["step"], row["gpu_hours"] == 0) for row in store.read_evals(out)] == [
        (0, True),
        (2, False),
        (3, False),
    ]


@pytest.mark.parametrize("resume, message", [(False, "already holds a run"), (True, "does not hold a run to resume")])
def test_folder_is_refused_before_torch_is_loaded(tmp_path: Path, resume: bool, message: str):
    out = tmp_path / "run"
    store.create_run(out)
    store.write_json(out / (store.ENV if resume else store.RECIPE), {})
    program = "import sys\nfrom scalerl.cli import main\ntry:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "train", "tiny-cpu", "--out", str(out), *["--resume"] * resume]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert message in done.stderr
    assert done.stdout.strip() == "False"


def test_run_that_was_killed_before_it_began_is_started_again(scalerl: Command, tmp_path: Path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".recipe.json.7.unfinished").write_text("{")
    assert "start it again without --resume" in train(scalerl, out, "--resume").err
    assert train(scalerl, out, steps=1).code == 0


def test_steps_after_the_checkpoint_leave_the_curve(scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, often = tmp_path / "run", ("--set", "evaluation.every=1")
    with monkeypatch.context() as patched:
        patched.setattr("scalerl.run.checkpoint.save", lambda *_, **__: None)
        assert train(scalerl, out, *often, steps=4).code == 0
    assert [row["step"] for row in store.read_evals(out)] == [0, 1, 2, 3, 4]
    # It begins anew, and its budget is lower by now.
    assert train(scalerl, out, "--resume", *often, steps=2).code == 0
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(out)] == [(1, 2), (2, 2)]
    assert [(row["step"], row["attempt"]) for row in store.read_evals(out)] == [(0, 1), (1, 2), (2, 2)]
    assert len((out / store.EVALS).read_text().splitlines()) == 7
    # All of it was paid for.
    spent = [json.loads(line)["gpu_hours"] for line in (out / store.METRICS).read_text().splitlines()]
    assert spent == sorted(spent)


def test_run_from_before_a_setting_existed_resumes(scalerl: Command, tmp_path: Path, finished: Path):
    out = shutil.copytree(finished, tmp_path / "run")
    written = store.read_recipe(out)
    assert written is not None
    assert written.pop("grading")
    store.write_json(out / store.RECIPE, written)
    assert train(scalerl, out, "--resume").code == 0
    assert [row["step"] for row in store.read_metrics(out)] == [1, 2, 3]


# Faults of the machine -----------------------------------------------------------------------------------------------


class FullDisk:
    """From `fill` on, files may be written over and none may grow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._full, self._write = False, os.write
        monkeypatch.setattr(os, "write", self._write_within)

    def fill(self) -> None:
        self._full = True

    def _write_within(self, descriptor: int, data: bytes) -> int:
        grows = os.fstat(descriptor).st_size == 0 or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        if self._full and grows and os.path.isfile(f"/dev/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data)


@pytest.mark.parametrize("step, file", [(1, store.EVALS), (2, store.METRICS)], ids=["evaluation", "metrics"])
def test_full_disk_ends_the_run_with_an_error(
    scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, file: str
):
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        disk = FullDisk(patched)
        when_stepped(patched, step, disk.fill)
        # The evaluation comes before anything else is written, the next row of metrics after a checkpoint.
        words = ("--set", "evaluation.every=1" if file == store.EVALS else "evaluation.every=5")
        left = train(scalerl, out, *words, steps=4)
    assert left.code == 1
    where = "from the start" if file == store.EVALS else "after step 2, its last checkpoint"
    resumes = f"the same command with --resume goes on {where}"
    assert left.err == f"error: cannot write {out / file}: the disk is full; {resumes}\n"
    assert status(out) == ("failed", f"StoreError: cannot write {out / file}: the disk is full")
    for name in (store.METRICS, store.EVALS):
        assert (out / name).read_bytes().endswith(b"}\n")
    assert train(scalerl, out, "--resume", *words, steps=4).code == 0
    assert [row["step"] for row in store.read_metrics(out)] == [1, 2, 3, 4]


def test_full_disk_at_a_checkpoint_keeps_the_older_one(
    scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"

    def no_room(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patched:
        when_stepped(patched, 2, lambda: patched.setattr("safetensors.torch.save_file", no_room))
        left = train(scalerl, out)
    assert left.code == 1
    newest = out / store.CHECKPOINTS / "step-00000002"
    resumes = "the same command with --resume goes on after step 1, its last checkpoint"
    assert left.err == f"error: cannot write {newest}: the disk is full; what was there before is kept; {resumes}\n"
    assert status(out)[0] == "failed"
    assert [path.name for path in newest.parent.iterdir()] == ["step-00000001"]
    assert train(scalerl, out, "--resume").code == 0


def test_removed_run_folder_is_named_and_does_not_come_back(
    scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"
    when_stepped(monkeypatch, 1, lambda: shutil.rmtree(out))
    left = train(scalerl, out)
    assert left.code == 1
    assert f"the folder {out} is gone: it was removed or renamed\n" in left.err
    assert not out.exists()


def test_closed_output_stops_with_a_checkpoint(scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in `scalerl train ... | head -1`: the run must not end without a checkpoint because nobody reads it."""
    out = tmp_path / "run"

    class ClosedPipe(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with monkeypatch.context() as patched:
        when_stepped(patched, 2, lambda: patched.setattr(sys, "stdout", ClosedPipe()))
        left = train(scalerl, out)
    assert left.code == 128 + signal.SIGPIPE
    assert left.err.startswith("the output cannot be written any more. Stopped at step ")
    assert status(out) == ("stopped", "asked to stop")
    assert train(scalerl, out, "--resume").code == 0


def test_run_in_a_read_only_folder_is_refused_at_once(
    scalerl: Command, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
):
    out = shutil.copytree(finished, tmp_path / "run")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == out) and access(path, mode)
    )
    left = train(scalerl, out, "--resume")
    assert left.code == 2
    assert f"{out} cannot be written: no permission to write into {out}" in left.err


def test_grader_without_any_verdict_is_named_at_the_end(scalerl: Command, tmp_path: Path):
    (tmp_path / "mute_grader.py").write_text("def mute(text, answer):\n    return None\n")
    with contextlib.chdir(tmp_path):
        left = train(scalerl, tmp_path / "run", "--set", "task.grader=mute_grader:mute", steps=6)
    assert left.code == 0
    assert "so the model does not change: the grader gave no verdict on any answer." in left.out
    assert "Not measured: the grader gave no verdict in any evaluation (4)." in left.out


def test_dead_engine_ends_the_run_with_its_reason(scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "run"

    def die(engine: TorchEngine) -> None:
        raise EngineError("the device fell off the bus")

    when_stepped(monkeypatch, 1, lambda: monkeypatch.setattr(TorchEngine, "poll", die))
    left = train(scalerl, out)
    assert (left.code, left.err) == (1, "error: the device fell off the bus\n")
    assert status(out) == ("failed", "EngineError: the device fell off the bus")


def test_hung_engine_ends_the_process_with_the_reason(
    scalerl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, released = tmp_path / "run", threading.Event()
    at_exit: list[tuple[int, str, str]] = []

    def hang(engine: TorchEngine) -> None:
        released.wait(60)
        raise EngineError("a process that ended does not come here")

    def leave(code: int) -> None:
        at_exit.append((code, *status(out)))
        released.set()

    monkeypatch.setattr("scalerl.run.run.os._exit", leave)
    when_stepped(monkeypatch, 1, lambda: monkeypatch.setattr(TorchEngine, "poll", hang))
    left = train(scalerl, out, "--hung-after", "1")
    ((code, state, reason),) = at_exit
    assert (code, state) == (1, "failed")
    assert reason.startswith("the engine did not return for 1 s (it was at ")
    assert f"error: {reason}\n" in left.err


def test_damaged_checkpoint_error_says_how_to_continue(scalerl: Command, tmp_path: Path, finished: Path):
    out = shutil.copytree(finished, tmp_path / "run")
    newest = out / store.CHECKPOINTS / "step-00000002"
    weights = newest / "tensors.weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    before = contents(out)
    left = train(scalerl, out, "--resume")
    assert left.code == 2
    assert left.err.count("\n") == 1
    assert f"{newest} is damaged" in left.err
    assert "the older step-00000001 is intact: remove or rename step-00000002 to continue from there" in left.err
    assert contents(out) == before
    newest.rename(newest.with_name("step-00000002.damaged"))
    assert train(scalerl, out, "--resume").code == 0
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(out)] == [(1, 1), (2, 2), (3, 2)]


# Mistakes ------------------------------------------------------------------------------------------------------------


def mistakes(folder: Path, finished: Path) -> dict[str, tuple[list[object], tuple[str, ...]]]:
    """Each command with the words that its one sentence must hold."""
    new, no_end = folder / "new", folder / "no-end"
    problems, solved = folder / "problems.jsonl", folder / "solved.jsonl"
    train_new = ["train", "tiny-cpu", "--out", new]
    resumed = ["train", "tiny-cpu", "--out", finished, "--resume"]

    def setting(*more: str) -> list[object]:
        return [*train_new, *settings("budget.steps=3", *more)]

    return {
        "no such recipe": (["train", "tiny-cup", "--out", new], ("tiny-cup", "tiny-cpu")),
        "no such setting": (setting("loss.capp=4"), ("capp", "cap")),
        "no such setting of the task": (setting("task.max_numbr=3"), ("max_numbr", "max_number")),
        "no model": (["train", "scalerl", "--out", new], ("model.path is not set", "--set model.path=")),
        "no such model": (setting('model.path="/no/such/model"'), ("/no/such/model", "does not exist")),
        "no end token": (setting(f'model.path="{no_end}"'), (str(no_end), "no end token")),
        "beyond the model's context": (setting("rollout.context=4000"), ("context is 128", "4000")),
        "no room for the answer": (setting("length.thinking_max=60"), ("rollout.context", "82")),
        "no short prompt": (setting("rollout.max_prompt_tokens=2"), ("rollout.max_prompt_tokens = 2",)),
        "a line without an answer": (
            [*train_new, "--set", f'task={{name="file", path="{problems}"}}'],
            (str(problems), "line 2", "answer"),
        ),
        "a reference without an answer": (
            [*train_new, "--set", f'task={{name="file", path="{solved}", answer_pattern="#### (.+)"}}'],
            (str(solved), "line 3", "no answer in the reference", "#### (.+)"),
        ),
        "no such file": (
            [*train_new, "--set", f'task={{name="file", path="{folder / "none.jsonl"}"}}'],
            (str(folder / "none.jsonl"), "cannot be read"),
        ),
        "no such task to import": (
            [*train_new, "--set", 'task={name="no_such_module:rows"}'],
            ("no_such_module:rows", "cannot be imported"),
        ),
        "a task that raises": (
            [*train_new, "--set", 'task={name="of_ones_own:rows"}'],
            ("of_ones_own:rows", "LookupError: the shelf is empty"),
        ),
        "a task that leaves": (
            [*train_new, "--set", 'task={name="of_ones_own:leaves"}'],
            ("of_ones_own:leaves", "SystemExit: not like this"),
        ),
        "a task that leaves when it is imported": (
            [*train_new, "--set", 'task={name="leaves_at_once:rows"}'],
            ("leaves_at_once:rows", "cannot be imported", "SystemExit: 7"),
        ),
        "a task that raises at length": (
            [*train_new, "--set", 'task={name="of_ones_own:at_length"}'],
            ("of_ones_own:at_length", "ValueError: one two"),
        ),
        "a table without the field": (
            [*train_new, "--set", f'task={{name="file", path="{folder / "problems.parquet"}"}}'],
            (str(folder / "problems.parquet"), "row 1", '"answer" is missing', "it has prompt, result", "answer_field"),
        ),
        "no such data set of the hub": (
            [*train_new, "--set", f'task={{name="hub", dataset="{folder / "none"}"}}'],
            (str(folder / "none"), 'split "train", cannot be loaded'),
        ),
        "no such data set of reasoning-gym": (
            [*train_new, "--set", 'task={name="gym", dataset="basic_arithmetik"}'],
            ('"basic_arithmetik"', 'did you mean "basic_arithmetic"'),
        ),
        "a task of no weight": (
            [*train_new, "--set", 'task=""', "--set", 'tasks.a={name="arithmetic", weight=0}'],
            ("tasks.a.weight is 0", "above 0"),
        ),
        "a grader that never has a verdict": (
            ["eval", "tiny-base", *settings('task.grader="of_ones_own:grade"')],
            ('"of_ones_own:grade"', "none of 4 answers of main", "4 x error: LookupError: the shelf is empty"),
        ),
        "a grader without time": (setting("grading.timeout_s=0"), ("grading.timeout_s is 0", "above 0")),
        "no such grader": (setting('task.grader="exactly"'), ('"exactly"', "exact, numeric, choice, math")),
        "no such grader to import": (
            setting('task.grader="no_such_module:grade"'),
            ("no_such_module:grade", "cannot be imported"),
        ),
        "a grader that raises when it is imported": (
            setting('task.grader="raises_at_once:grade"'),
            ("raises_at_once:grade", "cannot be imported", "OSError: no licence"),
        ),
        "a grader of another shape": (
            setting('task.grader="of_ones_own:rows"'),
            ("of_ones_own:rows", "grader(text, answer"),
        ),
        "no chat template": (setting("task.chat=true"), ("chat is true", "no chat template", "chat = false")),
        "a template without a place": (setting('task.template="hm"'), ('"hm"', "{prompt}")),
        "a system prompt without a chat": (setting('task.system="be brief"'), ("system", "chat = true")),
        "no GGUF": (setting(f'model.path="{folder / "junk.gguf"}"'), (str(folder / "junk.gguf"),)),
        "a base of several tasks": (
            ["sft", "tiny-cpu", "--out", new, "--set", 'task=""', "--set", SHORT_TASK, "--set", OTHER_TAGS],
            ("the tasks a, b", "different thinking_start"),
        ),
        "a folder in use": (
            ["train", "tiny-cpu", "--out", finished, *settings("budget.steps=3")],
            (str(finished), "--resume", "another --out"),
        ),
        "another recipe": ([*resumed, *settings("loss.cap=4.0")], (str(finished), "loss.cap", "5.0", "4.0")),
        "nothing to resume": ([*train_new, "--resume", *settings()], (str(new), "a run to resume")),
        "nothing to export": (
            ["export", folder / "nothing", "--out", new],
            (str(folder / "nothing"), "a run to export"),
        ),
        "an export over another": (["export", finished, "--out", finished], (str(finished), "exists")),
        "no such model to measure": (["eval", "/no/such/model"], ("/no/such/model", "does not exist")),
        "sums that do not exist": (
            ["sft", "tiny-cpu", "--out", new, "--set", "task.max_number=1", "--set", "task.max_terms=3"],
            ("different problems", "max_number"),
        ),
        "a base over another": (["sft", "tiny-cpu", "--out", finished], (str(finished), "not empty")),
        "no such model to teach": (
            ["sft", "tiny-cpu", "--out", new, "--model", "/no/such/model", "--set", "task.num_problems=8"],
            ("/no/such/model", "does not exist"),
        ),
    }


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files of problems, modules and models, each with a fault."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "problems.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2="}\n')
    rows = [{"prompt": f"1+{place}=", "answer": f"#### {1 + place}" if place < 3 else "four"} for place in (1, 2, 3)]
    (folder / "solved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "of_ones_own.py").write_text(
        "def rows():\n    raise LookupError('the shelf is empty')\n"
        "def grade(text, answer):\n    rows()\n"
        "def leaves():\n    raise SystemExit('not like this')\n"
        "def at_length():\n    raise ValueError('one\\ntwo')\n"
    )
    (folder / "leaves_at_once.py").write_text("raise SystemExit(7)\n")
    table = pyarrow.table({"prompt": ["1+1="], "result": ["2"]})
    pyarrow.parquet.write_table(table, folder / "problems.parquet")
    (folder / "raises_at_once.py").write_text("raise OSError('no licence')\n")
    (folder / "junk.gguf").write_bytes(b"GGUF" + bytes(100))
    shutil.copytree(str(files("scalerl") / "assets" / "tiny-base"), folder / "no-end")
    path = folder / "no-end" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": None}))
    return folder


NEEDS = {"no such data set of the hub": "datasets", "no such data set of reasoning-gym": "reasoning_gym"}


@pytest.mark.parametrize("name", mistakes(Path(), Path()))
def test_user_mistake_is_one_line_and_writes_nothing(
    scalerl: Command, faulty: Path, finished: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    # Modules of the current folder are found, as for a user who stands beside them.
    monkeypatch.chdir(faulty)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words, expected = mistakes(faulty, finished)[name]
    before = contents(finished)
    left = scalerl(*words)
    assert (left.code, left.out) == (2, "")
    # What of others' code is run is said first.
    (error,) = (line for line in left.err.splitlines() if "code outside scalerl" not in line)
    assert error.startswith("error: ")
    assert [word for word in expected if word not in error] == []
    assert not (faulty / "new").exists()
    assert contents(finished) == before
