"""What a recipe stands for on this machine: model, text, task, length control, evaluation sets, engine."""

import functools
import gc
import hashlib
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scalerl import __version__
from scalerl.choose import choose
from scalerl.config import Recipe, body_dtype, parts
from scalerl.errors import GraderError, RecipeError
from scalerl.loop.evaluate import EvalResult, eval_requests, evaluate, hash_prompts
from scalerl.loop.grading import GroupGrading, Judge, Marking, opened_thinking, spec_of
from scalerl.loop.requests import Asker, Text
from scalerl.loop.seams import Engine
from scalerl.models.load import load_model
from scalerl.rollout.torch.cache import cache_bytes
from scalerl.rollout.torch.engine import TorchEngine
from scalerl.tasks.files import function_task, quiet_hub
from scalerl.tasks.length import LENGTHS
from scalerl.tasks.problems import TASKS
from scalerl.tasks.task import Task, named, with_settings, without
from scalerl.types import Group, Problem

MAIN_SET = "main"
HOST_THREADS = 4
"""Of torch, beside a GPU; see quiet_host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Withheld problems under a name."""

    name: str
    task: Task
    prompts: Mapping[Problem, tuple[int, ...]]
    """The problems, each with the tokens that ask it."""
    judge: Judge
    prompts_hash: str

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self.prompts)


