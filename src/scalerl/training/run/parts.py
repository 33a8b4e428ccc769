"""From a recipe to the parts of a run: the only place where parts are wired together.

    inputs -> training prompts -> learner -> engine -> grading -> curriculum -> pipeline

Each part is built once, from its own section of the recipe: inputs.py loads what the recipe names, learners.py builds
learners, cluster/generators.py engines.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from scalerl.recipe.choose import choose
from scalerl.recipe.import_path import announce
from scalerl.recipe.parts import Curriculum as CurriculumSettings
from scalerl.recipe.parts import PipelineSettings, RewardSettings, RolloutSettings
from scalerl.recipe.recipe import Recipe, body_dtype, code_outside, replaced
from scalerl.training.environments.turns import TurnsEngine
from scalerl.training.learner.step import compilation_s
from scalerl.training.loop.grading import GroupGrading
from scalerl.training.loop.pipeline import Pipeline, PipelineState
from scalerl.training.loop.refill import Refill
from scalerl.training.loop.requests import Asked, RequestMaker
from scalerl.training.loop.seams import Engine, Learner
from scalerl.training.loop.slots import ExpectedLag, expected_lag, full_slots
from scalerl.training.loop.watchdog import QUIET_S, Watchdog, WatchedEngine, WatchedGrading
from scalerl.training.models.load import LoadedModel
from scalerl.training.models.shape import ModelShape
from scalerl.training.rollout.engine import EngineBase
from scalerl.training.rollout.memory import most_slots
from scalerl.training.run.checkpoint import Checkpoint, WritesTensors
from scalerl.training.run.cluster.generators import FleetMeter, build_fleet, load_engine, make_engine
from scalerl.training.run.cluster.place import Place, enter_cluster
from scalerl.training.run.inputs import Inputs, check_teacher, load_inputs, training_prompts
from scalerl.training.run.learners import build_learner
from scalerl.training.run.memory import Gpus, ModelSizes, memory_of, num_generators
from scalerl.training.run.notices import notices
from scalerl.training.run.pack import unpack_groups
from scalerl.training.run.prompts import Prompts, encode_hints, hash_problems
from scalerl.training.run.resume import Earlier
from scalerl.training.run.start_up import StartUp
from scalerl.training.tasks.curriculum import CURRICULA, Curriculum


class CheckpointedLearner(Learner, Protocol):
    """A learner that a run can save and continue; it may have ranks in other processes."""

    @property
    def shape(self) -> ModelShape: ...
    @property
    def pids(self) -> Sequence[int | None]:
        """Ids of the ranks' processes; None for one on another machine."""
        ...

    def state_dict(self) -> "Mapping[str, Mapping[str, Tensor]] | WritesTensors": ...
    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None: ...
    def check(self) -> None:
        """Raise an error if a rank has died."""
        ...

    def check_folder(self, folder: Path) -> None:
        """Raise RunFolderError if a rank cannot see the folder."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a training run, wired together."""

    inputs: Inputs
    place: Place
    prompts: Mapping[str, Prompts]
    """The prompts to train on, by task."""
    problem_hashes: Mapping[str, str]
    """Hash of the training problems, by task."""
    learner: CheckpointedLearner
    engine: Engine
    """Samples for training and, while training is paused, for evaluation."""
    turns: TurnsEngine | None
    """Holds conversations by means of the engine; None if no task has an environment."""
    meter: FleetMeter | None
    """Measures the generators; None if the engine is in this process."""
    lag: ExpectedLag
    """The number of slots, and the lag to expect from it."""
    grading: GroupGrading
    make_requests: RequestMaker
    pipeline: Pipeline
    notices: tuple[str, ...]
    """Warnings for the user, shown before training begins."""
    device_times: Callable[[], Mapping[str, float]]
    """Returns the seconds for which the engine used the device so far, by kind of work, if it is in this process."""
    close: Callable[[], None]
    """Ends the engine and the processes of the graders."""

    def make_ready(self, folder: Path) -> None:
        """Wait for generators, and check that ranks see the run folder."""
        self.learner.check_folder(folder)
        if self.meter is not None:
            self.meter.fleet.wait_ready()

    def paused(self) -> AbstractContextManager[None]:
        """Pause the generators in other processes, if there are any."""
        return nullcontext() if self.meter is None else self.meter.fleet.paused()

    @property
    def pids(self) -> list[int | None]:
        """Ids of the other processes of the engine and the learner; None for one on another machine."""
        return [*([] if self.meter is None else self.meter.fleet.pids), *self.learner.pids]

    @property
    def first_errors(self) -> dict[tuple[str, str], str]:
        """The first error of each grader and environment that had one, by ("grader" or "environment", name)."""
        environment_errors = {} if self.turns is None else self.turns.first_errors
        return {
            **{("grader", name): error for name, error in self.inputs.graders.first_errors.items()},
            **{("environment", name): error for name, error in environment_errors.items()},
        }

    @property
    def num_unrewarded(self) -> int:
        """Number of answers graded in training if none of them earned a reward; otherwise 0."""
        return 0 if self.grading.num_rewarded else self.grading.num_answers


