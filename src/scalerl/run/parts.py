"""From a recipe to the parts of a run: the only place where parts are built and wired together.

    load_inputs   tasks -> model, tokenizer -> length control -> graders -> evaluation sets     (also `scalerl eval`)
    build         inputs -> training prompts -> learner -> engine -> grading -> curriculum -> pipeline

Each part is built once, from its own settings. Engines are chosen by name, in ENGINES; learners.py has the learners.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from scalerl.choose import choose
from scalerl.config import Recipe, body_dtype, code_outside, remedies, replaced, rounds_generator
from scalerl.config.parts import EvalSetSettings, EvaluationSettings, RolloutSettings, TaskSettings
from scalerl.config.suggest import did_you_mean, quoted
from scalerl.environments.build import build_playing, offer_tools
from scalerl.environments.turns import Playing, TurnsEngine
from scalerl.errors import RecipeError, RecipeProblem
from scalerl.import_path import announce
from scalerl.loop.grading import GraderRunner, GroupGrading
from scalerl.loop.pipeline import Pipeline, PipelineState
from scalerl.loop.requests import RequestMaker, Text
from scalerl.loop.seams import Engine, Learner
from scalerl.loop.slots import ExpectedLag, expected_lag, full_slots
from scalerl.loop.watchdog import QUIET_S, Watchdog, WatchedEngine, WatchedGrading
from scalerl.models.load import LoadedModel, load_model
from scalerl.models.shape import ModelShape
from scalerl.rollout.memory import most_slots
from scalerl.run.checkpoint import WritesTensors
from scalerl.run.cluster.generators import FleetMeter, build_fleet, load_engine, make_engine
from scalerl.run.cluster.place import Place, enter_cluster
from scalerl.run.host import limit_host_threads
from scalerl.run.learners import build_learner
from scalerl.run.memory import Gpus, ModelSizes, memory_of, num_generators
from scalerl.run.pack import unpack_groups
from scalerl.run.prompts import EvalSet, Prompts, encode_prompts, eval_set, hash_problems
from scalerl.run.resume import Earlier
from scalerl.tasks.curriculum import CURRICULA, Curriculum
from scalerl.tasks.files import DEFAULT_EVALUATION, function_task
from scalerl.tasks.length import LENGTHS, LengthControl, recognising
from scalerl.tasks.problems import FROM_ROWS, TASKS
from scalerl.tasks.rows import hide_hub_warnings
from scalerl.tasks.task import Task, named, shared_answer, with_settings, without

MAIN_SET = "main"
"""Name of the evaluation set of a run's only task."""


class CheckpointedLearner(Learner, Protocol):
    """A learner that a run can save and continue."""

    @property
    def shape(self) -> ModelShape: ...
    def state_dict(self) -> "Mapping[str, Mapping[str, Tensor]] | WritesTensors": ...
    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a recipe names, loaded and checked: all that training and a single evaluation have in common."""

    recipe: Recipe
    tasks: Mapping[str, Task]
    """By name; a run's only task is called main."""
    model: LoadedModel
    text: Text
    length: LengthControl
    graders: GraderRunner
    eval_sets: tuple[EvalSet, ...]
    environments: Mapping[str, Playing]
    """What conversations are held with, by evaluation set; a run's only task is called main."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a training run, wired together."""

    inputs: Inputs
    place: Place
    prompts: Mapping[str, Prompts]
    """What is trained on, by task."""
    problem_hashes: Mapping[str, str]
    """Hash of the training problems, by task."""
    learner: CheckpointedLearner
    engine: Engine
    """For training, and in its pauses for evaluation."""
    turns: TurnsEngine | None
    """What holds conversations over it, where a task has an environment."""
    meter: FleetMeter | None
    """Reads the generators, if they are beside the learner."""
    lag: ExpectedLag
    """The number of slots, and the lag to expect from it."""
    grading: GroupGrading
    pipeline: Pipeline
    notices: tuple[str, ...]
    """What a user should know before hours are spent."""
    close: Callable[[], None]
    """Ends the engine and the processes of the graders."""

    def make_ready(self, folder: Path) -> None:
        """Wait for generators, and check that ranks see the run folder."""
        check_folder = getattr(self.learner, "check_folder", None)
        if check_folder is not None:
            check_folder(folder)
        if self.meter is not None:
            self.meter.fleet.wait_ready()


