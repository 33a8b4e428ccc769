"""The training commands as a user types them: whole runs, signals, faults of the machine, mistakes."""

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
from pathlib import Path
from typing import Any

import pytest
from commands import answer, scalerl
from run_folders import write_run
from small_runs import SHORT, USUAL
from webhook import webhook

from scalerl.cli.conclusion import conclude
from scalerl.cli.train import Terminal
from scalerl.errors import EngineError
from scalerl.runfolder import store
from scalerl.training.graders.pool import GraderPool
from scalerl.training.learner import saved
from scalerl.training.rollout.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("terminal_signals")

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
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def train(out: Path, *words: str, steps: int = 3) -> "subprocess.CompletedProcess[str]":
    return scalerl("train", "tiny-cpu", "--out", out, *sets(*TINY, f"budget.steps={steps}"), *words)


def status(folder: Path) -> tuple[str, str]:
    found = store.read_status(folder)
    assert found is not None
    return found["status"], found["reason"]


def steps_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["step"] for row in rows]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def when_stepped(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], object]) -> None:
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
    from scalerl.recipe.load import load_recipe
    from scalerl.training.run.run import TrainingRun

    folder = tmp_path_factory.mktemp("runs") / "finished"
    TrainingRun(load_recipe("tiny-cpu", [*TINY, "budget.steps=2"]), folder).train()
    return folder


# What works ----------------------------------------------------------------------------------------------------------


def test_a_run_is_checked_trained_resumed_and_exported(tmp_path: Path):
    out = tmp_path / "runs" / "a"
    checked = train(out, "--check")
    assert checked.returncode == 0
    lines = checked.stdout.splitlines(keepends=True)
    assert "".join(lines[:3]) == (
        "tiny-cpu can be trained: 0.855M parameters on cpu, 2 x 2 answers per step, PipelineRL-1 (bounds the mean "
        "lag), cispo\n"
        "8 slots for batches of 4: expected lag 1 steps on average, 2 for the oldest group; max_lag = 1 bounds the "
        "mean\n"
        "optimizer.warmup_steps = 10 is not below budget.steps = 3: the learning rate is still rising when the run "
        "ends\n"
    )
    assert lines[3].startswith("main: exact gives 0 on average to 2 answers of the untrained model; check that it can ")
    assert [line.split("|")[0].strip() for line in lines[4:]] == ["0", "0"]
    assert not out.parent.exists()
    with webhook() as chat:
        trained = train(out, "--notify", chat.url, steps=10)
    assert (trained.returncode, trained.stderr) == (0, "")
    first, *evaluation = chat.texts[-1].splitlines()
    assert first == "a: Done at step 10: budget of 10 steps spent"
    assert evaluation[0] in trained.stdout.splitlines()
    assert not [path for path, content in contents(out).items() if b"very-secret" in content]
    assert "Done: budget of 10 steps spent" in trained.stdout
    lines = trained.stdout.splitlines()
    evaluations = [line for line in lines if line.startswith("step ")]
    assert [line.split("  ")[0] for line in evaluations] == [f"step {step}" for step in range(0, 11, 2)]
    assert all(len(line) <= 80 for line in evaluations)
    assert evaluations[0].startswith("step 0  0 CPU-h  ")
    (lag,) = [line for line in lines if line.startswith("Lag: ")]
    assert lag.endswith("; expected 1 steps on average, 2 for the oldest group")
    assert (out / "curve.png").is_file()
    model, samples = lines[-1].split(" Its samples: ")
    assert model.startswith("Best checkpoint: step ")
    assert model.endswith(f"Export it: scalerl export {out} --step best --out MODEL.")
    assert samples == f"{out / store.SAMPLES}, or in a browser with scalerl watch {out}"
    # A few steps and four samples prove nothing, and so it says.
    assert {"No change beyond noise", "Next"} <= {line.split(":")[0] for line in lines}
    assert any(line.startswith("Too early to judge") for line in lines)
    assert train(out, "--resume", "--check", steps=11).returncode == 0
    assert status(out) == ("done", "budget of 10 steps spent")
    assert train(out, "--resume", "--no-plots", steps=11).returncode == 0
    assert steps_of(store.read_metrics(out)) == list(range(1, 12))
    assert scalerl("export", out, "--out", tmp_path / "model").stdout == (
        f"The model after step 11 is in {tmp_path / 'model'}\n"
    )
    (row,) = answer("eval", tmp_path / "model", *sets(*TINY))["sets"]
    assert (row["set"], row["num_samples"]) == ("main", 4)
    assert scalerl("eval", tmp_path / "model", *sets(*TINY)).stdout.startswith("main: ")


