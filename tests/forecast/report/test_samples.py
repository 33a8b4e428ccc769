"""Searching the samples of a run."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from boards import GrowingRun

from scalerl.forecast.report import samples
from scalerl.forecast.report.inside import Root
from scalerl.forecast.report.samples import Query


def search(run: GrowingRun, **query: Any) -> dict[str, Any]:
    return samples.search(run.folder / "samples.jsonl", Root(run.folder), Query(**query))


@pytest.fixture
def run(tmp_path: Path) -> GrowingRun:
    run = GrowingRun(tmp_path / "run")
    for number in range(50):
        run.train(1)
        run.sample(f"{number % 5}+2", f"The answer is {number}", correct=number % 2 == 0)
    return run


def steps_of(run: GrowingRun, **query: Any) -> list[list[int]]:
    """The steps on each page."""
    pages, before = [], None
    while not pages or before is not None:
        page = search(run, before=before, **query)
        pages.append([sample["step"] for sample in page["samples"]])
        before = page["next"]
    return pages


def test_newest_come_first_a_page_at_a_time(run: GrowingRun, monkeypatch: pytest.MonkeyPatch):
    assert steps_of(run, num=20) == [list(range(50, 30, -1)), list(range(30, 10, -1)), list(range(10, 0, -1))]
    # A search that takes long says where to go on.
    monkeypatch.setattr(samples, "SECONDS", -1.0)
    assert steps_of(run, text="nowhere") == [[]] * 50


@pytest.mark.parametrize(
    ("query", "steps"),
    [
        ({"text": "ANSWER 49"}, [50]),
        ({"text": "nowhere"}, []),
        ({"problem": "3+2"}, [49, 44, 39, 34, 29, 24, 19, 14, 9, 4]),
        ({"verdict": "correct"}, list(range(49, 0, -2))),
        ({"verdict": "error"}, []),
    ],
)
def test_words_prompts_and_verdicts_are_searched(run: GrowingRun, query: dict[str, Any], steps: list[int]):
    assert steps_of(run, num=100, **query) == [steps]


@pytest.mark.parametrize("row", [{"conversation": 3}, {"conversation": [3]}, {}])
def test_what_is_not_a_conversation_is_not_shown_as_one(row: dict[str, Any]):
    assert [name for name, *_ in samples.sample_json(row)["texts"]] == ["Prompt", "Answer"]


def test_conversations_say_who_said_what(monkeypatch: pytest.MonkeyPatch):
    said = [{"by": "model", "text": "?47*8"}, {"by": "environment", "text": "376;"}, {"by": "model", "text": "376"}]
    sample = samples.sample_json({"completion": "?47*8376;376", "conversation": said})
    assert [(by, text) for _, text, by in sample["texts"][1:]] == [(part["by"], part["text"]) for part in said]
    monkeypatch.setattr(samples, "MAX_TEXT", 7)
    assert [text for _, text, _ in samples.sample_json({"conversation": said})["texts"]] == ["", "?47*8", "37"]


def test_errors_of_tools_are_found(run: GrowingRun):
    said = [{"by": "model", "text": "?1/0"}, {"by": "environment", "text": "ZeroDivisionError: division by zero"}]
    run.sample("1/0", "none", conversation=said)
    (failed,) = search(run, verdict="error")["samples"]
    assert failed["problem"] == "1/0"


@pytest.mark.parametrize("part", ["\n", " ", "\n ", "a", "a\n", "error\n"])
def test_errors_are_looked_for_in_no_time(run: GrowingRun, part: str):
    """The board does so in its own process, for samples of strangers."""
    run.sample("?", "none", conversation=[{"by": "environment", "text": part * (50_000 // len(part))}])
    began = time.process_time()
    assert len(search(run, verdict="error")["samples"]) == (part == "error\n")
    assert time.process_time() - began < 1


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "1" + "0" * 400, '"1"', "true", "[]", "{}"])
def test_odd_numbers_are_shown_as_none(run: GrowingRun, odd: str):
    with (run.folder / "samples.jsonl").open("a") as file:
        file.write(f'{{"step": {odd}, "reward": {odd}, "completion": "odd"}}\n')
    (sample,) = search(run, text="odd")["samples"]
    assert (sample["step"], sample["reward_text"]) == (None, "")
    assert json.dumps(sample, allow_nan=False)


def test_prompt_that_is_its_own_name_is_found_however_long(run: GrowingRun):
    for _ in range(2):
        run.sample("long " * 3000, "yes")
    (newest, *_) = search(run)["samples"]
    assert len(search(run, problem=newest["problem"])["samples"]) == 2


def test_what_graders_wrote_is_shown(run: GrowingRun):
    run.sample("7+7", "unsure", correct=None, graders={"format": 0.5}, reason="timeout")
    (without,) = search(run, verdict="none")["samples"]
    assert without["texts"][2:] == [("graders", '{"format": 0.5}', ""), ("reason", "timeout", "")]


def test_long_texts_are_cut(run: GrowingRun):
    run.sample("long", "x" * 2 * samples.MAX_TEXT)
    (sample,) = search(run, text="long")["samples"]
    assert len(sample["texts"][1][1]) == samples.MAX_TEXT + len(" ...")


def test_lines_that_are_not_samples_do_no_harm(run: GrowingRun):
    with (run.folder / "samples.jsonl").open("a") as file:
        file.write('not json\n[1, 2]\n{"step": "x", "prompt": 7, "completion": null, "reward": "NaN"}\n')
    (sample, *_) = search(run)["samples"]
    assert (sample["step"], sample["texts"][0][1], sample["reward_text"]) == (None, "7", "")
    json.dumps(sample, allow_nan=False)
