import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from scalerl.training.types import Batch, Completion, Group, LengthPlan, Problem, Request, derive_seed, group_key

PROBLEM = Problem(id="p1", prompt="What is 1 + 1?", answer="2", task="arithmetic")


def make_request(**changes):
    settings = {
        "group": group_key(0, "p1"),
        "index": 0,
        "problem": PROBLEM,
        "prompt_tokens": (1, 2),
        "seed": 7,
        "length": LengthPlan(answer_budget=4),
    }
    return Request(**(settings | changes))


def make_completion(**changes):
    settings = {
        "request": make_request(),
        "tokens": [5, 6, 7],
        "log_probs": [-1.0, 0.0, -2.0],
        "versions": [3, 3, 4],
        "forced": [False, True, False],
        "finish": "stop",
        "interrupted_at": 1,
    }
    return Completion(**(settings | changes))


def make_group(correct=(True, None, False), versions=(3, 2, 5)):
    completions = tuple(make_completion(versions=[version] * 3) for version in versions)
    return Group(key="0/p1", problem=PROBLEM, completions=completions, correct=correct, rewards=(1.0, 0.0, -1.0))


def test_completion_counts_only_sampled_tokens_as_trained():
    completion = make_completion()
    assert (len(completion), completion.num_trained_tokens, completion.first_version) == (3, 2, 3)
    assert not completion.truncated
    assert make_completion(finish="length").truncated


def test_values_are_frozen_down_to_their_arrays():
    completion = make_completion()
    with pytest.raises(dataclasses.FrozenInstanceError):
        completion.finish = "length"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="read-only"):
        completion.tokens[0] = 1


def test_completion_keeps_a_copy_of_what_it_is_given():
    tokens = np.array([5, 6, 7], dtype=np.int32)
    completion = make_completion(tokens=tokens)
    tokens[0] = 99
    assert completion.tokens[0] == 5


def test_completion_gives_its_arrays_their_own_types():
    log_probs = np.array([-0.1, -0.2, 0.0], dtype=np.float64)
    log_probs.setflags(write=False)
    completion = make_completion(log_probs=log_probs, tokens=np.array([5, 6, 7], dtype=">i4"))
    assert (completion.log_probs.dtype, completion.tokens.dtype) == (np.dtype(np.float32), np.dtype(np.int32))
    assert completion.tokens.tolist() == [5, 6, 7]


def test_completions_are_equal_by_content():
    assert make_completion() == make_completion()
    assert make_completion() != make_completion(tokens=[5, 6, 8])
    assert make_completion() != make_completion(finish="length")
    assert make_completion() != "completion"


@pytest.mark.parametrize(
    "changes", [{"log_probs": [0.0]}, {"tokens": [], "log_probs": [], "versions": [], "forced": []}]
)
def test_completion_rejects_arrays_of_unequal_length(changes):
    with pytest.raises(ValueError, match="need equal lengths"):
        make_completion(**changes)


def test_group_reports_verdicts_and_the_oldest_policy():
    group = make_group()
    assert (group.num_correct, group.num_graded, group.first_version, group.num_trained_tokens) == (1, 2, 2, 6)
    assert Batch(version=6, groups=[group, make_group(versions=(6, 6, 6))]).lags == [4, 0]


def test_group_rejects_missing_verdicts():
    with pytest.raises(ValueError, match="a verdict and a reward per completion"):
        make_group(correct=(True,))


def test_request_keys_tell_completions_of_a_group_apart():
    keys = {make_request(index=index, group=group_key(epoch, "p1")).key for index in range(2) for epoch in range(2)}
    assert len(keys) == 4


def test_content_hash_ignores_id_and_spacing_only():
    same = dataclasses.replace(PROBLEM, id="other", prompt="What  is 1 + 1?\n")
    assert same.content_hash == PROBLEM.content_hash
    assert dataclasses.replace(PROBLEM, prompt="What is 1 + 2?").content_hash != PROBLEM.content_hash


def test_length_plan_bounds_the_whole_completion():
    assert LengthPlan(answer_budget=8).max_tokens == 8
    assert LengthPlan(thinking_budget=10, marker=(1,), answer_budget=8).max_tokens == 18


def test_derived_seeds_depend_on_every_part_and_on_nothing_else():
    seeds = [derive_seed("a", 1), derive_seed("a", "1"), derive_seed("a1"), derive_seed(1, "a"), derive_seed("a", 1, 0)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    code = "from scalerl.training.types import derive_seed; print(derive_seed('a', 1))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) == seeds[0]
