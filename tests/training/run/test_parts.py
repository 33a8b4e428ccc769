"""From a recipe to the parts of a run: tasks, prompts, evaluation sets, engines and learners by name."""

import itertools
import json
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
import torch
from small_runs import graders_are_over

from scalerl.errors import GraderError, RecipeError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import RolloutSettings
from scalerl.recipe.recipe import Recipe
from scalerl.training.loop.grading import GraderRunner
from scalerl.training.rollout import ENGINES, memory
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.run.evaluate import evaluate_all
from scalerl.training.run.inputs import check_teacher, load_inputs, training_prompts
from scalerl.training.run.parts import build_engine, request_maker, with_slots
from scalerl.training.tasks.curriculum import Issued
from scalerl.training.tasks.length import LengthControl
from scalerl.training.tasks.prompts import PromptFormat
from scalerl.training.types import LengthPlan


def lines(path: Path, prompts: list[str]) -> str:
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "1"}) + "\n" for prompt in prompts))
    return json.dumps(str(path))


def recipe(*overrides: str) -> Recipe:
    return load_recipe("tiny-cpu", ["task.num_problems=20", "evaluation.num_prompts=5", *overrides])


def mixed(**paths: str) -> Recipe:
    tasks = [f'tasks.{name}={{name="file", path={path}}}' for name, path in paths.items()]
    return load_recipe("tiny-cpu", ['task=""', "evaluation.num_prompts=3", *tasks])


def test_no_training_problem_is_in_an_evaluation_set(tmp_path: Path):
    path = lines(tmp_path / "train.jsonl", [f"{place}+1=" for place in range(10)])
    other = lines(tmp_path / "other.jsonl", ["3+1=", "4+1=", "9+9="])
    unused = lines(tmp_path / "unused.jsonl", ["5+5="])
    settings = [
        f'task={{name="file", path={path}}}',
        "evaluation.num_prompts=3",
        f'evaluation.sets.other={{name="file", path={unused}, evaluation_path={other}}}',
    ]
    settings = load_recipe("tiny-cpu", settings)
    inputs = load_inputs(settings)
    assert [one.name for one in inputs.eval_sets] == ["main", "other"]
    evaluated = {problem.prompt for one in inputs.eval_sets for problem in one.problems}
    assert {"3+1=", "4+1=", "9+9="} <= evaluated
    trained = {problem.prompt for problem in training_prompts(inputs, settings.rollout)["main"].tokens}
    assert not trained & evaluated
    assert trained == {f"{place}+1=" for place in range(10)} - evaluated


@pytest.mark.parametrize("end, opening", [("<think>", "<think>"), ("", ""), ("<think></think>", ""), ("<think>1+", "")])
def test_prompt_may_end_with_the_start_of_thinking(end: str, opening: str):
    inputs = load_inputs(recipe(f"task.template={json.dumps('{prompt}' + end)}"))
    assert [one.judge.opening for one in inputs.eval_sets] == [opening]


def test_long_and_unreadable_prompts_are_reported(tmp_path: Path):
    unreadable = ["sum 1", "sum 2", "sum 3"]
    path = lines(tmp_path / "train.jsonl", [*(f"{place}+1=" for place in range(6)), *unreadable, f"{'1+' * 9}1="])
    held_out = lines(tmp_path / "test.jsonl", ["7+1=", "what?"])
    task = f'task={{name="file", path={path}, evaluation_path={held_out}}}'
    settings = load_recipe("tiny-cpu", [task, "evaluation.num_prompts=2"])
    inputs = load_inputs(settings)
    trained = training_prompts(inputs, settings.rollout)["main"]
    unknown = "contain characters that this model's tokenizer does not know"
    assert [
        notice
        for each in (inputs.eval_sets[0].prompts, training_prompts(inputs, settings.rollout)["main"])
        for notice in each.notices
    ] == [
        f"1 of 2 evaluation problems of main {unknown}",
        "1 of 10 training problems of main are left out: their prompts are longer than rollout.max_prompt_tokens = 16",
        f"3 of 9 training problems of main {unknown}",
    ]
    assert len(trained.tokens) == 9
    with pytest.raises(RecipeError, match=r"no evaluation problem of main has a prompt of at most .* = 3 tokens"):
        load_inputs(recipe("rollout.max_prompt_tokens=3"))


