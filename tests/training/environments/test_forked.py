"""Environments in processes of their own: limits, hostile ones, and that nothing is left behind."""

import os
import signal
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from contracts.requests import drain
from hostile_environments import HARMS, MARK
from played import observe, opened, request, turns_engine
from sessions import is_gone
from until import wait_until

from scalerl.errors import GraderPoolError
from scalerl.recipe.parts import EnvironmentSettings
from scalerl.training.environments.build import build_steps
from scalerl.training.environments.steps import Steps
from scalerl.training.environments.turns import Playing, TurnsEngine
from scalerl.training.types import Completion, Problem

LIMITS = {"step_s": 60.0, "step_cpu_s": 3.0, "step_memory_mb": 256}
SHORT = {"step_s": 3.0, "step_cpu_s": 0.5, "step_memory_mb": 256}
"""For those alone that are to meet a limit of time."""


def forked(name: str, limits: Mapping[str, Any] = LIMITS, **settings: Any) -> Steps:
    own = EnvironmentSettings(name=f"hostile_environments:{name}", **limits, **settings)
    return build_steps(own)


def engine_of(**environments: Steps) -> TurnsEngine:
    playing = {
        name: Playing(settings=EnvironmentSettings(name=name), steps=steps, observe=observe, opened=opened)
        for name, steps in environments.items()
    }
    return turns_engine(playing, slots=8)


EXPECTED = {
    "hang": "timeout",
    "hang_deaf": "timeout",
    "spin": "timeout",
    "crash": "crash",
    "leave": "crash",
    "leave_by_exception": "error",
    "fork_bomb": "timeout",
    "come_back_twice": None,
    "leave_a_child": None,
    "print_much": None,
    "eat_memory": "memory",
    "say_much": "error",
    "return_nan": "error",
    "return_nonsense": "error",
    "reward_infinity": "error",
    "write_to_the_trainer": "crash",
    "flood_the_trainer": "crash",
    "kill_the_family": "crash",
    "outlive_the_trainer": None,
}


def test_harm_costs_one_verdict_and_nobody_elses(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv(MARK, str(tmp_path))
    patient, short = forked("Hostile"), forked("Hostile", SHORT)
    assert EXPECTED.keys() == HARMS.keys()
    requests = []
    for number, harm in enumerate([*HARMS, *["none"] * len(HARMS)]):
        problem = Problem(id=str(number), prompt="1", answer=harm, task="own")
        where = "short" if EXPECTED.get(harm) == "timeout" else "patient"
        requests.append(request(number, budget=200, problem=problem, environment=where))
    with closing(engine_of(patient=patient, short=short)) as engine:
        engine.submit(requests)
        endings = {completion.request.problem.id: completion.episode for completion in drain(engine)}
    ended = {each.problem.id: (each.problem.answer, endings[each.problem.id]) for each in requests}
    for harm, episode in ended.values():
        assert episode is not None
        assert (episode.reason, episode.value) == (EXPECTED.get(harm), None if EXPECTED.get(harm) else 1.0), harm
    assert engine.first_errors.keys() == {"patient", "short"}
    assert is_gone(patient.pid)
    assert is_gone(short.pid)
    mark = str(tmp_path).encode()
    wait_until(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in read_bytes(path)])
    # What was printed is not passed on without bound.
    assert len(capfd.readouterr().err) < 3_000_000


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_conversation_keeps_its_process_until_the_forker_dies():
    steps = forked("Pid")
    assert steps.pid != os.getpid()
    with closing(engine_of(own=steps)) as engine:

        def played(num: int) -> list[Completion]:
            engine.submit([request(number, budget=200) for number in range(num)])
            return drain(engine)

        for completion in played(12):
            ends = [end for _, end in completion.turns[:2]]
            (first, pid), (second, again) = (completion.tokens[end : end + 2].tolist() for end in ends)
            assert (first, second, pid) == (1, 2, again)
        assert not engine.first_errors
        os.kill(steps.pid, signal.SIGKILL)
        # Noticed when the next conversation begins, or when it does not.
        with pytest.raises(GraderPoolError, match="hostile_environments:Pid"):
            played(1)
    assert is_gone(steps.pid)


def test_environment_is_closed_after_its_conversation(tmp_path: Path):
    """Also after a step that raised. Some never come back from closing."""
    path = tmp_path / "closed"
    problems = [Problem(id="1", prompt="1", answer=answer, task="own") for answer in ("", "", "", "", "raise")]
    steps = forked("Closing", path=str(path))
    # Settings may hold keys: they are not in the command line, which everyone on the machine can read.
    command = Path(f"/proc/{steps.pid}/cmdline").read_bytes()
    assert (b"scalerl.training.graders.supervisor" in command, str(path).encode() in command) == (True, False)
    with closing(engine_of(own=steps)) as engine:
        engine.submit([request(number, problem=problem) for number, problem in enumerate(problems)])
        ended = {each.request.problem.answer: getattr(each.episode, "reason", "") for each in drain(engine)}
    assert ended == {"": None, "raise": "error"}
    assert path.read_text() == "closed\n" * len(problems)
    assert is_gone(steps.pid)


@pytest.mark.parametrize(("name", "in_process"), [("calculator", False), ("hostile_environments:Pid", True)])
def test_what_is_trusted_runs_in_this_process(name: str, in_process: bool):
    settings = EnvironmentSettings(name=name, in_process=in_process)
    assert build_steps(settings).pid == os.getpid()
