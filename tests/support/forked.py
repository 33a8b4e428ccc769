"""Processes that are forked from one that has imported torch, where a test needs several: starting Python takes 5 s."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

# Imported only: the server has one thread and has computed nothing when it forks.
_IMPORTED = (
    "scalerl.cli.train",
    "scalerl.run.run",
    "transformers.models.llama.modeling_llama",
    "torch.distributed.fsdp",
)


def context() -> ForkServerContext:
    """Return where such processes are started; the server starts with the first and ends with the tests."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(_IMPORTED))
    return server


def start(words: list[str], *, output: Path, prepare: Callable[[], object] | None = None) -> ForkServerProcess:
    """Start `scalerl` with these words; `prepare` is called first, in that process."""
    process = context().Process(target=_run, args=(words, output, prepare))
    process.start()
    return process


def _run(words: list[str], output: Path, prepare: Callable[[], object] | None) -> None:
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if prepare:
        prepare()
    from scalerl.cli import main

    sys.argv = ["scalerl", *words]
    main()