@pytest.mark.parametrize(
    "changes, alarm, why",
    [
        (
            ("loss=own_code:infinite_loss", "filter.zero_variance=false"),
            "100% of the last steps changed no weight",
            "Not trained: none of 6 steps changed a weight (6 had a loss or gradient",
        ),
        (
            ("task.grader=own_code:wrong",),
            "100% of the last batches had nothing to train on",
            "Not trained: none of 6 steps changed a weight (6 had an empty batch",
        ),
        (
            ("task.grader=own_code:mute",),
            "so the model does not change: the grader gave no verdict on any answer.",
            "The gain is unknown: the grader gave no verdict in any of 3 evaluations.",
        ),
    ],
)
def test_run_without_an_update_is_not_called_learned(tmp_path: Path, changes, alarm: str, why: str):
    left = train(tmp_path / "run", *sets(*changes, "evaluation.every=3"), steps=6)
    assert left.returncode == 0
    assert left.stdout.count(alarm) == 1
    assert why in left.stdout
    assert "Learned" not in left.stdout
    assert "Next: " not in left.stdout


@pytest.mark.parametrize(("reward", "advice"), [(0.0, "take easier problems"), (0.5, "--resume and a larger budget")])
def test_run_that_learned_nothing_is_not_forecast_next(
    reward: float, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write_run(tmp_path / "run", ceiling=0.6)
    conclude(folder, plots=False)
    assert "Next: scalerl forecast" in capsys.readouterr().out
    rows = [row | {"reward": reward} for row in store.read_evals(folder)]
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    conclude(folder, plots=False)
    said = capsys.readouterr().out
    assert "forecast" not in said.partition("Next:")[2]
    assert advice in said


def test_several_tasks_are_shown_and_fitted_separately(tmp_path: Path):
    out = tmp_path / "run"
    task = '{{name="arithmetic", num_problems=8, min_terms={0}, max_terms={0}, max_number=20, weight={1}}}'
    mixed = ('task=""', f"tasks.short={task.format(3, '3.0')}", f"tasks.long={task.format(4, '1.0')}")
    words = sets(*TINY[1:], *mixed, "evaluation.every=1", "budget.steps=5")
    trained = scalerl("train", "tiny-cpu", "--out", out, *words, "--no-plots")
    assert (trained.returncode, trained.stderr) == (0, "")
    lines = [line.split("  ") for line in trained.stdout.splitlines() if line.startswith("step ")]
    assert [(line[0], line[2].split(" ")[0]) for line in lines] == [
        (f"step {step}", name) for step in range(6) for name in ("short", "long")
    ]
    assert not list(out.glob("curve.*"))
    names = [curve["name"] for curve in answer("fit", out)["curves"]]
    assert [any(word in name for name in names) for word in ("short", "long")] == [True, True]
    assert [row["set"] for row in answer("eval", "tiny-base", *words)["sets"]] == ["short", "long"]


def test_a_check_ends_the_processes_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from scalerl.training.loop import grading

    pools: list[GraderPool] = []
    monkeypatch.setattr(grading, "GraderPool", lambda **limits: pools.append(GraderPool(**limits)) or pools[-1])
    assert train(tmp_path / "run", "--check", "--set", 'task.grader="math"').returncode == 0
    (pool,) = pools
    assert pool.pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pool.pids)


# Signals and faults of the machine -----------------------------------------------------------------------------------

Act = Callable[[pytest.MonkeyPatch], object]
CHECKPOINT = "with a checkpoint: the same command with --resume continues"
RESUMES = "the same command with --resume continues from its last checkpoint, after step {}"


def send(number: int) -> Act:
    return lambda _: os.kill(os.getpid(), number)


def impatient(patched: pytest.MonkeyPatch) -> None:
    try:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        # These must not interrupt what the second one has to write.
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)


