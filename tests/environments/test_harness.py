"""Agent programs over the endpoint: tokens, branches, keys, and the packages that speak to it."""

import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.requests import drain
from played import decode, observe, opened, request, turns_engine

from scalerl.config.parts import EnvironmentSettings, GradingSettings
from scalerl.environments.build import EnvironmentSpec, build_steps, find
from scalerl.environments.chat import ChatCalls
from scalerl.environments.harness import Harness
from scalerl.environments.protocol import Step
from scalerl.environments.turns import Playing
from scalerl.errors import RecipeError
from scalerl.types import Completion, Episode, Problem, Request

PROBLEM = Problem(id="0", prompt="", answer="", task="own")


def played(program: str, num: int = 1, **settings: object) -> tuple[list[Completion], dict[str, str]]:
    """Return conversations with a program of own_programs, and the errors of its environment."""
    own = EnvironmentSettings(name="harness", program=f"own_programs:{program}", **settings)  # type: ignore[call-arg]
    steps = build_steps(EnvironmentSpec(settings=own), GradingSettings(timeout_s=60.0))
    with closing(turns_engine({"own": Playing(steps=steps, observe=observe, opened=opened)})) as engine:
        engine.submit([request(number, budget=200) for number in range(num)])
        return drain(engine), dict(steps.first_errors)


def episode(completion: Completion) -> Episode:
    assert completion.episode is not None
    return completion.episode


def test_calls_that_extend_each_other_are_one_conversation():
    completions, errors = played("talk", 6)
    assert not errors
    for completion in completions:
        assert completion.request.prompt_tokens == (1, 2, 3)
        assert len(completion.turns) == 3
        between = [completion.tokens[end : end + 2].tolist() for _, end in completion.turns[:-1]]
        assert between == [[0, 9], [1, 9]]
        assert completion.forced.sum() == 4
        assert episode(completion).value == 1.0
        assert episode(completion).num_branches == 0


def test_noise_of_calls_is_repeatable():
    first, again = (sorted(each.tokens.tolist() for each in played("talk", 3)[0]) for _ in range(2))
    assert first == again


def test_only_the_last_branch_is_trained():
    (completion,), errors = played("branch")
    assert not errors
    assert episode(completion).num_branches == 2
    # The last branch began with all that its first call said; its own two turns follow.
    assert completion.request.prompt_tokens == (6,)
    assert len(completion.turns) == 2
    assert completion.tokens[completion.turns[0][1]] == 7


@pytest.mark.parametrize(
    ("program", "value", "answer"),
    [("talk_async", None, "8 1.0"), ("in_parallel", 1.0, None), ("refused", 1.0, None)],
)
def test_program_ends_with_a_value_or_an_answer(program: str, value: float | None, answer: str | None):
    (completion,), errors = played(program)
    assert not errors
    assert (episode(completion).value, episode(completion).answer) == (value, answer)


def test_program_that_fails_or_never_calls_has_no_verdict():
    (completion,), errors = played("broken")
    assert episode(completion).reason == "error"
    assert "broken on purpose" in errors["harness"]
    (completion,), _ = played("silent")
    assert episode(completion).reason == "no_answer"
    assert completion.num_trained_tokens == 0


def test_tool_calls_of_the_api_are_what_the_model_wrote(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("NO_PROXY", "example.org")

    def program(problem: Problem) -> float:
        from own_programs import ask

        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        messages = [{"role": "user", "content": "where?"}]
        _, reply = ask(messages, tools=tools)
        message = reply["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("look", '{"at": 3}')
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "a door"}]
        ask(messages, tools=tools)
        # A rewritten question is a branch; what the model wrote is in it as it was written.
        ask([{"role": "user", "content": "where, then?"}, *messages[1:]], tools=tools)
        return 1.0

    harness = Harness(PROBLEM, 0, program=program, call_format=ChatCalls())
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "example.org,127.0.0.1"
    opening = harness.begin()
    assert opening.messages == (("user", "where?"),)
    assert '"look"' in opening.tools
    written = 'Let me see. <tool_call>{"name": "look", "arguments": {"at": 3}}</tool_call>'
    step = harness.step(written)
    assert (step.messages, step.num_calls, step.restart) == ((("tool", "a door"),), 1, False)
    step = harness.step("a door.")
    assert step.restart
    assert step.messages == (("user", "where, then?"), ("assistant", written), ("tool", "a door"))
    assert harness.step("a door.").reward == 1.0
    harness.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "environment.program"),
        ({"program": "own_programs:talk", "turn": 3}, "turn"),
        ({"program": "own_programs:nothing"}, "nothing"),
        ({"program": "own_programs:talk", "in_process": True}, "in_process"),
    ],
)
def test_program_that_cannot_be_used_is_refused(settings: dict[str, object], message: str):
    with pytest.raises(RecipeError, match=message):
        find(EnvironmentSpec(settings=EnvironmentSettings(name="harness", **settings)))  # type: ignore[arg-type]


def test_harness_needs_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scalerl.environments.build.os", SimpleNamespace(name="nt"))
    with pytest.raises(RecipeError, match="needs Linux or macOS"):
        played("talk")


# -- the examples, with the packages that `make test-slow` installs ----------------------------------------------------

AGENTS = Path(__file__).parents[2] / "examples" / "agents"


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("openai", "verifiers", "textarena"):
        pytest.importorskip(package, reason="the extra `agents` is not installed")
    monkeypatch.syspath_prepend(str(AGENTS))


def played_example(settings: dict[str, Any], num: int = 2, **rules: Any) -> list[Completion]:
    steps = build_steps(EnvironmentSpec(settings=EnvironmentSettings(**settings)), GradingSettings(timeout_s=120.0))
    playing = Playing(steps=steps, observe=observe_any, opened=opened_any, **rules)
    problem = Problem(id="0", prompt="1 2 3", answer="4", task="own")
    with closing(turns_engine({"own": playing}, context=4000)) as engine:
        engine.submit([request(number, budget=200, problem=problem) for number in range(num)])
        completions = drain(engine, max_polls=100_000)
    assert not steps.first_errors
    return completions


def observe_any(step: Step) -> list[int]:
    """Return tokens that stand for a text of any kind."""
    return [ord(letter) % 64 for letter in step.observation + "".join(content for _, content in step.messages)][:50]


def opened_any(request: Request, step: Step) -> list[int]:
    return [1, *observe_any(step)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "num_turns", "value"),
    [
        ({"name": "harness", "program": "openai_sdk:sure", "rounds": 3}, 3, None),
        ({"name": "harness", "program": "verifiers_task:play"}, 2, 0.0),
    ],
)
def test_programs_of_others_are_one_conversation(
    agents: None, settings: dict[str, Any], num_turns: int, value: float | None
):
    for completion in played_example(settings):
        assert len(completion.turns) == num_turns
        assert episode(completion).num_branches == 0
        assert episode(completion).value == value
        start, end = completion.turns[-1]
        said = decode(completion.tokens[start:end].tolist())
        assert episode(completion).answer == (said if value is None else None)


@pytest.mark.slow
def test_game_of_textarena(agents: None):
    settings = {"name": "textarena_game:Game", "game": "GuessTheNumber-v0-raw"}
    for completion in played_example(settings, max_turns=4):
        assert episode(completion).reason is None
        assert len(completion.turns) >= 1
