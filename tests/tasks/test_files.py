import functools
import gzip
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from scalerl.errors import TaskError
from scalerl.tasks.files import file, function_task, hub
from scalerl.tasks.task import Task
from scalerl.types import Problem

# -- files -------------------------------------------------------------------------------------------------------------


def contents(problems: tuple[Problem, ...]) -> set[str]:
    return {problem.content_hash for problem in problems}


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def write_parquet(path: Path, *rows: Any) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return str(path)


SUMS = [{"prompt": f"{number}+1=", "answer": number + 1} for number in range(20)]


def test_a_file_of_problems(tmp_path: Path):
    task = file(5, 0, path=write(tmp_path / "sums.jsonl", *SUMS))
    assert len(task.evaluation) == 5
    assert len(task.training) == 15
    assert not contents(task.training) & contents(task.evaluation)
    assert {problem.id for problem in (*task.training, *task.evaluation)} == {f"line-{n}" for n in range(1, 21)}
    assert all(int(problem.answer) == int(problem.prompt.split("+")[0]) + 1 for problem in task.training)
    assert task.demonstrations is None
    assert file(5, 0, path=str(tmp_path / "sums.jsonl")).evaluation == task.evaluation
    assert file(5, 1, path=str(tmp_path / "sums.jsonl")).evaluation != task.evaluation


def test_a_parquet_file_gives_the_same_problems_as_its_lines(tmp_path: Path):
    rows = [{**row, "id": f"sum {number}"} for number, row in enumerate(SUMS)]
    lines = file(5, 0, path=write(tmp_path / "sums.jsonl", *rows))
    table = file(5, 0, path=write_parquet(tmp_path / "sums.parquet", *rows))
    assert (table.training, table.evaluation) == (lines.training, lines.evaluation)


def test_compressed_files_byte_order_marks_and_carriage_returns(tmp_path: Path):
    plain = file(5, 0, path=write(tmp_path / "sums.jsonl", *SUMS))
    lines, packed = (tmp_path / "sums.jsonl").read_bytes(), tmp_path / "sums.jsonl.gz"
    packed.write_bytes(gzip.compress(lines))
    assert file(5, 0, path=str(packed)).training == plain.training
    (tmp_path / "windows.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n"))
    assert file(5, 0, path=str(tmp_path / "windows.jsonl")) == plain


def test_fields_go_by_other_names(tmp_path: Path):
    rows = [{"question": f"q{n}", "final": f"a{n}", "name": f"n{n}", "solution": f"s{n}"} for n in range(4)]
    task = file(
        1,
        0,
        path=write(tmp_path / "f.jsonl", *rows),
        prompt_field="question",
        answer_field="final",
        id_field="name",
        demonstration_field="solution",
    )
    assert task.demonstrations is not None
    made = task.demonstrations(100, 0)
    assert len(made) == 3
    assert all(item.completion[1:] == item.problem.prompt[1:] == item.problem.id[1:] for item in made)


@pytest.mark.parametrize("names", [("question", "answer"), ("problem", "target")])
def test_common_names_of_fields_are_recognised(tmp_path: Path, names: tuple[str, str]):
    task = file(1, 0, path=write(tmp_path / "f.jsonl", *({names[0]: f"q{n}", names[1]: f"a{n}"} for n in range(4))))
    assert all(problem.prompt[1:] == problem.answer[1:] for problem in task.training)
    assert task.notice.endswith(f'f.jsonl: the prompt is taken from "{names[0]}" and the answer from "{names[1]}"')


@pytest.mark.parametrize(
    ("row", "missing"),
    [
        ({"instruction": "Translate.", "input": "maison", "output": "house"}, "prompt"),
        ({"instruction": "Translate.", "input": "maison", "answer": "house"}, "prompt"),
        ({"question": "1+1=", "problem": "Add.", "answer": "2"}, "prompt"),
        ({"problem": "1+1=", "solution": "One and one make \\boxed{2}."}, "answer"),
        ({"question": "1+1=", "label": "2", "target": "two"}, "answer"),
    ],
)
def test_fields_that_could_be_others_are_not_guessed(tmp_path: Path, row: dict[str, str], missing: str):
    with pytest.raises(TaskError, match=f'the field "{missing}" is missing; it has {", ".join(row)} .set {missing}_'):
        file(1, 0, path=write(tmp_path / "f.jsonl", row, row))