def build(recipe: Recipe, *, watchdog: Watchdog, earlier: Earlier) -> Parts:
    """Build every part of a training run, as the checkpoint in `earlier` left it if there is one."""
    # Here, and not only where it is imported: that may be another process, or several.
    announce(*code_outside(recipe))
    with ExitStack() as opened:
        place = enter_cluster(recipe, opened, watchdog.end)
        if place.ranks is not None and recipe.learner.sharding == "none":
            # On a cluster the learner is a rank, also where it is the only one.
            recipe = replaced(recipe, {"learner.sharding": "replicate"})
        inputs = load_inputs(recipe, device=place.device)
        opened.callback(inputs.graders.close)
        prompts = training_prompts(inputs)
        problem_hashes = {name: hash_problems(of_task.tokens) for name, of_task in prompts.items()}
        earlier.check_problems(problem_hashes, {each.name: each.prompts_hash for each in inputs.eval_sets})
        torch.manual_seed(recipe.seed)
        learner = build_learner(inputs.model.model, recipe, place=place)
        opened.callback(getattr(learner, "close", lambda: None))
        state = _restore(learner, earlier)
        slots = num_slots(inputs.model, recipe, place.gpus)
        engine, turns, meter = _build_engines(inputs, learner, slots=slots, watchdog=watchdog, place=place)
        opened.callback(engine.close)
        if recipe.learner.sharding != "none":
            # Ranks and engines have theirs; what is left here are its names and shapes.
            inputs.model.model.to("meta")  # pyright: ignore[reportArgumentType]
        grading = build_grading(inputs)
        pipeline = Pipeline(
            engine=engine,
            curriculum=build_curriculum(prompts, recipe, None if state is None else state.meta["curriculum"]),
            learner=learner,
            make_requests=request_maker(inputs, prompts).requests,
            grading=WatchedGrading(grading, watchdog),
            state=state,
            **recipe.pipeline.model_dump(exclude={"completions_per_group"}),
        )
        all_prompts = [*(each.prompts for each in inputs.eval_sets), *prompts.values()]
        return Parts(
            inputs=inputs,
            place=place,
            prompts=prompts,
            problem_hashes=problem_hashes,
            learner=learner,
            engine=engine,
            turns=turns,
            meter=meter,
            lag=expected_lag(slots, recipe.pipeline),
            grading=grading,
            pipeline=pipeline,
            notices=(
                *(task.notice for task in inputs.tasks.values() if task.notice),
                *(notice for each in all_prompts for notice in each.notices),
                *schedule_notices(recipe, inputs.model.model.config.hidden_size),
                *mismatch_notices(recipe, gpu=place.computes_on.type == "cuda"),
            ),
            close=opened.pop_all().close,
        )


STABLE_RATE, STABLE_LAG = 0.1, 0.85
"""Learning rate x width, and that x (max_lag + 1), above which runs of the tiny model collapsed (the study
tiny-lag-rate, docs/results/lag-rate.md)."""


def schedule_notices(recipe: Recipe, width: int) -> Iterator[str]:
    """Yield what a user should know about the learning rate of a model of this width before hours are spent."""
    warmup, steps = recipe.optimizer.warmup_steps, recipe.budget.steps
    if steps is not None and warmup >= steps:
        yield (
            f"optimizer.warmup_steps = {warmup:,} is not below budget.steps = {steps:,}: the learning rate is still "
            f"rising when the run ends"
        )
    lr, lag = recipe.optimizer.lr, recipe.pipeline.max_lag
    if lr * width > STABLE_RATE:
        yield (
            f"optimizer.lr = {lr:g} x width {width:,} = {lr * width:.2g}, above {STABLE_RATE:g}: small models "
            f"collapsed there at any lag; try {STABLE_RATE / width:.1g}"
        )
    elif lr * width * (lag + 1) > STABLE_LAG:
        yield (
            f"optimizer.lr = {lr:g} x width {width:,} x (pipeline.max_lag = {lag} + 1) = {lr * width * (lag + 1):.2g}, "
            f"above {STABLE_LAG:g}: small models collapsed there; lower the rate or the lag"
        )


