"""Between text and tokens: what a problem asks of the engine, and what a completion is worth."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from scalerl.choose import import_function
from scalerl.config import Recipe
from scalerl.tasks.curriculum import Issued
from scalerl.tasks.graders import GRADERS
from scalerl.tasks.length import LengthControl
from scalerl.tasks.problems import Task
from scalerl.types import Completion, Group, Problem, Request, derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A tokenizer, as much of it as the loop needs."""

    tokenizer: "PreTrainedTokenizerBase"
    stop_tokens: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Text within a sequence: no special tokens around it."""
        return cast(list[int], self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_prompt(self, prompt: str) -> list[int]:
        """A prompt as the model was taught to see one: with the tokenizer's own start token, if it has one."""
        return cast(list[int], self.tokenizer(prompt)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """A completion's text, without the token that ended it. Thinking tags stay: the grader looks for them."""
        tokens = list(tokens)
        if tokens and tokens[-1] in self.stop_tokens:
            tokens.pop()
        return cast(str, self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Verdicts of one task."""

    text: Text
    task: Task

    @property
    def grader(self) -> Callable[..., bool | None]:
        name = self.task.grader
        return import_function(name) if ":" in name else GRADERS[name]

    def verdict(self, completion: Completion) -> bool | None:
        """`correct`: true, false, or None where the grader has no verdict."""
        tags = dataclasses.asdict(self.task.answer)
        return self.grader(self.text.decode(completion.tokens.tolist()), completion.request.problem.answer, **tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Requests and grades of training."""

    recipe: Recipe
    text: Text
    judge: Judge
    length: LengthControl
    problems: dict[str, Problem]

    def requests(self, issued: Issued) -> list[Request]:
        """The completions wanted of an issued problem; equal keys after a resume give equal seeds and plans."""
        problem = self.problems[issued.problem_id]
        prompt_tokens = tuple(self.text.encode_prompt(problem.prompt))
        requests = []
        for index in range(self.recipe.pipeline.completions_per_group):
            seed = derive_seed("rollout", self.recipe.seed, issued.key, index)
            requests.append(
                Request(
                    group=issued.key,
                    index=index,
                    problem=problem,
                    prompt_tokens=prompt_tokens,
                    seed=seed,
                    length=self.length.plan(seed),
                    temperature=self.recipe.rollout.temperature,
                )
            )
        return requests

    def grade(self, completions: Sequence[Completion]) -> Group:
        """Verdicts and rewards of one group: `correct` is what is reported, `reward` what is trained on."""
        values = self.recipe.reward
        correct = tuple(self.judge.verdict(completion) for completion in completions)
        rewards = tuple(
            (values.correct if verdict else values.wrong) + self.length.adjust(len(completion), verdict is True)
            for completion, verdict in zip(completions, correct, strict=True)
        )
        request = completions[0].request
        return Group(
            key=request.group,
            problem=request.problem,
            completions=tuple(completions),
            correct=correct,
            rewards=rewards,
        )
