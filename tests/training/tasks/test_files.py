"""Tasks of a user's own problems: files of every format, chats, data sets, functions."""

import dataclasses
import gzip
import itertools
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
from batches import make_completion, make_group

from scalerl.errors import PromptError, TaskError
from scalerl.recipe.load import load_recipe
from scalerl.training.run.pack import pack_groups, unpack_groups
from scalerl.training.tasks.files import file, function_task, hub
from scalerl.training.tasks.prompts import PromptFormat, render
from scalerl.training.tasks.task import Task
from scalerl.training.types import Problem

# -- files -------------------------------------------------------------------------------------------------------------


def write(path: Path, *rows: Any) -> str:
    lines = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.name.startswith("windows"):
        path.write_bytes(b"\xef\xbb\xbf" + lines.replace("\n", "\r\n").encode())
    else:
        path.write_text(json.dumps(rows, indent=1) if path.suffix == ".json" else lines)
    return str(path)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
GOOD = {"prompt": "1+1=", "answer": "2"}
SUMS = [{"prompt": f"{number}+1=", "answer": number + 1} for number in range(20)]


def test_a_file_of_problems(tmp_path: Path):
    task = file(5, 0, path=write(tmp_path / "sums.jsonl", *SUMS))
    assert (len(task.training), len(task.evaluation)) == (15, 5)
    assert not {each.content_hash for each in task.training} & {each.content_hash for each in task.evaluation}
    assert {problem.id for problem in (*task.training, *task.evaluation)} == {f"line-{n}" for n in range(1, 21)}
    assert all(int(problem.answer) == int(problem.prompt.split("+")[0]) + 1 for problem in task.training)
    assert task.demonstrations is None
    assert file(5, 0, path=str(tmp_path / "sums.jsonl")).evaluation == task.evaluation
    assert file(5, 1, path=str(tmp_path / "sums.jsonl")).evaluation != task.evaluation


@pytest.mark.parametrize("name", ["a.json", "a.parquet", "a.jsonl.gz", "windows.jsonl"])
def test_every_format_gives_the_same_problems(tmp_path: Path, name: str):
    plain = [{**row, "id": f"sum {number}"} for number, row in enumerate(SUMS)]
    chats = [{"prompt": [SYSTEM, user(f"{n}=")], "answer": str(n), "id": str(n)} for n in range(4)]
    for rows in (plain, chats):
        lines, others = (file(1, 0, path=write(tmp_path / each, *rows)) for each in ("a.jsonl", name))
        assert (others.training, others.evaluation) == (lines.training, lines.evaluation)
    with pytest.raises(TaskError, match=r' 2: the field "answer" must be text or a number, not null'):
        file(1, 0, path=write(tmp_path / name, GOOD, {"prompt": "1+2=", "answer": None}))


REASONED = [
    {"question": f"What is {n} + {n}?", "answer": f"#### is a mark.\n{n} + {n} = <<{n}+{n}={2 * n}>>\n#### {2 * n:,} "}
    for n in (600, 700)
]
PARTS = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1="}]
SHOWN = {"prompt_field": "messages", "answer_field": ""}


@pytest.mark.parametrize(
    ("rows", "settings", "expected", "notice"),
    [
        (
            [{"asked": f"q{n}", "final": f"a{n}", "name": f"n{n}", "solution": f"s{n}"} for n in range(2)],
            {"prompt_field": "asked", "answer_field": "final", "id_field": "name", "demonstration_field": "solution"},
            [("n0", "q0", "a0", "s0"), ("n1", "q1", "a1", "s1")],
            "",
        ),
        *(
            (
                [{prompt: "q1", answer: "a1"}, {prompt: "q2", answer: "a2"}],
                {},
                [("line-1", "q1", "a1", ""), ("line-2", "q2", "a2", "")],
                f'f.jsonl: the prompt is taken from "{prompt}" and the answer from "{answer}"',
            )
            for prompt, answer in (("question", "answer"), ("problem", "target"))
        ),
        (
            REASONED,
            {"prompt_field": "question", "demonstration_field": "answer", "answer_pattern": "#### (.+)"},
            [
                (f"line-{number}", row["question"], answer, row["answer"])
                for number, row, answer in zip((1, 2), REASONED, ("1,200", "1,400"), strict=True)
            ],
            "",
        ),
        # Chats: one user turn is the same problem as its text.
        (
            [{"prompt": [user(PARTS)], "answer": 2}, {"prompt": [user("2=")], "answer": 2, "id": "x"}],
            {},
            [("line-1", "1+1=", "2", ""), ("x", "2=", "2", "")],
            "",
        ),
        (
            [{"messages": [user(f"{n}="), assistant(f"it is {n}")]} for n in range(2)],
            {**SHOWN, "demonstration_field": "messages"},
            [("line-1", "0=", "", "it is 0"), ("line-2", "1=", "", "it is 1")],
            "",
        ),
        (
            [{"prompt": [user(f"{n}=")], "answer": n, "done": [assistant(f"{n}!")]} for n in range(2)],
            {"demonstration_field": "done"},
            [("line-1", "0=", "0", "0!"), ("line-2", "1=", "1", "1!")],
            "",
        ),
    ],
)
def test_fields_of_problems(
    tmp_path: Path, rows: list[Any], settings: dict[str, str], expected: list[tuple[str, ...]], notice: str
):
    task = file(0, 0, path=write(tmp_path / "f.jsonl", *rows), **settings)
    shown = {made.problem.id: made.completion for made in task.demonstrations(9, 0)} if task.demonstrations else {}
    assert [(each.id, each.prompt, each.answer, shown.get(each.id, "")) for each in task.training] == expected
    assert task.notice.endswith(notice)
    assert bool(task.notice) == bool(notice)