def build(recipe: Recipe, *, watchdog: Watchdog, earlier: Earlier, start_up: StartUp) -> Parts:
    """Build every part of a training run, restored from the checkpoint in `earlier` if there is one.

    `start_up` measures the parts.
    """
    # Announce the code here: it may be imported only in other processes.
    announce(*code_outside(recipe))
    with ExitStack() as opened:
        place = enter_cluster(recipe.cluster.address, recipe.learner, recipe.rollout, opened, watchdog.end)
        if place.on_ray and recipe.learner.sharding == "none":
            # On a cluster even a single learner is a rank.
            recipe = replaced(recipe, {"learner.sharding": "replicate"})
        inputs = load_inputs(recipe, device=place.device, start_up=start_up)
        opened.callback(inputs.graders.close)
        check_teacher(recipe.reference, inputs.text)
        start_up.done("prompts")
        # The tokenizer's code needs no interpreter: it runs beside the compilation of the learner.
        with ThreadPoolExecutor(max_workers=1) as other_thread:
            encoding = other_thread.submit(training_prompts, inputs, recipe.rollout)
            learner = _build_learner(inputs, recipe, place, start_up)
            opened.callback(learner.close)
            prompts = encoding.result()
        problem_hashes = {name: hash_problems(of_task.tokens) for name, of_task in prompts.items()}
        earlier.check_problems(problem_hashes, {each.name: each.prompts_hash for each in inputs.eval_sets})
        start_up.done("prompts")
        state = _restore(learner, earlier.checkpoint)
        rollout = with_slots(recipe, inputs.model, place.gpus)
        sampler = _build_sampler(inputs, recipe, rollout, place, learner, watchdog)
        opened.callback(sampler.engine.close)
        start_up.done("engine")
        if recipe.learner.sharding != "none":
            # Ranks and engines have their own copies. The driver needs only names and shapes.
            inputs.model.model.to("meta")  # pyright: ignore[reportArgumentType]
        make_requests = request_maker(inputs, prompts, recipe.pipeline, rollout, seed=recipe.seed, hint=recipe.hint)
        weights = {name: task.weight for name, task in recipe.tasks.items()}
        curriculum = build_curriculum(recipe.curriculum, prompts, weights=weights, seed=recipe.seed, state=state)
        grading = build_grading(inputs, recipe.reward)
        pipeline = Pipeline(
            engine=sampler.engine,
            curriculum=curriculum,
            learner=learner,
            make_requests=make_requests.requests,
            grading=WatchedGrading(grading, watchdog),
            state=state,
            refill=_refill(recipe),
            **recipe.pipeline.model_dump(exclude={"completions_per_group"}),
        )
        assert rollout.slots is not None
        start_up.done("other")
        return Parts(
            inputs=inputs,
            place=place,
            prompts=prompts,
            problem_hashes=problem_hashes,
            learner=learner,
            **sampler._asdict(),
            lag=expected_lag(rollout.slots, recipe.pipeline),
            grading=grading,
            make_requests=make_requests,
            pipeline=pipeline,
            notices=notices(recipe, inputs, prompts, gpu=place.computes_on.type == "cuda"),
            close=opened.pop_all().close,
        )


def _build_learner(inputs: Inputs, recipe: Recipe, place: Place, start_up: StartUp) -> CheckpointedLearner:
    torch.manual_seed(recipe.seed)
    compiled_s = compilation_s()
    learner = build_learner(inputs.model.model, recipe, place=place)
    start_up.done("learner")
    start_up.within("learner", compilation_s() - compiled_s, name="compilation")
    return learner


class Sampler(NamedTuple):
    """What samples completions; the fields are those of Parts."""

    engine: Engine
    turns: TurnsEngine | None
    meter: FleetMeter | None
    device_times: Callable[[], Mapping[str, float]]


def _build_sampler(
    inputs: Inputs,
    recipe: Recipe,
    rollout: RolloutSettings,
    place: Place,
    learner: CheckpointedLearner,
    watchdog: Watchdog,
) -> Sampler:
    """Return the engine in this process, or a fleet of engines in other processes and its meter."""
    model = inputs.model
    settings = recipe.model
    meter = None
    engine: Any
    if rollout.generators or rollout.engine != "torch":
        # If not every step pushes, the learner's memory may be ahead of the last push.
        borrows = recipe.pipeline.push_every == 1
        fleet = build_fleet(
            model, settings, rollout, recipe.learner, place=place, weights=learner.weights, borrows=borrows
        )
        engine, meter = fleet
    elif recipe.learner.sharding == "none":
        engine = make_engine(model, settings, rollout)
    else:
        engine = load_engine(settings, rollout, device=str(place.computes_on))
    device_times = engine.device_times if isinstance(engine, EngineBase) else dict
    # The fleet has its own limits, because a replacement is silent while it loads a model. `check` notices a rank that
    # dies while the loop waits for completions.
    quiet_s = QUIET_S if meter is None else math.inf
    engine = WatchedEngine(engine, watchdog, quiet_s=quiet_s, check=learner.check)
    turns = conversing(engine, inputs, rollout)
    return Sampler(turns or engine, turns, meter, device_times)