def mismatch_notices(recipe: Recipe, *, gpu: bool) -> Iterator[str]:
    """Yield what a user should know about a generator that computes tokens otherwise than the learner."""
    rounded, remedy = rounds_generator(recipe, gpu=gpu), remedies(recipe)["backend"]
    if rounded and recipe.correction.name == "none":
        yield (
            f"{rounded}: generator and learner give the same token different probabilities, and such runs have "
            f"collapsed; set {' or '.join(remedy)}, and watch loss/kl"
        )


def load_inputs(recipe: Recipe, *, sets: Collection[str] = (), device: torch.device | None = None) -> Inputs:
    """Load the tasks and the model of a recipe and check that they fit together. Whoever calls closes `graders`.

    `sets` are the names of the evaluation sets that are wanted; empty for all.
    """
    if recipe.model.path is None:
        raise RecipeError("model.path is not set, so there is nothing to train: add --set model.path=...")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limit_host_threads(device)
    # Tasks before the model: an error in a file shows at once, and a model takes a while to load.
    tasks = build_tasks(recipe)
    others = {name: build_task(part, recipe.evaluation) for name, part in recipe.evaluation.sets.items()}
    if unknown := set(sets) - {*tasks, *others}:
        raise RecipeError(
            RecipeProblem(
                statement=f'no evaluation set is called "{min(unknown)}"; choices: {quoted([*tasks, *others])}',
                suggestion=did_you_mean(min(unknown), [*tasks, *others]),
            )
        )
    with hide_hub_warnings():
        model = load_model(
            recipe.model.path,
            dtype=torch.float32,
            device=device,
            context=recipe.rollout.context,
            trust_remote_code=recipe.model.trust_remote_code,
        )
    text = Text(tokenizer=model.tokenizer, stop_tokens=model.stop_tokens)
    is_interrupted, ends = recipe.length.name == "interruption", {task.answer.thinking_end for task in tasks.values()}
    # Interruptions need one end of thinking for all tasks.
    thinking_end = shared_answer(tasks).thinking_end if is_interrupted or len(ends) == 1 else ""
    length = choose(LENGTHS, recipe.length)(text.encode, thinking_end)
    length = recognising(length, text.ending(thinking_end)) if is_interrupted else length
    _check_context(recipe.rollout, length)
    tasks, others = ({name: offer_tools(task, text) for name, task in some.items()} for some in (tasks, others))
    graders = GraderRunner(recipe.grading)
    wanted = {name: task for name, task in {**tasks, **others}.items() if not sets or name in sets}
    try:
        environments = {
            name: build_playing(task, text, recipe.grading) for name, task in wanted.items() if task.environment.name
        }
        max_tokens = recipe.rollout.max_prompt_tokens
        eval_sets = tuple(
            eval_set(name, task, text=text, graders=graders, max_tokens=max_tokens, threshold=recipe.reward.threshold)
            for name, task in wanted.items()
        )
    except BaseException:
        graders.close()
        raise
    return Inputs(
        recipe=recipe,
        tasks=tasks,
        model=model,
        text=text,
        length=length,
        graders=graders,
        eval_sets=eval_sets,
        environments=environments,
    )


def _check_context(rollout: RolloutSettings, length: LengthControl) -> None:
    """Check a length control against the context: the recipe has checked its own, but this may be a user's function."""
    needed = rollout.max_prompt_tokens + length.max_tokens
    if needed > rollout.context:
        raise RecipeError(
            f"rollout.context is {rollout.context}, but prompts of up to {rollout.max_prompt_tokens} tokens "
            f"(rollout.max_prompt_tokens) and completions of up to {length.max_tokens} need {needed}"
        )