def close_output(_: pytest.MonkeyPatch) -> None:
    """As in `scalerl train ... | head -1`."""

    class ClosedPipe(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    sys.stdout = ClosedPipe()  # main puts back what was there


def fill_disk(patched: pytest.MonkeyPatch) -> None:
    """From now on files may be written over and none may grow."""
    write = os.write

    def within(descriptor: int, data: bytes) -> int:
        grows = os.fstat(descriptor).st_size == 0 or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        if grows and os.path.isfile(f"/dev/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    patched.setattr(os, "write", within)


def fill_before_weights(patched: pytest.MonkeyPatch) -> None:
    """Leave room for the checkpoint of step 1, which may still be written beside training, and for no other."""
    write_all = saved._write_all

    def no_room(file: io.FileIO, block: "bytes | memoryview") -> None:
        if "step-00000001" not in str(file.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(file, block)

    patched.setattr("scalerl.training.learner.saved._write_all", no_room)


def kill_engine(patched: pytest.MonkeyPatch) -> None:
    def die(engine: TorchEngine) -> None:
        raise EngineError("the device fell off the bus")

    patched.setattr(TorchEngine, "poll", die)


def full(file: str, kept: int) -> str:
    return f"error: cannot write {{out}}/{file}: the disk is full; {RESUMES.format(kept)}"


INTERRUPTIONS: dict[str, tuple[int, Act, int, str, str, int, list[int]]] = {
    # When, what, exit code, message, status, step of the last checkpoint, steps that were evaluated.
    "SIGTERM": (1, send(signal.SIGTERM), 143, f"Stopped at step 1, {CHECKPOINT}", "stopped", 1, [0]),
    "SIGINT": (2, send(signal.SIGINT), 130, f"Stopped at step 2, {CHECKPOINT}", "stopped", 2, [0]),
    "SIGINT at the end": (3, send(signal.SIGINT), 130, f"Stopped at step 3, {CHECKPOINT}", "stopped", 3, [0, 2]),
    "impatience": (2, impatient, 130, f"Stopped at once; {RESUMES.format(1)}", "stopped", 1, [0]),
    "closed output": (2, close_output, 141, "the output was closed. Stopped at step 2", "stopped", 2, [0, 2]),
    "no room for a row": (1, fill_disk, 1, full(store.METRICS, 1), "failed", 1, [0]),
    "no room to evaluate": (2, fill_disk, 1, full(store.EVALS, 1), "failed", 1, [0]),
    "no room to save": (2, fill_before_weights, 0, f"is kept; {RESUMES.format(1)}", "done", 1, [0, 2, 3]),
    "dead engine": (1, kill_engine, 1, "error: the device fell off the bus\n", "failed", 1, [0]),
}


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_interrupted_run_says_why_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    step, act, code, message, state, kept, evaluated = INTERRUPTIONS[name]
    out, handlers = tmp_path / "run", [signal.getsignal(number) for number in CODES]
    with monkeypatch.context() as patched:
        when_stepped(patched, step, lambda: act(patched))
        left = train(out)
    assert left.returncode == code
    assert message.format(out=out) in left.stdout + left.stderr
    assert left.stderr.count("\n") <= 1
    assert status(out)[0] == state
    assert [signal.getsignal(number) for number in CODES] == handlers
    assert max(path.name for path in (out / store.CHECKPOINTS).iterdir()) == f"step-{kept:08}"
    assert not [path for path in out.rglob("*") if "unfinished" in path.name]
    assert all((out / rows).read_bytes().endswith(b"}\n") for rows in (store.METRICS, store.EVALS))
    assert steps_of(store.read_evals(out)) == evaluated
    assert train(out, "--resume").returncode == 0
    attempts = [(row["step"], row["attempt"]) for row in store.read_metrics(out)]
    assert attempts == [(step, 1 if step <= kept else 2) for step in (1, 2, 3)]
    assert steps_of(store.read_evals(out)) == [0, 2, 3]


@pytest.mark.parametrize("place, number", [("sampling", signal.SIGTERM), ("evaluation", signal.SIGINT)])
def test_stop_within_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int):
    """What sends SIGTERM soon kills: a step whose sampling takes an hour must not delay the checkpoint."""
    out, polls = tmp_path / "run", []
    # Completions of different lengths, so that the second batch is not there at once.
    words = sets(*USUAL, "checkpoint.every=100")
    with monkeypatch.context() as patched:
        poll = TorchEngine.poll

        def slow(engine: TorchEngine) -> Any:
            # The first evaluation and step pass; then no completion ever ends.
            ended = (out / store.METRICS).exists() if place == "sampling" else len(polls) > 2
            if not ended:
                polls.append(None)
                return poll(engine)
            os.kill(os.getpid(), number) if len(polls) < 100 else pytest.fail("it sampled on")
            polls.extend([None] * 100)
            return []

        patched.setattr(TorchEngine, "poll", slow)
        left = train(out, *words)
    assert left.returncode == CODES[signal.Signals(number)]
    step = 1 if place == "sampling" else 0
    assert (out / store.CHECKPOINTS / f"step-{step:08}").is_dir()
    assert steps_of(store.read_evals(out)) == [0] * step
    assert status(out) == ("stopped", "asked to stop")
    assert train(out, "--resume", *words).returncode == 0
    assert steps_of(store.read_evals(out)) == [0, 2, 3]
    assert steps_of(store.read_metrics(out)) == [1, 2, 3]


def test_run_killed_before_its_start_can_be_started_again(tmp_path: Path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".recipe.json.7.unfinished").write_text("{")
    assert "start it again without --resume" in train(out, "--resume").stderr
    assert train(out, steps=1).returncode == 0


def test_steps_after_the_checkpoint_leave_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, often = tmp_path / "run", sets("evaluation.every=1")
    with monkeypatch.context() as patched:
        patched.setattr("scalerl.training.run.checkpoint.save", lambda *_, **__: None)
        assert train(out, *often, steps=4).returncode == 0
    assert steps_of(store.read_evals(out)) == [0, 1, 2, 3, 4]
    # It begins anew, and its budget is lower by now.
    assert train(out, "--resume", *often, steps=2).returncode == 0
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(out)] == [(1, 2), (2, 2)]
    assert [(row["step"], row["attempt"]) for row in store.read_evals(out)] == [(0, 1), (1, 2), (2, 2)]
    assert len((out / store.EVALS).read_text().splitlines()) == 7
    # All of it was paid for.
    spent = [json.loads(line)["gpu_hours"] for line in (out / store.METRICS).read_text().splitlines()]
    assert spent == sorted(spent)


def test_removed_run_folder_is_named_and_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "run"
    when_stepped(monkeypatch, 1, lambda: shutil.rmtree(out))
    left = train(out)
    assert left.returncode == 1
    assert f"the folder {out} is gone: it was removed or renamed\n" in left.stderr
    assert not out.exists()


def test_run_in_a_read_only_folder_is_refused_at_once(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch):
    out = shutil.copytree(finished, tmp_path / "run")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == out) and access(path, mode)
    )
    left = train(out, "--resume")
    assert left.returncode == 2
    assert f"{out} cannot be written: no permission to write into {out}" in left.stderr


