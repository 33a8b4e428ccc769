"""Try the parts of a run that may fail before it starts: graders, environments, and one step.

    try_graders   a reference answer and nonsense -> each grader -> values          (a user's grader may raise an error)
    try_answers   the untrained model -> answers, or a conversation -> graders      (graders may misread the answers)
    try_step      made-up completions -> filters, advantages, loss, AdamW           (a user's loss may raise an error)

A trial changes the weights, so the run must not be trained afterwards. It writes nothing.
"""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from scalerl.errors import GraderError, RecipeError
from scalerl.recipe.import_path import one_line, own_place
from scalerl.recipe.parts import RewardSettings
from scalerl.recipe.recipe import Recipe
from scalerl.training.environments.build import is_limited
from scalerl.training.loop.grading import GraderRunner, Judge, Verdict, reward_of
from scalerl.training.run.evaluate import conversation_row
from scalerl.training.run.parts import Parts
from scalerl.training.run.prompts import EvalSet
from scalerl.training.tasks.curriculum import Issued
from scalerl.training.types import Batch, Completion, Group, Problem, Request

NUM_GROUPS = 2
NUM_TOKENS = 8
"""Tokens in a made-up completion: enough for every average, and little work for any model."""
NUM_ANSWERS = 8
"""Answers sampled on each evaluation set."""
NUM_SHOWN = 3
"""Number of these answers that are shown."""
ANSWERS_S = 60.0
"""Time limit for sampling all answers."""
LONGEST_SHOWN = 60
"""Number of last characters shown of a text."""

_NONSENSE = "qzx"


def try_parts(parts: Parts, recipe: Recipe) -> list[str]:
    """Try the graders, the environments and a step; raise an error of one sentence if something fails.

    Return lines for people: values that graders gave to answers, and a conversation with each environment.
    """
    lines = [*try_graders(parts), *try_answers(parts)]
    try_step(parts, recipe)
    return lines


def try_graders(parts: Parts) -> list[str]:
    """Give a reference answer and nonsense to each grader of each set; GraderError if a grader fails.

    Return a line for each grader from outside the package.
    """
    lines = []
    for eval_set in parts.inputs.eval_sets:
        for grader in eval_set.judge.graders:
            judge = dataclasses.replace(eval_set.judge, graders=(dataclasses.replace(grader, weight=1.0),))
            answer = eval_set.problems[0].answer
            name = grader.spec.name
            reference = _value_of_text(answer, answer, name, judge, eval_set, parts.inputs.graders)
            nonsense = _value_of_text(_NONSENSE, answer, name, judge, eval_set, parts.inputs.graders)
            if ":" in name:
                lines.append(f"{name} gives {_value(reference)} to a reference answer of {eval_set.name}, ")
                lines[-1] += _compared(reference, nonsense, judge.threshold)
    return lines


def _value_of_text(
    text: str, answer: str, name: str, judge: Judge, eval_set: EvalSet, runner: GraderRunner
) -> float | None:
    """Return the value that a grader gives to a text; GraderError if it fails."""
    # If the prompt opens a thinking block, close it: an answer comes after thinking.
    opening = judge.opening + (eval_set.task.answer.thinking_end if judge.opening else "")
    runner.submit_text(_NONSENSE, opening + text, answer, judge, "evaluation")
    (judged,) = _verdicts(runner, 1)
    if _failed(judged):
        error = runner.first_errors.get(name, f"it ended by {judged.reason}")
        raise GraderError(f'the grader "{name}" fails on an answer of {eval_set.name}: {error}')
    return judged.value


def _compared(reference: float | None, nonsense: float | None, threshold: float) -> str:
    if _value(reference) == _value(nonsense):
        return "and the same to nonsense, so it teaches nothing"
    if reference is None or reference >= threshold:
        return f"{_value(nonsense)} to nonsense"
    counts = f"only values from reward.threshold = {threshold:g} on count as correct"
    return f"{_value(nonsense)} to nonsense; {counts}"


