"""Rows whose problems are lists of messages, in every format that is read."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from batches import make_completion, make_group

from scalerl.config import load_recipe
from scalerl.errors import PromptError, TaskError
from scalerl.run.pack import pack_groups, unpack_groups
from scalerl.tasks.files import file
from scalerl.tasks.prompts import PromptFormat, render
from scalerl.tasks.task import Task
from scalerl.types import Problem

SYSTEM = {"role": "system", "content": "Be brief."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def rows(num: int = 4) -> list[dict[str, Any]]:
    return [{"prompt": [SYSTEM, user(f"{n}+1="), assistant("?"), user("Answer.")], "answer": n + 1} for n in range(num)]


def tagged(turns) -> str:
    return "".join(f"[{turn['role']}]{turn['content']}" for turn in turns) + "[assistant]"


def write(path: Path, data: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(data), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(data, indent=1))
    else:
        path.write_text("\n".join(map(json.dumps, data)))
    return path


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.json", "chat.parquet"])
def test_chats_are_read_from_every_format(tmp_path: Path, name: str):
    task = file(1, 0, path=str(write(tmp_path / name, rows())))
    problems = sorted([*task.training, *task.evaluation], key=lambda problem: problem.answer)
    assert [problem.answer for problem in problems] == ["1", "2", "3", "4"]
    first = problems[0]
    assert first.messages == (("system", "Be brief."), ("user", "0+1="), ("assistant", "?"), ("user", "Answer."))
    around = PromptFormat(template="{prompt} Now.", chat=True, system="unused: the chat has its own")
    expected = "[system]Be brief.[user]0+1=[assistant]?[user]Answer. Now.[assistant]"
    assert render(first.asked, around, tagged) == expected
    with pytest.raises(PromptError, match="set chat = true"):
        render(first.asked, PromptFormat())


def test_single_user_turn_equals_the_plain_problem(tmp_path: Path):
    chat = Problem(id="a", prompt="1+1=", answer="2", task="t", messages=(("user", "1+1="),))
    assert chat.content_hash == Problem(id="b", prompt="1+1=", answer="2", task="t").content_hash
    task = file(
        1, 0, path=str(write(tmp_path / "a.jsonl", [{"prompt": [user(f"{n}=")], "answer": n} for n in range(3)]))
    )
    assert {problem.prompt for problem in (*task.training, *task.evaluation)} == {"0=", "1=", "2="}
    around = PromptFormat(chat=True, system="Be brief.")
    assert (
        render(chat.asked, around, tagged) == render("1+1=", around, tagged) == "[system]Be brief.[user]1+1=[assistant]"
    )


def demonstrations(task: Task) -> dict[str, str]:
    assert task.demonstrations is not None
    return {made.problem.prompt: made.completion for made in task.demonstrations(9, 0)}


def test_last_assistant_turn_may_be_the_demonstration(tmp_path: Path):
    data = [{"messages": [user(f"{n}="), assistant(f"it is {n}")]} for n in range(3)]
    path = str(write(tmp_path / "a.jsonl", data))
    fields = {"prompt_field": "messages", "answer_field": ""}
    task = file(1, 0, path=path, demonstration_field="messages", **fields)
    assert all(completion == f"it is {prompt[0]}" for prompt, completion in demonstrations(task).items())
    with pytest.raises(TaskError, match=r'line 1: .* must end with a user turn.*demonstration_field = "messages"'):
        file(1, 0, path=path, **fields)


def test_demonstration_may_be_a_list_of_one_message(tmp_path: Path):
    data = [{"prompt": [user(f"{n}=")], "answer": n, "done": [assistant(f"{n}!")]} for n in range(3)]
    task = file(1, 0, path=str(write(tmp_path / "a.jsonl", data)), demonstration_field="done")
    assert all(completion == prompt[0] + "!" for prompt, completion in demonstrations(task).items())


def test_content_may_be_a_list_of_text_parts(tmp_path: Path):
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1="}]
    data = [{"prompt": [{"role": "user", "content": parts}], "answer": 2}, {"prompt": [user("2=")], "answer": 2}]
    task = file(1, 0, path=str(write(tmp_path / "a.jsonl", data)))
    assert {problem.prompt for problem in (*task.training, *task.evaluation)} == {"1+1=", "2="}


@pytest.mark.parametrize(
    "messages, sentence",
    [
        ([], "is an empty list"),
        (["hello"], 'message 1 in the field "prompt" must have a "role" .* and it is "hello"'),
        ([{"role": "robot", "content": "a"}], 'message 1 .* must have a "role" .system,'),
        ([{"role": "user", "content": None}], "message 1 .* text as its"),
        ([user("a"), {"role": "user", "content": [{"type": "image"}]}], "message 2 .* text as its"),
        ([SYSTEM], "must end with a user turn"),
    ],
)
def test_faulty_chat_is_named_with_its_line(tmp_path: Path, messages: Any, sentence: str):
    path = write(tmp_path / "a.jsonl", [*rows(1), {"prompt": messages, "answer": 1}])
    with pytest.raises(TaskError, match=rf"a\.jsonl, line 2: .*{sentence}"):
        file(1, 0, path=str(path))


def test_json_array_errors_name_the_place(tmp_path: Path):
    (tmp_path / "a.json").write_text('[{"prompt": "a", "answer": 1},\n 3]')
    with pytest.raises(TaskError, match=r"a\.json, entry 2: an object with fields is needed, not int"):
        file(1, 0, path=str(tmp_path / "a.json"))
    (tmp_path / "b.json").write_text('[{"prompt": "a", "answer": 1},\n {]')
    with pytest.raises(TaskError, match=r"b\.json, line 2: not valid JSON"):
        file(1, 0, path=str(tmp_path / "b.json"))


def test_chats_survive_a_checkpoint():
    problem = Problem(id="a", prompt="p", answer="1", task="t", messages=(("user", "p"),))
    group = dataclasses.replace(make_group([make_completion("0/a", 0, [1], [2, 3])], [True]), problem=problem)
    arrays, meta = pack_groups([group])
    (restored,) = unpack_groups(arrays, json.loads(json.dumps(meta)))
    assert restored.problem == problem


def test_data_files_are_found_beside_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "recipes"
    folder.mkdir()
    write(folder / "train.jsonl", rows())
    write(folder / "test.jsonl", rows())
    write(tmp_path / "here.jsonl", rows())
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
