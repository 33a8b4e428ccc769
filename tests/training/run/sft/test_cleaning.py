"""Which demonstrations are left out before SFT, and what is known of them."""

import json

import pytest
import torch

from scalerl.errors import TaskError
from scalerl.recipe.load import load_recipe
from scalerl.training.run.sft.cleaning import EvaluationNgrams, decontaminate
from scalerl.training.run.sft.make import sft
from scalerl.training.tasks.task import Demonstration
from scalerl.training.types import Problem

TRAIN = "A train leaves the station at noon and travels {} miles in {} hours before it stops"
NAMED = "Mara has {} apples and gives {} of them to each of her three younger brothers on Sunday morning"


def problem(prompt, name="p", answer="1"):
    return Problem(id=name, prompt=prompt, answer=answer, task="t")


def shown(prompt, name="p"):
    return Demonstration(problem=problem(prompt, name), completion="1")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        # Thirteen words in a row, whatever is around them, their case and their punctuation.
        ("Hint: a train leaves the station at NOON, and travels 60 miles in 2 hours. How fast is it?", "sums"),
        ("A train leaves the station at noon and travels 60 miles in 2 hours before it stops", "sums"),
        # Twelve of them.
        ("leaves the station at noon and travels 60 miles in 2 hours. How fast is it?", None),
        # Another problem from the same template.
        ("A train leaves the station at noon and travels 75 miles in 3 hours before it stops", None),
        # Short ones must be there as a whole, and not as a part of a longer formula.
        ("12+34=", "sums"),
        (" 12+34= ", "sums"),
        ("12*34=", None),
        ("12+34= and 5", "sums"),
        ("Solve the problem: 12 + 34 =", "sums"),
        ("5+12+34=", None),
        ("12+34=46+", None),
        ("12+34", None),
        ("Solve the problem: Compute $\\sin 60^\\circ$. Think first.", "sums"),
        ("Solve the problem: compute  $\\sin 60^\\circ$", "sums"),
        ("Compute $\\sin 600^\\circ$.", None),
        ("compute \\sin 60^\\circ", "sums"),
        # A number is read whole, with its decimals and thousands.
        ("Question: What is 9 + 4?", "sums"),
        ("What is 9 + 4.5?", None),
        ("What is 9 + 4,000?", None),
        ("What is 9 + 4, please?", "sums"),
        # A word alone, or a number, is asked for in too many prompts.
        ("7", "sums"),
        ("What is 7 plus 8?", None),
    ],
)
def test_prompts_that_share_words(prompt, expected):
    short = ["12+34=", "1+2=", "Compute $\\sin 60^\\circ$.", "What is 9 + 4?", "7"]
    sums = [TRAIN.format(60, 2), TRAIN.format(90, 3), *short]
    ngrams = EvaluationNgrams({"sums": [problem(text, text) for text in sums]}, 13)
    assert ngrams.set_of(problem(prompt)) == expected


def test_words_of_a_template_tell_nothing():
    problems = [problem(NAMED.format(number, number // 4), str(number)) for number in (12, 24)]
    drawn = {"main": [shown(NAMED.format(number, number // 4), str(number)) for number in range(8, 40, 4)]}
    kept, removed = decontaminate(drawn, {"main": problems}, 13)
    assert [item.problem.id for item in kept["main"]] == ["8", "16", "20", "28", "32", "36"]
    assert (removed.kind, removed.num, removed.total, removed.by_set) == ("contaminated", 2, 8, {"main": 2})
    assert removed.example == NAMED.format(12, 3)


def test_problems_that_differ_in_symbols_alone_are_found():
    template = "A teacher writes on the board and asks everybody in the class for the value of 3 {} 4 today"
    ngrams = EvaluationNgrams({"sums": [problem(template.format(sign), sign) for sign in "+-"]}, 13)
    assert [ngrams.set_of(problem(template.format(sign))) for sign in "+-*"] == ["sums", "sums", None]


def test_equal_evaluation_problems_are_one():
    problems = [problem(TRAIN.format(60, 2), name) for name in "ab"]
    assert EvaluationNgrams({"sums": problems}, 13).set_of(problem(TRAIN.format(60, 2))) == "sums"


def file_recipe(tmp_path, rows, *overrides):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    sampling = ("rollout.context=80", "rollout.max_prompt_tokens=16", 'length={name="none", max_length=64}')
    settings = ("task.demonstration_field=shown", "evaluation.num_prompts=4", "sft.steps=2", "sft.batch_tokens=200")
    return load_recipe(
        "scalerl", ["model.path=tiny-base", f"task={path}", *sampling, *settings, "budget.steps=1", *overrides]
    )


ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "shown": f"<think></think>{2 * n}"} for n in range(10, 40)]


def test_sft_reports_what_each_step_removed(tmp_path):
    torch.set_num_threads(1)
    long = {"prompt": "7+8=", "answer": "15", "shown": "<think>" + "1+" * 60 + "</think>15"}
    sets = tmp_path / "sets.jsonl"
    sets.write_text(json.dumps({"prompt": "30+30=", "answer": "60"}))
    recipe = file_recipe(tmp_path, [*ROWS, long], f"evaluation.sets.other={sets}", "sft.max_tokens=40")
    result = sft(recipe, tmp_path / "model")
    assert result is not None
    # Some of the rows are withheld for evaluations, and their demonstrations with them.
    removed = {each.kind: each for each in result.plan.removed}
    assert removed["contaminated"].by_set == {"other": 1}
    assert removed["contaminated"].example == "30+30="
    assert (removed["too_long"].num, removed["too_long"].limit) == (1, 40)
    made_by = json.loads((tmp_path / "model" / "made_by.json").read_text())
    assert [each["kind"] for each in made_by["plan"]["removed"]] == ["contaminated", "too_long"]


def test_nothing_left_is_an_error(tmp_path):
    sets = tmp_path / "sets.jsonl"
    sets.write_text("\n".join(json.dumps({"prompt": row["prompt"], "answer": row["answer"]}) for row in ROWS))
    recipe = file_recipe(tmp_path, ROWS, f"evaluation.sets.other={sets}")
    with pytest.raises(TaskError, match="0 demonstrations of main are left"):
        sft(recipe, tmp_path / "model")
