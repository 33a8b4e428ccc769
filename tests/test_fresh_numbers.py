"""Test problems with fresh numbers (benchmarks/fresh_numbers.py)."""

import importlib
import json
import random
import sys

import pytest
from needs import SHARED_DATA

fresh_numbers = importlib.import_module("fresh_numbers")

QUESTION = "Ann has 12 boxes of 5 pens. She gives 20 pens, and three rulers, to Ben. How many pens are left?"
SOLUTION = "She has 12*5=<<12*5=60>>60 pens.\nShe keeps 60-20=<<60-20=40>>40 pens.\n#### 40"


def test_numbers_change_together_with_the_answer():
    question, answer = fresh_numbers.fresh(QUESTION, SOLUTION, random.Random(0))
    boxes, pens, given = (int(word) for word in question.split() if word.isdigit())
    assert (boxes, pens, given) != (12, 5, 20)
    assert answer == boxes * pens - given
    # Numbers that the solution does not use stay, and so does all other text.
    template = QUESTION.replace("12", "{}").replace(" 5 ", " {} ").replace("20", "{}")
    assert question == template.format(boxes, pens, given)


def test_the_order_of_numbers_is_kept():
    for seed in range(50):
        question, _ = fresh_numbers.fresh(QUESTION, SOLUTION, random.Random(seed))
        boxes, pens, given = (int(word) for word in question.split() if word.isdigit())
        assert pens < boxes < given


@pytest.mark.parametrize(
    ("question", "solution"),
    [
        # 2 may be the number of bolts, or that of "half".
        ("It takes 2 bolts and half that much.", "2/2=<<2/2=1>>1\n2+1=<<2+1=3>>3\n#### 3"),
        # Is 9 the number of the question, or the result?
        ("He has 4 and 5, and later 9.", "<<4+5=9>>9\n<<9+9=18>>18\n#### 18"),
        ("He has 1/2 of 8.", "<<8/2=4>>4\n#### 4"),
        ("He has 8 and 4.", "<<8*3=24>>24\n#### 24"),
        ("He has 8 and 4.", "<<8+4=12>>12\n#### 13"),
        ("He has 8 and 4.", "<<8+4=13>>13\n#### 13"),
        ("He has 8 and 4.", "He has twelve.\n#### 12"),
        ("He has 8 and 4.", "<<__import__('os')=12>>12\n#### 12"),
    ],
    ids=["implied", "result", "fraction", "unknown", "answer", "arithmetic", "no equation", "code"],
)
def test_what_can_be_read_in_two_ways_is_left_out(question: str, solution: str):
    assert fresh_numbers.fresh(question, solution, random.Random(0)) is None


@pytest.mark.skipif(not SHARED_DATA.exists(), reason="needs GSM8K's problems beside the checkout")
def test_a_third_of_the_test_problems_can_be_renewed(tmp_path, monkeypatch, capsys):
    source = SHARED_DATA / "gsm8k" / "test.jsonl"
    out, originals = tmp_path / "fresh.jsonl", tmp_path / "originals.jsonl"
    monkeypatch.setattr(sys, "argv", ["", str(source), "--out", str(out), "--originals", str(originals)])
    fresh_numbers.main()
    made = [json.loads(line) for line in out.read_text().splitlines()]
    before = [json.loads(line) for line in originals.read_text().splitlines()]
    assert len(made) == len(before) >= 380
    assert all(new["question"] != old["question"] for new, old in zip(made, before, strict=True))
    assert capsys.readouterr().out.startswith(f"{len(made)} of 1319 ")