def test_hung_engine_ends_the_process_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, released = tmp_path / "run", threading.Event()
    at_exit: list[tuple[int, str, str]] = []

    def hang(engine: TorchEngine) -> None:
        released.wait(60)
        raise EngineError("a process that ended does not come here")

    def leave(code: int) -> None:
        at_exit.append((code, *status(out)))
        released.set()

    monkeypatch.setattr("scalerl.training.run.run.os._exit", leave)
    when_stepped(monkeypatch, 1, lambda: monkeypatch.setattr(TorchEngine, "poll", hang))
    with webhook() as chat:
        left = train(out, "--hung-after", "1", "--notify", chat.url)
    ((code, state, reason),) = at_exit
    assert (code, state) == (1, "failed")
    assert reason.startswith("the engine did not return for 1 s (it was at ")
    assert f"error: {reason}\n" in left.stderr
    assert f"run: failed: {reason}" in chat.texts


def test_damaged_checkpoint_error_says_how_to_continue(tmp_path: Path, finished: Path):
    out = shutil.copytree(finished, tmp_path / "run")
    newest = out / store.CHECKPOINTS / "step-00000002"
    weights = newest / "tensors.weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    before = contents(out)
    left = train(out, "--resume")
    assert left.returncode == 2
    assert left.stderr.count("\n") == 1
    assert f"{newest} is damaged" in left.stderr
    assert "the older step-00000001 is intact: remove or rename step-00000002 to continue from there" in left.stderr
    assert contents(out) == before
    newest.rename(newest.with_name("step-00000002.damaged"))
    assert train(out, "--resume").returncode == 0
    assert [(row["step"], row["attempt"]) for row in store.read_metrics(out)] == [(1, 1), (2, 2), (3, 2)]


# Mistakes ------------------------------------------------------------------------------------------------------------

NEW = ("train", "tiny-cpu", "--out", "new")


def tiny(*changes: str) -> tuple[str, ...]:
    return (*NEW, *sets(*TINY, "budget.steps=3", *changes))


def task(text: str) -> tuple[str, ...]:
    return (*NEW, "--set", f"task={{{text}}}")


