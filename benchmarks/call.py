"""Studies that need a GPU, several at a time on one, within one call of ten minutes.

    python benchmarks/call.py gpu-algorithms gpu-interactions --out OUT --seconds 560 --jobs 14
    python benchmarks/call.py gpu-mismatch:fp8 gpu-mismatch:int4 --out OUT --seconds 560 --jobs 11
    python benchmarks/call.py gpu-algorithms --arms scalerl,band --out OUT
    python benchmarks/call.py gpu-algorithms gpu-critic --check   every arm takes two steps with the tiny base, on a CPU

    gpu-algorithms    corrections, entropy control, imitation, KL to the start, refill      18 runs
    gpu-distillation  a teacher, the reward, both, oneself                                   8 runs
    gpu-mismatch:fp8  a generator that differs: corrections at lags of 8 and 32             16 runs per generator
    tiny-mismatch:fp8 the same with the tiny model                                          16 short runs per generator
    gpu-critic        PPO and credit by turns                                               12 runs
    gpu-interactions  loss x precision x averaging                                          16 runs
    gpu-reuse         500 and 2,000 problems again and again, against fresh ones             8 runs of twice the length
    gpu-batch-rate    half and double the batch, three learning rates each                  14 runs
    tiny-seeds        five seeds of ScaleRL and GRPO                                         10 short runs
    gpu-smollm2-tools SmolLM2-135M with a calculator and without                            4 runs

Runs are processes that share the GPU, under CUDA's MPS where that is installed. They start in the order of the studies,
the base's first. A model that runs need (a base, a teacher) and that is not under runs/ is made beside them, and they
wait for it. When the time is up, what still trains is cut and its curve kept as far as it came. OUT gets lease.txt,
logs of what was made, and studies.tar.xz: a folder per study with its runs (no checkpoints) and their logs. With
--keep-base OUT also gets the 10M base in pieces, for another machine.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lease import SCALERL, Lease, folders_missing, runs_of, train_all

from scalerl.study.die_with_parent import dying_with_parent

ROOT = Path(__file__).parents[1]
WIDE, TEACHER, TOOLS = Path("runs/bases/10m-wide"), Path("runs/teachers/wide"), Path("runs/smollm2-tools-base")
TINY = (
    *("model.path=tiny-base", "rollout.slots=128", "rollout.context=64", "learner.micro_batch_tokens=4096"),
    *("task.num_problems=200", 'task.operations="+-"', "task.min_terms=3", "task.max_terms=5", "task.max_number=20"),
    *("rollout.max_prompt_tokens=16", "length.thinking_min=8", "length.thinking_max=12", "length.answer_budget=6"),
    *("pipeline.groups_per_batch=4", "pipeline.completions_per_group=4", "evaluation.num_prompts=4"),
    *("evaluation.samples_per_prompt=2", "budget.steps=2", "checkpoint.every=1000"),
)  # fmt: skip
"""What makes a run of any of these studies take seconds on a CPU; arms keep what they are about."""
PIECE = 14 << 20
"""Bytes of a piece of the base."""
KEPT = (".json", ".jsonl", ".toml", ".txt", ".log", ".csv")


def script(name: str) -> str:
    return str(ROOT / "benchmarks" / name)


def run_whole(*words: str) -> None:
    subprocess.run(dying_with_parent([sys.executable, *words]), check=True)


def make_base(out: Path, size: str, *steps: str, finish: Callable[[Path], None] = lambda folder: None) -> None:
    """Make a base under another name, and rename it when it is whole."""
    if out.exists():
        return
    half = out.with_name(f"{out.name}.half")
    for rest in (half, half.with_name(f"{half.name}.checkpoints")):
        shutil.rmtree(rest, ignore_errors=True)  # of an earlier call that was cut
    words = (script("bases/make_base.py"), "--size", size, "--recipe", "wide-arithmetic", "--out", str(half), *steps)
    run_whole(*words)
    finish(half)
    half.rename(out)


def make_wide() -> None:
    make_base(WIDE, "10m", finish=halve)


def halve(folder: Path) -> None:
    """Round the weights to 16 bits, so that the base travels; on every machine it is the same."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({name: weight.to(torch.bfloat16) for name, weight in load_file(file).items()}, file, {"format": "pt"})


def make_teacher() -> None:
    """Train a 20M model with ScaleRL for two minutes, and export it."""
    out = TEACHER.with_name("lease")
    make_base(Path("runs/bases/20m-wide"), "20m", "--steps", "2400")
    lease = Lease(out=out, train=(*SCALERL, "train", "--no-plots"))
    run = next(run for run in runs_of("gpu-wide-size", ["checkpoint.every=20"]) if run.name == "20m-seed0")
    train_all([(lease, run)], jobs=1, seconds=150, seals=False)
    words = ("-m", "scalerl", "export", str(out / "runs" / run.name), "--out", str(TEACHER.with_name("half")))
    run_whole(*words)
    TEACHER.with_name("half").rename(TEACHER)


def make_tools() -> None:
    half = TOOLS.with_name("half")
    run_whole("-m", "scalerl", "sft", "smollm2-tools", "--out", str(half))
    half.rename(TOOLS)


