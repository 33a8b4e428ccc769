"""JSON of strangers is a value that every function can read, or a ValueError."""

import json
import time

import pytest

from scalerl.runfolder.json_text import parse_json


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("text", ["{}", "[1, {}]", '"[[["', nested(100), json.dumps([[[1]]] * 1000)])
def test_values_of_programs_are_parsed(text: str):
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


NOT_JSON = ["", "[", "nothing", "9" * 5000, nested(101), nested(900), nested(100_000), '{"a":' * 900, b"\xff"]


@pytest.mark.parametrize("text", [*NOT_JSON, '{"a":' * 900 + "1" + "}" * 900])
def test_everything_else_is_a_fault(text: str | bytes):
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)


def test_depth_is_found_in_linear_time():
    began = time.process_time()
    parse_json(json.dumps([[{"a": [number]}] for number in range(200_000)]))
    assert time.process_time() - began < 10
