"""Environments in processes of their own: limits, hostile ones, and that nothing is left behind."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from contracts.requests import drain
from hostile_environments import HARMS
from played import observe, opened, request, turns_engine

from scalerl.config.parts import EnvironmentSettings, GradingSettings
from scalerl.environments.build import EnvironmentSpec, build_steps
from scalerl.environments.steps import Steps
from scalerl.environments.turns import Playing, TurnsEngine
from scalerl.errors import GraderPoolError
from scalerl.remote.session import session_members
from scalerl.types import Completion, Problem, Request

LIMITS = GradingSettings(timeout_s=20.0, cpu_limit_s=3.0, memory_limit_mb=256)


def forked(name: str, limits: GradingSettings = LIMITS, **settings: object) -> Steps:
    spec = EnvironmentSpec(settings=EnvironmentSettings(name=f"hostile_environments:{name}", **settings))  # type: ignore[arg-type]
    return build_steps(spec, limits)


def engine_of(steps: Steps) -> TurnsEngine:
    return turns_engine({"own": Playing(steps=steps, observe=observe, opened=opened)}, slots=8)


def played(steps: Steps, requests: list[Request]) -> list[Completion]:
    with closing(engine_of(steps)) as engine:
        engine.submit(requests)
        return drain(engine)


def gone(session: int, timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while session_members(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


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
    "print_a_gigabyte": None,  # or "timeout" where the machine is slow
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


def test_harm_costs_one_verdict_and_nobody_elses(capfd: pytest.CaptureFixture[str]):
    steps = forked("Hostile")
    requests = []
    for number, harm in enumerate([*HARMS, *["none"] * len(HARMS)]):
        problem = Problem(id=str(number), prompt="1", answer=harm, task="own")
        requests.append(request(number, budget=200, problem=problem))
    completions = played(steps, requests)
    endings = {completion.request.problem.id: completion.episode for completion in completions}
    assert len(endings) == len(requests)
    reasons = {harm: getattr(endings[str(number)], "reason", "") for number, harm in enumerate(HARMS)}
    assert reasons["print_a_gigabyte"] in (None, "timeout")
    assert reasons == {**EXPECTED, "print_a_gigabyte": reasons["print_a_gigabyte"]}
    for number, each in enumerate(requests):
        expected = 1.0 if reasons.get(each.problem.answer) is None else None
        assert getattr(endings[str(number)], "value", "") == expected, each.problem.answer
    assert steps.first_errors
    assert gone(steps.pid)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"sleep(1000.5)" in read_bytes(path)]
    assert not left
    # What was printed is not passed on without bound.
    assert len(capfd.readouterr().err) < 3_000_000


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_each_conversation_keeps_its_process():
    steps = forked("Pid")
    completions = played(steps, [request(number, budget=200) for number in range(12)])
    for completion in completions:
        observed = [
            completion.tokens[end : end + 2].tolist() for (_, end), _ in zip(completion.turns, range(2), strict=False)
        ]
        assert [first for first, _ in observed] == [1, 2]
        assert len({pid for _, pid in observed}) == 1
    assert not steps.first_errors


def test_environment_is_closed_after_its_conversation(tmp_path: Path):
    path = tmp_path / "closed"
    steps = forked("Closing", path=str(path))
    completions = played(steps, [request(number) for number in range(4)])
    assert [completion.episode.value for completion in completions if completion.episode] == [1.0] * 4
    assert path.read_text() == "closed\n" * 4
    assert gone(steps.pid)


def test_environment_is_closed_after_a_step_that_raised(tmp_path: Path):
    path = tmp_path / "closed"
    problem = Problem(id="1", prompt="1", answer="raise", task="own")
    (completion,) = played(forked("Closing", path=str(path)), [request(1, problem=problem)])
    assert getattr(completion.episode, "reason", "") == "error"
    assert path.read_text() == "closed\n"


def test_settings_are_not_in_the_command_line(tmp_path: Path):
    with closing(forked("Closing", path="a-long-secret")) as steps:
        shown = Path(f"/proc/{steps.pid}/cmdline").read_bytes()
        assert b"scalerl.graders.supervisor" in shown
        assert b"a-long-secret" not in shown


def submit_and_drain(engine: TurnsEngine) -> None:
    engine.submit([request(1)])
    drain(engine)


def test_death_of_the_forker_ends_the_run():
    steps = forked("Pid")
    with closing(engine_of(steps)) as engine:
        engine.submit([request()])
        drain(engine)
        os.kill(steps.pid, signal.SIGKILL)
        # Noticed when the next conversation begins, or when it does not.
        with pytest.raises(GraderPoolError, match="hostile_environments:Pid"):
            submit_and_drain(engine)
    assert gone(steps.pid)


@pytest.mark.parametrize(
    ("name", "in_process", "apart"),
    [
        ("calculator", False, False),
        ("hostile_environments:Pid", False, True),
        ("hostile_environments:Pid", True, False),
    ],
)
def test_code_of_the_users_runs_apart(name: str, in_process: bool, apart: bool):
    spec = EnvironmentSpec(settings=EnvironmentSettings(name=name, in_process=in_process))
    with closing(build_steps(spec, LIMITS)) as steps:
        assert (steps.pid != os.getpid()) == apart
