"""What a recipe stands for on this machine."""

import gc
import json
from contextlib import closing
from pathlib import Path

import pytest
import torch

from scalerl.config import Recipe, load_recipe
from scalerl.errors import GraderError, RecipeError
from scalerl.loop.grading import Marking
from scalerl.run.setup import HOST_THREADS, Setup, environment, quiet_host, sample_rows, settled, wilson
from scalerl.tasks.length import LengthControl
from scalerl.tasks.prompts import PromptFormat
from scalerl.types import LengthPlan


def lines(path: Path, prompts: list[str]) -> str:
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "1"}) + "\n" for prompt in prompts))
    return json.dumps(str(path))


def recipe(*overrides: str) -> Recipe:
    return load_recipe("tiny-cpu", ["task.num_problems=20", "evaluation.num_prompts=5", *overrides])


def mixed(**paths: str) -> Recipe:
    tasks = [f'tasks.{name}={{name="file", path={path}}}' for name, path in paths.items()]
    return load_recipe("tiny-cpu", ['task=""', "evaluation.num_prompts=3", *tasks])


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
    trained = {problem.prompt for problem in setup.training_prompts()["main"]}
    assert not trained & evaluated
    assert trained == {f"{place}+1=" for place in range(10)} - evaluated


@pytest.mark.parametrize("end, opening", [("<think>", "<think>"), ("", ""), ("<think></think>", ""), ("<think>1+", "")])
def test_a_prompt_that_ends_with_the_start_of_thinking_has_opened_it(end: str, opening: str):
    setup = Setup(recipe(f"task.template={json.dumps('{prompt}' + end)}"))
    assert [one.judge.opening for one in setup.sets] == [opening]


@pytest.mark.parametrize("told, expected", [(None, [2]), ("7", [])])
def test_beside_a_gpu_torch_keeps_to_a_few_host_threads(monkeypatch, told, expected):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    quiet_host(torch.device("cuda"))
    assert asked == expected
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    quiet_host(torch.device("cuda"))
    assert asked == expected + [HOST_THREADS] * (told is None)
    quiet_host(torch.device("cpu"))
    assert len(asked) == 2 * (told is None)


def test_what_is_there_at_the_start_is_not_looked_through_again():
    def fail_within():
        with settled():
            assert gc.get_freeze_count() > 1000
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_within()
    assert gc.get_freeze_count() == 0


def test_prompts_that_are_too_long_are_left_out_everywhere(tmp_path: Path):
    prompts = [f"{place}+1=" for place in range(8)] + [f"{'1+' * 9}{place}=" for place in range(8)]
    path = lines(tmp_path / "train.jsonl", prompts)
    setup = Setup(load_recipe("tiny-cpu", [f'task={{name="file", path={path}}}', "evaluation.num_prompts=12"]))
    kept = [*setup.training_prompts()["main"], *setup.sets[0].problems]
    assert sorted(problem.prompt for problem in kept) == prompts[:8]
    # Nobody should have to find out by counting.
    evaluated = len(setup.sets[0].problems)
    assert setup.notices() == [
        f"{num} of {total} {kind} problems of main are left out: their prompts are longer than "
        f"rollout.max_prompt_tokens = 16"
        for kind, num, total in (("evaluation", 12 - evaluated, 12), ("training", evaluated - 4, 4))
        if num
    ]
    with pytest.raises(RecipeError, match=r"no evaluation problem of main has a prompt of at most .* = 3 tokens"):
        Setup(recipe("rollout.max_prompt_tokens=3"))


def test_prompts_that_the_tokenizer_cannot_spell_are_pointed_out(tmp_path: Path):
    path = lines(tmp_path / "train.jsonl", [*(f"{place}+1=" for place in range(6)), "sum 1", "sum 2", "sum 3"])
    held_out = lines(tmp_path / "test.jsonl", ["7+1=", "what?"])
    settings = [f'task={{name="file", path={path}, evaluation_path={held_out}}}', "evaluation.num_prompts=2"]
    setup = Setup(load_recipe("tiny-cpu", settings))
    setup.training_prompts()
    unknown = "hold characters that this model's tokenizer does not know"
    assert setup.notices() == [
        f"1 of 2 evaluation problems of main {unknown}",
        f"3 of 9 training problems of main {unknown}",
    ]


