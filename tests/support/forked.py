"""Commands in processes of their own that are forked from one that has imported torch: starting Python takes 5 s."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")


def start(words: list[str], *, output: Path, prepare: Callable[..., object] | None = None) -> ForkServerProcess:
    """Start `scalerl` with these words; `prepare` is called first, in that process."""
    # Imported only: the server has one thread and has computed nothing when it forks.
    _SERVER.set_forkserver_preload(["scalerl.cli.train", "scalerl.run.run", "transformers.models.llama"])
    process = _SERVER.Process(target=_run, args=(words, output, prepare))
    process.start()
    return process


def _run(words: list[str], output: Path, prepare: Callable[..., object] | None) -> None:
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if prepare:
        prepare()
    from scalerl.cli import main

    sys.argv = ["scalerl", *words]
    main()
