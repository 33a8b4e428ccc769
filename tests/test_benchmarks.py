"""The benchmark of the GPU at sizes that only show that it runs, and what becomes of a part that does not."""

import functools
import importlib
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scalerl.types import Completion

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
gpu, gpu_cases, gpu_parts, gpu_peers = map(importlib.import_module, ("gpu", "gpu_cases", "gpu_parts", "gpu_peers"))
gpu_limits, gpu_loop, gpu_long = map(importlib.import_module, ("gpu_limits", "gpu_loop", "gpu_long"))


@pytest.fixture(scope="module")
def subject():
    return gpu_cases.Subject(gpu_cases.quick(gpu_cases.CASES["tiny"]), torch.device("cpu"))


FIGURES = {
    "sample": {"tokens_per_s", "limit", "of_limit", "of_bound"},
    "learn": {"learner_tokens_per_s", "mfu", "mfu_attention"},
    "loop": {
        *("steps_per_s", "loop_tokens_per_s", "of_parts", "alone_tokens_per_s", "alone_learner_tokens_per_s"),
        *("alone_poll_s", "alone_decode_s", "alone_push_s", "alone_step_s", "alone_step_s_half", "half_step_s"),
    },
    "mixed": {"mixed_tokens_per_s"},
    "generate": {"tokens_per_s"},
    "static": {"tokens_per_s"},
    "continuous": {"tokens_per_s"},
}


def test_shapes_and_parts_match_the_command():
    assert tuple(gpu_cases.CASES) == gpu.SHAPES
    assert tuple(gpu_parts.PARTS) == gpu.PARTS
    assert set(gpu.PARTS) == set(FIGURES)


@pytest.fixture(scope="module")
def measured(subject):
    """Each part, measured once: the peers are given time to finish; the others measure as little as they can."""
    peers = ("generate", "static", "continuous")
    return functools.cache(lambda part: gpu_parts.measure(subject, part, 60.0 if part in peers else 0.0))


@pytest.mark.parametrize("part", gpu.PARTS)
def test_every_part_runs_and_gives_its_figures(measured, part):
    row = measured(part)
    assert "failed" not in row, row
    assert FIGURES[part] <= row.keys()
    assert all(math.isfinite(row[name]) and row[name] > 0 for name in FIGURES[part])


def test_all_are_given_the_same_tokens_to_sample(subject, measured):
    """Those that take batch after batch are given one."""
    requests = subject.mixed_requests
    total = gpu_peers.sum_lengths(requests)
    assert total == sum(request.length.max_tokens for request in requests)
    of_batch = gpu_peers.sum_lengths(requests[: subject.case.slots])
    assert of_batch < total
    for part, expected in (("generate", of_batch), ("static", of_batch), ("continuous", total)):
        assert measured(part)["num_tokens"] == expected


def test_continuous_batching_cut_off_counts_its_tokens(subject):
    tokens, elapsed = gpu_peers.run_continuous(subject.model, subject.mixed_requests, 4, seconds=0.05)
    assert 0 <= tokens < gpu_peers.sum_lengths(subject.mixed_requests)
    assert elapsed < 5
    assert subject.model.config._attn_implementation == "sdpa"


def test_the_limit_of_a_decode_step_is_the_sum_over_its_parts(subject):
    shape, config, slots = subject.shape, subject.model.config, subject.case.slots
    body, head = 4 * shape.body_params, 4 * shape.head_params
    cache = 4 * 2 * shape.layers * config.num_key_value_heads * config.head_dim * 9 * slots

    def limits(**ceiling: float):
        known = {"read_bandwidth": 1.0, "copy_bandwidth": 1.0, "matmul": math.inf, "l2_bytes": 0.0}
        return gpu_limits.decode_limits(config, slots, 10.0, known | ceiling, item=4)

    assert limits().limit_s == pytest.approx(body + cache + head)
    assert limits().bound_s == pytest.approx(body + cache + head)
    # What fits into the L2 cache need not be read again.
    assert limits(l2_bytes=body + cache).limit_s == pytest.approx(head)
    by_flops = 2 * (shape.body_params + shape.head_params) * slots
    by_flops += 4 * shape.layers * shape.attention_width * 10 * slots
    assert limits(read_bandwidth=math.inf, matmul=1.0).limit_s == pytest.approx(by_flops)
    both = limits(matmul=1.0)
    assert both.bound_s == pytest.approx(max(body + cache + head, by_flops))
    assert both.bound_s < both.limit_s < body + cache + head + by_flops