MAKERS = {WIDE: make_wide, TEACHER: make_teacher, TOOLS: make_tools}


def trainer(generator: str = "") -> tuple[str, ...]:
    """Return the words of a command that trains a recipe, in the order of lease.py: the recipe comes after them."""
    given = ("--generator", generator) if generator else ()
    return (sys.executable, script("leased_run.py"), *given)


def start_mps() -> None:
    """Let processes share the GPU, where the daemon is installed."""
    if daemon := shutil.which("nvidia-cuda-mps-control"):
        folder = tempfile.mkdtemp(prefix="mps-")
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
        subprocess.run([daemon, "-d"], check=False)


def start_maker(path: Path, out: Path) -> subprocess.Popen[bytes]:
    with (out / f"{path.name}.log").open("wb") as log:
        command = dying_with_parent([sys.executable, __file__, "--make", str(path)])
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def run_studies(studies: list[str], out: Path, *, seconds: float, jobs: int, arms: str, changes: list[str]) -> None:
    """Train the studies for so many seconds, and pack what they wrote."""
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    start_mps()
    with tempfile.TemporaryDirectory() as folder:
        waiting = []
        for study in studies:
            name, _, generator = study.partition(":")
            lease = Lease(out=Path(folder) / study.replace(":", "-"), train=trainer(generator))
            waiting += [(lease, run) for run in runs_of(name, changes) if not arms or run.arm in arms.split(",")]
        missing = {Path(path) for _, run in waiting for path in folders_missing(run)}
        if unknown := missing - MAKERS.keys():
            sys.exit(f"nobody makes {', '.join(map(str, unknown))}")
        makers = [start_maker(path, out) for path in missing]
        left = train_all(
            waiting,
            jobs=jobs,
            seconds=seconds - (time.monotonic() - began),
            seals=False,
            being_made=lambda: any(maker.poll() is None for maker in makers),
        )
        for maker in makers:
            maker.kill()
            maker.wait()
        print(f"{len(left)} runs not started: {', '.join(run.name for run in left)}", flush=True)
        pack(Path(folder), out / "studies.tar.xz")


def pack(folder: Path, target: Path) -> None:
    """Pack the small files of run folders: metrics, evaluations, recipe, status, logs."""
    with tarfile.open(target, "w:xz", preset=2) as packed:
        for path in small_files(folder):
            packed.add(path, path.relative_to(folder))


def small_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in KEPT and "checkpoint" not in str(path.relative_to(folder)):
            yield path


def keep_base(out: Path) -> None:
    """Write the 10M base in pieces; `cat base.tar.* | tar x` makes it anew."""
    if not WIDE.exists():
        print(f"{WIDE} was not made")
        return
    with tempfile.NamedTemporaryFile() as file:
        with tarfile.open(file.name, "w:xz") as packed:
            packed.add(WIDE)
        content = Path(file.name).read_bytes()
    for place, start in enumerate(range(0, len(content), PIECE)):
        (out / f"base.tar.{place}").write_bytes(content[start : start + PIECE])


def check(study: str) -> None:
    """Take two steps of every arm, with the tiny base on this machine, and print a few of its columns."""
    from leased_run import round_pushes

    from scalerl.recipe.load import changed_recipe
    from scalerl.runfolder import store
    from scalerl.study.plan import make_plan
    from scalerl.study.spec import load_study
    from scalerl.training.run.run import TrainingRun

    study, _, generator = study.partition(":")
    if generator:
        round_pushes(generator)
    for arm in make_plan(*load_study(study), gpu=True).arms:
        own = [key for key in ("groups_per_batch", "completions_per_group") if f"pipeline.{key}" in arm.changes]
        tiny = [change for change in TINY if not any(f".{key}=" in change for key in own)]
        if arm.recipe.kl.reference.name == "teacher":
            tiny.append('kl.reference.path="tiny-base"')
        recipe = changed_recipe(arm.recipe, tiny)
        with tempfile.TemporaryDirectory() as folder:
            end = TrainingRun(recipe, Path(folder) / "run").train()
            row = store.read_metrics(Path(folder) / "run")[-1]
        shown = {name: row[name] for name in SHOWN if name in row}
        print(f"{arm.name}: {end.reason}; " + ", ".join(f"{name} {value:.3g}" for name, value in shown.items()))


SHOWN = (
    *("loss/value", "loss/kl", "loss/corrected_frac", "loss/reference_kl", "entropy/clipped_frac"),
    *("batch/replaced_groups", "batch/effective", "flops"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY[:GENERATOR]")
    parser.add_argument("--out", type=Path, default=Path("runs/call"))
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--arms", default="", help="these alone, divided by commas")
    parser.add_argument("--keep-base", action="store_true")
    parser.add_argument("--make", type=Path, help="make this model alone")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.make:
        MAKERS[arguments.make]()
    elif arguments.check:
        for study in arguments.studies:
            check(study)
    else:
        given = {name: getattr(arguments, name) for name in ("seconds", "jobs", "arms")}
        run_studies(arguments.studies, arguments.out, changes=arguments.set, **given)
        if arguments.keep_base:
            keep_base(arguments.out)


if __name__ == "__main__":
    main()
