"""Encode the prompts of a run's problems: its training problems and its evaluation sets."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalerl.errors import RecipeError
from scalerl.recipe.parts import EvaluationSettings
from scalerl.recipe.recipe import Recipe
from scalerl.training.loop.evaluate import SetRequests, eval_requests, hash_prompts
from scalerl.training.loop.grading import GraderRunner, Judge, Purpose, graders_of, opened_thinking
from scalerl.training.loop.requests import Text, spells_special
from scalerl.training.tasks.task import Task
from scalerl.training.types import LengthPlan, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The problems of a set whose prompts are short enough, each with its tokens."""

    tokens: Mapping[Problem, tuple[int, ...]]
    notices: tuple[str, ...] = ()
    """Warnings about the prompts, shown before training begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """A named set of problems that are withheld from training."""

    name: str
    task: Task
    prompts: Prompts
    judge: Judge
    prompts_hash: str
    settings: EvaluationSettings
    plan: Callable[[int], LengthPlan]
    """The length limits of a completion, by its seed."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self.prompts.tokens)

    def requests(self, step: int) -> SetRequests:
        """Return the requests of an evaluation after this step, and the judge of the answers."""
        requests = eval_requests(
            self.name,
            self.problems,
            encode=self.prompts.tokens.__getitem__,
            plan=self.plan,
            seed=self.settings.seed,
            step=step,
            environment=self.name if self.task.environment.name else "",
            **self.settings.sampling(self.name)._asdict(),
        )
        return SetRequests(requests, self.judge, self.prompts_hash)


def encode_prompts(
    name: str, task: Task, problems: Sequence[Problem], *, text: Text, max_tokens: int, purpose: Purpose
) -> Prompts:
    """Encode the prompts of a set and drop those longer than `max_tokens`."""
    plain = text.plain_prompts([problem.asked for problem in problems])
    encoded = text.encode_plain(plain, task.prompt)
    kept = {problem: tuple(ids) for problem, ids in zip(problems, encoded, strict=True) if len(ids) <= max_tokens}
    if not kept:
        raise RecipeError(
            f"no {purpose} problem of {name} has a prompt of at most rollout.max_prompt_tokens = {max_tokens} tokens"
        )
    notices = []
    of_set = f"{purpose} problems of {name}"
    if left_out := len(problems) - len(kept):
        notices.append(
            f"{left_out:,} of {len(problems):,} {of_set} are left out: their prompts are longer than "
            f"rollout.max_prompt_tokens = {max_tokens}"
        )
    unknown = getattr(text.tokenizer, "unk_token_id", None)
    if num_unreadable := 0 if unknown is None else sum(unknown in ids for ids in kept.values()):
        notices.append(
            f"{num_unreadable:,} of {len(kept):,} {of_set} contain characters that this model's tokenizer does not know"
        )
    if num_special := sum(map(spells_special, plain)):
        notices.append(
            f"{num_special:,} of {len(problems):,} {of_set} spell control tokens of this model, which stay plain text: "
            f"give turns of a chat as lists of messages, with task.chat = true"
        )
    return Prompts(tokens=kept, notices=tuple(notices))


def encode_hints(task: Task, problems: Sequence[Problem], hint: str, *, text: Text) -> dict[str, tuple[int, ...]]:
    """Return each problem's prompt with a hint, by the problem's id; in a chat, the hint is in the last turn.

    Without a hint, return nothing.
    """
    if not hint:
        return {}

    def hinted(problem: Problem) -> str | list[dict[str, str]]:
        def fill(prompt: str) -> str:
            return hint.replace("{answer}", problem.answer).replace("{prompt}", prompt)

        if isinstance(problem.asked, str):
            return fill(problem.asked)
        *earlier, last = problem.asked
        return [*earlier, {**last, "content": fill(last["content"])}]

    encoded = text.encode_prompts(list(map(hinted, problems)), task.prompt)
    return {problem.id: tuple(ids) for problem, ids in zip(problems, encoded, strict=True)}


def eval_set(
    name: str,
    task: Task,
    recipe: Recipe,
    *,
    text: Text,
    graders: GraderRunner,
    plan: Callable[[int], LengthPlan],
) -> EvalSet:
    """Encode the evaluation problems of a task and check that its grader can be used."""
    longest = recipe.rollout.max_prompt_tokens
    threshold = recipe.reward.threshold
    prompts = encode_prompts(name, task, task.evaluation, text=text, max_tokens=longest, purpose="evaluation")
    opening = opened_thinking(text.decode(next(iter(prompts.tokens.values()))), task)
    judge = Judge(graders=graders_of(task), decode_all=text.decode_all, opening=opening, threshold=threshold)
    graders.check(judge)
    return EvalSet(
        name=name,
        task=task,
        prompts=prompts,
        judge=judge,
        prompts_hash=hash_prompts(tuple(prompts.tokens)),
        settings=recipe.evaluation,
        plan=plan,
    )


def hash_problems(problems: Iterable[Problem]) -> str:
    """Return a hash that changes when the id, the text or the answer of any problem changes."""
    lines = (f"{problem.id}\x1f{problem.content_hash}\x1f{problem.answer}" for problem in problems)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
