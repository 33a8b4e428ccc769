"""Agent programs over the endpoint: tokens, branches, keys, and the packages that speak to it."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from contracts.requests import drain
from played import decode, observe, opened, request, turns_engine
from until import wait_until

from scalerl.errors import RecipeError
from scalerl.recipe.parts import EnvironmentSettings
from scalerl.training.environments import harness
from scalerl.training.environments.build import build_steps, find
from scalerl.training.environments.chat import ChatCalls
from scalerl.training.environments.harness import Harness
from scalerl.training.environments.protocol import Step
from scalerl.training.environments.turns import Playing
from scalerl.training.types import Completion, Episode, Problem, Request

PROBLEM = Problem(id="0", prompt="", answer="", task="own")


def episode(completion: Completion) -> Episode:
    assert completion.episode is not None
    return completion.episode


PROGRAMS = {
    "talk": Episode(value=1.0),
    "talk_async": Episode(answer="8 1.0"),
    "branch": Episode(value=0.5, num_branches=2),
    "in_parallel": Episode(value=1.0, num_branches=1),
    "by_tokens": Episode(value=1.0, num_branches=2),
    "refused": Episode(value=1.0),
    "broken": Episode(reason="error"),
    "silent": Episode(reason="no_answer"),
}


def played(num: int) -> list[dict[str, Completion]]:
    """Return a conversation with each of the programs of own_programs, `num` times."""
    settings = EnvironmentSettings.model_validate({"name": "harness", "program": "own_programs:chosen"})
    steps = build_steps(settings)
    playing = Playing(settings=settings, steps=steps, observe=observe, opened=opened)
    with closing(turns_engine({"own": playing})) as engine:
        problems = [Problem(id=name, prompt="", answer=name, task="own") for name in PROGRAMS]
        rounds = []
        for _ in range(num):
            engine.submit([request(number, budget=200, problem=each) for number, each in enumerate(problems)])
            rounds.append({completion.request.problem.id: completion for completion in drain(engine)})
    assert engine.first_errors == {"harness": "RuntimeError: broken on purpose"}
    return rounds


def test_programs_are_conversations_that_repeat_themselves():
    completions, again = played(2)
    assert {name: episode(each) for name, each in completions.items()} == PROGRAMS
    # Calls that extend each other are one conversation.
    talk = completions["talk"]
    assert (talk.request.prompt_tokens, len(talk.turns), talk.forced.sum()) == ((1, 2, 3), 3, 4)
    assert [talk.tokens[end : end + 2].tolist() for _, end in talk.turns[:-1]] == [[0, 9], [1, 9]]
    # The last branch began with all that its first call said, and its own two turns follow; two branches came before.
    branch = completions["branch"]
    assert [each.request.prompt_tokens for each in branch.branches] == [(1, 2, 3), (1, 2, 3, 4)]
    assert [len(each.turns) for each in branch.sequences] == [1, 1, 2]
    assert branch.num_turns == 4
    assert branch.num_written == sum(each.num_trained_tokens for each in branch.branches) + len(branch) - 1
    assert (branch.request.prompt_tokens, len(branch.turns), branch.tokens[branch.turns[0][1]]) == ((6,), 2, 7)
    assert completions["silent"].num_trained_tokens == 0
    # Tokens are taken as they are: one is between two turns.
    given = completions["by_tokens"]
    assert [each.request.prompt_tokens for each in given.sequences] == [(1, 2, 3), (5, 6), (1, 2, 3)]
    (_, first), (second, _) = given.branches[0].turns
    assert (second - first, given.branches[0].tokens[first]) == (1, 9)
    for name in PROGRAMS.keys() - {"in_parallel"}:
        assert again[name].tokens.tolist() == completions[name].tokens.tolist()


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

    made = Harness(PROBLEM, 0, program=program, call_format=ChatCalls())
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "example.org,127.0.0.1"
    opening = made.begin()
    assert opening.messages == (("user", "where?"),)
    assert '"look"' in opening.tools
    written = 'Let me see. <tool_call>{"name": "look", "arguments": {"at": 3}}</tool_call>'
    step = made.step(written)
    assert (step.messages, step.num_calls, step.restart) == ((("tool", "a door"),), 1, False)
    step = made.step("a door.")
    assert step.restart
    assert step.messages == (("user", "where, then?"), ("assistant", written), ("tool", "a door"))
    assert made.step("a door.").reward == 1.0
    made.close()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., socket.socket]]:
    """Connect to the endpoint of a program that waits; the first bytes are sent."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    ended = threading.Event()
    monkeypatch.setattr(harness, "MOST_CALLS", 10)
    made = Harness(PROBLEM, 0, program=lambda problem: ended.wait())
    address = urlsplit(os.environ["OPENAI_BASE_URL"])
    with ExitStack() as opened:

        def connect(method: str, key: str, body: str = "") -> socket.socket:
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", address.port or 0), timeout=300))
            head = f"{method} /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Length: 1000\r\n"
            connection.sendall(f"{head}\r\n{body}".encode())
            return connection

        yield connect
        ended.set()
        made.close()