def _refill(recipe: Recipe) -> Refill:
    return Refill(
        most=recipe.filter.refill * recipe.pipeline.groups_per_batch,
        round_steps=recipe.pipeline.push_every if recipe.pipeline.drain else 1,
        filters=recipe.filter,
    )


def with_slots(recipe: Recipe, model: LoadedModel, gpus: Gpus | None = None) -> RolloutSettings:
    """Return [rollout] with a number of slots: the recipe's, or as many as the lag rule can fill and memory allows.

    `gpus` are the GPUs of the learner's ranks, if the learner is not in this process.
    """
    rollout = recipe.rollout
    if rollout.slots is not None:
        return rollout
    if gpus is not None:
        each = memory_of(recipe, ModelSizes.from_config(model.model.config), gpus).slots
        slots = each * max(num_generators(recipe), 1)
    else:
        slots = full_slots(recipe.pipeline)
        dtype = getattr(torch, body_dtype(recipe.model, gpu=model.device.type == "cuda"))
        most = most_slots(model, rollout, dtype)
        # Each generator has a device like this one to itself.
        slots = slots if most is None else min(slots, most * max(rollout.generators, 1))
    return rollout.model_copy(update={"slots": slots})


def build_engine(recipe: Recipe, inputs: Inputs) -> Engine:
    """Return an engine with a copy of the model; it holds conversations if a task has an environment."""
    rollout = with_slots(recipe, inputs.model)
    engine = make_engine(inputs.model, recipe.model, rollout)
    return conversing(engine, inputs, rollout) or engine


def conversing(engine: Engine, inputs: Inputs, rollout: RolloutSettings) -> TurnsEngine | None:
    """Return an engine whose completions are conversations; None if no task has an environment."""
    if not inputs.environments:
        return None
    assert rollout.slots is not None
    return TurnsEngine(
        engine, inputs.environments, decode=inputs.text.decode, context=rollout.context, slots=rollout.slots
    )


def build_grading(inputs: Inputs, reward: RewardSettings) -> GroupGrading:
    """Return the grading of training groups: the grader of its task grades each problem."""
    judges = {each.name: each.judge for each in inputs.eval_sets if each.name in inputs.tasks}
    only = next(iter(judges.values()))
    judge_of = (lambda problem: judges[problem.task]) if len(judges) > 1 else (lambda problem: only)
    return GroupGrading(inputs.graders, judge_of, reward=reward, length=inputs.length)


def request_maker(
    inputs: Inputs,
    prompts: Mapping[str, Prompts],
    pipeline: PipelineSettings,
    rollout: RolloutSettings,
    *,
    seed: int,
    hint: str = "",
) -> RequestMaker:
    """Return a maker of requests for issued problems; `hint` is the setting kl.reference.hint."""
    problems: dict[str, Asked] = {}
    for name, of_task in prompts.items():
        environment = name if name in inputs.environments else ""
        hints = encode_hints(inputs.tasks[name], [*of_task.tokens], hint, text=inputs.text)
        problems |= {
            problem.id: Asked(problem, tokens, environment, hints.get(problem.id, ()))
            for problem, tokens in of_task.tokens.items()
        }
    return RequestMaker(
        problems=problems,
        completions_per_group=pipeline.completions_per_group,
        temperature=rollout.temperature,
        length=inputs.length,
        seed=seed,
    )


def build_curriculum(
    settings: CurriculumSettings,
    prompts: Mapping[str, Prompts],
    *,
    seed: int,
    weights: Mapping[str, float] | None = None,
    state: PipelineState | None = None,
) -> Curriculum:
    """Return the curriculum over the training problems, restored from `state`; `weights` are the weights of tasks."""
    ids: Any = {name: [problem.id for problem in of_task.tokens] for name, of_task in prompts.items()}
    if not weights:
        (ids,) = ids.values()
    common = {"left_out": choose(CURRICULA, settings), "weights": weights or {}}
    if state is None:
        return Curriculum(ids, seed=seed, **common)
    return Curriculum.restore(state.meta["curriculum"], ids, **common)


def _restore(learner: CheckpointedLearner, checkpoint: Checkpoint | None) -> PipelineState | None:
    """Load the learner's state from a checkpoint and return the loop's state; None if there is no checkpoint."""
    if checkpoint is None:
        return None
    learner.load_state_dict(checkpoint.read_tensors)
    groups = unpack_groups(checkpoint.arrays["groups"], checkpoint.meta["groups"])
    return PipelineState(meta=checkpoint.meta["pipeline"], groups=groups)
