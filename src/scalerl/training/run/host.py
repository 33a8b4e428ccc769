"""The machine of a run: threads of the host, garbage collection, CPU time, versions and hardware."""

import atexit
import gc
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from scalerl import __version__
from scalerl.training.models.gguf import cache_folder

STATM = Path("/proc/self/statm")
"""Memory of this process in pages; Linux has it."""


def keep_compiled_code() -> None:
    """Let torch keep compiled code in the user's cache folder, unless TORCHINDUCTOR_CACHE_DIR is set.

    Its default is a folder in /tmp with a known name: another user could create it first and put code into it.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # Imports of torch set the variable to the default.
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()) != default_cache_dir():
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="scalerl-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def limit_host_threads(device: torch.device) -> None:
    """With a GPU, let torch use one thread on the host, unless OMP_NUM_THREADS is set.

    Vectors on the host are short, and threads that wait for work slow down the one that launches kernels: preparing a
    batch took 52 ms with 16 threads on 16 cores, and 8 ms with one. With a model of 10M parameters the loop made 43
    steps per second with four threads and 56 with one.
    """
    if device.type == "cuda" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Exclude all objects that exist now, such as models and modules, from garbage collection inside this context.

    Traversing them takes a few tenths of a second, in the middle of some step. If the caller has frozen objects
    already, do nothing: they would be released together with the objects of this context.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class CpuTime:
    """Counts the CPU time of this process and of processes that it started, also after they have ended.

    A process on another machine, whose CPU time is not known here, holds a core all the time.
    """

    def __init__(self, pids: Callable[[], Iterable[int | None]] = list) -> None:
        """`pids` returns the ids of the other processes; None for one on another machine."""
        self._pids = pids
        self._seconds: dict[int, float] = {}
        self._elsewhere_s = 0.0
        self._read_at = time.monotonic()

    def __call__(self) -> float:
        last_read_at = self._read_at
        self._read_at = time.monotonic()
        for pid in self._pids():
            if pid is None:
                self._elsewhere_s += self._read_at - last_read_at
                continue
            with suppress(FileNotFoundError, ProcessLookupError):
                self._seconds[pid] = _cpu_seconds(pid)
        return time.process_time() + sum(self._seconds.values()) + self._elsewhere_s


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process as Linux counts it: in ticks, its own and that of its system calls."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # A name in parentheses, which may contain anything, comes before the other fields.
    fields = stat.rpartition(")")[2].split()
    user_ticks, system_ticks = map(int, fields[11:13])
    return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")


def machine_load(device: torch.device) -> dict[str, float]:
    """Return columns on how busy the machine is; a load of 1 is one runnable process per core."""
    last_minute, _, _ = os.getloadavg()
    row = {"host/load": last_minute / (os.cpu_count() or 1)}
    with suppress(FileNotFoundError):
        num_resident_pages = int(STATM.read_text().split()[1])
        row["host/memory_gb"] = num_resident_pages * os.sysconf("SC_PAGE_SIZE") / 1e9
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        row["gpu/memory_gb"] = (total - free) / 1e9
    return row


def environment(device: torch.device, device_name: str = "") -> dict[str, Any]:
    """Return versions and hardware, for the run folder; `device_name` names a device on another machine."""
    import transformers

    if not device_name:
        device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "scalerl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "device": device_name,
        "threads": torch.get_num_threads(),
    }