def tagged(turns: Any) -> str:
    return "".join(f"[{turn['role']}]{turn['content']}" for turn in turns) + "[assistant]"


def test_chats_are_asked_as_they_are(tmp_path: Path):
    chat = [SYSTEM, user("0+1="), assistant("?"), user("Answer.")]
    (problem,) = file(0, 0, path=write(tmp_path / "chat.jsonl", {"prompt": chat, "answer": 1})).training
    assert problem.messages == (("system", "Be brief."), ("user", "0+1="), ("assistant", "?"), ("user", "Answer."))
    around = PromptFormat(template="{prompt} Now.", chat=True, system="unused: the chat has its own")
    expected = "[system]Be brief.[user]0+1=[assistant]?[user]Answer. Now.[assistant]"
    assert render(problem.asked, around, tagged) == expected
    with pytest.raises(PromptError, match="set chat = true"):
        render(problem.asked, PromptFormat())
    group = dataclasses.replace(make_group([make_completion("0/a", 0, [1], [2, 3])], [True]), problem=problem)
    arrays, meta = pack_groups([group])
    assert unpack_groups(arrays, json.loads(json.dumps(meta)))[0].problem == problem


def test_single_user_turn_equals_the_plain_problem():
    chat = Problem(id="a", prompt="1+1=", answer="2", task="t", messages=(("user", "1+1="),))
    assert chat.content_hash == Problem(id="b", prompt="1+1=", answer="2", task="t").content_hash
    around = PromptFormat(chat=True, system="Be brief.")
    assert render(chat.asked, around, tagged) == render("1+1=", around, tagged)