def test_prompts_are_encoded_once_for_all_evaluations(monkeypatch: pytest.MonkeyPatch):
    settings = recipe("evaluation.samples_per_prompt=2", "rollout.slots=10")
    inputs = load_inputs(settings)
    (eval_set,) = inputs.eval_sets
    assert eval_set.prompts.tokens == {
        problem: tuple(inputs.text.encode_prompt(problem.prompt, PromptFormat())) for problem in eval_set.problems
    }
    monkeypatch.setattr(
        "scalerl.training.loop.requests.Text.encode_all", lambda *_, **__: pytest.fail("it was encoded again")
    )
    with closing(build_engine(settings, inputs)) as engine:
        assert evaluate_all(engine, inputs, step=0)["main"].num_samples == 10


def test_thinking_end_is_recognised_however_it_is_spelled():
    inputs = load_inputs(recipe('task.thinking_end="=1"', 'length.marker="=1"'))
    ending = inputs.length.plan(0).recognised
    assert ending is not None
    states = itertools.accumulate(inputs.text.encode("2+2=1"), ending.after, initial=0)
    assert [state == ending.width for state in states][-2:] == [False, True]


def long_winded(encode, thinking_end, /) -> LengthControl:
    return LengthControl(max_tokens=60, plan=lambda seed: LengthPlan(answer_budget=60), adjust=lambda num, right: 0.0)


def test_custom_length_control_must_fit_the_context():
    with pytest.raises(RecipeError, match=r"rollout.context is 64, but prompts of up to 16 tokens .* up to 60 need 76"):
        load_inputs(recipe(f'length={{name="{__name__}:long_winded"}}'))


def test_problems_of_several_tasks_carry_the_name_of_their_task(tmp_path: Path):
    same = [f"{place}+1=" for place in range(10)]
    paths = {"ones": lines(tmp_path / "ones.jsonl", same), "twos": lines(tmp_path / "twos.jsonl", same[::-1])}
    settings = mixed(**paths)
    inputs = load_inputs(settings)
    assert [(one.name, len(one.problems)) for one in inputs.eval_sets] == [("ones", 3), ("twos", 3)]
    evaluated = {problem.prompt for one in inputs.eval_sets for problem in one.problems}
    assert len(evaluated) > 3
    prompts = training_prompts(inputs, settings.rollout)
    for name, of_task in prompts.items():
        assert all(problem.task == name and problem.id.startswith(f"{name}/") for problem in of_task.tokens)
        assert {problem.prompt for problem in of_task.tokens} == set(same) - evaluated
    maker = request_maker(inputs, prompts, settings.pipeline, settings.rollout, seed=0)
    assert len(maker.problems) == 2 * (10 - len(evaluated))
    for asked in maker.problems.values():
        assert asked.prompt_tokens == tuple(inputs.text.encode_prompt(asked.problem.prompt, PromptFormat()))


def test_hints_are_prompts_with_the_answer(tmp_path: Path):
    path = lines(tmp_path / "sums.jsonl", [f"{place}+1=" for place in range(6)])
    hint = 'kl={coefficient=1.0, reference={name="self", hint="{answer}={prompt}"}}'
    task = f'task={{name="file", path={path}, template="{{prompt}}+"}}'
    settings = load_recipe("tiny-cpu", [task, hint, "evaluation.num_prompts=2"])
    inputs = load_inputs(settings)
    prompts = training_prompts(inputs, settings.rollout)
    maker = request_maker(inputs, prompts, settings.pipeline, settings.rollout, seed=0, hint=settings.hint)
    plain = request_maker(inputs, prompts, settings.pipeline, settings.rollout, seed=0)
    for problem_id, (problem, *_) in maker.problems.items():
        issued = Issued(problem_id=problem_id, epoch=0)
        request = maker.requests(issued)[0]
        assert inputs.text.decode(request.prompt_tokens) == f"<bos>{problem.prompt}+"
        assert inputs.text.decode(request.hint_tokens) == f"<bos>{problem.answer}={problem.prompt}+"
        assert plain.requests(issued)[0].hint_tokens == ()


