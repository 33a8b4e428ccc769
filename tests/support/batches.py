"""Batches of graded groups with made-up completions."""

import numpy as np

from scalerl.training.types import Batch, Completion, Finish, Group, LengthPlan, Problem, Request

VERSION = 3


def make_completion(key, index, prompt, tokens, *, forced=(), log_probs=None, temperature=1.0, finish: Finish = "stop"):
    """`forced` are the places of forced tokens; every token but the last is of the version before VERSION.

    The log-prob of a forced token is one that shows in any number it would be part of.
    """
    tokens = np.array(tokens, dtype=np.int32)
    mark = np.isin(np.arange(len(tokens)), forced)
    log_probs = np.full(len(tokens), -1.0) if log_probs is None else np.array(log_probs)
    problem = Problem(id=key, prompt=key, answer="", task="t")
    return Completion(
        request=Request(
            group=key,
            index=index,
            problem=problem,
            prompt_tokens=tuple(prompt),
            seed=0,
            length=LengthPlan(answer_budget=99),
            temperature=temperature,
        ),
        tokens=tokens,
        log_probs=np.where(mark, -37.0, log_probs),
        versions=np.array([VERSION - 1] * (len(tokens) - 1) + [VERSION], dtype=np.int32),
        forced=mark,
        finish=finish,
        interrupted_at=int(min(forced)) if len(forced) else None,
    )


def make_group(completions, correct):
    request = completions[0].request
    rewards = tuple(0.0 if verdict is None else 1.0 if verdict else -1.0 for verdict in correct)
    return Group(
        key=request.group,
        problem=request.problem,
        completions=tuple(completions),
        correct=tuple(correct),
        rewards=rewards,
    )


def random_batch(
    seed, *, num_groups=5, per_group=4, prompt=0, longest=12, temperatures=(1.0,), clean=False, version=VERSION
):
    """Prompts and completions of many lengths, with forced tokens; unless clean, also truncated, ungraded and broken
    ones. With `prompt`, prompts have about that many tokens."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(num_groups):
        asked, temperature = rng.integers(2, 23, prompt + rng.integers(1, 6)), float(rng.choice(temperatures))
        completions, correct = [], []
        for i in range(per_group):
            length = int(rng.integers(2, longest + 1))
            log_probs = np.log(rng.uniform(0.02, 0.3, length))
            forced = np.arange(1, min(4, length)) if length > 6 and rng.random() < 0.4 else ()
            finish: Finish = "stop"
            verdict: bool | None = bool(rng.random() < 0.5)
            if not clean:
                log_probs[-1] = -np.inf if rng.random() < 0.2 else log_probs[-1]
                finish = "length" if rng.random() < 0.1 else "stop"
                verdict = None if rng.random() < 0.1 else verdict
            tokens = rng.integers(1, 23, length)
            completions.append(
                make_completion(
                    f"0/{g}",
                    i,
                    asked.tolist(),
                    tokens,
                    forced=forced,
                    log_probs=log_probs,
                    temperature=temperature,
                    finish=finish,
                )
            )
            correct.append(verdict)
        if clean:
            # One of each, so that no group is dropped.
            correct[:2] = [True, False]
        groups.append(make_group(completions, correct))
    return Batch(version=version, groups=groups)


def lengths_of(micro):
    """The tokens of each sequence in the row of a micro-batch."""
    return micro.inputs.packing.starts.diff().tolist()
