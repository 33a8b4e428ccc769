"""The benchmark of the GPU at sizes that only show that it runs, and what becomes of a part that does not."""

import importlib
import json
import sys
import time
from typing import Any

import pytest
import torch

gaps, gpu, gpu_parts = map(importlib.import_module, ("gaps", "gpu", "gpu_parts"))
CPU = torch.device("cpu")
FIGURES = {
    "torch": {"tokens_per_s", "of_limit", "mixed_tokens_per_s", "push_s"},
    "learn": {"learner_tokens_per_s", "mfu", "mfu_attention"},
    "loop": {"steps_per_s", "loop_tokens_per_s", "loop_mfu", "kl", "lag_max"},
    "gaps": {figure for part, figure, _, _ in gpu.COLUMNS if part == "gaps"},
}


def test_shapes_and_parts_match_the_command():
    assert tuple(gpu_parts.CASES) == gpu.SHAPES
    assert tuple(gpu_parts.PARTS) == gpu.PARTS
    assert {column[0] for column in gpu.COLUMNS} == set(gpu.PARTS)


@pytest.mark.parametrize(("part", "shape"), [*((part, "tiny") for part in FIGURES), ("torch", "8b"), ("learn", "8b")])
def test_parts_run_and_give_their_figures(part, shape):
    subject = gpu_parts.Subject(gpu_parts.quick(gpu_parts.CASES[shape]), CPU)
    row = gpu_parts.measure(subject, part, 0.0)
    assert "failed" not in row, row
    assert FIGURES[part] <= row.keys()
    if part == "loop":
        assert row["lag_max"] <= gpu_parts.MAX_LAG
        # One version of the weights, and the same tokens: what is left is rounding.
        assert abs(row["kl_first"]) < 1e-6


def test_device_time_is_attributed_to_the_call_that_launched_it():
    def event(cat, name, ts, dur, correlation=None):
        return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"correlation": correlation}}

    events = [
        event("user_annotation", "engine", 0, 10),
        event("user_annotation", "learner", 20, 10),
        event("user_annotation", "another", 0, 100),
        event("cuda_runtime", "cudaGraphLaunch", 5, 1, 1),
        event("cuda_runtime", "cudaLaunchKernel", 25, 1, 2),
        event("cuda_driver", "cuLaunchKernel", 15, 1, 3),
        # Two kernels of a graph that overlap, then one that runs long after its launch.
        event("kernel", "decode", 30, 10, 1),
        event("kernel", "attend", 35, 10, 1),
        event("kernel", "decode", 60, 5, 2),
        event("gpu_memcpy", "copy", 70, 2, 3),
    ]
    figures = gaps.device_figures(events, num_steps=2)
    assert figures["engine_ms"] == pytest.approx(15e-3 / 2)
    assert figures["learner_ms"] == pytest.approx(5e-3 / 2)
    assert (figures["push_ms"], figures["other_ms"]) == (0.0, pytest.approx(2e-3 / 2))
    assert figures["engine_kernels"] == {"decode": [0.005, 0.5], "attend": [0.005, 0.5]}


def test_sizes_of_llama():
    from scalerl.training.models.shape import ModelShape

    shapes = {name: ModelShape.from_config(gpu_parts.CASES[name].config) for name in ("3b", "8b")}
    assert shapes["3b"].body_params + shapes["3b"].head_params == pytest.approx(3.21e9, rel=0.01)
    assert shapes["8b"].body_params + 2 * shapes["8b"].head_params == pytest.approx(8.03e9, rel=0.01)


def test_decode_limit_is_the_sum_of_its_parts():
    config = gpu_parts.shape(gpu_parts.LlamaConfig, 4, 1, 1, 1, 4, 8)
    # 4 x 4 four times in attention, 4 x 4 three times in the block: 112 numbers; the head has 32.
    ceiling = {"read_bandwidth": 1.0, "matmul": 1e9}
    cached = 2 * 2 * 4 * 9 * 3
    limit_s = gpu_parts.decode_limit_s(config, 3, 10.0, ceiling, item=2)
    assert limit_s == pytest.approx(2 * 112 + cached + 4 * 32)
    ceiling = {"read_bandwidth": 1e9, "matmul": 1.0}
    limit_s = gpu_parts.decode_limit_s(config, 3, 10.0, ceiling, item=2)
    assert limit_s == pytest.approx(2 * 112 * 3 + 4 * 4 * 10 * 3 + 2 * 32 * 3)


def test_a_part_that_fails_gives_its_reason(monkeypatch):
    def broken(subject, seconds):
        raise ValueError("no such kernel\nand more")

    monkeypatch.setitem(gpu_parts.PARTS, "learn", broken)
    subject = gpu_parts.Subject(gpu_parts.quick(gpu_parts.CASES["tiny"]), CPU)
    assert gpu_parts.measure(subject, "learn", 0.0)["failed"] == "ValueError: no such kernel"


# The process around a part --------------------------------------------------------------------------------------------

SAY = "print('a line')\nprint(json.dumps({'tokens_per_s': 1.0}), flush=True)\n"


@pytest.mark.parametrize(
    ("code", "silent_s", "total_s", "expected"),
    [
        (SAY + "time.sleep(1000)", 60.0, 60.0, None),  # a thread that does not end
        ("os._exit(9)", 60.0, 60.0, "exit status 9"),
        ("time.sleep(1000)", 1.0, 60.0, "nothing came"),
        ("time.sleep(1000)", 60.0, 1.0, "--total was up"),
        (SAY, 60.0, -1.0, "--total was up"),
    ],
)
def test_a_process_gives_a_row_or_the_reason(code, silent_s, total_s, expected):
    command = [sys.executable, "-c", f"import json, os, sys, time\n{code}"]
    row = gpu.row_of(command, silent_s=silent_s, until=time.monotonic() + total_s)
    assert row == {"tokens_per_s": 1.0} if expected is None else expected in row["failed"]


def test_command_writes_rows_and_a_table(monkeypatch, capsys, tmp_path):
    def row_of(command, **_) -> dict[str, Any]:
        part = json.loads(command[-1])["part"]
        return {"failed": "out of memory"} if part == "learn" else {"tokens_per_s": 2e6, "of_limit": 0.5}

    monkeypatch.setattr(gpu, "row_of", row_of)
    file = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--shapes", "10m", "--parts", "torch,learn", "--json", str(file)])
    assert gpu.main() == 1
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["part"] for row in written] == ["torch", "learn"]
    assert {"date", "python", "shape"} <= written[0].keys()
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:3] == ["10m", "2,000,000", "50%"]
    assert set(line[3:]) == {"-"}