@pytest.mark.parametrize(
    ("make", "settings", "sentence"),
    [
        (hub, {"dataset": "d", "evaluation_path": "e.jsonl"}, "hub: evaluation_path is set, but it belongs to path"),
        (hub, {}, "hub: set path (a file) or dataset"),
        (file, {"answer_pattern": "(a"}, 'answer_pattern "(a" is not a regular expression'),
        (file, {"answer_pattern": "#### .+"}, 'answer_pattern "#### .+" has 0 groups but must have one'),
        (file, {"answer_pattern": "(a)(b)"}, 'answer_pattern "(a)(b)" has 2 groups but must have one'),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Callable[..., Task], settings: dict[str, str], sentence: str):
    with pytest.raises(TaskError, match=f"^{re.escape(sentence)}"):
        make(1, 0, **settings)


def test_a_file_replaces_the_data_set_of_a_recipe(tmp_path: Path):
    path = write(tmp_path / "t.jsonl", {"prompt": "a", "answer": "x"}, {"prompt": "b", "answer": "y"})
    task = hub(1, 0, path=path, dataset="no/such", subset="main", evaluation_split="test")
    assert len(task.training) == 1
    assert len(task.evaluation) == 1


def test_an_evaluation_file_removes_its_contents_from_training(tmp_path: Path):
    training = write(tmp_path / "t.jsonl", *({"prompt": f"what is  {n}?", "answer": "x"} for n in range(5)))
    evaluation = write(tmp_path / "e.jsonl", {"prompt": "what is 3?", "answer": "x"})
    task = file(1, 0, path=training, evaluation_path=evaluation)
    assert [problem.prompt for problem in task.training] == [f"what is  {n}?" for n in (0, 1, 2, 4)]
    assert [problem.id for problem in task.evaluation] == ["evaluation/line-1"]


NOT_TEXT = 'line 2: the field "{}" must be text or a number, not {}'
ASKED = {"prompt_field": "question"}


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (
            [GOOD, "", {"prompt": "1+2="}],
            {},
            'line 3: the field "answer" is missing; it has prompt (set answer_field if it has another name)',
        ),
        # Fields that could be others are not guessed.
        *(
            ([row, row], {}, f'the field "{missing}" is missing; it has {", ".join(row)} (set {missing}_')
            for row, missing in (
                ({"instruction": "Translate.", "input": "maison", "answer": "house"}, "prompt"),
                ({"question": "1+1=", "problem": "Add.", "answer": "2"}, "prompt"),
                ({"problem": "1+1=", "solution": "One and one make \\boxed{2}."}, "answer"),
                ({"question": "1+1=", "label": "2", "target": "two"}, "answer"),
            )
        ),
        ([GOOD, {"prompt": " ", "answer": "2"}], {}, NOT_TEXT.format("prompt", '" "')),
        ([GOOD, {"prompt": "\ud800", "answer": "2"}], {}, NOT_TEXT.format("prompt", r'"\ud800"')),
        ([GOOD, {"prompt": "a", "answer": None}], {}, NOT_TEXT.format("answer", "null")),
        ([GOOD, {"prompt": "a", "answer": True}], {}, NOT_TEXT.format("answer", "true")),
        ([GOOD, {"prompt": "a", "answer": float("nan")}], {}, NOT_TEXT.format("answer", "NaN")),
        ([GOOD, '{"prompt": "a", "answer": 1e999}'], {}, NOT_TEXT.format("answer", "Infinity")),
        ([GOOD, {**GOOD, "id": ["a"]}], {}, NOT_TEXT.format("id", '["a"]')),
        (
            [GOOD, f'{{"prompt": "a", "answer": {"9" * 5000}}}'],
            {},
            "line 2, column 1: not valid JSON: a number",
        ),
        ([GOOD, "[" * 100_000], {}, "line 2, column 1: not valid JSON: nested too deeply"),
        ([GOOD, '{"prompt": cut'], {}, "line 2, column 12: not valid JSON: Expecting value"),
        (["[", GOOD, "]"], {}, "line 1, column 2: not valid JSON: Expecting value"),
        ([GOOD, "[1]"], {}, "line 2: it must be an object with fields, not list"),
        ([{**GOOD, "id": 7}, GOOD, {**GOOD, "id": "7"}], {}, 'line 3: the id "7" is already used in line 1'),
        (["", " "], {}, "has no problems: it is empty"),
        ([GOOD], {}, "has 1 problem, but evaluation.num_prompts is 2"),
        ([GOOD, {"prompt": "1+3=", "answer": "4"}], {}, "none are left to train on: add different problems"),
        (
            [GOOD] * 4,
            {},
            "all its 4 problems are withheld for evaluation or equal to one of the 2 that are, so none",
        ),
        (
            REASONED,
            {**ASKED, "answer_pattern": r"## (\d{9})"},
            'answer_pattern "## (\\d{9})" does not match "#### is',
        ),
        (REASONED, {**ASKED, "answer_pattern": "####( *)"}, "line 1: no answer in the reference"),
        # Chats.
        *(
            ([GOOD, {"prompt": messages, "answer": 1}], {}, f"line 2: {sentence}")
            for messages, sentence in (
                ([], 'the field "prompt" is an empty list'),
                (["hello"], 'message 1 in the field "prompt" must have a "role" (system,'),
                ([{"role": "robot", "content": "a"}], 'message 1 in the field "prompt" must have a "role"'),
                ([user(None)], 'message 1 in the field "prompt"'),
                ([user("a"), user([{"type": "image", "text": "x"}])], 'message 2 in the field "prompt"'),
                ([SYSTEM], 'the chat in "prompt" must end with a user turn'),
            )
        ),
        ([{"messages": [user("1="), assistant("1")]}], SHOWN, 'set demonstration_field = "messages"'),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, rows: list[Any], settings: dict[str, str], message: str):
    path = write(tmp_path / "bad.jsonl", *rows)
    with pytest.raises(TaskError, match=re.escape(message)) as caught:
        file(2, 0, path=path, **settings)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_numbers_of_any_kind_are_answers():
    answers = [numpy.int64(7), numpy.float64(2.5), Decimal("12.50"), 10**400]
    rows = [{"prompt": f"q{number}", "answer": answer} for number, answer in enumerate(answers)]
    task = function_task(lambda: rows, "m:rows", 0, 0)
    assert [problem.answer for problem in task.training] == ["7", "2.5", "12.50", f"1{'0' * 400}"]
    with pytest.raises(TaskError, match='row 1: the field "answer" must be text or a number, not NaN'):
        function_task(lambda: [{"prompt": "q", "answer": numpy.float64("nan")}], "m:rows", 1, 0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("nowhere.jsonl", None, "cannot be read: No such file"),
        ("nowhere.parquet", None, "cannot be read: No such file"),
        ("latin.jsonl", b'{"prompt": "\xe9"}', r"is not UTF-8 text \(byte 0xe9 in line 1\): save it as UTF-8$"),
        ("cut.jsonl", b'{"prompt": "1+', "line 1, column 12: not valid JSON: Unterminated string"),
        ("a.json", b'[{"prompt": "a", "answer": 1},\n 3]', "entry 2: it must be an object with fields, not int"),
        ("b.json", b'[{"prompt": "a", "answer": 1},\n {]', "line 2, column 3: not valid JSON"),
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


def test_data_files_are_found_beside_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "recipes"
    folder.mkdir()
    write(folder / "train.jsonl", GOOD)
    write(folder / "test.jsonl", GOOD)
    write(tmp_path / "here.jsonl", GOOD)
    text = 'extends = "tiny-cpu"\n[task]\nname = "file"\npath = "train.jsonl"\nevaluation_path = "here.jsonl"\n'
    (folder / "mine.toml").write_text(f'{text}[evaluation.sets.hard]\nname = "file"\npath = "test.jsonl"\n')
    (folder / "further.toml").write_text('extends = "mine.toml"\n')
    monkeypatch.chdir(tmp_path)
    for recipe in (load_recipe("recipes/mine.toml"), load_recipe("recipes/further.toml")):
        assert dict(recipe.task)["path"] == "recipes/train.jsonl"
        # What is not there is relative to the current folder.
        assert dict(recipe.task)["evaluation_path"] == "here.jsonl"
        assert dict(recipe.evaluation.sets["hard"])["path"] == "recipes/test.jsonl"
    monkeypatch.chdir(folder)
    assert dict(load_recipe("mine.toml").task)["path"] == "train.jsonl"
    # On the command line a path is relative to where the command is run.
    monkeypatch.chdir(tmp_path)
    assert dict(load_recipe("recipes/mine.toml", ["task.path=here.jsonl"]).task)["path"] == "here.jsonl"


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


@pytest.mark.parametrize(("package", "settings"), [("pyarrow", {"path": "x.parquet"}), ("datasets", {"dataset": "x"})])
def test_what_is_not_installed_is_named(package: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TaskError, match=rf'needs {package} to be .*: pip install "scalerl\[data\]"'):
        file(1, 0, **settings)


# -- functions ---------------------------------------------------------------------------------------------------------


def test_function_returns_rows_or_a_task():
    task = function_task(lambda: iter(SUMS), "mine:rows", 2, 0)
    assert (len(task.training), len(task.evaluation), task.demonstrations) == (18, 2, None)
    taught = [{**row, "demonstration": "It is."} for row in SUMS]
    assert function_task(lambda: taught, "mine:taught", 1, 0).demonstrations is not None
    assert function_task(lambda num, seed: task, "mine:whole", 2, 0) is task


def raising() -> Iterator[dict[str, Any]]:
    yield GOOD
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising, "\"mine:f\" raised KeyError: 'lost'"),
        (lambda: None, '"mine:f" returned NoneType but must return rows: {"prompt": ..., "answer": ...}'),
        (lambda: {"prompt": "p"}, '"mine:f" returned dict but must return rows'),
        (lambda: [], "mine:f has no problems"),
        (lambda: [{"prompt": "p", "answer": "a"}, "q"], "mine:f, row 2: it must be an object with fields, not str"),
        (lambda: [{"asked": "p"}], 'mine:f, row 1: the field "prompt" is missing; it has asked'),
        (lambda: [{**GOOD, "demonstration": "d"}, GOOD], 'row 2: the field "demonstration" is missing'),
        (lambda number: [], '"mine:f" takes 1 positional arguments but must take none and return rows, or take'),
        (lambda num, seed: [GOOD], "so it must return a Task, not rows"),
    ],
)
def test_what_a_function_gives_is_checked(function: Callable[..., Any], message: str):
    with pytest.raises(TaskError, match=re.escape(message)) as caught:
        function_task(function, "mine:f", 1, 0)
    assert "\n" not in str(caught.value)
    assert "_field" not in str(caught.value)


def test_a_function_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scalerl.training.tasks.files.MOST_ROWS", 1000)
    with pytest.raises(TaskError, match="returned more than 1000 rows: it may be endless"):
        function_task(lambda: itertools.repeat(GOOD), "mine:endless", 1, 0)


def test_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scalerl.training.tasks.rows._MOST_CHARACTERS", 2**16)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 2**20))
    with pytest.raises(TaskError, match="more than"):
        file(1, 0, path=str(path))


def test_error_about_a_row_is_short(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"k" * 100_000: 1}))
    with pytest.raises(TaskError) as caught:
        file(1, 0, path=str(path))
    assert len(str(caught.value)) < 2000
