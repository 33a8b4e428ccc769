"""Measure a model on evaluation sets, for evals.jsonl and for `scalerl eval`."""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from scalerl.errors import GraderError
from scalerl.recipe.parts import EvaluationSettings
from scalerl.recipe.recipe import Recipe
from scalerl.runfolder.store import Row
from scalerl.training.graders.sandbox.job import KINDS, STOPPED
from scalerl.training.loop.evaluate import EvalResult, Evaluation
from scalerl.training.loop.pipeline import StepDone
from scalerl.training.loop.requests import Text
from scalerl.training.loop.seams import Engine
from scalerl.training.loop.watchdog import Watchdog
from scalerl.training.models.shape import work_flops
from scalerl.training.run.clock import Clock
from scalerl.training.run.derive import derive
from scalerl.training.run.hooks import Hook, RunEnd
from scalerl.training.run.inputs import Inputs, load_inputs
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.parts import Parts, build_engine
from scalerl.training.run.prompts import EvalSet
from scalerl.training.run.rows import Rows
from scalerl.training.types import Completion, Group

SAMPLES_KEPT = 4
"""Completions written to samples.jsonl at each evaluation."""


@dataclass(kw_only=True)
class Evaluations(Hook):
    """Evaluates a run before its first step, as often as each set says and at its end, while training is paused."""

    parts: Parts
    rows: Rows
    clock: Clock
    settings: EvaluationSettings
    observer: RunObserver
    watchdog: Watchdog

    def after_step(self, done: StepDone | None, end: RunEnd | None) -> None:
        step = self.parts.pipeline.version
        is_last = end is not None and end.kind in ("budget", "data")
        sets = self.open_sets(step, is_last=is_last)
        # If asked to stop, end without an evaluation, which may take long; a resumed run catches up on it.
        if sets and not self.observer.stopping():
            self.rows.flush()
            self._evaluate(step, sets, () if done is None else done.batch.groups)

    def open_sets(self, step: int, *, is_last: bool) -> list[EvalSet]:
        """Return the sets that are to be evaluated after this step and have no row of it yet."""
        done = {row["set"] for row in self.rows.evals if row["step"] == step}
        sets = [each for each in self.parts.inputs.eval_sets if each.name not in done]
        return [each for each in sets if is_last or self.settings.is_due(each.name, step)]

    def _evaluate(self, step: int, sets: Sequence[EvalSet], groups: Sequence[Group]) -> None:
        """Evaluate the sets and write the rows, with samples of `groups`, the last training groups."""
        parts = self.parts
        engine = parts.engine
        work_before = engine.eval_work
        started = time.monotonic()
        with self.clock.aside("evaluation"), engine.paused():
            paused_s = time.monotonic() - started
            engine.push_weights(parts.learner.weights(), step)
            spent_on_training = self.clock.row()
            requests = {each.name: each.requests(step) for each in sets}
            evaluation = Evaluation(engine, requests, graders=parts.inputs.graders, on_progress=self._on_progress)
            with self.watchdog.watching("the grader"):
                is_finished = evaluation.finish(lambda: bool(self.observer.stopping()))
            if not is_finished:
                # Asked to stop: a resumed run evaluates this step again.
                return
            results = evaluation.results()
            if step == 0:
                # Training may teach the model a readable format, but will not mend a grader that always fails.
                allowed = ["grader/no_answer", "environment/no_answer"]
                check_verdicts(results, parts.inputs, sets=sets, allowed=allowed)
            seconds = {"time/eval_s": time.monotonic() - started, "time/eval_pause_s": paused_s}
            samples = sample_rows(groups[:SAMPLES_KEPT], parts.inputs.text)
            rows = self.rows.add_evaluation(step, eval_rows(results, spent_on_training, seconds), samples)
        self.clock.add({"flops/evaluation": work_flops(parts.learner.shape, work_before, engine.eval_work)})
        with self.clock.aside("evaluation"):
            self.observer.evaluated(rows)

    def _on_progress(self, finished: int, total: int) -> None:
        # Not watched: if the terminal blocks, the grader does not hang.
        with self.watchdog.watching(None):
            self.observer.evaluating(finished, total)


def evaluate_all(engine: Engine, inputs: Inputs, *, step: int) -> dict[str, EvalResult]:
    """Sample and grade every prompt of all sets on an otherwise idle engine."""
    requests = {each.name: each.requests(step) for each in inputs.eval_sets}
    evaluation = Evaluation(engine, requests, graders=inputs.graders)
    evaluation.finish()
    return evaluation.results()


def eval_rows(results: Mapping[str, EvalResult], spent: Mapping[str, float], seconds: Mapping[str, float]) -> list[Row]:
    """Return the rows of an evaluation, without step and attempt.

    `spent` is what the run has spent on training so far; `seconds` are those of all sets together.
    """
    columns = {key: spent[key] for key in ("gpu_hours", "flops", "tokens")} | dict(seconds)
    return [{"set": name, **columns, **result_row(result)} for name, result in results.items()]


def sample_rows(groups: Sequence[Group], text: Text) -> list[dict[str, Any]]:
    """Return the first completion of each group, for people to read."""
    rows = []
    for group in groups:
        completion = group.completions[0]
        row = {
            "problem": group.problem.id,
            "prompt": group.problem.prompt,
            "completion": text.decode(completion.tokens.tolist()),
            "answer": group.problem.answer,
            "correct": group.correct[0],
            "reward": group.rewards[0],
        }
        rows.append(row | conversation_row(completion, text))
    return rows


