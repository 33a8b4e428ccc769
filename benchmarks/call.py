"""The studies that need a GPU, each within one call of ten minutes. On a fresh machine first the base, then a study.

    python benchmarks/call.py base --seconds 560                  a base of 10M: runs/bases/10m-wide
    python benchmarks/call.py teacher --seconds 560               a 20M model that ScaleRL trained: runs/teachers/wide
    python benchmarks/call.py gpu-algorithms --out OUT --seconds 560 --jobs 14
    python benchmarks/call.py gpu-mismatch --generator int8 --out OUT --seconds 290
    python benchmarks/call.py gpu-algorithms --check              every arm takes two steps with the tiny base, on a CPU

    gpu-algorithms    corrections, entropy control, imitation, KL to the start, refill      18 runs
    gpu-distillation  a teacher, the reward, both, oneself; needs the teacher                8 runs
    gpu-mismatch      a generator that differs: corrections at lags of 8 and 32              8 runs per generator
    gpu-interactions  loss x precision x averaging                                          16 runs
    gpu-reuse         500 and 2,000 problems again and again, against fresh ones             8 runs of twice the length
    gpu-batch-rate    half and double the batch, three learning rates each                  14 runs
    tiny-seeds        five seeds of ScaleRL and GRPO                                         10 short runs

A run of 1.2e15 FLOPs takes about 20 s of an H200 that fourteen runs share (docs/results/forward.md). OUT has lease.txt,
runs.csv.gz for benchmarks/study_table.py, sealed/ with forecasts, and the logs of runs. Runs share the GPU under CUDA's
MPS where that is installed. What is left when the time is up is cut, and its curve kept as far as it came.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASE, TEACHER = Path("runs/bases/10m-wide"), Path("runs/teachers/wide")
TINY = (
    *("model.path=tiny-base", "rollout.slots=128", "rollout.context=64", "learner.micro_batch_tokens=4096"),
    *("task.num_problems=200", 'task.operations="+-"', "task.min_terms=3", "task.max_terms=5", "task.max_number=20"),
    *("rollout.max_prompt_tokens=16", "length.thinking_min=8", "length.thinking_max=12", "length.answer_budget=6"),
    *("pipeline.groups_per_batch=4", "pipeline.completions_per_group=4", "evaluation.num_prompts=4"),
    *("evaluation.samples_per_prompt=2", "budget.steps=2", "checkpoint.every=1000"),
)  # fmt: skip
"""What makes a run of any of these studies take seconds on a CPU; arms keep what they are about."""


def called(*words: str, log: Path | None = None, seconds: float | None = None) -> int:
    """Run a script of this folder or a command of scalerl; return its exit code, 124 if it was cut."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with (log or Path(os.devnull)).open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=file if log else None, stderr=subprocess.STDOUT, env=environment
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return 124


def start_mps() -> None:
    """Let processes share the GPU, where the daemon is installed; a second one is harmless."""
    if daemon := shutil.which("nvidia-cuda-mps-control"):
        folder = tempfile.mkdtemp(prefix="mps-")
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
        subprocess.run([daemon, "-d"], check=False)


def script(name: str) -> str:
    return str(ROOT / "benchmarks" / name)


def make_base(seconds: float, *, size: str = "10m", out: Path = BASE, steps: int | None = None) -> None:
    more = [] if steps is None else ["--steps", str(steps)]
    words = ("--size", size, "--recipe", "wide-arithmetic", "--out", str(out), *more)
    if not out.exists() and called(script("bases/make_base.py"), *words, seconds=seconds):
        sys.exit(f"the base {out} was not made")


def make_teacher(seconds: float) -> None:
    """Train a 20M model with ScaleRL for the time that is left, and export it."""
    began, base, out = time.monotonic(), Path("runs/bases/20m-wide"), TEACHER.with_name("lease")
    make_base(0.6 * seconds, size="20m", out=base, steps=2400)
    left = seconds - (time.monotonic() - began) - 30
    words = ("--out", str(out), "--runs", "20m-seed0", "--jobs", "1", "--seconds", f"{left:.0f}", "--no-seals")
    called(script("lease.py"), "gpu-wide-size", *words, "--set", "checkpoint.every=20")
    called("-m", "scalerl", "export", str(out / "runs" / "20m-seed0"), "--out", str(TEACHER))
    if not TEACHER.exists():
        sys.exit("the teacher was not made")


def run_study(study: str, out: Path, *, seconds: float, jobs: int, generator: str, changes: list[str]) -> None:
    """Train a study for so many seconds, and write its evaluations as one table."""
    began = time.monotonic()
    start_mps()
    if not study.startswith("tiny") and not any(change.startswith("model.path=") for change in changes):
        make_base(0.6 * seconds)
    out.mkdir(parents=True, exist_ok=True)
    words = [study, "--out", str(out), "--jobs", str(jobs)]
    words += ["--generator", generator] if generator else []
    words += [word for change in changes for word in ("--set", change)]
    left = seconds - (time.monotonic() - began) - 20
    called(script("lease.py"), *words, "--seconds", f"{left:.0f}", log=out / "lease.txt")
    runs = sorted(map(str, (out / "runs").iterdir()))
    called(script("study_table.py"), "write", str(out / "runs.csv.gz"), *runs)
    print((out / "lease.txt").read_text()[-4000:])


def check(study: str, generator: str) -> None:
    """Take two steps of every arm, with the tiny base on this machine, and print a few of its columns."""
    from rounded import round_pushes

    from scalerl import store
    from scalerl.config import changed_recipe
    from scalerl.run.run import Run
    from scalerl.study.plan import make_plan
    from scalerl.study.spec import load_study

    if generator:
        round_pushes(generator)
    for arm in make_plan(*load_study(study), gpu=True).arms:
        own = [key for key in ("groups_per_batch", "completions_per_group") if f"pipeline.{key}" in arm.changes]
        tiny = [change for change in TINY if not any(f".{key}=" in change for key in own)]
        if arm.recipe.kl.reference.name == "teacher":
            tiny.append('kl.reference.path="tiny-base"')
        recipe = changed_recipe(arm.recipe, tiny)
        with tempfile.TemporaryDirectory() as folder:
            end = Run(recipe, Path(folder) / "run").train()
            row = store.read_metrics(Path(folder) / "run")[-1]
        shown = {name: row[name] for name in SHOWN if name in row}
        print(f"{arm.name}: {end.reason}; " + ", ".join(f"{name} {value:.3g}" for name, value in shown.items()))


SHOWN = (
    *("loss/value", "loss/kl", "loss/corrected_frac", "loss/reference_kl", "entropy/clipped_frac"),
    *("batch/replaced_groups", "batch/effective", "flops"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", help="base, teacher, or a study")
    parser.add_argument("--out", type=Path, default=Path("runs/call"))
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--generator", default="", help="round the generator's weights: fp8, int8, int4 or int3")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.stage, arguments.generator)
    elif arguments.stage == "base":
        make_base(arguments.seconds)
    elif arguments.stage == "teacher":
        make_teacher(arguments.seconds)
    else:
        given = {name: getattr(arguments, name) for name in ("seconds", "jobs", "generator")}
        run_study(arguments.stage, arguments.out, changes=arguments.set, **given)


if __name__ == "__main__":
    main()