def test_a_problem_is_encoded_once_however_often_it_is_evaluated_on(monkeypatch: pytest.MonkeyPatch):
    setup = Setup(recipe("evaluation.samples_per_prompt=2", "rollout.slots=10"))
    (one,) = setup.sets
    assert one.prompts == {
        problem: tuple(setup.text.encode_prompt(problem.prompt, PromptFormat())) for problem in one.problems
    }
    monkeypatch.setattr("scalerl.loop.requests.Text.encode_all", lambda *_, **__: pytest.fail("it was encoded again"))
    with closing(setup.engine()) as engine:
        assert setup.evaluate(one, engine, step=0).num_samples == 10


def test_an_end_of_thinking_that_can_be_spelled_in_two_ways_is_pointed_out():
    assert Setup(recipe()).notices() == []
    (notice,) = Setup(recipe('length.thinking_end="=1"', 'length.marker="=1"')).notices()
    assert notice.startswith('length.thinking_end "=1" is 2 tokens of this model: ')


def long_winded(encode, /) -> LengthControl:
    return LengthControl(max_tokens=60, plan=lambda seed: LengthPlan(answer_budget=60), adjust=lambda num, right: 0.0)


def test_a_length_control_of_ones_own_must_fit_the_context():
    with pytest.raises(RecipeError, match=r"rollout.context is 64, but prompts of up to 16 tokens .* up to 60 need 76"):
        Setup(recipe(f'length={{name="{__name__}:long_winded"}}'))


def test_several_tasks_go_by_their_names_everywhere(tmp_path: Path):
    paths = {
        name: lines(tmp_path / f"{name}.jsonl", [f"{place}+{other}=" for place in range(6)])
        for name, other in (("ones", 1), ("twos", 2))
    }
    setup = Setup(mixed(**paths))
    assert [(one.name, len(one.problems)) for one in setup.sets] == [("ones", 3), ("twos", 3)]
    evaluated = {problem for one in setup.sets for problem in one.problems}
    prompts = setup.training_prompts()
    assert {name: len(of_task) for name, of_task in prompts.items()} == {"ones": 3, "twos": 3}
    for name, of_task in prompts.items():
        assert all(problem.task == name and problem.id.startswith(f"{name}/") for problem in of_task)
        assert not set(of_task) & evaluated
    asker = setup.asker(prompts)
    assert len(asker.problems) == 6
    for problem_id, problem in asker.problems.items():
        assert asker.prompt_tokens[problem_id] == tuple(setup.text.encode_prompt(problem.prompt, PromptFormat()))


def test_what_one_task_evaluates_on_no_other_trains_on(tmp_path: Path):
    same = [f"{place}+1=" for place in range(10)]
    setup = Setup(mixed(ones=lines(tmp_path / "ones.jsonl", same), twos=lines(tmp_path / "twos.jsonl", same[::-1])))
    evaluated = {problem.prompt for one in setup.sets for problem in one.problems}
    assert len(evaluated) > 3
    for of_task in setup.training_prompts().values():
        assert {problem.prompt for problem in of_task} == set(same) - evaluated


def test_a_task_whose_problems_are_all_evaluated_on_is_a_sentence(tmp_path: Path):
    one, other = lines(tmp_path / "one.jsonl", ["1+1=", "1+2="]), lines(tmp_path / "other.jsonl", ["2+1=", "2+2="])
    settings = [
        f'task={{name="file", path={one}, evaluation_path={other}}}',
        f'evaluation.sets.again={{name="file", path={other}, evaluation_path={one}}}',
        "evaluation.num_prompts=2",
    ]
    with pytest.raises(RecipeError, match="every training problem of main is also an evaluation problem: none is left"):
        Setup(load_recipe("tiny-cpu", settings)).training_prompts()


def test_child_processes_are_started_for_a_grader_that_needs_them_and_end_with_a_set_up_that_fails(
    monkeypatch: pytest.MonkeyPatch,
):
    made: list[Marking] = []
    monkeypatch.setattr("scalerl.run.setup.Marking", lambda limits: made.append(Marking(limits)) or made[-1])
    assert Setup(recipe()).marking._pool is None
    # The second set is found to be faulty when the grader of the first runs already.
    other = 'evaluation.sets.other={name="arithmetic", num_problems=9, grader="no_such_module:grade"}'
    with pytest.raises(GraderError, match="no_such_module"):
        Setup(recipe('task.grader="own_code:obedient"', other))
    pool = made[-1]._pool
    assert pool is not None
    assert pool._process.returncode is not None


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