@pytest.mark.parametrize(
    ("make", "settings", "sentence"),
    [
        (file, {"path": "p.jsonl", "subset": "x"}, "file: subset is set, but it belongs to dataset"),
        (file, {"path": "p.jsonl", "evaluation_split": "test"}, "file: evaluation_split is set, but it belongs to"),
        (file, {"path": "p.jsonl", "split": "test"}, "file: split is set, but it belongs to dataset"),
        (hub, {"dataset": "d", "evaluation_path": "e.jsonl"}, "hub: evaluation_path is set, but it belongs to path"),
        (hub, {}, "hub: set either path"),
    ],
)
def test_settings_of_another_source_are_refused(make: Callable[..., Task], settings: dict[str, str], sentence: str):
    with pytest.raises(TaskError, match=f"^{sentence}"):
        make(1, 0, **settings)


def test_an_evaluation_file_removes_its_contents_from_training(tmp_path: Path):
    training = write(tmp_path / "t.jsonl", *({"prompt": f"what is  {n}?", "answer": "x"} for n in range(5)))
    evaluation = write(tmp_path / "e.jsonl", {"prompt": "what is 3?", "answer": "x"})
    task = file(1, 0, path=training, evaluation_path=evaluation)
    assert [problem.prompt for problem in task.training] == [f"what is  {n}?" for n in (0, 1, 2, 4)]
    assert [problem.id for problem in task.evaluation] == ["evaluation/line-1"]


REASONED = [
    {"question": f"What is {n} + {n}?", "answer": f"#### is a mark.\n{n} + {n} = <<{n}+{n}={2 * n}>>\n#### {2 * n:,} "}
    for n in (600, 700, 800)
]


def test_an_answer_is_found_in_a_longer_reference(tmp_path: Path):
    path = write(tmp_path / "reasoned.jsonl", *REASONED)
    task = file(1, 0, path=path, prompt_field="question", demonstration_field="answer", answer_pattern=r"#### (.+)")
    answers = {problem.prompt: problem.answer for problem in (*task.training, *task.evaluation)}
    assert answers == {f"What is {n} + {n}?": f"{2 * n:,}" for n in (600, 700, 800)}
    assert task.demonstrations is not None
    assert all(item.completion.startswith("#### is a mark") for item in task.demonstrations(2, 0))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            r"## (\d{9})",
            r'line 1: no answer in the reference: answer_pattern "## (\d{9})" finds none in "#### is a mark',
        ),
        (r"####( *)", "line 1: no answer in the reference"),
        ("(a", 'answer_pattern "(a" is not a regular expression'),
        ("#### .+", 'answer_pattern "#### .+" has 0 groups but must have one'),
        ("(a)(b)", "has 2 groups but must have one"),
    ],
)
def test_a_pattern_that_finds_nothing_is_named(tmp_path: Path, pattern: str, message: str):
    path = write(tmp_path / "reasoned.jsonl", *REASONED)
    with pytest.raises(TaskError, match=re.escape(message)):
        file(1, 0, path=path, prompt_field="question", answer_pattern=pattern)