def test_no_way_of_reading_is_faster_than_the_ceiling():
    ceiling = gpu_limits.ceilings(torch.device("cpu"))
    assert ceiling["read_bandwidth"] >= ceiling["copy_bandwidth"] > 0


def test_long_completions_are_interrupted_and_trained(monkeypatch, capsys):
    monkeypatch.setattr(gpu_long, "SAY_S", 0.0)
    case = gpu_cases.quick(gpu_cases.CASES["1.5b-16k"])
    subject = gpu_cases.Subject(case, torch.device("cpu"))
    rows = {part: gpu_parts.measure(subject, part, 0.0) for part in gpu.LONG_PARTS}
    assert not [row for row in rows.values() if "failed" in row]
    assert rows["sample"][f"tokens_per_s_{case.more_slots}"] > 0
    assert min(rows["learn"][name] for name in ("plain_step_s", "checkpointed_step_s")) > 0
    assert rows["loop"]["interrupted"] == 1.0
    assert rows["loop"]["lag_max"] <= gpu_loop.MAX_LAG
    # What a completion begins with is part of it again when it is trained.
    assert sum(case.thinking) / 2 + case.answer == pytest.approx(rows["loop"]["length_mean"], abs=1)
    assert rows["loop"]["num_steps"] == gpu_long.LONG_STEPS
    assert rows["loop"]["of_parts"] > 0
    output = capsys.readouterr().out
    assert "step 5 with completions of" in output
    assert "tokens sampled" in output


def test_slots_of_the_long_loop_begin_on_their_way():
    case = replace(gpu_cases.quick(gpu_cases.CASES["1.5b-16k"]), slots=32)
    prompts = gpu_loop.Prompts(case, 64)
    half_way = gpu_long.HalfWay(case, prompts, 64)
    begun = [[len(request.prompt_tokens) - 8 for request in half_way.requests(f"0/{n}", n)] for n in range(5)]
    # The first issued is the furthest; the fifth group is not in a slot at the beginning.
    assert begun == [[done] * gpu_cases.PER_GROUP for done in (5, 3, 2, 0, 0)]
    half_way = gpu_long.HalfWay(case, prompts, 64)
    for begins, asked in zip(half_way.requests("0/0", 0), prompts.requests("0/0", 0), strict=True):
        num = begins.length.max_tokens
        forced = np.arange(num) == (begins.length.thinking_budget if begins.length.thinking_budget else -1)
        at = int(forced.argmax()) if forced.any() else None
        part = Completion(
            request=begins,
            tokens=np.full(num, 7, dtype=np.int32),
            log_probs=np.zeros(num, dtype=np.float32),
            versions=np.ones(num, dtype=np.int32),
            forced=forced,
            finish="stop",
            interrupted_at=at,
        )
        whole = half_way.whole(part)
        assert whole.request == asked
        assert len(whole) == asked.length.max_tokens
        assert whole.interrupted_at == asked.length.thinking_budget
        assert begins.prompt_tokens == (*asked.prompt_tokens, *whole.tokens[:5].tolist())


@pytest.mark.parametrize(
    "spans, covered",
    [([], 0), ([(5, 9)], 4), ([(0, 4), (2, 3), (3, 6)], 6), ([(10, 12), (0, 1)], 3)],
)
def test_time_that_two_kernels_share_counts_once(spans, covered):
    assert gpu_loop.union(spans) == covered


