"""The last samples of a run, as a page shows them."""

import json
from pathlib import Path
from typing import Any

import pytest
from boards import GrowingRun

from scalerl.forecast.report import samples
from scalerl.forecast.report.safe_files import Root


def newest(run: GrowingRun, num: int = 20) -> list[dict[str, Any]]:
    return samples.newest_samples(run.folder / "samples.jsonl", Root(run.folder), num)


@pytest.fixture
def run(tmp_path: Path) -> GrowingRun:
    run = GrowingRun(tmp_path / "run")
    for number in range(50):
        run.train(1)
        run.sample(f"{number % 5}+2", f"The answer is {number}", correct=number % 2 == 0)
    return run


def test_the_newest_come_first(run: GrowingRun):
    shown = newest(run, 4)
    assert [sample["step_text"] for sample in shown] == ["step 50", "step 49", "step 48", "step 47"]
    assert [sample["verdict"] for sample in shown] == ["wrong", "correct"] * 2


@pytest.mark.parametrize("row", [{"conversation": 3}, {"conversation": [3]}, {}])
def test_what_is_not_a_conversation_is_not_shown_as_one(row: dict[str, Any]):
    assert [name for name, *_ in samples.sample_json(row)["texts"]] == ["Prompt", "Answer"]


def test_conversations_say_who_said_what(monkeypatch: pytest.MonkeyPatch):
    said = [{"by": "model", "text": "?47*8"}, {"by": "environment", "text": "376;"}, {"by": "model", "text": "376"}]
    sample = samples.sample_json({"completion": "?47*8376;376", "conversation": said})
    assert [(by, text) for _, text, by in sample["texts"][1:]] == [(part["by"], part["text"]) for part in said]
    monkeypatch.setattr(samples, "MAX_TEXT", 7)
    assert [text for _, text, _ in samples.sample_json({"conversation": said})["texts"]] == ["", "?47*8", "37"]


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "1" + "0" * 400, '"1"', "true", "[]", "{}"])
def test_odd_numbers_are_shown_as_none(run: GrowingRun, odd: str):
    with (run.folder / "samples.jsonl").open("a") as file:
        file.write(f'{{"step": {odd}, "reward": {odd}, "completion": "odd"}}\n')
    (sample,) = newest(run, 1)
    assert (sample["step_text"], sample["reward_text"]) == ("", "")
    assert json.dumps(sample, allow_nan=False)


def test_what_graders_wrote_is_shown(run: GrowingRun):
    run.sample("7+7", "unsure", correct=None, graders={"format": 0.5}, reason="timeout")
    (without,) = newest(run, 1)
    assert without["verdict"] == "none"
    assert without["texts"][2:] == [("graders", '{"format": 0.5}', ""), ("reason", "timeout", "")]


def test_long_texts_are_cut(run: GrowingRun):
    run.sample("long", "x" * 2 * samples.MAX_TEXT)
    (sample,) = newest(run, 1)
    assert len(sample["texts"][1][1]) == samples.MAX_TEXT + len(" ...")


def test_lines_that_are_not_samples_do_no_harm(run: GrowingRun):
    with (run.folder / "samples.jsonl").open("a") as file:
        file.write('not json\n[1, 2]\n{"step": "x", "prompt": 7, "completion": null, "reward": "NaN"}\n')
    (sample, *_) = newest(run)
    assert (sample["step_text"], sample["texts"][0][1], sample["reward_text"]) == ("", "7", "")
    json.dumps(sample, allow_nan=False)
