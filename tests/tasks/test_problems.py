import json
import re
from pathlib import Path
from typing import Any

import pytest

from scalerl.tasks.graders import GRADERS
from scalerl.tasks.problems import TASKS, TaskError, arithmetic, jsonl, without
from scalerl.types import Problem

SMALL: dict[str, Any] = {"num_problems": 300}


def contents(problems: tuple[Problem, ...]) -> set[str]:
    return {problem.content_hash for problem in problems}


def test_the_same_seeds_give_the_same_problems():
    first, second = arithmetic(50, 3, seed=1, **SMALL), arithmetic(50, 3, seed=1, **SMALL)
    assert first.training == second.training
    assert first.evaluation == second.evaluation
    assert first.demonstrations is not None
    assert second.demonstrations is not None
    assert first.demonstrations(20, 7) == second.demonstrations(20, 7)
    assert first.demonstrations(20, 7) != first.demonstrations(20, 8)


def test_each_seed_moves_its_own_problems_alone():
    task, other_training, other_evaluation = (
        arithmetic(50, 0, seed=0, **SMALL),
        arithmetic(50, 0, seed=1, **SMALL),
        arithmetic(50, 1, seed=0, **SMALL),
    )
    assert task.evaluation == other_training.evaluation
    assert task.training != other_training.training
    assert task.training == other_evaluation.training
    assert task.evaluation != other_evaluation.evaluation


def test_nothing_that_is_evaluated_on_is_ever_trained_on_or_demonstrated():
    evaluated = set().union(
        *(contents(arithmetic(200, seed, num_problems=1, max_number=5).evaluation) for seed in range(3))
    )
    task = arithmetic(1, 0, num_problems=2000, max_number=5)
    assert task.demonstrations is not None
    demonstrated = {item.problem.content_hash for item in task.demonstrations(2000, 0)}
    assert not evaluated & contents(task.training)
    assert not evaluated & demonstrated


def test_problems_are_distinct_with_unique_ids():
    task = arithmetic(100, 0, max_number=3, num_problems=300)
    for problems in (task.training, task.evaluation):
        assert len({problem.id for problem in problems}) == len(contents(problems)) == len(problems)


def test_careful_demonstrations_grade_as_correct_and_mixed_ones_do_not():
    careful = arithmetic(1, 0, num_problems=1)
    mixed = arithmetic(1, 0, num_problems=1, guess_share=0.45, guess_growth=0.15, slip_rate=0.15)
    grade = GRADERS[careful.grader]
    rates = []
    for task in (careful, mixed):
        assert task.demonstrations is not None
        verdicts = [grade(item.completion, item.problem.answer) for item in task.demonstrations(2000, 0)]
        rates.append(sum(verdict is True for verdict in verdicts) / len(verdicts))
    assert rates[0] == 1.0
    # 0.26 reasoned without a slip, and one guess in 19 of the other 0.6.
    assert rates[1] == pytest.approx(0.29, abs=0.04)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_terms": 1}, "min_terms is 1"),
        ({"min_terms": 4, "max_terms": 3}, "min_terms is 4 and max_terms 3"),
        ({"max_number": 0}, "max_number is 0"),
        ({"operations": "+/"}, 'operations is "+/"'),
        ({"operations": ""}, 'operations is ""'),
        ({"slip_rate": 1.5}, "slip_rate is 1.5"),
        ({"guess_share": 0.9, "guess_growth": 0.1}, "must stay in [0, 1]"),
        ({"min_terms": 2, "max_terms": 2, "max_number": 3}, "give only"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str):
    with pytest.raises(TaskError, match=re.escape(message)):
        arithmetic(10, 0, **settings)


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def test_a_file_of_problems(tmp_path: Path):
    rows = [{"prompt": f"{number}+1=", "answer": number + 1} for number in range(20)]
    task = jsonl(5, 0, path=write(tmp_path / "sums.jsonl", *rows), grader="numeric")
    assert len(task.evaluation) == 5
    assert len(task.training) == 15
    assert not contents(task.training) & contents(task.evaluation)
    assert {problem.id for problem in (*task.training, *task.evaluation)} == {f"line-{n}" for n in range(1, 21)}
    assert all(int(problem.answer) == int(problem.prompt.split("+")[0]) + 1 for problem in task.training)
    assert task.demonstrations is None
    assert jsonl(5, 0, path=str(tmp_path / "sums.jsonl")).evaluation == task.evaluation
    assert jsonl(5, 1, path=str(tmp_path / "sums.jsonl")).evaluation != task.evaluation