def status_of(connection: socket.socket) -> bytes:
    return connection.recv(12)


def test_endpoint_needs_the_key_for_everything(endpoint: Callable[..., socket.socket]):
    for method in ("GET", "POST"):
        assert status_of(endpoint(method, "wrong")) == b"HTTP/1.1 401"
    assert status_of(endpoint("GET", os.environ["OPENAI_API_KEY"])) == b"HTTP/1.1 200"


def test_slow_bodies_end_and_have_few_threads(endpoint: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch):
    before, key = threading.active_count(), os.environ["OPENAI_API_KEY"]
    slow = [endpoint("POST", key, "{") for _ in range(40)]
    with suppress(ConnectionError):  # there is no room for it, but then all before it were taken or refused
        status_of(endpoint("GET", key))
    wait_until(lambda: threading.active_count() - before <= 10, seconds=30.0, what="the end of those refused")
    for connection in slow:
        connection.close()
    wait_until(lambda: threading.active_count() <= before, what="the end of threads")
    with monkeypatch.context() as patched:
        patched.setattr(harness.EndpointHandler, "request_s", 1.0)
        assert status_of(endpoint("POST", key, "{")) == b""
    wait_until(lambda: threading.active_count() <= before, what="the end of the last thread")
    assert status_of(endpoint("GET", key)) == b"HTTP/1.1 200"


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
        find(EnvironmentSettings(name="harness", **settings))  # type: ignore[arg-type]


# -- the examples, with the packages that `make test-slow` installs ----------------------------------------------------

AGENTS = Path(__file__).parents[3] / "examples" / "agents"


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("openai", "verifiers", "textarena"):
        pytest.importorskip(package, reason="the extra `agents` is not installed")
    monkeypatch.syspath_prepend(str(AGENTS))


def played_example(settings: dict[str, Any], num: int = 2, **rules: Any) -> list[Completion]:
    steps = build_steps(EnvironmentSettings(**settings))
    playing = Playing(
        settings=EnvironmentSettings(name="own", **rules), steps=steps, observe=observe_any, opened=opened_any
    )
    problem = Problem(id="0", prompt="1 2 3", answer="4", task="own")
    with closing(turns_engine({"own": playing}, context=4000)) as engine:
        engine.submit([request(number, budget=200, problem=problem) for number in range(num)])
        completions = drain(engine, max_polls=100_000)
    assert not engine.first_errors
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
def test_verifiers_sends_tokens_of_its_own(agents: None, tmp_path: Path):
    """Its TrainClient writes the prompts with the model's tokenizer, here one of numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(number): number for number in range(64)}, unk_token="63"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    written = PreTrainedTokenizerFast(tokenizer_object=words)
    written.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    written.save_pretrained(tmp_path)
    settings = {"name": "harness", "program": "verifiers_task:play", "tokenizer": str(tmp_path), "question": "8 9"}
    for completion in played_example(settings):
        assert completion.request.prompt_tokens == (1, 2, 3)
        (_, first), (second, _) = completion.turns
        assert completion.tokens[first:second].tolist() == [8, 9]
        assert (episode(completion).num_branches, episode(completion).value) == (0, 0.0)


@pytest.mark.slow
def test_game_of_textarena(agents: None):
    settings = {"name": "textarena_game:Game", "game": "GuessTheNumber-v0-raw"}
    for completion in played_example(settings, max_turns=4):
        assert episode(completion).reason is None
        assert len(completion.turns) >= 1
