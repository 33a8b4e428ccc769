"""Tools: schemas from type hints, calls in every format, errors as observations, chat templates."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from played import request
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from scalerl.errors import RecipeError
from scalerl.recipe.parts import EnvironmentSettings
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.environments.build import build_playing, observer, offer_tools
from scalerl.training.environments.chat import ChatCalls, chat_observer
from scalerl.training.environments.protocol import Step
from scalerl.training.environments.tools import Plain, Tools, calculator, schema_of
from scalerl.training.loop.requests import Text
from scalerl.training.tasks.prompts import PromptFormat
from scalerl.training.tasks.task import Task
from scalerl.training.types import Problem

PROBLEM = Problem(id="p", prompt="What is 47*83?", answer="3901", task="t")
FOLDER = Path.home() / ".cache" / "scalerl" / "tokenizers"
NO_THINKING = AnswerFormat(thinking_start="", thinking_end="")


def look_up(word: str, most: int = 3, kind: Literal["short", "long"] = "short", exact: bool | None = None) -> str:
    """Look a word up.

    Args:
        word: What to look up.
        most (int): How many meanings.
    """
    return f"{word} x{most} {kind}"


class Counter:
    """Count calls."""

    def __init__(self) -> None:
        self._num = 0

    def __call__(self, by: int) -> int:
        self._num += by
        return self._num


def fails(text: str) -> str:
    """Fail."""
    raise LookupError(f"no {text}")


def tools(call_format: Any, **functions: Any) -> Tools:
    return Tools(PROBLEM, 0, tools=functions or {"calculator": calculator}, call_format=call_format)


def test_calculator():
    computed = {"47*83-52": "3849", " 2 * (3 + 4) ": "14", "1/3": "0.3333333333", "-(2-5)": "3"}
    assert {expression: calculator(expression) for expression in computed} == computed
    for expression in ("", "2+", "1/0", "2**3", "__import__('os')", "(1", "1)", "9" * 300, "9*" * 99):
        with pytest.raises(ValueError, match=r"\w"):
            calculator(expression)


def test_schema_comes_from_hints_and_docstring():
    assert schema_of("look_up", look_up) == {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up.",
            "parameters": {
                "type": "object",
                "properties": {
                    "word": {"type": "string", "description": "What to look up."},
                    "most": {"type": "integer", "description": "How many meanings."},
                    "kind": {"type": "string", "enum": ["short", "long"]},
                    "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                },
                "required": ["word"],
            },
        },
    }
    assert schema_of("count", Counter)["function"]["parameters"]["required"] == ["by"]
    with pytest.raises(RecipeError, match="no type hint for word"):
        schema_of("bare", lambda word: word)
    with pytest.raises(RecipeError, match="type"):
        schema_of("odd", _takes_a_counter)


def _takes_a_counter(counter: Counter) -> str:
    return str(counter(1))


def test_plain_calls():
    failed = Step(observation="!;", num_calls=1, num_errors=1)
    only, several = tools(Plain()), tools(Plain(), calculator=calculator, look_up=look_up)
    assert [only.step(text) for text in ("?47*83", "?47*", "3901", "")] == [
        Step(observation="3901;", num_calls=1),
        failed,
        Step(done=True, answer="3901"),
        Step(done=True, answer=""),
    ]
    # Of several tools the name comes first.
    assert several.step("?look_up house").observation == "house x3 short;"
    assert several.step("?nothing 3") == failed


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


CALL = '{"name": "calculator", "parameters": {"expression": "2*3"}}'


@pytest.mark.parametrize(
    ("text", "observation", "num_calls", "num_errors"),
    [
        ("I compute. " + called("calculator", expression="47*83"), "3901", 1, 0),
        (called("calculator", expression="1+1") + called("look_up", word="a"), "2\na x3 short", 2, 0),
        (called("look_up", word="a", most="5"), "a x5 short", 1, 0),
        (called("look_up", word=7), "7 x3 short", 1, 0),
        (f"<tool_call>[{CALL}]</tool_call>", "6", 1, 0),
        (CALL, "6", 1, 0),
        (f"<|python_tag|>{CALL}", "6", 1, 0),
        (called("calculator", expression="1/0"), "error: ValueError: division by zero", 1, 1),
        (called("fails", text="x"), "error: LookupError: no x", 1, 1),
        (called("nothing"), 'error: there is no tool "nothing"; there are', 1, 1),
        (called("calculator"), "error: expression: Field required", 1, 1),
        (called("calculator", expression=["1"]), "error: expression: Input should be a valid string", 1, 1),
        (called("look_up", word="a", most="many"), "error: most: Input should be a valid integer", 1, 1),
        ("<tool_call>\n{broken}\n</tool_call>", "error: the call is not JSON", 1, 1),
        ("<tool_call>[3]</tool_call>", 'error: a call is a JSON object with "name"', 1, 1),
        ('<tool_call>{"name": "calculator"', "error: <tool_call> was not closed", 1, 1),
    ],
)
def test_calls_of_chat_models(text, observation, num_calls, num_errors):
    step = tools(ChatCalls(), calculator=calculator, look_up=look_up, fails=fails).step(text)
    assert step.observation.startswith(observation)
    assert (step.num_calls, step.num_errors, step.done) == (num_calls, num_errors, False)


def test_turns_without_a_call_are_answers():
    environment, said = tools(ChatCalls(thinking_end="</think>")), called("calculator", expression="1+1")
    # A call within thinking is not carried out.
    for text in ("The answer is 5.", '{"answer": 5}', "{not json", '{"name": "x"}', f"{said}</think>5"):
        assert environment.step(text) == Step(done=True, answer=text)
    assert environment.step(f"hm</think>{said}").observation == "2"


def test_a_class_is_a_tool_with_state_and_bounded_calls():
    first, second = (tools(ChatCalls(), count=Counter) for _ in range(2))
    assert [first.step(called("count", by=2)).observation for _ in range(2)] == ["2", "4"]
    assert second.step(called("count", by=2)).observation == "2"
    step = second.step(called("count", by=1) * 12)
    assert (step.num_calls, step.num_errors) == (12, 4)


def test_long_results_are_cut():
    """A model could otherwise avoid a verdict by asking for too much."""

    def look(at: str) -> str:
        return at * 150_000

    step = tools(Plain(), look=look).step("?x")
    assert 50_000 < len(step.observation) <= 100_000


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS = CHATML.replace("m['content'] }}", "m['content'].split('</think>')[-1] if not loop.last else m['content'] }}")
REFUSES = "{% if messages|length > 2 %}{{ raise_exception('roles must alternate') }}{% endif %}" + CHATML
NO_END = CHATML.replace("<|im_end|>", "")


def byte_text(template: str) -> Text:
    """A tokenizer of single bytes with a chat template."""
    alphabet = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    tokenizer.chat_template = template
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert isinstance(stop, int)
    return Text(tokenizer=tokenizer, stop_tokens=(stop,))


def test_observation_is_what_the_template_writes_after_an_answer():
    text = byte_text(CHATML)
    observe = chat_observer(text, role="tool", answer=NO_THINKING)
    tokens = observe(Step(observation="3901"))
    assert text.decode(tokens) == "\n<|im_start|>tool\n3901<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "answer", "message"),
    [
        (STRIPS, AnswerFormat(thinking_start="<think>", thinking_end="</think>"), "is not append-only"),
        (REFUSES, NO_THINKING, "rejects a user turn after an answer: roles must alternate"),
        (NO_END, NO_THINKING, "does not end answers with a token that stops sampling"),
    ],
)
def test_templates_that_cannot_be_used_are_refused_with_a_remedy(template, answer, message):
    with pytest.raises(RecipeError, match=message) as refused:
        chat_observer(byte_text(template), role="user", answer=answer)
    assert "chat_template.jinja" in str(refused.value) or "eos_token" in str(refused.value)


def test_turns_that_change_earlier_ones_are_an_error():
    # A template that strips thinking can be used without.
    chat_observer(byte_text(STRIPS), role="user", answer=NO_THINKING)
    template = "{% if messages[-1]['role'] == 'system' %}!{% endif %}" + CHATML
    observer = chat_observer(byte_text(template), role="user", answer=NO_THINKING)
    with pytest.raises(ValueError, match="writes earlier turns differently"):
        observer(Step(messages=(("system", "x"),)))


def task_with(environment: str, **own: Any) -> Task:
    return Task(
        name="t",
        training=(PROBLEM,),
        evaluation=(),
        grader="exact",
        answer=NO_THINKING,
        prompt=PromptFormat(chat=True),
        environment=EnvironmentSettings.model_validate({"name": environment, **own}),
    )


def test_template_without_tools_gets_a_system_prompt():
    text = byte_text(CHATML)
    task = offer_tools(task_with("calculator"), text)
    prompt = text.decode(text.encode_prompt(PROBLEM.prompt, task.prompt))
    assert prompt.startswith("<|im_start|>system\nYou may call functions:")
    assert '"name": "calculator"' in prompt
    assert build_playing(task, text, 1000).observe(Step(observation="1"))


@pytest.mark.parametrize("before", [(), (("system", "Be brief."),)])
def test_harness_tools_go_into_the_system_prompt(before):
    text = byte_text(CHATML)
    step = Step(messages=(*before, ("user", "Where?")), tools=json.dumps([schema_of("calculator", calculator)]))
    playing = build_playing(task_with("calculator"), text, 1000)
    prompt = text.decode(list(playing.opened(request(), step)))
    said = "Be brief.\n\n" if before else ""
    assert prompt.startswith(f"<|im_start|>system\n{said}You may call functions:")
    assert '"name": "calculator"' in prompt
    assert prompt.count("<|im_start|>") == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "tools"}, "must list tools or import paths"),
        ({"name": "tools", "tools": ["calculater"]}, "calculator"),
        ({"name": "calculator", "folder": "x"}, "folder is not a setting"),
    ],
)
def test_wrong_tools_are_refused(settings, message):
    task = task_with(**{"environment": settings.pop("name"), **settings})
    with pytest.raises(RecipeError, match=message):
        build_playing(task, byte_text(CHATML), 1000)


QWEN = "\n<|im_start|>user\n<tool_response>\n3901\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
LLAMA = '<|start_header_id|>ipython<|end_header_id|>\n\n"3901"<|eot_id|>'
LLAMA += "<|start_header_id|>assistant<|end_header_id|>\n\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "role", "expected"),
    [("qwen2_5", "tool", QWEN), ("qwen3", "tool", QWEN), ("llama3_2", "tool", LLAMA), ("qwen3", "user", "refused")],
)
def test_real_templates(name, role, expected):
    """`make tokenizers` fetches them."""
    folder = FOLDER / name
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = Text(tokenizer=tokenizer, stop_tokens=(tokenizer.eos_token_id,))
    answer = AnswerFormat() if name == "qwen3" else NO_THINKING
    if expected == "refused":
        with pytest.raises(RecipeError, match="is not append-only"):
            chat_observer(text, role=role, answer=answer)
        return
    task = offer_tools(task_with("calculator"), text)
    prompt = text.decode(text.encode_prompt(PROBLEM.prompt, task.prompt))
    assert '"name": "calculator"' in prompt
    assert "You may call functions:" not in prompt
    tokens = list(observer(task, text)(Step(observation="3901")))
    assert text.decode(tokens) == expected
    # What the template makes of the whole conversation is what was sampled with this in between.
    sampled = [*text.encode("An answer."), tokenizer.eos_token_id]
    turns = [
        {"role": "user", "content": PROBLEM.prompt},
        {"role": "assistant", "content": "An answer."},
        {"role": "tool", "content": "3901"},
    ]
    whole = text.chat(turns, tools=json.loads(task.prompt.tools))
    assert text.encode(prompt) + sampled + tokens == text.encode(whole)


def test_examples_of_the_guide_work():
    whole = (Path(__file__).parents[3] / "docs" / "your-own.md").read_text()
    page = whole[whole.index("## An environment") : whole.index("## A model")]
    own: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        if "import OpenAI" in block and not importlib.util.find_spec("openai"):
            continue
        exec(compile(block, "mine.py", "exec"), own)
    environment = tools(ChatCalls(), capital=own["capital"])
    assert environment.step(called("capital", country="Japan")).observation == "Tokyo"
    assert environment.step(called("capital", country="Atlantis")).num_errors == 1
    game = own["Guess"](PROBLEM, 41, most=50)
    said = ["It is higher.", "Write a number.", "It is lower.", 1.0]
    assert [game.step(text) for text in ("10", "x", "50", "42")] == said


def test_thousands_of_calls_have_one_result():
    """A model could otherwise avoid a verdict by an observation that is too long."""
    made = Tools(PROBLEM, 0, tools={"calculator": calculator}, call_format=ChatCalls(), max_calls=2)
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>'
    step = made.step(call * 20_000)
    assert (step.num_calls, step.num_errors) == (20_000, 19_998)
    assert step.observation.splitlines()[:2] == ["2", "2"]
    assert "19998" in step.observation
    assert len(step.observation) < 200