def try_answers(parts: Parts, limit_s: float = ANSWERS_S) -> list[str]:
    """Let the model answer a few problems of each set and grade the answers; GraderError if an environment fails.

    With an environment, hold one conversation. Answers that take longer than `limit_s` are left out.
    """
    engine = parts.engine
    deadline = time.monotonic() + limit_s
    set_of: dict[str, str] = {}
    completions: dict[str, list[Completion]] = {}
    # Requests that are unfinished at the end of a pause are dropped.
    with engine.paused():
        engine.push_weights(parts.learner.weights(), parts.learner.version)
        for eval_set in parts.inputs.eval_sets:
            requests = _first_requests(eval_set, parts)
            completions[eval_set.name] = []
            set_of |= {request.key: eval_set.name for request in requests}
            engine.submit(requests)
        while engine.num_pending and time.monotonic() < deadline:
            for completion in engine.poll():
                completions[set_of[completion.request.key]].append(completion)
    lines: list[str] = []
    for eval_set in parts.inputs.eval_sets:
        lines += _shown(eval_set, completions[eval_set.name], parts)
    return lines


def _first_requests(eval_set: EvalSet, parts: Parts) -> list[Request]:
    """Return one request for each of the set's first problems."""
    first: dict[str, Request] = {}
    for request in eval_set.requests(0).requests:
        first.setdefault(request.group, request)
    num = 1 if eval_set.name in parts.inputs.environments else NUM_ANSWERS
    return list(first.values())[:num]


def _shown(eval_set: EvalSet, completions: Sequence[Completion], parts: Parts) -> Iterator[str]:
    """Yield lines on the values that the graders of a set give to the model's completions."""
    name = eval_set.name
    runner = parts.inputs.graders
    if not completions:
        yield f"{name}: the model did not finish an answer within {ANSWERS_S:g} s, so none was graded"
        return
    runner.submit(completions, eval_set.judge, "evaluation")
    verdicts = _verdicts(runner, len(completions))
    if name in parts.inputs.environments:
        yield from _conversation(eval_set, verdicts[0], parts)
        return
    verdicts.sort(key=lambda verdict: -(verdict.value or 0.0))
    mean = sum(verdict.value or 0.0 for verdict in verdicts) / len(verdicts)
    advice = "" if mean else "; check that it can read answers like these"
    yield (
        f"{name}: {eval_set.judge.name} gives {mean:.2g} on average to {len(verdicts)} answers of the untrained "
        f"model{advice}:"
    )
    for verdict in verdicts[:NUM_SHOWN]:
        text = _short(parts.inputs.text.decode(verdict.subject.tokens.tolist()))
        reference = _short(verdict.subject.request.problem.answer)
        yield f"  {_value(verdict.value):>10} | {text} | reference {reference}"
    num_failed = sum(map(_failed, verdicts))
    if num_failed:
        for grader, error in runner.first_errors.items():
            yield f"  {grader} failed on {num_failed} of {len(verdicts)}, the first time by {error}"


def _conversation(eval_set: EvalSet, verdict: Verdict, parts: Parts) -> Iterator[str]:
    """Yield a conversation with an environment, its reward and the time of its slowest step."""
    settings = eval_set.task.environment
    completion = verdict.subject
    text = parts.inputs.text
    if verdict.source == "environment" and _failed(verdict):
        errors = parts.inputs.environments[eval_set.name].first_errors
        error = next(iter(errors.values()), f"it ended by {verdict.reason}")
        raise GraderError(f'the environment "{settings.name}" fails in a conversation of {eval_set.name}: {error}')
    end = "it was cut by a limit" if completion.truncated else f"worth {_value(verdict.value)}"
    yield f"A conversation of {eval_set.name} with {settings.name}, by the untrained model; {end}:"
    turns = conversation_row(completion, text)["conversation"]
    for turn in ({"by": "problem", "text": text.decode(completion.request.prompt_tokens)}, *turns):
        for line in turn["text"].strip().splitlines() or [""]:
            yield f"  {turn['by']:>11} | {line}"
    unknown = getattr(text.tokenizer, "unk_token", None)
    observed = [turn["text"] for turn in turns if turn["by"] == "environment"]
    if unknown and any(not said.replace(unknown, "").strip() for said in observed):
        yield (
            f"Warning: the model reads nothing of {settings.name} but {unknown}: its vocabulary has none of these "
            f"words; take a model that can read them, or let the environment write what it can read"
        )
    assert parts.turns is not None
    limit = f"; task.environment.step_s = {settings.step_s:g} is the limit" if is_limited(settings) else ""
    yield f"Its slowest step took {parts.turns.slowest_s:.2g} s{limit}"