def test_a_teacher_has_the_tokens_of_the_model():
    text = load_inputs(recipe()).text
    kl = 'kl={{coefficient=1.0, reference={{name="teacher", path="{}"}}}}'
    check_teacher(recipe(kl.format("tiny-base")).reference, text)
    with pytest.raises(RecipeError, match=r"kl.reference.path is tiny-code-base, .* tokens differ, such as"):
        check_teacher(recipe(kl.format("tiny-code-base")).reference, text)


def test_task_without_training_problems_is_an_error(tmp_path: Path):
    one, other = lines(tmp_path / "one.jsonl", ["1+1=", "1+2="]), lines(tmp_path / "other.jsonl", ["2+1=", "2+2="])
    settings = [
        f'task={{name="file", path={one}, evaluation_path={other}}}',
        f'evaluation.sets.again={{name="file", path={other}, evaluation_path={one}}}',
        "evaluation.num_prompts=2",
    ]
    settings = load_recipe("tiny-cpu", settings)
    inputs = load_inputs(settings)
    with pytest.raises(RecipeError, match="every training problem of main is also an evaluation problem: none is left"):
        training_prompts(inputs, settings.rollout)


def test_grader_processes_end_when_loading_fails(monkeypatch: pytest.MonkeyPatch):
    made: list[GraderRunner] = []
    monkeypatch.setattr(
        "scalerl.training.run.inputs.GraderRunner", lambda limits: made.append(GraderRunner(limits)) or made[-1]
    )
    assert load_inputs(recipe()).graders.pids == ()
    # The second set is found to be faulty when the grader of the first runs already.
    other = 'evaluation.sets.other={name="arithmetic", num_problems=9, grader="no_such_module:grade"}'
    with pytest.raises(GraderError, match="no_such_module"):
        load_inputs(recipe('task.grader="own_code:obedient"', other))
    assert graders_are_over(made[-1])


def test_engines_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch):
    settings = recipe()
    inputs = load_inputs(settings)
    with closing(build_engine(settings, inputs)) as engine:
        assert type(engine) is TorchEngine
    monkeypatch.delitem(ENGINES, "torch")
    monkeypatch.setitem(ENGINES, "torch2", lambda *_, **__: None)
    with pytest.raises(RecipeError) as caught:
        build_engine(settings, inputs)
    assert str(caught.value) == ('rollout.engine "torch" is unknown; choices: "vllm", "torch2"; did you mean "torch2"?')


def test_recipe_choices_are_the_names_in_the_tables():
    assert set(get_args(RolloutSettings.model_fields["engine"].annotation)) == ENGINES.keys()
    with pytest.raises(RecipeError, match=r'rollout.engine is "torhc" but must be .*; did you mean "torch"'):
        recipe("rollout.engine=torhc")


def test_slots_follow_from_batch_and_lag_within_memory(monkeypatch):
    settings = recipe("pipeline.max_lag=2").model_copy(
        update={"rollout": recipe().rollout.model_copy(update={"slots": None})}
    )
    inputs = load_inputs(settings)
    with closing(inputs.graders):
        batch = settings.pipeline.groups_per_batch * settings.pipeline.completions_per_group
        assert with_slots(settings, inputs.model).slots == 3 * batch
        one_slot = memory.cache_bytes(inputs.model.model.config, 1, settings.rollout.context, torch.float32)
        monkeypatch.setattr(memory, "free_bytes", lambda model: 5 * one_slot / memory.MEMORY_SHARE)
        assert with_slots(settings, inputs.model).slots == 5