GOOD = {"prompt": "1+1=", "answer": "2"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [GOOD, "", {"prompt": "1+2="}],
            'line 3: the field "answer" is missing; it has prompt (set answer_field if it has another name)',
        ),
        ([{"answer": "2"}], 'line 1: the field "prompt" is missing'),
        ([GOOD, {"prompt": " ", "answer": "2"}], 'line 2: the field "prompt" must be text or a number, not " "'),
        ([GOOD, {"prompt": "a", "answer": None}], 'line 2: the field "answer" must be text or a number, not null'),
        ([GOOD, {"prompt": "a", "answer": True}], "not true"),
        (
            [GOOD, {"prompt": "a", "answer": float("nan")}],
            'line 2: the field "answer" must be text or a number, not NaN',
        ),
        (
            [GOOD, '{"prompt": "a", "answer": 1e999}'],
            'line 2: the field "answer" must be text or a number, not Infinity',
        ),
        (
            [GOOD, {"prompt": "\ud800", "answer": "2"}],
            r'line 2: the field "prompt" must be text or a number, not "\ud800"',
        ),
        ([GOOD, f'{{"prompt": "a", "answer": {"9" * 5000}}}'], "line 2: not valid JSON: Exceeds the limit"),
        ([GOOD, "[" * 100_000], "line 2: not valid JSON: maximum recursion depth exceeded"),
        ([GOOD, {**GOOD, "id": ["a"]}], 'line 2: the field "id" must be text or a number, not ["a"]'),
        ([GOOD, "{cut"], "line 2: not valid JSON"),
        (
            ["[", GOOD, "]"],
            "line 1: not valid JSON: Expecting value",
        ),
        ([GOOD, "[1]"], "line 2: an object with fields is needed, not list"),
        ([{**GOOD, "id": 7}, GOOD, {**GOOD, "id": "7"}], 'line 3: the id "7" is already used in line 1'),
        ([], "holds no problems: it is empty"),
        (["", " "], "holds no problems: it is empty"),
        ([GOOD], "holds 1 problem, but 2 are to be evaluated on"),
        ([GOOD, {"prompt": "1+3=", "answer": "4"}], "none are left to train on: add different problems"),
        ([GOOD] * 4, "all its 4 problems are withheld for evaluation or equal to one of the 2 that are, none are left"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, rows: list[Any], message: str):
    path = write(tmp_path / "bad.jsonl", *rows)
    with pytest.raises(TaskError, match=re.escape(message)) as caught:
        file(2, 0, path=path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_numbers_of_any_kind_are_answers():
    answers = [numpy.int64(7), numpy.float64(2.5), Decimal("12.50"), 10**400]
    rows = [{"prompt": f"q{number}", "answer": answer} for number, answer in enumerate([*answers, "x"])]
    task = function_task(lambda: rows, "m:rows", 1, 0)
    given = {problem.prompt: problem.answer for problem in (*task.training, *task.evaluation)}
    assert list(map(given.get, ("q0", "q1", "q2", "q3"))) == ["7", "2.5", "12.50", f"1{'0' * 400}"]
    with pytest.raises(TaskError, match='row 1: the field "answer" must be text or a number, not NaN'):
        function_task(lambda: [{"prompt": "q", "answer": numpy.float64("nan")}], "m:rows", 1, 0)


def test_a_bad_row_of_a_parquet_file_is_named(tmp_path: Path):
    path = write_parquet(tmp_path / "bad.parquet", GOOD, {"prompt": "1+2=", "answer": None})
    with pytest.raises(TaskError, match=r'bad\.parquet, row 2: the field "answer" must be text or a number, not null'):
        file(1, 0, path=path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("nowhere.jsonl", None, "cannot be read: No such file"),
        ("nowhere.parquet", None, "cannot be read: No such file"),
        ("latin.jsonl", b'{"prompt": "\xe9"}', r"is not UTF-8 text \(byte 0xe9 in line 1\): save it as UTF-8$"),
        ("cut.jsonl", b'{"prompt": "1+', "line 1: not valid JSON: Unterminated string"),
        ("text.parquet", b"not a table", "is not a parquet file: "),
        ("rows.csv", b"", r'has the suffix "\.csv"; problems are read from \.jsonl, '),
        ("rows.gz", b"", r'has the suffix "\.gz"'),
        ("rows.jsonl.gz", gzip.compress(b"{}" * 99)[:-9], "is not a complete gzip file"),
        ("rows.jsonl.gz", b"plain text", "is not a complete gzip file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, data: bytes | None, message: str):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError, match=rf"{name}.*{message}"):
        file(1, 0, path=str(tmp_path / name))


# -- data sets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "sums"
    folder.mkdir()
    write(folder / "train.jsonl", *SUMS)
    write(folder / "test.jsonl", *({"prompt": f"{n}+2=", "answer": n + 2} for n in range(4)))
    return str(folder)


def test_data_set_loads_from_a_hub_layout(data_set: str):
    withheld = hub(5, 0, dataset=data_set)
    assert len(withheld.training) == 15
    assert {problem.task for problem in withheld.training} == {"hub"}
    task = file(3, 0, dataset=data_set, evaluation_split="test")
    assert {problem.prompt for problem in task.training} == {row["prompt"] for row in SUMS}
    assert {problem.prompt for problem in task.evaluation} < {f"{n}+2=" for n in range(4)}


def test_unavailable_data_set_is_one_sentence(
    data_set: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    with pytest.raises(TaskError, match=r'split "tset", cannot be loaded: .*tset') as caught:
        file(1, 0, dataset=data_set, split="tset")
    assert "\n" not in str(caught.value)
    with pytest.raises(
        TaskError, match=r'split "train", row 1: the field "question" is missing; it has prompt, answer'
    ):
        file(1, 0, dataset=data_set, prompt_field="question")
    asked = []

    def offline(*arguments: Any, **settings: Any) -> None:
        asked.append((arguments, settings))
        # Its client logs every try; the error is enough.
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise ConnectionError("Couldn't reach 'org/sums' on the Hub\n(offline)")

    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(TaskError, match=r"cannot be loaded: Couldn't reach 'org/sums' on the Hub$"):
        file(1, 0, dataset="org/sums", subset="main")
    assert asked == [(("org/sums", "main"), {"split": "train"})]
    assert caplog.messages == []
    logging.getLogger("huggingface_hub.utils._http").warning("said at any other time")
    assert caplog.messages == ["said at any other time"]


@pytest.mark.parametrize(
    ("package", "make"),
    [("pyarrow", lambda: file(1, 0, path="x.parquet")), ("datasets", lambda: file(1, 0, dataset="x"))],
)
def test_what_is_not_installed_is_named(package: str, make: Callable[[], Task], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TaskError, match=rf'needs {package} to be .*: pip install "scalerl\[data\]"'):
        make()


# -- functions ---------------------------------------------------------------------------------------------------------


def counting(*, most: int = 6) -> Iterator[dict[str, Any]]:
    for number in range(most):
        yield {"prompt": f"after {number}?", "answer": number + 1, "id": f"n{number}"}


def taught(*, most: int = 4) -> list[dict[str, Any]]:
    return [{**row, "demonstration": f"It is {row['answer']}."} for row in counting(most=most)]


def whole(num_evaluation: int, evaluation_seed: int, /, *, most: int = 3) -> Task:
    problems = tuple(Problem(id=str(n), prompt=f"p{n}", answer="a", task="whole") for n in range(most))
    return Task(name="whole", training=problems[num_evaluation:], evaluation=problems[:num_evaluation], grader="exact")


def endless() -> Iterator[dict[str, Any]]:
    while True:
        yield {"prompt": "p", "answer": "a"}


def test_function_returns_rows_and_some_are_withheld():
    task = function_task(functools.partial(counting, most=8), "mine:counting", 2, 0)
    assert len(task.training) == 6
    assert len(task.evaluation) == 2
    assert {problem.id for problem in (*task.training, *task.evaluation)} == {f"n{n}" for n in range(8)}
    assert task.demonstrations is None
    assert function_task(taught, "mine:taught", 1, 0).demonstrations is not None


def test_function_of_two_arguments_returns_a_task():
    task = function_task(functools.partial(whole, most=5), "mine:whole", 2, 0)
    assert (len(task.training), len(task.evaluation)) == (3, 2)


def raising() -> Iterator[dict[str, Any]]:
    yield {"prompt": "p", "answer": "a"}
    raise KeyError("lost")


def rows_for_two(num_evaluation: int, evaluation_seed: int, /) -> list[dict[str, Any]]:
    return [{"prompt": "p", "answer": "a"}]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising, "\"mine:f\" raised KeyError: 'lost'"),
        (lambda: None, '"mine:f" returned NoneType but must return rows: {"prompt": ..., "answer": ...}'),
        (lambda: {"prompt": "p"}, '"mine:f" returned dict but must return rows'),
        (lambda: [], "mine:f holds no problems"),
        (lambda: [{"prompt": "p", "answer": "a"}, "q"], "mine:f, row 2: an object with fields is needed, not str"),
        (lambda: [{"asked": "p"}], 'mine:f, row 1: the field "prompt" is missing; it has asked'),
        (lambda: [{**GOOD, "demonstration": "d"}, GOOD], 'row 2: the field "demonstration" is missing'),
        (lambda number: [], '"mine:f" takes 1 positional arguments but must take none and return rows, or take'),
        (rows_for_two, "so it must return a Task, not rows"),
    ],
)
def test_what_a_function_gives_is_checked(function: Callable[..., Any], message: str):
    with pytest.raises(TaskError, match=re.escape(message)) as caught:
        function_task(function, "mine:f", 1, 0)
    assert "\n" not in str(caught.value)
    assert "_field" not in str(caught.value)


def test_a_function_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scalerl.tasks.files._MOST_ROWS", 1000)
    with pytest.raises(TaskError, match="returned more than 1000 rows: does it ever end"):
        function_task(endless, "mine:endless", 1, 0)
