"""What a recipe stands for on this machine."""

import json
from pathlib import Path

import pytest
import torch

from scalerl.config import Recipe, RecipeError, load_recipe
from scalerl.tasks.length import LengthControl
from scalerl.train.setup import Setup, environment, resolve_model, sample_rows, wilson
from scalerl.types import LengthPlan


def lines(path: Path, prompts: list[str]) -> str:
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "1"}) + "\n" for prompt in prompts))
    return json.dumps(str(path))


def recipe(*overrides: str) -> Recipe:
    return load_recipe("tiny-cpu", ["task.num_problems=20", "evaluation.num_prompts=5", *overrides])


def test_no_training_problem_is_one_that_any_set_evaluates_on(tmp_path: Path):
    path = lines(tmp_path / "train.jsonl", [f"{place}+1=" for place in range(10)])
    other = lines(tmp_path / "other.jsonl", ["3+1=", "4+1=", "9+9="])
    unused = lines(tmp_path / "unused.jsonl", ["5+5="])
    settings = [
        f'task={{name="file", path={path}}}',
        "evaluation.num_prompts=3",
        f'evaluation.sets.other={{name="file", path={unused}, evaluation_path={other}}}',
    ]
    setup = Setup(load_recipe("tiny-cpu", settings))
    assert [one.name for one in setup.sets] == ["main", "other"]
    evaluated = {problem.prompt for one in setup.sets for problem in one.problems}
    assert {"3+1=", "4+1=", "9+9="} <= evaluated
    trained = {problem.prompt for problem in setup.training_problems().values()}
    assert not trained & evaluated
    assert trained == {f"{place}+1=" for place in range(10)} - evaluated


def test_prompts_that_are_too_long_are_left_out_everywhere(tmp_path: Path):
    prompts = [f"{place}+1=" for place in range(8)] + [f"{'1+' * 9}{place}=" for place in range(8)]
    path = lines(tmp_path / "train.jsonl", prompts)
    setup = Setup(load_recipe("tiny-cpu", [f'task={{name="file", path={path}}}', "evaluation.num_prompts=12"]))
    kept = [*setup.training_problems().values(), *setup.sets[0].problems]
    assert sorted(problem.prompt for problem in kept) == prompts[:8]
    with pytest.raises(RecipeError, match=r"no evaluation problem of main has a prompt of at most .* = 3 tokens"):
        Setup(recipe("rollout.max_prompt_tokens=3"))


def long_winded(encode, /) -> LengthControl:
    return LengthControl(max_tokens=60, plan=lambda seed: LengthPlan(answer_budget=60), adjust=lambda num, right: 0.0)


def test_a_length_control_of_ones_own_must_fit_the_context():
    with pytest.raises(RecipeError, match=r"rollout.context is 64, but prompts of up to 16 tokens .* up to 60 need 76"):
        Setup(recipe(f'length={{name="{__name__}:long_winded"}}'))


def test_names_of_models():
    assert Path(resolve_model("tiny-base"), "config.json").is_file()
    assert resolve_model("owner/name") == "owner/name"


def test_the_environment_is_json_and_names_versions():
    found = json.loads(json.dumps(environment(torch.device("cpu"))))
    assert found["torch"] == torch.__version__
    assert found["device"] == "cpu"


def test_no_samples_of_no_groups():
    assert sample_rows(Setup(recipe()), (), 4) == []


def test_wilsons_interval_stays_within_its_range():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 20)[0] == 0
    assert wilson(20, 20)[1] == 1
    low, high = wilson(50, 100)
    assert low == pytest.approx(0.419, abs=1e-3)
    assert high == pytest.approx(0.581, abs=1e-3)
