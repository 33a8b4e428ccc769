"""Which tokens of a demonstration are trained on, and which demonstrations a step gets."""

from importlib.resources import files
from itertools import pairwise

import pytest

from scalerl.errors import TaskError
from scalerl.recipe.parts import SftSettings
from scalerl.training.loop.requests import Text
from scalerl.training.models.load import load_model
from scalerl.training.run.sft.demonstrations import (
    LARGEST_BATCH_TOKENS,
    Examples,
    encode,
    imitated,
    num_inputs,
    plan_batches,
)
from scalerl.training.tasks.prompts import PromptFormat
from scalerl.training.tasks.task import Demonstration, Task
from scalerl.training.types import Problem

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def lengths(*sizes: int) -> Examples:
    of_size = {size: imitated([0], [0] * size, [False] * size) for size in {*sizes}}
    made = [of_size[size] for size in sizes]
    return Examples(training=made, heldout=made[:1])


def text_with_chat() -> Text:
    import torch

    loaded = load_model(str(files("scalerl") / "assets" / "tiny-base"), dtype=torch.float32, device="cpu")
    loaded.tokenizer.chat_template = TEMPLATE
    return Text(tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens)


def test_chat_demonstrations_mask_the_prompt_and_end_the_turn():
    text = text_with_chat()
    problem = Problem(id="a", prompt="1+2=", answer="3", task="t")
    task = Task(name="t", training=(problem,), evaluation=(), grader="exact", prompt=PromptFormat(chat=True))
    drawn = [Demonstration(problem=problem, completion=f"<think></think>{place}") for place in range(10, 30)]
    examples = encode(drawn, task, text, num_heldout=9, max_tokens=128)
    assert (len(examples.training), len(examples.heldout), examples.num_too_long) == (18, 2, 0)
    first = examples.heldout[0]
    prompt = text.encode_prompt("1+2=", task.prompt)
    assert list(first.request.prompt_tokens) == prompt
    assert text.decode(first.tokens.tolist()) == "<think></think>10"
    assert first.tokens[-1] == text.tokenizer.eos_token_id
    assert not first.forced.any()


def test_text_of_the_environment_is_masked():
    text = text_with_chat()
    problem = Problem(id="a", prompt="1+1+3=", answer="5", task="t")
    task = Task(name="t", training=(problem,), evaluation=(), grader="exact")
    turns = ("1+1", "2;", "2+3", "5;", "5")
    first, *_ = encode([Demonstration.of(problem, turns)] * 20, task, text, num_heldout=9, max_tokens=128).training
    end = text.tokenizer.eos_token_id
    model, observed = [[*text.encode(part), end] for part in turns[::2]], [text.encode(part) for part in turns[1::2]]
    assert first.tokens.tolist() == [*model[0], *observed[0], *model[1], *observed[1], *model[2]]
    assert first.tokens[~first.forced].tolist() == [*model[0], *model[1], *model[2]]
    with pytest.raises(TaskError, match="ends with the environment"):
        Demonstration.of(problem, turns[:2])


def test_long_demonstrations_are_left_out():
    text = text_with_chat()
    problem = Problem(id="a", prompt="1+2=", answer="3", task="t")
    task = Task(name="t", training=(problem,), evaluation=(), grader="exact")
    drawn = [Demonstration(problem=problem, completion="1" * place) for place in range(1, 41)]
    examples = encode(drawn, task, text, num_heldout=9, max_tokens=20)
    assert examples.num_too_long == 26
    assert max(map(num_inputs, examples.training)) < 20


def test_default_batch_is_an_eighth_of_an_epoch():
    examples = lengths(*[10] * 80)
    batches = plan_batches(examples, SftSettings(), seed=0)
    assert len(batches) == 4 * 8
    assert all(len(batch) == 10 for batch in batches)
    for epoch in range(4):
        assert sorted(index for batch in batches[8 * epoch : 8 * epoch + 8] for index in batch) == list(range(80))
    assert batches[:8] != batches[8:16]
    assert batches == plan_batches(examples, SftSettings(), seed=0)
    large = lengths(*[LARGEST_BATCH_TOKENS // 2] * 20)
    assert [len(batch) for batch in plan_batches(large, SftSettings(epochs=1.0), seed=0)] == [2] * 10


def test_batches_hold_at_most_their_tokens():
    examples = lengths(*range(1, 60))
    sizes = list(map(num_inputs, examples.training))
    batches = plan_batches(examples, SftSettings(batch_tokens=70, steps=200), seed=1)
    assert len(batches) == 200
    assert all(sum(sizes[index] for index in batch) <= 70 for batch in batches)
    assert all(sum(sizes[index] for index in [*batch, after[0]]) > 70 for batch, after in pairwise(batches))


@pytest.mark.parametrize("epochs, num", [(0.5, 40), (1.0, 80), (2.5, 200)])
def test_epochs_may_be_fractions(epochs: float, num: int):
    batches = plan_batches(lengths(*[10] * 80), SftSettings(epochs=epochs), seed=0)
    assert sum(map(len, batches)) == num