def build_tasks(recipe: Recipe) -> dict[str, Task]:
    """Return the tasks of a recipe by the name of their evaluation set: a run's only task is called main."""
    if recipe.tasks:
        made = {name: build_task(part, recipe.evaluation) for name, part in recipe.tasks.items()}
        return {name: named(task, name) for name, task in made.items()}
    _check_task(recipe.task)
    return {MAIN_SET: build_task(recipe.task, recipe.evaluation)}


def _check_task(part: TaskSettings) -> None:
    if not part.name:
        raise RecipeError("task.name is not set, so there is nothing to train on: add --set task=FILE.jsonl or a name")


def build_task(part: TaskSettings, evaluation: EvaluationSettings, *, whole: bool = False) -> Task:
    """Return the task that a table of the recipe describes; a further evaluation set has a size of its own.

    With `whole`, nothing of a task's rows is left for training but what it keeps apart itself.
    """
    make, name, num = choose(TASKS, part), part.name or "", evaluation.num_prompts
    if whole or isinstance(part, EvalSetSettings):
        own = part.num_prompts if isinstance(part, EvalSetSettings) else None
        num = own or (None if ":" in name or name in FROM_ROWS else DEFAULT_EVALUATION)
    if ":" in name:
        make = functools.partial(function_task, make, name)
    return with_settings(make(num, evaluation.seed), **part.shared)


def build_whole_task(recipe: Recipe) -> Task:
    """Return the recipe's one task with nothing withheld; only what it keeps apart itself is for evaluations."""
    if recipe.tasks:
        raise RecipeError("settings can be derived for one task, not for several: set them, or train on one task")
    _check_task(recipe.task)
    task = build_task(recipe.task, recipe.evaluation, whole=True)
    return task if task.training else dataclasses.replace(task, training=task.evaluation, evaluation=())


def _build_engines(
    inputs: Inputs, learner: CheckpointedLearner, *, slots: int, watchdog: Watchdog, place: Place
) -> tuple[Engine, TurnsEngine | None, FleetMeter | None]:
    """Return the engine in this process, or the fleet of engines in others: watched, and with conversations."""
    recipe, meter, quiet_s = inputs.recipe, None, QUIET_S
    if recipe.rollout.generators or recipe.rollout.engine != "torch":
        engine, meter = build_fleet(recipe, inputs.model, slots=slots, place=place, weights=learner.weights)
        # The fleet has its own limits, since a replacement that loads a model is quiet for long.
        quiet_s = math.inf
    elif recipe.learner.sharding == "none":
        engine = make_engine(inputs.model, recipe, slots=slots, gpu=place.computes_on.type == "cuda")
    else:
        engine = load_engine(recipe, slots=slots, device=str(place.computes_on))
    # A rank that dies is noticed while the loop waits for completions, too.
    check = getattr(learner, "check", lambda: None)
    watched = WatchedEngine(engine, watchdog, quiet_s=quiet_s, check=check)
    turns = _conversing(watched, inputs, slots)
    return turns or watched, turns, meter


def build_engine(inputs: Inputs) -> Engine:
    """Return an engine that samples from a copy of the model, in conversations where a task has an environment."""
    model, slots = inputs.model, num_slots(inputs.model, inputs.recipe)
    engine = make_engine(model, inputs.recipe, slots=slots, gpu=model.device.type == "cuda")
    return _conversing(engine, inputs, slots) or engine


def _conversing(engine: Engine, inputs: Inputs, slots: int) -> TurnsEngine | None:
    """Return an engine whose completions are conversations; None where no task has an environment."""
    if not inputs.environments:
        return None
    context = inputs.recipe.rollout.context
    return TurnsEngine(engine, inputs.environments, decode=inputs.text.decode, context=context, slots=slots)