class Setup:
    """Everything that is the same for training and for a single evaluation."""

    def __init__(self, recipe: Recipe, device: torch.device | None = None) -> None:
        if recipe.model.path is None:
            raise RecipeError("model.path is not set, so there is nothing to train: add --set model.path=...")
        self.recipe = recipe
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        quiet_host(self.device)
        settings = recipe.evaluation
        # Tasks before the model: a wrong file is found at once, a model takes its time.
        self.tasks = make_tasks(recipe)
        others = {name: make_task(part, settings) for name, part in settings.sets.items()}
        with quiet_hub():
            self.loaded = load_model(
                recipe.model.path, dtype=torch.float32, device=self.device, context=recipe.rollout.context
            )
        self.text = Text(tokenizer=self.loaded.tokenizer, stop_tokens=self.loaded.stop_tokens)
        self.length = choose(LENGTHS, recipe.length)(self.text.encode)
        self._check_room()
        self._num_left_out: dict[tuple[str, str], tuple[int, int]] = {}
        self._num_unreadable: dict[tuple[str, str], tuple[int, int]] = {}
        self.marking = Marking(recipe.grading)
        try:
            self.sets = [self._set(name, one) for name, one in {**self.tasks, **others}.items()]
        except BaseException:
            self.marking.close()
            raise

    def _check_room(self) -> None:
        """The recipe has checked its own length controls; this one may be a function of the user's."""
        rollout, needed = self.recipe.rollout, self.recipe.rollout.max_prompt_tokens + self.length.max_tokens
        if needed > rollout.context:
            raise RecipeError(
                f"rollout.context is {rollout.context}, but prompts of up to {rollout.max_prompt_tokens} tokens "
                f"(rollout.max_prompt_tokens) and completions of up to {self.length.max_tokens} need {needed}"
            )

    def _set(self, name: str, task: Task) -> EvalSet:
        prompts = self._short_enough(task, task.evaluation, "evaluation", name)
        opening = opened_thinking(self.text.decode(next(iter(prompts.values()), ())), task)
        judge = Judge(spec=spec_of(task), decode_all=self.text.decode_all, opening=opening)
        self.marking.check(judge)
        return EvalSet(name=name, task=task, prompts=prompts, judge=judge, prompts_hash=hash_prompts(tuple(prompts)))

    def training_prompts(self) -> dict[str, dict[Problem, tuple[int, ...]]]:
        """By task, the problems that equal no evaluation problem, of any set, and whose prompt is short enough."""
        withheld = [problem for one in self.sets for problem in one.problems]
        prompts = {}
        for name, task in self.tasks.items():
            left = without(task.training, withheld)
            if not left:
                raise RecipeError(f"every training problem of {name} is also an evaluation problem: none is left")
            prompts[name] = self._short_enough(task, left, "training", name)
        return prompts

    def notices(self) -> list[str]:
        """What a person should know before hours are spent."""
        most, length = self.recipe.rollout.max_prompt_tokens, self.recipe.length
        said = [
            f"{num:,} of {total:,} {kind} problems of {name} are left out: their prompts are longer than "
            f"rollout.max_prompt_tokens = {most}"
            for (kind, name), (num, total) in self._num_left_out.items()
            if num
        ]
        said += [
            f"{num:,} of {total:,} {kind} problems of {name} hold characters that this model's tokenizer does not know"
            for (kind, name), (num, total) in self._num_unreadable.items()
            if num
        ]
        if isinstance(length, parts.InterruptionSettings) and (num := len(self.text.encode(length.thinking_end))) > 1:
            said.append(
                f'length.thinking_end "{length.thinking_end}" is {num} tokens of this model: where it is spelled with '
                f"others, thinking that has ended is interrupted all the same"
            )
        return said

    def no_verdict(self, one: EvalSet, result: EvalResult) -> str:
        """That its grader had none on any answer, and why."""
        name, reasons = one.judge.spec.name, result.num_without_verdict.items()
        said = self.marking.first_errors.get(name)
        return (
            f'"{name}" has a verdict on none of {result.num_samples} answers of {one.name} '
            f"({', '.join(f'{num} x {reason}' for reason, num in reasons)}{f': {said}' if said else ''})"
        )

    def _short_enough(
        self, task: Task, problems: Sequence[Problem], kind: str, name: str
    ) -> dict[Problem, tuple[int, ...]]:
        most = self.recipe.rollout.max_prompt_tokens
        tokens = self.text.encode_prompts([one.prompt for one in problems], task.prompt)
        kept = {one: tuple(asked) for one, asked in zip(problems, tokens, strict=True) if len(asked) <= most}
        if not kept:
            raise RecipeError(
                f"no {kind} problem of {name} has a prompt of at most rollout.max_prompt_tokens = {most} tokens"
            )
        self._num_left_out[kind, name] = (len(problems) - len(kept), len(problems))
        unknown = getattr(self.loaded.tokenizer, "unk_token_id", None)
        num_unreadable = 0 if unknown is None else sum(unknown in asked for asked in kept.values())
        self._num_unreadable[kind, name] = (num_unreadable, len(kept))
        return kept

    def asker(self, prompts: Mapping[str, Mapping[Problem, tuple[int, ...]]]) -> Asker:
        """What asks these problems."""
        tokens = {one: prompt for of_task in prompts.values() for one, prompt in of_task.items()}
        return Asker(
            recipe=self.recipe,
            length=self.length,
            problems={one.id: one for one in tokens},
            prompt_tokens={one.id: prompt for one, prompt in tokens.items()},
        )

    def grading(self) -> GroupGrading:
        """What grades the groups of training."""
        judges = {one.name: one.judge for one in self.sets if one.name in self.tasks}
        judge_of = (lambda problem: judges[problem.task]) if self.recipe.tasks else (lambda _: judges[MAIN_SET])
        return GroupGrading(self.marking, judge_of, reward=self.recipe.reward, length=self.length)

    def engine(self) -> TorchEngine:
        rollout, dtype = self.recipe.rollout, getattr(torch, body_dtype(self.recipe, gpu=self.device.type == "cuda"))
        needed = cache_bytes(self.loaded.model.config, rollout.slots, rollout.context, dtype)
        free = _free_bytes(self.device)
        # A system that runs out of memory ends the process without a word.
        if free is not None and needed > free:
            raise RecipeError(
                f"{rollout.slots} slots (rollout.slots) of {rollout.context} tokens (rollout.context) need a cache of "
                f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free: lower one of the two"
            )
        return TorchEngine(
            self.loaded.model,
            slots=rollout.slots,
            max_length=rollout.context,
            stop_tokens=self.loaded.stop_tokens,
            dtype=dtype,
            fp32_head=self.recipe.model.fp32_head in ("both", "generator"),
        )

    def evaluate(
        self,
        one: EvalSet,
        engine: Engine,
        step: int,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> EvalResult:
        settings = self.recipe.evaluation
        requests = eval_requests(
            one.problems,
            encode=one.prompts.__getitem__,
            plan=self.length.plan,
            samples_per_prompt=settings.samples_per_prompt,
            seed=settings.seed,
            step=step,
            temperature=settings.temperature,
            top_p=settings.top_p,
        )
        return evaluate(
            engine,
            requests,
            marking=self.marking,
            judge=one.judge,
            prompts_hash=one.prompts_hash,
            on_progress=lambda finished: on_progress(finished, len(requests)),
        )


def _free_bytes(device: torch.device) -> int | None:
    """Memory that can be had there; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(row.split()[1]) for row in rows if row.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def hash_problems(problems: Iterable[Problem]) -> str:
    """Changes with an id, a word or an answer of any of them."""
    lines = (f"{one.id}\x1f{one.content_hash}\x1f{one.answer}" for one in problems)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def make_tasks(recipe: Recipe) -> dict[str, Task]:
    """By the name of its evaluation set: a task that is the only one is called main."""
    if recipe.tasks:
        return {name: named(make_task(part, recipe.evaluation), name) for name, part in recipe.tasks.items()}
    if recipe.task.name is None:
        raise RecipeError("task.name is not set, so there is nothing to ask: add --set task.name=...")
    return {MAIN_SET: make_task(recipe.task, recipe.evaluation)}


def make_task(part: parts.TaskSettings, evaluation: parts.EvaluationSettings) -> Task:
    """The task that a table of the recipe describes, asked and graded as it says."""
    make = choose(TASKS, part)
    if part.name is not None and ":" in part.name:
        make = functools.partial(function_task, make, part.name)
    return with_settings(make(evaluation.num_prompts, evaluation.seed), **part.shared)


def evaluate_model(recipe: Recipe) -> list[dict[str, Any]]:
    """Measure the recipe's model, untrained, on each of its sets."""
    setup = Setup(recipe)
    with closing(setup.marking), closing(setup.engine()) as engine:
        return [_model_row(setup, one, setup.evaluate(one, engine, step=0)) for one in setup.sets]


def _model_row(setup: Setup, one: EvalSet, result: EvalResult) -> dict[str, Any]:
    if result.num_graded == 0:
        raise GraderError(setup.no_verdict(one, result))
    return {
        "set": one.name,
        "reward": result.reward,
        "interval": list(wilson(sum(result.num_correct), result.num_graded)),
        **counts(result),
    }


def counts(result: EvalResult) -> dict[str, Any]:
    """What every row on an evaluation has besides its reward."""
    return {
        "num_samples": result.num_graded,
        "prompts_hash": result.prompts_hash,
        "truncated_frac": result.num_truncated / max(result.num_samples, 1),
        "length_mean": result.mean_length,
        **{f"grader/{reason}": num for reason, num in result.num_without_verdict.items()},
    }


def wilson(num_correct: int, num: int, z: float = 1.645) -> tuple[float, float]:
    """Wilson's 90 % interval of a rate; it stays within [0, 1]."""
    if num == 0:
        return 0.0, 1.0
    rate, shrink = num_correct / num, 1 + z * z / num
    middle = (rate + z * z / (2 * num)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / num + z * z / (4 * num * num)) / shrink
    return max(middle - half, 0.0), min(middle + half, 1.0)


def quiet_host(device: torch.device) -> None:
    """Beside a GPU, torch computes on the host with a few threads, unless OMP_NUM_THREADS says how many.

    The host's vectors are short there, and threads that wait for the next one take cores from the one that launches
    kernels: to prepare a batch took 52 ms with a thread on each of 16 cores, and 8 ms with one.
    """
    if device.type == "cuda" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(HOST_THREADS, torch.get_num_threads()))


@contextmanager
def settled() -> Iterator[None]:
    """Within, the garbage collector leaves alone what is there by now: models and modules, which stay to the end.

    To look through all of it again takes a few tenths of a second, and would fall into some step.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def environment(device: torch.device) -> Mapping[str, Any]:
    """Versions and hardware, for the run folder."""
    import transformers

    return {
        "scalerl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }


def sample_rows(setup: Setup, groups: Sequence[Group], most: int) -> list[dict[str, Any]]:
    """A few completions to read by eye."""
    rows = []
    for group in groups[:most]:
        completion = group.completions[0]
        rows.append(
            {
                "problem": group.problem.id,
                "prompt": group.problem.prompt,
                "completion": setup.text.decode(completion.tokens.tolist()),
                "answer": group.problem.answer,
                "correct": group.correct[0],
                "reward": group.rewards[0],
            }
        )
    return rows
