import atexit
import functools
import gc
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Two workers share two cores (make test): a thread each. Set before numpy and torch are imported; commands that tests
# start inherit it. Sums over threads round differently, so this also keeps numbers equal from machine to machine.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Imports make objects that stay. Collecting garbage among them took 4 s of each process before its first test.
gc.disable()

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# Shapes and dtypes of training.rl are checked in every test, so the hook must be in place before its first import. Not
# on a machine with a GPU: parts are compiled there, and the compiler would trace the checks, which users do not have.
if not Path("/dev/nvidiactl").exists():
    install_import_hook("scalerl.training.rl", "beartype.beartype")

# Before any test imports them: then their assertions would not be explained.
pytest.register_assert_rewrite("contracts.engine", "contracts.sampling", "contracts.requests")

# How long an example takes depends on the machine and its load more than on the strategy. The examples of a test are
# always the same, so that it fails for the commit that broke it; --hypothesis-profile=searching draws new ones.
settings.register_profile("searching", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("scalerl", settings.get_profile("searching"), derandomize=True, max_examples=50)
settings.load_profile("scalerl")


@pytest.fixture
def terminal_signals() -> Iterator[None]:
    """Handle signals as in a terminal: under nohup and in the background some are ignored, and stay so."""
    usual = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def one_busy_core() -> Iterator[None]:
    """Have one core for this process and what it starts, which six others also compute on."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    # In sessions of their own: the system may divide cores among sessions first.
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(6)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, before)


# Not for the session: while it is open, other tests of this process cannot run an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser for the tests of pages; they are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Start from the same random numbers, whichever tests this process has run before."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: gzip writes the time into them, and workers must agree on the names of tests."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow a warning of torch's compiler, which looks at the gradients of all that it traces, in tests on a GPU.

    Tests on a GPU that need vLLM are skipped where it is not installed, so that `pytest -m gpu` is one pass over all.
    """
    lacks_vllm = importlib.util.find_spec("vllm") is None
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"))
            item.add_marker(pytest.mark.skipif(lacks_vllm and "vllm" in item.keywords, reason="vLLM is not installed"))


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection: each run traversed 700,000 objects as it started."""
    gc.freeze()
    gc.enable()
    # Each run asks whether anything is frozen, and counting all of it takes 0.1 s.
    gc.get_freeze_count = functools.cache(gc.get_freeze_count)


LEFT_OUT = pytest.StashKey[Counter[str]]()
"""Tests that the choice by -m or -k left out, by reason."""
KINDS = {"vllm": "for vLLM: make test-vllm", "gpu": "for a GPU: pytest -m gpu", "slow": "slow: make test-slow"}


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count them; a worker of pytest-xdist hands the counts to whoever writes the summary."""
    for item in items:
        reason = next((KINDS[name] for name in KINDS if item.get_closest_marker(name)), "not asked for")
        config = item.config
        config.stash.setdefault(LEFT_OUT, Counter())[reason] += 1
        output: dict[str, Any] | None = getattr(config, "workeroutput", None)
        if output is not None:
            output["left_out"] = dict(config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of a worker: each has collected everything, so one of them says it."""
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """End with one line that counts what was not run and why."""
    reasons = config.stash.get(LEFT_OUT, Counter[str]()) + Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else "unknown reason"
        for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        listed = "; ".join(f"{num} {reason}" for reason, num in reasons.most_common())
        terminalreporter.write_line(f"Not run: {reasons.total()} tests ({listed})", yellow=True)


def pytest_sessionfinish() -> None:
    """Collect what tests left, such as open files, which is an error; then pytest has little to collect five times.

    What was there before the first test stays frozen: to traverse it takes two seconds of each process.
    """
    gc.collect()
    gc.freeze()
    # What is frozen as Python ends is a leak to packages that count their objects (triton), and they print all of it.
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session")
def trackio_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of trackio's databases, which its package looks up once, when it is imported."""
    folder = tmp_path_factory.mktemp("trackio")
    os.environ["TRACKIO_DIR"] = str(folder)
    return folder
