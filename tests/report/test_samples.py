"""Searching the samples of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import GrowingRun

from scalerl.report import samples
from scalerl.report.files import Root
from scalerl.report.runs import read_run
from scalerl.report.samples import Query
from scalerl.report.write import newest_samples


class Searched:
    def __init__(self, run: GrowingRun) -> None:
        self._root, self._path = Root(run.folder), run.folder / "samples.jsonl"

    def __call__(self, **query: Any) -> dict[str, Any]:
        return samples.search(self._path, self._root, Query(**query))

    def whole(self, number: int) -> dict[str, Any] | None:
        return samples.one_sample(self._path, self._root, number)


@pytest.fixture
def run(tmp_path: Path) -> GrowingRun:
    run = GrowingRun(tmp_path / "run")
    for number in range(50):
        run.train(1)
        run.sample(f"{number % 5}+2", f"The answer is {number}", correct=number % 2 == 0)
    return run


def test_newest_come_first_a_page_at_a_time(run: GrowingRun):
    search, steps, before = Searched(run), [], None
    while True:
        page = search(num=20, before=before)
        steps += [sample["step"] for sample in page["samples"]]
        if (before := page["next"]) is None:
            break
    assert steps == list(range(50, 0, -1))


def test_only_what_was_added_is_read_again(run: GrowingRun, monkeypatch: pytest.MonkeyPatch):
    path, sizes = run.folder / "samples.jsonl", []
    frombuffer = np.frombuffer
    monkeypatch.setattr(np, "frombuffer", lambda data, dtype: sizes.append(len(data)) or frombuffer(data, dtype))
    assert Searched(run)()["total"] == 50
    before = path.stat().st_size
    run.sample("9+2", "added")
    page = Searched(run)()
    assert (page["total"], page["samples"][0]["completion"]) == (51, "added")
    assert sizes == [before, path.stat().st_size - before]
    for text in ('{"completion": "short"}\n', '{"completion": "' + "x" * 99_999 + '"}\n'):
        path.write_text(text)
        assert Searched(run)()["total"] == 1


def test_words_are_searched_in_any_case(run: GrowingRun):
    found = Searched(run)(text="ANSWER 49")["samples"]
    assert [sample["completion"] for sample in found] == ["The answer is 49"]
    assert Searched(run)(text="nowhere")["samples"] == []


@pytest.mark.parametrize("row", [{"conversation": 3}, {"conversation": [3]}, {}])
def test_what_is_not_a_conversation_is_not_shown_as_one(row: dict[str, Any]):
    assert "conversation" not in samples.sample_json(0, row, 100)


def test_conversations_say_who_said_what():
    said = [{"by": "model", "text": "?47*8"}, {"by": "environment", "text": "376;"}, {"by": "model", "text": "376"}]
    sample = samples.sample_json(0, {"completion": "?47*8376;376", "conversation": said}, 100)
    assert sample["conversation"] == said
    assert sample["words"] == {}
    cut = samples.sample_json(0, {"conversation": said}, 7)["conversation"]
    assert [part["text"] for part in cut] == ["?47*8", "37"]


def test_one_prompt_over_training(run: GrowingRun):
    found = Searched(run)(problem="3+2", num=100)["samples"]
    assert [sample["step"] for sample in found] == [49, 44, 39, 34, 29, 24, 19, 14, 9, 4]


def test_prompt_that_is_its_own_name_is_found_however_long(run: GrowingRun):
    for _ in range(2):
        run.sample("long " * 3000, "yes")
    search = Searched(run)
    (newest, *_) = search()["samples"]
    assert len(search(problem=newest["problem"])["samples"]) == 2


def test_verdicts_are_distinguished(run: GrowingRun):
    run.sample("7+7", "unsure", correct=None, graders={"format": 0.5}, reason="timeout")
    search = Searched(run)
    assert len(search(verdict="correct", num=100)["samples"]) == 25
    (without,) = search(verdict="none")["samples"]
    assert without["words"] == {"graders": '{"format": 0.5}', "reason": "timeout"}


def test_long_texts_are_cut_and_can_be_had_whole(run: GrowingRun):
    run.sample("long", "x" * 20_000)
    search = Searched(run)
    (sample,) = search(text="long")["samples"]
    assert len(sample["completion"]) == samples.MAX_TEXT
    assert sample["cut"] == 20_000 - samples.MAX_TEXT
    assert len((search.whole(sample["number"]) or {})["completion"]) == 20_000
    assert search.whole(10_000) is None


def test_slow_search_says_where_to_go_on(run: GrowingRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(samples, "SECONDS", -1.0)
    search, looked, before = Searched(run), 0, None
    while looked < 60:
        page = search(text="nowhere", before=before)
        looked += 1
        if (before := page["next"]) is None:
            break
    assert looked == 50


def test_lines_that_are_not_samples_do_no_harm(run: GrowingRun):
    with (run.folder / "samples.jsonl").open("a") as file:
        file.write('not json\n[1, 2]\n{"step": "x", "prompt": 7, "completion": null, "reward": "NaN"}\n')
    (sample, *_) = Searched(run)()["samples"]
    assert (sample["step"], sample["prompt"], sample["reward"]) == (None, "7", None)
    json.dumps(sample, allow_nan=False)


def test_report_shows_the_newest_of_each_run(run: GrowingRun, tmp_path: Path):
    other = GrowingRun(tmp_path / "other")
    runs = [read_run(folder, name=folder.name, arm="a") for folder in (run.folder, other.folder)]
    shown = newest_samples(runs)
    assert [(sample["run"], sample["step"]) for sample in shown] == [("run", step) for step in range(50, 44, -1)]
