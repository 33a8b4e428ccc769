"""What a recipe stands for on this machine: model, text, task, length control, evaluation sets, engine."""

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from scalerl import __version__
from scalerl.choose import choose
from scalerl.config import Recipe, RecipeError, body_dtype
from scalerl.rollout.engine import Engine
from scalerl.rollout.torch_engine import TorchEngine
from scalerl.tasks.length import LENGTHS
from scalerl.tasks.problems import TASKS, Task, without
from scalerl.train.ask import Judge, Text
from scalerl.train.evaluate import EvalResult, eval_requests, evaluate, hash_prompts
from scalerl.train.model import load_model
from scalerl.types import Group, Problem

EMBEDDED = "tiny-base"
MAIN_SET = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Withheld problems under a name."""

    name: str
    problems: tuple[Problem, ...]
    judge: Judge
    prompts_hash: str


class Setup:
    """Everything that is the same for training and for a single evaluation."""

    def __init__(self, recipe: Recipe, device: torch.device | None = None) -> None:
        for name, value in (("model.path", recipe.model.path), ("task.name", recipe.task.name)):
            if value is None:
                raise RecipeError(f"{name} is not set, so there is nothing to train: add --set {name}=...")
        assert recipe.model.path is not None
        self.recipe = recipe
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        settings = recipe.evaluation
        # Tasks before the model: a wrong file is found at once, a model takes its time.
        self.task: Task = choose(TASKS, recipe.task)(settings.num_prompts, settings.seed)
        others = {
            name: choose(TASKS, part)(settings.num_prompts, settings.seed) for name, part in settings.sets.items()
        }
        self.loaded = load_model(
            resolve_model(recipe.model.path), dtype=torch.float32, device=self.device, context=recipe.rollout.context
        )
        self.text = Text(tokenizer=self.loaded.tokenizer, stop_tokens=self.loaded.stop_tokens)
        self.length = choose(LENGTHS, recipe.length)(self.text.encode)
        self._check_room()
        self.sets = [self._set(name, one) for name, one in {MAIN_SET: self.task, **others}.items()]

    def _check_room(self) -> None:
        """The recipe has checked its own length controls; this one may be a function of the user's."""
        rollout, needed = self.recipe.rollout, self.recipe.rollout.max_prompt_tokens + self.length.max_tokens
        if needed > rollout.context:
            raise RecipeError(
                f"rollout.context is {rollout.context}, but prompts of up to {rollout.max_prompt_tokens} tokens "
                f"(rollout.max_prompt_tokens) and completions of up to {self.length.max_tokens} need {needed}"
            )

    def _set(self, name: str, task: Task) -> EvalSet:
        problems = self._short_enough(task.evaluation, f"evaluation problem of {name}")
        return EvalSet(
            name=name,
            problems=problems,
            judge=Judge(text=self.text, task=task),
            prompts_hash=hash_prompts(problems),
        )

    def training_problems(self) -> dict[str, Problem]:
        """Those that equal no evaluation problem, of any set, and whose prompt is short enough."""
        withheld = [problem for one in self.sets for problem in one.problems]
        problems = self._short_enough(without(self.task.training, withheld), "training problem")
        return {problem.id: problem for problem in problems}

    def _short_enough(self, problems: Sequence[Problem], kind: str) -> tuple[Problem, ...]:
        most = self.recipe.rollout.max_prompt_tokens
        kept = tuple(one for one in problems if len(self.text.encode_prompt(one.prompt)) <= most)
        if not kept:
            raise RecipeError(f"no {kind} has a prompt of at most rollout.max_prompt_tokens = {most} tokens")
        return kept

    def engine(self) -> TorchEngine:
        return TorchEngine(
            self.loaded.model,
            slots=self.recipe.rollout.slots,
            max_length=self.recipe.rollout.context,
            stop_tokens=self.loaded.stop_tokens,
            dtype=getattr(torch, body_dtype(self.recipe, gpu=self.device.type == "cuda")),
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
            encode=self.text.encode_prompt,
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
            verdict=one.judge.verdict,
            prompts_hash=one.prompts_hash,
            on_progress=lambda finished: on_progress(finished, len(requests)),
        )


def resolve_model(path: str) -> str:
    """The embedded base by its name; any other path or hub name as it is."""
    return str(files("scalerl") / "assets" / EMBEDDED) if path == EMBEDDED else path


def evaluate_model(recipe: Recipe) -> list[dict[str, Any]]:
    """Measure the recipe's model, untrained, on each of its sets."""
    setup = Setup(recipe)
    engine = setup.engine()
    rows = []
    for one in setup.sets:
        result = setup.evaluate(one, engine, step=0)
        rows.append(
            {
                "set": one.name,
                "reward": result.reward,
                "interval": list(wilson(sum(result.num_correct), result.num_graded)),
                "num_samples": result.num_graded,
                "prompts_hash": result.prompts_hash,
                "truncated_frac": result.num_truncated / max(result.num_samples, 1),
                "length_mean": result.mean_length,
            }
        )
    engine.close()
    return rows


def wilson(num_correct: int, num: int, z: float = 1.645) -> tuple[float, float]:
    """Wilson's 90 % interval of a rate; it stays within [0, 1]."""
    if num == 0:
        return 0.0, 1.0
    rate, shrink = num_correct / num, 1 + z * z / num
    middle = (rate + z * z / (2 * num)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / num + z * z / (4 * num * num)) / shrink
    return max(middle - half, 0.0), min(middle + half, 1.0)


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