def _verdicts(runner: GraderRunner, num: int) -> list[Verdict]:
    """Wait for this many verdicts; the limits of the grader pool bound the wait."""
    verdicts: list[Verdict] = []
    while len(verdicts) < num:
        verdicts += runner.poll("evaluation", wait=True)
    return verdicts


def _failed(verdict: Verdict) -> bool:
    """Return whether a grader or an environment failed; an answer that it found none in is no failure."""
    return verdict.reason not in (None, "no_answer")


def try_step(parts: Parts, recipe: Recipe) -> None:
    """Train once on made-up completions; RecipeError if a user's function fails or the result is not finite."""
    groups = made_up_groups(parts, recipe.reward)
    parts_of_step = (recipe.loss, recipe.weights, recipe.advantage.baseline, recipe.advantage.normalisation)
    imported = [part.name for part in parts_of_step if ":" in part.name]
    try:
        metrics = parts.learner.step(Batch(version=parts.learner.version, groups=groups))
    except Exception as error:
        if not imported:
            raise
        place = own_place(error)
        raise RecipeError(
            f"a step on made-up completions fails with {' or '.join(imported)}: {one_line(error)}"
            f"{f' ({place})' if place else ''}"
        ) from error
    if metrics.get("optim/skipped"):
        raise RecipeError(
            f'a step on made-up completions changes no weight, because the loss "{recipe.loss.name}" or its gradient '
            f"is not finite"
        )


def made_up_groups(parts: Parts, reward: RewardSettings) -> tuple[Group, ...]:
    """Return groups of random tokens after the shortest prompts, each with one right and one wrong completion.

    Groups of one completion, which a critic allows, are right and wrong in turn. No completion is truncated, so that no
    filter drops it.
    """
    tokens: dict[Problem, tuple[int, ...]] = {}
    for of_task in parts.prompts.values():
        tokens |= of_task.tokens
    shortest = sorted(tokens, key=lambda problem: len(tokens[problem]))[:NUM_GROUPS]
    rng = np.random.default_rng(0)
    groups = []
    for number, problem in enumerate(shortest):
        requests = parts.make_requests.requests(Issued(problem_id=problem.id, epoch=0))[:2]
        completions = tuple(_made_up(request, parts, rng) for request in requests)
        correct = (True, False) if len(completions) > 1 else (number % 2 == 0,)
        rewards = []
        for completion, is_correct in zip(completions, correct, strict=True):
            adjusted = parts.inputs.length.adjust(len(completion), is_correct)
            rewards.append(reward_of(float(is_correct), reward) + adjusted)
        groups.append(
            Group(
                key=requests[0].group,
                problem=problem,
                completions=completions,
                correct=correct,
                rewards=tuple(rewards),
            )
        )
    return tuple(groups)


def _made_up(request: Request, parts: Parts, rng: np.random.Generator) -> Completion:
    vocabulary = parts.inputs.model.model.config.vocab_size
    return Completion(
        request=request,
        tokens=rng.integers(vocabulary, size=NUM_TOKENS).astype(np.int32),
        log_probs=np.full(NUM_TOKENS, -math.log(vocabulary), np.float32),
        versions=np.full(NUM_TOKENS, parts.learner.version, np.int32),
        forced=np.zeros(NUM_TOKENS, np.bool_),
        finish="stop",
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= LONGEST_SHOWN else f"...{text[-LONGEST_SHOWN:]}")


def _value(value: float | None) -> str:
    return "no verdict" if value is None else f"{value:g}"