def conversation_row(completion: Completion, text: Text) -> dict[str, Any]:
    """Return the turns of a conversation as a column of a sample; empty for a single completion."""
    if completion.episode is None:
        return {}
    turns: list[dict[str, str]] = []

    def add_environment(tokens: Sequence[int]) -> None:
        if tokens:
            turns.append({"by": "environment", "text": text.decode(tokens)})

    def add_model(tokens: Sequence[int]) -> None:
        # Even an empty turn is one of the model's.
        turns.append({"by": "model", "text": text.decode(tokens)})

    for number, branch in enumerate(completion.sequences):
        is_first = number == 0
        if not is_first:
            # The first branch begins with the problem, later ones with text of the environment.
            add_environment(branch.request.prompt_tokens)
        tokens = branch.tokens.tolist()
        end_of_last = 0
        for start, end in branch.turns:
            add_environment(tokens[end_of_last:start])
            add_model(tokens[start:end])
            end_of_last = end
        add_environment(tokens[end_of_last:])
    return {"conversation": turns}


def evaluate_model(recipe: Recipe, sets: Collection[str] = ()) -> list[dict[str, Any]]:
    """Measure the recipe's untrained model on `sets`, by default all evaluation sets; return one row per set."""
    recipe, _ = derive(recipe)
    inputs = load_inputs(recipe, sets=sets)
    with closing(inputs.graders), closing(build_engine(recipe, inputs)) as engine:
        results = evaluate_all(engine, inputs, step=0)
        check_verdicts(results, inputs, sets=inputs.eval_sets)
    return [_row_of_model(name, result) for name, result in results.items()]


def _row_of_model(name: str, result: EvalResult) -> dict[str, Any]:
    """Return the row of an untrained model on a set."""
    row: dict[str, Any] = {
        "set": name,
        **result_row(result),
        "interval": list(wilson(sum(result.num_correct), result.num_samples)),
        "num_prompts": len(result.num_correct),
        "samples_per_prompt": result.samples_per_prompt,
        "pass_at": _with_text_keys(result.pass_at),
    }
    if result.pass_at_turns:
        by_turns = {turns: _with_text_keys(pass_at) for turns, pass_at in result.pass_at_turns.items()}
        row["pass_at_turns"] = _with_text_keys(by_turns)
    row["without_verdict"] = dict(result.num_without_verdict)
    return row


def _with_text_keys(by_number: Mapping[int, Any]) -> dict[str, Any]:
    """Return a mapping with its numbers as texts, which are the keys that JSON has."""
    return {str(number): value for number, value in by_number.items()}


def check_verdicts(
    results: Mapping[str, EvalResult], inputs: Inputs, *, sets: Iterable[EvalSet], allowed: Collection[str] = ()
) -> None:
    """Raise GraderError if one of these sets has no verdict at all, unless all reasons are `allowed`."""
    for eval_set in sets:
        result = results[eval_set.name]
        others = result.num_without_verdict.keys() - set(allowed)
        if result.num_graded or not others:
            continue
        judge = eval_set.judge.name
        errors = inputs.graders.first_errors
        playing = inputs.environments.get(eval_set.name)
        if playing is not None:
            judge = eval_set.task.environment.name
            errors = {**playing.first_errors, **errors}
        # A reason is a column, such as grader/timeout.
        counts = [f"{num} x {column.partition('/')[2]}" for column, num in result.num_without_verdict.items()]
        reasons = ", ".join(counts)
        if errors:
            first_error, *_ = errors.values()
            reasons += f": {first_error}"
        raise GraderError(
            f'"{judge}" has no verdict on any of {result.num_samples} answers of {eval_set.name} ({reasons})'
        )


def result_row(result: EvalResult) -> dict[str, Any]:
    """Return the columns of every row of an evaluation."""
    row: dict[str, Any] = {
        "reward": result.reward,
        "num_correct": list(result.num_correct),
        "num_samples": result.num_samples,
        "prompts_hash": result.prompts_hash,
        "truncated_frac": result.num_truncated / max(result.num_samples, 1),
        "length_mean": result.mean_length,
    }
    if result.score is not None:
        row["score"] = result.score
    row |= {f"score/{name}": value for name, value in result.scores.items()}
    row |= result.num_without_verdict
    row |= outcome_columns(result.num_outcomes)
    row |= result.conversations
    if result.correct_turns:
        row["correct_turns"] = [list(turns) for turns in result.correct_turns]
    return row


def outcome_columns(num_outcomes: Mapping[str, int]) -> dict[str, float]:
    """Return columns that count outcomes named by graders; for programs, also the share that the sandbox stopped."""
    columns: dict[str, float] = {f"outcome/{name}": num for name, num in sorted(num_outcomes.items())}
    are_programs = bool(num_outcomes.keys() & set(KINDS))
    if are_programs:
        num_stopped = sum(num_outcomes.get(name, 0) for name in STOPPED)
        num_programs = sum(num_outcomes.get(name, 0) for name in KINDS)
        columns["outcome/stopped_frac"] = num_stopped / num_programs
    return columns


def wilson(num_correct: int, num: int, z: float = 1.645) -> tuple[float, float]:
    """Return Wilson's 90 % interval of a rate; it stays within [0, 1]."""
    if num == 0:
        return 0.0, 1.0
    rate = num_correct / num
    shrink = 1 + z * z / num
    middle = (rate + z * z / (2 * num)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / num + z * z / (4 * num * num)) / shrink
    return max(middle - half, 0.0), min(middle + half, 1.0)
