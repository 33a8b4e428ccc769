"""Environments that do every harm they can within one step."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from scalerl.training.environments.protocol import Step
from scalerl.training.types import Problem

MARK = "SCALERL_TEST_HARM"
"""A variable by which a test finds what is left behind of its own environments, and not of others."""
LEFT = ["-c", "import time; time.sleep(1000)", os.environ.get(MARK, "")]


def hang() -> str:
    while True:
        time.sleep(60)


def hang_deaf() -> str:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    return hang()


def spin() -> str:
    while True:
        pass


def crash() -> str:
    ctypes.string_at(0)
    return ""


def leave() -> str:
    os._exit(0)


def leave_by_exception() -> str:
    sys.exit("leaving")


def fork_bomb() -> str:
    for _ in range(4):
        os.fork()
    return hang()


def come_back_twice() -> str:
    os.fork()
    return "5"


def leave_a_child() -> str:
    """Leave a process behind that has a session of its own; a run must not end with it at work."""
    subprocess.Popen([sys.executable, *LEFT], start_new_session=True)
    return "5"


def print_much() -> str:
    for _ in range(100):
        sys.stdout.write("x" * 1_000_000)
        sys.stderr.write("x" * 1_000_000)
    return "5"


def eat_memory() -> str:
    kept = [bytearray(2**26) for _ in range(200)]
    return str(len(kept))


def say_much() -> str:
    return "5 " * 1_000_000


def return_nan() -> float:
    return float("nan")


def return_nonsense() -> object:
    return {"reward": 1}


def reward_infinity() -> Step:
    return Step(observation="5", reward=float("inf"))


def write_to_the_trainer() -> str:
    """Write what looks like replies to every open descriptor."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            with contextlib.suppress(OSError):
                os.write(descriptor, b'{"number": 1, "step": {"reward": 1.0, "done": true}}\n' * 3)
    return "5"


def flood_the_trainer() -> str:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, b"x" * 1_000_000)
    return "5"


def kill_the_family() -> str:
    os.kill(os.getppid(), 0)
    os.killpg(0, signal.SIGKILL)
    return "5"


def outlive_the_trainer() -> str:
    if os.fork() == 0:
        os.setsid()
        os.execvp("python3", ["python3", *LEFT])
    return "5"


HARMS = {
    harm.__name__: harm
    for harm in (
        hang,
        hang_deaf,
        spin,
        crash,
        leave,
        leave_by_exception,
        fork_bomb,
        come_back_twice,
        leave_a_child,
        print_much,
        eat_memory,
        say_much,
        return_nan,
        return_nonsense,
        reward_infinity,
        write_to_the_trainer,
        flood_the_trainer,
        kill_the_family,
        outlive_the_trainer,
    )
}


class Hostile:
    """Does the harm that the problem's answer names, in its first step; none where it names none."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._harm, self._num = HARMS.get(problem.answer), 0

    def step(self, text: str) -> object:
        self._num += 1
        if self._num == 1:
            return self._harm() if self._harm else "5"
        return 1.0


class Closing:
    """Writes into a file when it is closed; of every second group it never comes back from that."""

    def __init__(self, problem: Problem, seed: int, *, path: str) -> None:
        self._path, self._hangs, self._raises = Path(path), seed % 2 == 0, problem.answer == "raise"

    def step(self, text: str) -> float:
        if self._raises:
            raise ValueError
        return 1.0

    def close(self) -> None:
        with self._path.open("a") as file:
            file.write("closed\n")
        if self._hangs:
            hang()


class Pid:
    """Says which process it runs in, and how many turns it has taken there."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._num = 0

    def step(self, text: str) -> object:
        self._num += 1
        return f"{self._num} {os.getpid() % 64}" if self._num < 3 else 1.0