def test_fields_go_by_other_names(tmp_path: Path):
    rows = [{"question": f"q{n}", "final": f"a{n}", "name": f"n{n}", "solution": f"s{n}"} for n in range(4)]
    path = write(tmp_path / "f.jsonl", *rows)
    task = jsonl(
        1,
        0,
        path=path,
        prompt_field="question",
        answer_field="final",
        id_field="name",
        demonstration_field="solution",
    )
    assert task.demonstrations is not None
    made = task.demonstrations(100, 0)
    assert len(made) == 3
    assert all(item.completion[1:] == item.problem.prompt[1:] == item.problem.id[1:] for item in made)


def test_an_evaluation_file_removes_its_contents_from_training(tmp_path: Path):
    training = write(tmp_path / "t.jsonl", *({"prompt": f"what is  {n}?", "answer": "x"} for n in range(5)))
    evaluation = write(tmp_path / "e.jsonl", {"prompt": "what is 3?", "answer": "x"})
    task = jsonl(1, 0, path=training, evaluation_path=evaluation)
    assert [problem.prompt for problem in task.training] == [f"what is  {n}?" for n in (0, 1, 2, 4)]
    assert [problem.id for problem in task.evaluation] == ["evaluation/line-1"]


GOOD = {"prompt": "1+1=", "answer": "2"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [GOOD, "", {"prompt": "1+2="}],
            'line 3: the field "answer" is missing; the line has prompt (set task.answer_',
        ),
        ([{"answer": "2"}], 'line 1: the field "prompt" is missing'),
        ([GOOD, {"prompt": " ", "answer": "2"}], 'line 2: the field "prompt" must be text or a number, not " "'),
        ([GOOD, {"prompt": "a", "answer": None}], 'line 2: the field "answer" must be text or a number, not null'),
        ([GOOD, {"prompt": "a", "answer": True}], "not true"),
        ([GOOD, "{cut"], "line 2: not valid JSON"),
        ([GOOD, "[1]"], "line 2: a JSON object is needed, not list"),
        ([{**GOOD, "id": 7}, GOOD, {**GOOD, "id": "7"}], 'line 3: the id "7" is that of line 1 already'),
        ([], "holds no problems: it is empty"),
        (["", " "], "holds no problems: it is empty"),
        ([GOOD], "holds 1 problems, but 2 are to be evaluated on"),
        ([GOOD, {"prompt": "1+3=", "answer": "4"}], "none are left to train on"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, rows: list[Any], message: str):
    path = write(tmp_path / "bad.jsonl", *rows)
    with pytest.raises(TaskError, match=re.escape(message)) as caught:
        jsonl(2, 0, path=path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_grader(tmp_path: Path):
    with pytest.raises(TaskError, match=r"nowhere\.jsonl cannot be read: No such file"):
        jsonl(1, 0, path=str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(TaskError, match='no grader is called "nummeric"; choices: exact, numeric'):
        jsonl(1, 0, path="any", grader="nummeric")
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "\u00e9"}'.encode("latin-1"))
    with pytest.raises(TaskError, match="is not UTF-8 text"):
        jsonl(1, 0, path=str(tmp_path / "latin.jsonl"))


def test_without_goes_by_content():
    one = Problem(id="a", prompt="1 +  1", answer="2", task="t")
    same = Problem(id="b", prompt="1 + 1", answer="2", task="u")
    other = Problem(id="c", prompt="1 + 2", answer="3", task="t")
    assert without([one, other], [same]) == (other,)


def test_the_table():
    assert set(TASKS) == {"arithmetic", "jsonl"}
