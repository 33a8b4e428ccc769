"""Load and check what a recipe names: tasks, the model, graders and evaluation sets.

Training and a single evaluation (`scalerl eval`) both begin here.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from scalerl.errors import RecipeError, RecipeProblem
from scalerl.recipe.choose import choose
from scalerl.recipe.parts import KlReference, Length, RolloutSettings, TeacherReferenceSettings
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.suggest import did_you_mean, quoted
from scalerl.training.environments.build import build_playing, offer_tools
from scalerl.training.environments.turns import Playing
from scalerl.training.loop.grading import GraderRunner
from scalerl.training.loop.requests import Text
from scalerl.training.models.load import LoadedModel, load_model, load_tokenizer
from scalerl.training.models.lora import master_dtype
from scalerl.training.run.host import keep_compiled_code, limit_host_threads
from scalerl.training.run.prompts import EvalSet, Prompts, encode_prompts, eval_set
from scalerl.training.run.start_up import StartUp
from scalerl.training.tasks.build import build_task, build_tasks
from scalerl.training.tasks.length import LENGTHS, LengthControl, recognising
from scalerl.training.tasks.rows import hide_hub_warnings
from scalerl.training.tasks.task import Task, shared_answer, without
from scalerl.training.types import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The tasks, model, graders and evaluation sets of a recipe."""

    tasks: Mapping[str, Task]
    """By name; a run's only task is called main."""
    model: LoadedModel
    text: Text
    length: LengthControl
    graders: GraderRunner
    eval_sets: tuple[EvalSet, ...]
    environments: Mapping[str, Playing]
    """The environments, by evaluation set; the set of a run's only task is called main."""


def load_inputs(
    recipe: Recipe,
    *,
    sets: Collection[str] = (),
    device: torch.device | None = None,
    tasks: Mapping[str, Task] | None = None,
    start_up: StartUp | None = None,
) -> Inputs:
    """Load the tasks and the model of a recipe and check that they fit together. The caller must close `graders`.

    `sets` are the names of the evaluation sets to load; empty for all. `tasks` replace those of the recipe. `start_up`
    measures the parts.
    """
    start_up = start_up or StartUp()
    # Tasks first: an error in a file then shows at once, before the model is loaded.
    path = recipe.model.required_path
    tasks = tasks or build_tasks(recipe.task, recipe.tasks, recipe.evaluation)
    further = {name: build_task(part, recipe.evaluation) for name, part in recipe.evaluation.sets.items()}
    _check_sets(sets, [*tasks, *further])
    start_up.done("problems")
    model = _load_model(recipe, path, device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    start_up.done("model")
    text = Text(tokenizer=model.tokenizer, stop_tokens=model.stop_tokens)
    length = _length_control(recipe.length, tasks, text)
    _check_context(recipe.rollout, length)
    tasks = {name: offer_tools(task, text) for name, task in tasks.items()}
    further = {name: offer_tools(task, text) for name, task in further.items()}
    evaluated = {name: task for name, task in {**tasks, **further}.items() if not sets or name in sets}
    environments = {}
    for name, task in evaluated.items():
        if task.environment.name:
            environments[name] = build_playing(task, text, model.model.config.vocab_size)
    with ExitStack() as opened:
        graders = GraderRunner(recipe.grading)
        opened.callback(graders.close)
        eval_sets = [
            eval_set(name, task, recipe, text=text, graders=graders, plan=length.plan)
            for name, task in evaluated.items()
        ]
        opened.pop_all()
    return Inputs(
        tasks=tasks,
        model=model,
        text=text,
        length=length,
        graders=graders,
        eval_sets=tuple(eval_sets),
        environments=environments,
    )


def _load_model(recipe: Recipe, path: str, device: torch.device) -> LoadedModel:
    limit_host_threads(device)
    keep_compiled_code()
    with hide_hub_warnings():
        return load_model(
            path,
            dtype=master_dtype(recipe.model.lora),
            device=device,
            context=recipe.rollout.context,
            trust_remote_code=recipe.model.trust_remote_code,
            bits=recipe.model.lora.bits,
        )


def _check_sets(wanted: Collection[str], names: Sequence[str]) -> None:
    """Raise RecipeError if there is no evaluation set with one of these names."""
    for name in sorted(set(wanted) - set(names)):
        statement = f'there is no evaluation set "{name}"; choices: {quoted(names)}'
        raise RecipeError(RecipeProblem(statement=statement, suggestion=did_you_mean(name, names)))


def _length_control(settings: Length, tasks: Mapping[str, Task], text: Text) -> LengthControl:
    is_interrupted = settings.name == "interruption"
    ends = {task.answer.thinking_end for task in tasks.values()}
    # Interruptions need one end of thinking for all tasks.
    thinking_end = shared_answer(tasks).thinking_end if is_interrupted or len(ends) == 1 else ""
    length = choose(LENGTHS, settings)(text.encode, thinking_end)
    return recognising(length, text.ending(thinking_end)) if is_interrupted else length


def _check_context(rollout: RolloutSettings, length: LengthControl) -> None:
    """Check that a length control fits the context. The recipe checks built-in ones; this may be a user's function."""
    needed = rollout.max_prompt_tokens + length.max_tokens
    if needed > rollout.context:
        raise RecipeError(
            f"rollout.context is {rollout.context}, but prompts of up to {rollout.max_prompt_tokens} tokens "
            f"(rollout.max_prompt_tokens) and completions of up to {length.max_tokens} need {needed}"
        )


def check_teacher(reference: KlReference | None, text: Text) -> None:
    """Check that a teacher has the model's vocabulary, because log-probs are compared token by token."""
    if not isinstance(reference, TeacherReferenceSettings):
        return
    with hide_hub_warnings():
        teacher_vocabulary = load_tokenizer(reference.path).get_vocab()
    if differing := text.tokenizer.get_vocab().items() ^ teacher_vocabulary.items():
        raise RecipeError(
            f"kl.reference.path is {reference.path}, but a teacher needs the model's tokenizer, and "
            f"{len({token for token, _ in differing}):,} tokens differ, such as {min(differing)[0]!r}"
        )


def training_prompts(inputs: Inputs, rollout: RolloutSettings) -> dict[str, Prompts]:
    """Encode the training problems of each task, except those that are in an evaluation set."""
    withheld: list[Problem] = []
    for each in inputs.eval_sets:
        withheld += each.problems
    prompts = {}
    for name, task in inputs.tasks.items():
        problems = without(task.training, withheld)
        if not problems:
            raise RecipeError(f"every training problem of {name} is also an evaluation problem: none is left")
        prompts[name] = encode_prompts(
            name, task, problems, text=inputs.text, max_tokens=rollout.max_prompt_tokens, purpose="training"
        )
    return prompts