def test_failed_part_says_why_and_the_next_is_measured(subject, monkeypatch):
    def broken(*_):
        raise ValueError("no such kernel\nand much more")

    monkeypatch.setitem(gpu_parts.PARTS, "sample", broken)
    assert gpu_parts.measure(subject, "sample", 0.0)["failed"] == "ValueError: no such kernel"
    assert "failed" not in gpu_parts.measure(subject, "mixed", 0.0)


# The process around the parts -----------------------------------------------------------------------------------------


def rows(code: str, parts: list[str], *, silent_s: float = 60.0, total_s: float = 60.0) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", f"import json, os, sys, time\n{code}"]
    return list(gpu.rows_of(command, parts, silent_s=silent_s, until=time.monotonic() + total_s))


SAY = "print(json.dumps({'part': 'sample'}), flush=True)\n"


def test_rows_pass_through_despite_an_endless_thread():
    assert rows(SAY + "time.sleep(1000)", ["sample"]) == [{"part": "sample"}]


def test_dead_process_names_the_part_it_was_at():
    found = rows(SAY + "os._exit(9)", ["sample", "learn", "loop"])
    assert found == [{"part": "sample"}, {"part": "learn", "failed": "its process ended with exit status 9"}]


def test_part_that_lost_the_device_leaves_the_rest():
    assert rows(SAY + f"sys.exit({gpu.DEVICE_LOST})", ["sample", "learn"]) == [{"part": "sample"}]


def test_silent_part_is_killed():
    found = rows(SAY + "time.sleep(1000)", ["sample", "learn"], silent_s=2.0)
    assert found[1]["part"] == "learn"
    assert "killed" in found[1]["failed"]


def test_part_cut_off_by_the_time_limit_says_so():
    found = rows("time.sleep(1000)", ["sample"], total_s=1.0)
    assert "--total was up" in found[0]["failed"]


def test_nothing_starts_after_the_time_limit():
    found = rows(SAY, ["sample", "learn"], total_s=-1.0)
    assert [row["part"] for row in found] == ["sample", "learn"]
    assert all("--total" in row["failed"] for row in found)


def test_the_table_has_ratios_to_every_peer_that_ran():
    found: list[dict[str, Any]] = [
        {"shape": "10m", "part": "sample", "tokens_per_s": 2e6, "of_limit": 0.5, "peak_gib": 3.25},
        {"shape": "10m", "part": "mixed", "mixed_tokens_per_s": 1e6, "peak_gib": 3.5},
        {"shape": "10m", "part": "generate", "tokens_per_s": 1e5, "peak_gib": 90.0},
        {"shape": "10m", "part": "continuous", "failed": "MemoryError: too little"},
    ]
    line = gpu.table(found).splitlines()[1].split()
    assert line == ["10m", "2,000,000", "50%", *["-"] * 7, "3.5", "1,000,000", "x10.00", "-", "-"]


def test_command_continues_after_a_dead_process(monkeypatch, capsys, tmp_path):
    asked = []

    def rows_of(command, parts, **_):
        asked.append(json.loads(command[-1])["parts"])
        if len(asked) == 1:
            yield {"part": parts[0], "tokens_per_s": 1.0, "of_limit": 0.5}
            yield {"part": parts[1], "failed": "its process ended with exit status -11"}
        else:
            yield from ({"part": part, "steps_per_s": 2.0, "tokens_per_s": 3.0} for part in parts)

    monkeypatch.setattr(gpu, "rows_of", rows_of)
    file = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--shapes", "10m", "--parts", "sample,learn,loop", "--json", str(file)])
    assert gpu.main() == 1
    assert asked == [["sample", "learn", "loop"], ["loop"]]
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["part"] for row in written] == ["sample", "learn", "loop"]
    assert {"date", "python"} <= written[0].keys()
    assert capsys.readouterr().out.count("\n") == 5


def test_the_quick_sizes_leave_room_for_mixed_lengths():
    for case in gpu_cases.CASES.values():
        small = gpu_cases.quick(case)
        assert small.context - small.prompt >= gpu_cases.SHORTEST
        # The model of the long case is too large to show on a CPU that it runs.
        assert small.config is (case.config if case.thinking is None else gpu_cases.TINY_LONG)
