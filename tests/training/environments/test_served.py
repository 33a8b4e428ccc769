"""Tools at a server: the example of examples/agents over loopback."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from scalerl.errors import RecipeError
from scalerl.recipe.parts import EnvironmentSettings
from scalerl.training.environments.build import build_steps, find_tools, is_limited
from scalerl.training.environments.chat import ChatCalls
from scalerl.training.environments.served import ToolServer, ToolServerError, served_tools
from scalerl.training.environments.steps import read_reply
from scalerl.training.environments.tools import Plain, Tools, schema_of
from scalerl.training.types import Problem

EXAMPLE = Path(__file__).parents[3] / "examples/agents/tool_server.py"
PROBLEM = Problem(id="p", prompt="How many?", answer="2", task="t")


@contextmanager
def served(**variables: str) -> Iterator[str]:
    command = [sys.executable, str(EXAMPLE), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().rpartition(" ")[2].strip()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as url:
        yield url


def settings(**own: Any) -> EnvironmentSettings:
    return EnvironmentSettings.model_validate({"name": "tools", **own})


def sql(text: str) -> str:
    return f'<tool_call>{{"name": "query", "arguments": {{"sql": "{text}"}}}}</tool_call>'


def test_a_conversation_has_a_database_of_its_own(url: str):
    first, second = (Tools(PROBLEM, 0, tools=served_tools(url), call_format=ChatCalls()) for _ in range(2))
    assert first.step(sql("create table t (a)")).observation == "done"
    first.step(sql("insert into t values (1), (2)"))
    step = first.step(sql("select count(*) from t"))
    assert (step.observation, step.num_calls, step.num_errors, step.done) == ("2", 1, 0, False)
    # What is wrong with a call is for the model to read.
    step = second.step(sql("select count(*) from t"))
    assert (step.num_errors, "no such table: t" in step.observation) == (1, True)
    assert first.step("2").answer == "2"
    first.close()
    assert first.step(sql("select * from t")).num_errors == 1
    second.close()


@pytest.mark.parametrize(
    "text",
    [
        "attach 'other.db' as other",
        "vacuum into 'copy.db'",
        "pragma max_page_count = 100000",
        "select length(zeroblob(100000000))",
        "with recursive t(a) as (select 1 union all select a + 1 from t) select sum(a) from t",
    ],
)
def test_example_refuses_files_and_endless_statements(url: str, text: str):
    with closing(Tools(PROBLEM, 0, tools=served_tools(url), call_format=Plain())) as tools:
        assert tools.step(f"?{text}").num_errors == 1
    assert not Path("copy.db").exists()


def test_call_that_is_sent_again_is_carried_out_once(url: str):
    server = ToolServer(url)
    body = {"session": "s", "name": "query"}
    server.ask("call", body | {"number": 0, "arguments": {"sql": "create table t (a)"}})
    for _ in range(2):
        server.ask("call", body | {"number": 1, "arguments": {"sql": "insert into t values (1)"}})
    assert server.ask("call", body | {"number": 2, "arguments": {"sql": "select count(*) from t"}}) == {"result": "1"}


def test_recipe_names_servers_beside_other_tools(url: str):
    tools = find_tools(settings(tools=["calculator"], servers=[url]))
    assert list(tools) == ["query", "calculator"]
    schema = schema_of("query", tools["query"])
    assert schema["function"]["parameters"]["properties"]["sql"]["type"] == "string"
    # A call over the network may hang: it is made by a process of the conversation's own.
    assert is_limited(settings(servers=[url]))
    with closing(build_steps(settings(servers=[url]), ChatCalls())) as steps:
        said = [(PROBLEM, 0), sql("select 6 * 7"), "42"]
        heard = []
        for message in said:
            steps.tell("a", message)
            deadline = time.monotonic() + 300
            while not (replies := steps.poll(0.1)):
                assert time.monotonic() < deadline
            heard.append(read_reply(replies[0][1])[0])
        steps.end("a")
    assert (heard[1].observation, heard[2].answer) == ("42", "42")


def test_server_that_is_gone_is_no_fault_of_the_model():
    with served() as url:
        tools = Tools(PROBLEM, 0, tools=served_tools(url), call_format=ChatCalls())
    with pytest.raises(ToolServerError):
        tools.step(sql("select 1"))
    tools.close()


def test_keys_are_named_by_a_variable(monkeypatch: pytest.MonkeyPatch):
    with served(TOOLS_KEY="abcdefgh12345") as url:
        with pytest.raises(RecipeError, match="401"):
            find_tools(settings(servers=[url]))
        with pytest.raises(RecipeError, match="TOOLS_KEY"):
            find_tools(settings(servers=[url], api_key="env:TOOLS_KEY"))
        monkeypatch.setenv("TOOLS_KEY", "abcdefgh12345")
        assert list(find_tools(settings(servers=[url], api_key="env:TOOLS_KEY"))) == ["query"]


def test_server_cannot_take_the_name_of_another_tool(url: str):
    for own in ({"servers": [url, f"{url}/"]}, {"servers": [url], "tools": [f"{__name__}:query"]}):
        with pytest.raises(RecipeError, match='two tools are called "query"'):
            find_tools(settings(**own))


def query(text: str) -> str:
    """Look something up."""
    return text


@pytest.mark.parametrize(("given", "words"), [(["example"], "URL"), ([3], "environment.servers"), ([], "tools")])
def test_servers_that_are_none_are_refused(given: list[Any], words: str):
    with pytest.raises(RecipeError, match=words):
        find_tools(settings(servers=given))