TWO_TASKS = (
    'task=""', 'tasks.a={name="arithmetic", num_problems=8}',
    'tasks.b={name="arithmetic", num_problems=8, thinking_start="<t>"}',
)  # fmt: skip
MISTAKES: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("train", "tiny-cup", "--out", "new"), ("tiny-cup", "tiny-cpu")),
    (tiny("loss.capp=4"), ("capp", "cap")),
    (tiny("task.max_numbr=3"), ("max_numbr", "max_number")),
    (("train", "scalerl", "--out", "new"), ("model.path is not set", "--set model.path=")),
    (tiny("model.path=/no/such/model"), ("/no/such/model", "does not exist")),
    (tiny("model.path=junk.gguf"), ("junk.gguf",)),
    (tiny("rollout.context=4000"), ("context is 128", "4000")),
    (tiny("length.thinking_max=60"), ("rollout.context", "82")),
    (tiny("rollout.max_prompt_tokens=2"), ("rollout.max_prompt_tokens = 2",)),
    (task('name="file", path="problems.jsonl"'), ("problems.jsonl", "line 2", "answer")),
    (task('name="of_ones_own:leaves"'), ("of_ones_own:leaves", "SystemExit: not like this")),
    (task('name="of_ones_own:at_length"'), ("of_ones_own:at_length", "ValueError: one two")),
    (task('name="gym", dataset="basic_arithmetik"'), ('"basic_arithmetik"', 'did you mean "basic_arithmetic"')),
    (
        ("eval", "tiny-base", *sets(*TINY, 'task.grader="of_ones_own:grade"')),
        ('"of_ones_own:grade"', "no verdict on any of 4 answers of main", "4 x error: LookupError: the shelf is empty"),
    ),
    (tiny('task.grader="exactly"'), ('"exactly"', "exact, numeric, choice, math")),
    (tiny('task.grader="no_such_module:grade"'), ("no_such_module:grade", "cannot be imported")),
    (tiny('task.grader="of_ones_own:rows"'), ("of_ones_own:rows", "grader(text, answer")),
    (tiny('task.system="be brief"'), ("system", "chat = true")),
    (("sft", "tiny-cpu", "--out", "new", *sets(*TWO_TASKS)), ("the tasks a, b", "different thinking_start")),
    (("train", "tiny-cpu", "--out", "finished", *sets(*TINY)), ("finished", "--resume", "another --out")),
    (
        ("train", "tiny-cpu", "--out", "finished", "--resume", *sets(*TINY, "loss.cap=4.0")),
        ("finished", "loss.cap", "5.0", "4.0"),
    ),
    ((*NEW, "--resume"), ("new", "a run to resume")),
    (("export", "nothing", "--out", "new"), ("nothing", "a run to export")),
    (("export", "finished", "--out", "finished"), ("finished", "exists")),
    (("eval", "/no/such/model"), ("/no/such/model", "does not exist")),
    (
        ("sft", "tiny-cpu", "--out", "new", *sets("task.max_number=1", "task.max_terms=3")),
        ("different problems", "max_number"),
    ),
    (("sft", "tiny-cpu", "--out", "finished"), ("finished", "not empty")),
    (
        ("sft", "tiny-cpu", "--out", "new", *sets("sft.model=/no/such/model", "task.num_problems=8")),
        ("/no/such/model", "does not exist"),
    ),
    (("sft", "tiny-cpu", "--out", "new", "--set", "loss=dapo"), ("sft does not use loss", "it uses sft, task")),
]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Path:
    """A folder of files of problems, modules and models, each with a fault."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "finished").symlink_to(finished)
    (folder / "problems.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2="}\n')
    (folder / "of_ones_own.py").write_text(
        "def rows():\n    return []\n"
        "def grade(text, answer):\n    raise LookupError('the shelf is empty')\n"
        "def leaves():\n    raise SystemExit('not like this')\n"
        "def at_length():\n    raise ValueError('one\\ntwo')\n"
    )
    (folder / "junk.gguf").write_bytes(b"GGUF" + bytes(100))
    return folder


@pytest.mark.parametrize("words, expected", MISTAKES, ids=[words[-1] for words, _ in MISTAKES])
def test_user_mistake_is_one_line_and_writes_nothing(
    faulty: Path, words: tuple[str, ...], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    if 'name="gym"' in words[-1]:
        pytest.importorskip("reasoning_gym")
    # Modules of the current folder are found, as for a user who stands beside them.
    monkeypatch.chdir(faulty)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = contents(faulty / "finished")
    left = scalerl(*words)
    assert (left.returncode, left.stdout) == (2, "")
    # The code that is about to run is named first.
    (error,) = (line for line in left.stderr.splitlines() if not line.startswith("this command runs code"))
    assert error.startswith("error: ")
    assert [word for word in expected if word not in error] == []
    assert not (faulty / "new").exists()
    assert contents(faulty / "finished") == before
