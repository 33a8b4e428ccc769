"""Graders for the tests of the pool, which imports them in its own processes by path."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_kept: list[bytes] = []

no_function = 3


def obey(text: str, answer: str, /) -> object:
    """Do what the text says; the answer is a file to write or to wait for, where one is needed."""
    match text.split():
        case ["right"]:
            return True
        case ["wrong"]:
            return False
        case ["touch"]:
            Path(answer).touch()
            return True
        case ["nothing"]:
            return None
        case ["number"]:
            return 1.5
        case ["wait"]:
            while not os.path.exists(answer):
                time.sleep(0.01)
            return True
        case ["sleep"]:
            time.sleep(3600)
        case ["compute", seconds]:
            while time.process_time() < float(seconds):
                pass
            return True
        case ["spin"]:
            while True:
                pass
        case ["exit"]:
            os._exit(3)
        case ["forge", *reply]:
            # Alone in its write, since more than one reply is refused for that. Numbers of messages can be guessed.
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor > 2:
                    with contextlib.suppress(OSError):
                        os.write(descriptor, f"[{answer}, {' '.join(reply)}]\n".encode())
            time.sleep(3600)
        case ["outlive"]:
            if os.fork() == 0:
                os.setsid()
                time.sleep(3600)
            time.sleep(3600)
        case ["leave"]:
            sys.exit(3)
        case ["segfault"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        case ["hoard"]:
            hoard = []
            while True:
                hoard.append(b"x" * 2**20)
        case ["keep", megabytes]:
            _kept.append(b"x" * (int(megabytes) * 2**20))
            return True
        case ["raise", number]:
            raise ArithmeticError(f"number {number}")
        case ["start", program]:
            subprocess.Popen([program, "3600"])
            time.sleep(3600)
    raise AssertionError(text)


def same(text: str, answer: str, /) -> bool:
    return text == answer


def same_after(text: str, answer: str, thinking_end: str) -> bool:
    return text.partition(thinking_end)[2] == answer


def same_tagged(text: str, answer: str, **tags: str) -> bool:
    return text.partition(tags["thinking_end"])[2] == answer and tags["thinking_start"] in text


def module_is_loaded(text: str, answer: str, /) -> bool:
    return text in sys.modules


_LOOPS: list[asyncio.AbstractEventLoop] = []


async def wait_for_others(text: str, answer: str, /, *, folder: str, num: int) -> bool:
    """Wait until `num` processes have begun a call; each has a file in the folder.

    Return whether what the first call of this process has opened, such as a client over HTTP, can still be used.
    """
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < num:
        await asyncio.sleep(0.2)
    _LOOPS.append(asyncio.get_running_loop())
    return _LOOPS[0] is _LOOPS[-1]