def num_slots(model: LoadedModel, recipe: Recipe, gpus: Gpus | None = None) -> int:
    """Return rollout.slots; if it is not set, all that the lag rule can fill, as far as memory allows.

    `gpus` are those of ranks, where the driver's model is not on one of them.
    """
    if recipe.rollout.slots is not None:
        return recipe.rollout.slots
    if gpus is not None:
        each = memory_of(recipe, ModelSizes.from_config(model.model.config), gpus).slots
        return each * max(num_generators(recipe), 1)
    wanted = full_slots(recipe.pipeline)
    dtype = getattr(torch, body_dtype(recipe.model, gpu=model.device.type == "cuda"))
    most = most_slots(model, recipe.rollout, dtype)
    # Each generator has a device like this one, and nothing else on it.
    return wanted if most is None else min(wanted, most * max(recipe.rollout.generators, 1))


def build_grading(inputs: Inputs) -> GroupGrading:
    """Return what grades the groups of training: each problem by the grader of its task."""
    recipe = inputs.recipe
    judges = {each.name: each.judge for each in inputs.eval_sets if each.name in inputs.tasks}
    judge_of = (lambda problem: judges[problem.task]) if recipe.tasks else (lambda _: judges[MAIN_SET])
    return GroupGrading(inputs.graders, judge_of, reward=recipe.reward, length=inputs.length)


def training_prompts(inputs: Inputs) -> dict[str, Prompts]:
    """Encode the training problems of each task, without those that any evaluation set holds."""
    withheld = [problem for each in inputs.eval_sets for problem in each.problems]
    prompts, max_tokens = {}, inputs.recipe.rollout.max_prompt_tokens
    for name, task in inputs.tasks.items():
        problems = without(task.training, withheld)
        if not problems:
            raise RecipeError(f"every training problem of {name} is also an evaluation problem: none is left")
        prompts[name] = encode_prompts(
            name, task, problems, text=inputs.text, max_tokens=max_tokens, purpose="training"
        )
    return prompts


def request_maker(inputs: Inputs, prompts: Mapping[str, Prompts]) -> RequestMaker:
    """Return what turns an issued problem into requests."""
    recipe = inputs.recipe
    tokens = {problem: ids for of_task in prompts.values() for problem, ids in of_task.tokens.items()}
    return RequestMaker(
        problems={problem.id: problem for problem in tokens},
        prompt_tokens={problem.id: ids for problem, ids in tokens.items()},
        completions_per_group=recipe.pipeline.completions_per_group,
        temperature=recipe.rollout.temperature,
        length=inputs.length,
        seed=recipe.seed,
        environments={
            problem.id: name
            for name, of_task in prompts.items()
            if name in inputs.environments
            for problem in of_task.tokens
        },
    )


def build_curriculum(
    prompts: Mapping[str, Prompts], recipe: Recipe, state: Mapping[str, Any] | None = None
) -> Curriculum:
    """Return the curriculum over the training problems, restored from `state` if there is one."""
    by_task = {name: [problem.id for problem in of_task.tokens] for name, of_task in prompts.items()}
    ids = by_task if recipe.tasks else next(iter(by_task.values()))
    weights = {name: task.weight for name, task in recipe.tasks.items()}
    is_solved = choose(CURRICULA, recipe.curriculum)
    if state is None:
        return Curriculum(ids, seed=recipe.seed, is_solved=is_solved, weights=weights)
    return Curriculum.restore(state, ids, is_solved=is_solved, weights=weights)


def _restore(learner: CheckpointedLearner, earlier: Earlier) -> PipelineState | None:
    """Load the learner's state from the checkpoint, and return the loop's; None where there is no checkpoint."""
    checkpoint = earlier.checkpoint
    if checkpoint is None:
        return None
    learner.load_state_dict(checkpoint.read_tensors)
    groups = unpack_groups(checkpoint.arrays["groups"], checkpoint.meta["groups"])
    return PipelineState(meta=checkpoint.meta["pipeline"], groups=groups)
