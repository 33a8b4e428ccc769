"""Try what can fail in a run before it starts: graders, environments, and one step on made-up completions.

    try_graders   a reference answer and nonsense -> each grader -> its values           (a user's grader may raise)
    try_talking   one conversation of each set with its environment -> who said what     (a user's tool may hang)
    try_step      made-up completions -> filters, advantages, loss, backward, AdamW      (so may a user's loss)

A trial changes the weights of the run it is given, so that run must not be trained afterwards. It writes nothing.
"""

import dataclasses
import math

import numpy as np

from scalerl.config import Recipe
from scalerl.config.parts import RewardSettings
from scalerl.errors import GraderError, RecipeError
from scalerl.import_path import one_line, own_place
from scalerl.loop.grading import reward_of
from scalerl.run.evaluate import conversation_row
from scalerl.run.parts import Parts
from scalerl.tasks.curriculum import Issued
from scalerl.types import Batch, Completion, Group

NUM_GROUPS = 2
NUM_TOKENS = 8
"""Tokens of a made-up completion: enough for every average, little work for any model."""

_NONSENSE = "qzx"


def try_parts(parts: Parts, recipe: Recipe) -> list[str]:
    """Try the graders, the environments and a step; an error is one sentence.

    Return what users' own graders made of an answer, and a conversation with each environment, as lines for people.
    """
    graders, conversations = try_graders(parts), try_talking(parts)
    try_step(parts, recipe)
    return [*graders, *conversations]


def try_talking(parts: Parts) -> list[str]:
    """Hold one conversation of each set that has an environment; GraderError if the environment fails."""
    shown = []
    for eval_set in parts.inputs.eval_sets:
        if eval_set.name not in parts.inputs.environments:
            continue
        parts.engine.submit(eval_set.asked(step=0).requests[:1])
        while not (completions := parts.engine.poll()):
            pass
        (completion,) = completions
        name, episode = eval_set.task.environment.name, completion.episode
        assert episode is not None
        if episode.reason not in (None, "no_answer"):
            errors = parts.inputs.environments[eval_set.name].first_errors
            error = next(iter(errors.values()), f"it ended by {episode.reason}")
            raise GraderError(f'the environment "{name}" fails in a conversation of {eval_set.name}: {error}')
        end = "its last turn goes to the graders" if episode.answer is not None else f"worth {_value(episode.value)}"
        end = "it was cut by a limit" if completion.truncated else end
        shown.append(f"A conversation of {eval_set.name} with {name}, by the model as it is; {end}:")
        prompt = parts.inputs.text.decode(completion.request.prompt_tokens)
        turns = conversation_row(completion, parts.inputs.text)["conversation"]
        for by, text in [("problem", prompt), *((part["by"], part["text"]) for part in turns)]:
            shown += [f"  {by:>11} | {line}" for line in text.strip().splitlines() or [""]]
    return shown


def try_graders(parts: Parts) -> list[str]:
    """Give each grader of each evaluation set a reference answer and nonsense; GraderError if it fails on one.

    Return what users' own graders made of them.
    """
    lines, runner = [], parts.inputs.graders
    for eval_set, grader in ((each, grader) for each in parts.inputs.eval_sets for grader in each.judge.graders):
        judge = dataclasses.replace(eval_set.judge, graders=(dataclasses.replace(grader, weight=1.0),))
        name, problem = grader.spec.name, eval_set.problems[0]
        # Thinking that the prompt has opened must end before there is an answer.
        opening = judge.opening + (eval_set.task.answer.thinking_end if judge.opening else "")
        values = []
        for text in (problem.answer, _NONSENSE):
            runner.submit_text(_NONSENSE, opening + text, problem.answer, judge, "evaluation")
            # The pool's limits bound the wait.
            while not (verdicts := runner.poll("evaluation", wait=True)):
                pass
            (judged,) = verdicts
            if judged.reason not in (None, "no_answer"):
                error = runner.first_errors.get(name, f"it ended by {judged.reason}")
                raise GraderError(f'the grader "{name}" fails on an answer of {eval_set.name}: {error}')
            values.append(judged.value)
        if ":" not in name:
            continue
        reference, nonsense = map(_value, values)
        line = f"{name} gives {reference} to a reference answer of {eval_set.name}"
        line += ", and the same to nonsense" if reference == nonsense else f", {nonsense} to nonsense"
        if reference != nonsense and values[0] is not None and values[0] < judge.threshold:
            line += f"; only values from reward.threshold = {judge.threshold:g} on count as correct"
        lines.append(line)
    return lines


def try_step(parts: Parts, recipe: Recipe) -> None:
    """Train once on made-up completions; RecipeError if a function of the user's fails, or nothing finite results."""
    groups = made_up_groups(parts, recipe.reward)
    parts_of_step = (recipe.loss, recipe.weights, recipe.advantage.baseline, recipe.advantage.normalisation)
    own = [part.name for part in parts_of_step if ":" in part.name]
    try:
        metrics = parts.learner.step(Batch(version=parts.learner.version, groups=groups))
    except Exception as error:
        if not own:
            raise
        place = own_place(error)
        raise RecipeError(
            f"a step on made-up completions fails with {' or '.join(own)}: {one_line(error)}"
            f"{f' ({place})' if place else ''}"
        ) from error
    if metrics.get("optim/skipped"):
        raise RecipeError(
            f'a step on made-up completions changes no weight, because the loss "{recipe.loss.name}" or its gradient '
            f"is not finite"
        )


def made_up_groups(parts: Parts, reward: RewardSettings) -> tuple[Group, ...]:
    """Return groups of random tokens after the shortest prompts; in each one completion is right and one wrong.

    All have ended by themselves, so that no filter on truncated ones drops them.
    """
    inputs, version = parts.inputs, parts.learner.version
    tokens = {problem: ids for of_task in parts.prompts.values() for problem, ids in of_task.tokens.items()}
    shortest = sorted(tokens, key=lambda problem: len(tokens[problem]))[:NUM_GROUPS]
    vocabulary, rng = inputs.model.model.config.vocab_size, np.random.default_rng(0)
    groups = []
    for problem in shortest:
        completions = [
            Completion(
                request=request,
                tokens=rng.integers(vocabulary, size=NUM_TOKENS).astype(np.int32),
                log_probs=np.full(NUM_TOKENS, -math.log(vocabulary), np.float32),
                versions=np.full(NUM_TOKENS, version, np.int32),
                forced=np.zeros(NUM_TOKENS, np.bool_),
                finish="stop",
            )
            for request in parts.make_requests.requests(Issued(problem_id=problem.id, epoch=0))[:2]
        ]
        rewards = [
            reward_of(value, reward) + inputs.length.adjust(len(completion), value == 1.0)
            for completion, value in zip(completions, (1.0, 0.0), strict=True)
        ]
        groups.append(
            Group(
                key=completions[0].request.group,
                problem=problem,
                completions=tuple(completions),
                correct=(True, False),
                rewards=tuple(rewards),
            )
        )
    return tuple(groups)


def _value(value: float | None) -> str:
    return "no verdict" if value is None else f"{value:g}"
