"""Leave out demonstrations of trivial prompts, as the paper did before its SFT (arXiv 2510.13786, A.3).

The paper does not define a trivial prompt. Here it is one that the starting model answers correctly every time.
"""

import itertools
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from scalerl.errors import GraderError
from scalerl.recipe.parts import UnlimitedSettings
from scalerl.recipe.recipe import Recipe, replaced
from scalerl.runfolder.atomic_files import write_errors
from scalerl.runfolder.json_text import parse_json
from scalerl.runfolder.store import write_json
from scalerl.training.models.load import load_config
from scalerl.training.run.evaluate import evaluate_all
from scalerl.training.run.inputs import load_inputs
from scalerl.training.run.parts import build_engine
from scalerl.training.run.sft.cleaning import Drawn, Removed
from scalerl.training.tasks.task import Demonstration, Task
from scalerl.training.types import Problem


def without_trivial(
    drawn: Drawn, solved: Collection[Problem], num_samples: int
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations of problems that the model always solves."""
    kept: dict[str, list[Demonstration]] = {}
    removed: list[str] = []
    for name, items in drawn.items():
        kept[name] = [item for item in items if item.problem not in solved]
        removed += [item.problem.prompt for item in items if item.problem in solved]
    total = sum(map(len, drawn.values()))
    example = removed[0] if removed else ""
    return kept, Removed(kind="trivial", num=len(removed), total=total, limit=num_samples, example=example)


def solved_once(
    file: Path, recipe: Recipe, tasks: Mapping[str, Task], drawn: Drawn, num_samples: int
) -> Collection[Problem]:
    """Return the solved problems that `file` has; without the file, find them and write it.

    A resumed run must leave out the same demonstrations, and sampling again may round differently.
    """
    if file.is_file():
        known = {tuple(each) for each in parse_json(file.read_text(encoding="utf-8"))["solved"]}
        problems = {item.problem for item in itertools.chain(*drawn.values())}
        return {problem for problem in problems if (problem.prompt, problem.answer) in known}
    try:
        solved = solved_problems(recipe, tasks, drawn, num_samples)
    except GraderError as error:
        raise GraderError(f"{error}; or set sft.trivial_samples = 0, which grades nothing") from error
    with write_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"solved": sorted([problem.prompt, problem.answer] for problem in solved)})
    return solved


def solved_problems(recipe: Recipe, tasks: Mapping[str, Task], drawn: Drawn, num_samples: int) -> frozenset[Problem]:
    """Return the problems that the recipe's model answers correctly in each of `num_samples` samples."""
    settings = {"samples_per_prompt": num_samples, "temperature": recipe.rollout.temperature, "top_p": 1.0, "sets": {}}
    recipe = within_context(replaced(recipe, {f"evaluation.{key}": value for key, value in settings.items()}))
    problems: dict[str, list[Problem]] = {}
    asked: dict[str, Task] = {}
    for name, items in drawn.items():
        problems[name] = list(dict.fromkeys(item.problem for item in items))
        # Demonstrations may come without ids of problems.
        numbered = [replace(each, id=str(number)) for number, each in enumerate(problems[name])]
        asked[name] = replace(tasks[name], evaluation=tuple(numbered))
    inputs = load_inputs(recipe, tasks=asked)
    with closing(inputs.graders), closing(build_engine(recipe, inputs)) as engine:
        results = evaluate_all(engine, inputs, step=0)
    solved: set[Problem] = set()
    for each in inputs.eval_sets:
        for problem, num_correct in zip(each.problems, results[each.name].num_correct, strict=True):
            if num_correct == num_samples:
                solved.add(problems[each.name][int(problem.id)])
    return frozenset(solved)


def within_context(recipe: Recipe) -> Recipe:
    """Return the recipe with prompts and completions that fit the model, which SFT may give more room than it has."""
    config = load_config(recipe.model.required_path, trust_remote_code=recipe.model.trust_remote_code)
    longest = getattr(config, "max_position_embeddings", None) or recipe.rollout.context
    if longest >= recipe.rollout.context:
        return recipe
    prompt = min(recipe.rollout.max_prompt_tokens, longest // 2)
    length = UnlimitedSettings(max_length=longest - prompt)
    return replaced(recipe, {"rollout.context": longest, "rollout.max_prompt_tokens": prompt, "length": length})
