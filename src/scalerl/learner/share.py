"""Decide which completions share a pass, and on which rank: plain numpy, the same on every rank.

    kept completions -> one share per rank, by tokens -> passes within a budget of tokens

Completions of one prompt can share it: the first of them in a pass has the whole prompt, and the others start at its
last token and attend to the rest of it in the first (packed_attention.py). A pass then costs

    sum over prompts of (prompt - 1)  +  sum over completions of (completion)        tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scalerl.types import Completion

Rows = NDArray[np.int64]
"""Indices of completions."""

LEAST_SAVED = 0.1
"""Prompts are shared if that saves this share of the tokens; gathering keys costs a little."""
LEAST_WORK = 2**42
"""Tokens x parameters of a pass on a GPU up to which prompts are not shared: launching kernels takes longer than what
they compute, and sharing launches more of them. On an H200 a step of a 135M model with 28,600 tokens, 2**41.8, took
85 ms, and 122 ms with shared prompts and half of the tokens; one of a 1.5B model 1.08 s and 0.67 s."""


def num_inputs(completion: Completion) -> int:
    """Return how many tokens a completion feeds to the model alone; its last one predicts nothing."""
    return len(completion.request.prompt_tokens) + len(completion.tokens) - 1


def prompt_numbers(completions: Sequence[Completion]) -> list[int]:
    """Return a number per completion that is equal for those with equal prompts and temperatures.

    Completions of one group have the very same tuple, so that few prompts are hashed, which takes long.
    """
    of_object: dict[tuple[int, float], int] = {}
    of_value: dict[tuple[float, tuple[int, ...]], int] = {}
    numbers = []
    for completion in completions:
        request = completion.request
        known = id(request.prompt_tokens), request.temperature
        number = of_object.get(known)
        if number is None:
            number = of_value.setdefault((request.temperature, request.prompt_tokens), len(of_value))
            of_object[known] = number
        numbers.append(number)
    return numbers


def fewest_shared_tokens(num_params: int, *, gpu: bool) -> int:
    """Return the tokens of a pass above which sharing prompts can make it faster."""
    return LEAST_WORK // num_params if gpu else 0


def sharing_pays(
    completions: Sequence[Completion], kept: Rows, num_ranks: int = 1, *, budget: int, share_from: int | None
) -> bool:
    """Return whether computing each prompt once saves enough tokens, in passes of more than `share_from` of them.

    A pass has at most `budget` tokens, and at most a rank's share of all. None means that prompts cannot be shared.
    """
    if share_from is None:
        return False
    alone = sum(num_inputs(completions[row]) for row in kept)
    if min(alone / num_ranks, budget) <= share_from:
        return False
    saved = alone - _num_tokens(completions, kept, shares=True)
    return saved >= LEAST_SAVED * alone


def prefixes(completions: Sequence[Completion]) -> tuple[Rows, Rows]:
    """Return, for each completion of a pass, which earlier one has its prompt, and how many tokens of it are shared.

    A completion that has its own prompt is its own parent and shares 0 tokens.
    """
    parents, shared = np.arange(len(completions)), np.zeros(len(completions), dtype=np.int64)
    first: dict[int, int] = {}
    for place, number in enumerate(prompt_numbers(completions)):
        parent = first.setdefault(number, place)
        if parent != place and (num_prompt := len(completions[place].request.prompt_tokens)) > 1:
            parents[place], shared[place] = parent, num_prompt - 1
    return parents, shared


def assign(completions: Sequence[Completion], kept: Rows, num_ranks: int, *, shares: bool) -> list[Rows]:
    """Divide the kept completions among ranks: the costliest unit goes to the rank with the fewest tokens.

    A unit is a completion, or with `shares` the completions of a prompt. Units larger than an equal share of all tokens
    are divided first, so that one long group does not occupy a single rank.
    """
    if num_ranks == 1:
        return [kept]
    units = _by_prompt(completions, kept) if shares else [kept[place : place + 1] for place in range(len(kept))]
    most = sum(_num_tokens(completions, unit, shares=shares) for unit in units) / num_ranks
    parts = [part for unit in units for part in _divided(completions, unit, most)]
    costs = np.array([_num_tokens(completions, part, shares=shares) for part in parts], dtype=np.int64)
    load, chosen = np.zeros(num_ranks, dtype=np.int64), [[] for _ in range(num_ranks)]
    for place in np.argsort(-costs, kind="stable"):
        rank = int(load.argmin())
        load[rank] += costs[place]
        chosen[rank].append(parts[place])
    none = np.zeros(0, dtype=np.int64)
    return [np.sort(np.concatenate([none, *rows])) for rows in chosen]


def split(completions: Sequence[Completion], kept: Rows, budget: int, *, shares: bool = False) -> list[Rows]:
    """Group completions into passes, by temperature and similar length, within the budget of tokens.

    The longest come first; with `shares`, the completions of a prompt follow each other. A completion longer than the
    budget gets its own pass; sequences are never split.
    """
    rows = kept.tolist()
    length = {row: num_inputs(completions[row]) for row in rows}
    if not shares and (whole := _one_pass(completions, kept, length, budget)) is not None:
        return [whole]
    units = [unit.tolist() for unit in _by_prompt(completions, kept)] if shares else [[row] for row in rows]
    units.sort(key=lambda unit: (completions[unit[0]].request.temperature, -length[unit[0]], unit[0]))
    passes: list[list[int]] = []
    spent, temperature = 0, None
    for unit in units:
        prompt = len(completions[unit[0]].request.prompt_tokens) - 1 if shares else 0
        has_prompt = False
        for row in unit:
            cost = length[row] - (prompt if has_prompt else 0)
            if not passes or spent + cost > budget or completions[row].request.temperature != temperature:
                passes.append([])
                spent, cost, temperature = 0, length[row], completions[row].request.temperature
            passes[-1].append(row)
            spent, has_prompt = spent + cost, True
    # sorted() is stable, so passes whose first sequences are equally long keep their order.
    return sorted((np.array(part, dtype=np.int64) for part in passes), key=lambda part: -length[part[0]])


def _one_pass(completions: Sequence[Completion], kept: Rows, length: Mapping[int, int], budget: int) -> Rows | None:
    """Return all completions, the longest first, if one pass takes them: what small batches come to."""
    sizes = np.fromiter(length.values(), dtype=np.int64, count=len(kept))
    if not len(kept) or sizes.sum() > budget or len({completions[row].request.temperature for row in length}) > 1:
        return None
    return kept[np.argsort(-sizes, kind="stable")]


def _by_prompt(completions: Sequence[Completion], kept: Rows) -> list[Rows]:
    """Return the completions of each prompt and temperature, the longest first."""
    units: dict[int, list[int]] = {}
    rows = kept.tolist()
    for row, number in zip(rows, prompt_numbers([completions[row] for row in rows]), strict=True):
        units.setdefault(number, []).append(row)
    ordered = (sorted(rows, key=lambda row: (-len(completions[row].tokens), row)) for rows in units.values())
    return [np.array(rows, dtype=np.int64) for rows in ordered]


def _num_tokens(completions: Sequence[Completion], rows: Rows, *, shares: bool) -> int:
    """Return the number of tokens of a pass over these completions."""
    chosen = [completions[row] for row in rows]
    if not shares:
        return sum(map(num_inputs, chosen))
    prompts = dict(zip(prompt_numbers(chosen), (len(each.request.prompt_tokens) for each in chosen), strict=True))
    return sum(prompts.values()) - len(prompts) + sum(len(each.tokens) for each in chosen)


def _divided(completions: Sequence[Completion], unit: Rows, most: float) -> list[Rows]:
    """Divide the completions of one prompt into parts of about `most` tokens, at least one completion each."""
    prompt = len(completions[unit[0]].request.prompt_tokens) - 1
    parts: list[list[int]] = [[]]
    spent = prompt
    for row in unit.tolist():
        if parts[-1] and spent + len(completions[row]) > most:
            parts.append([])
            spent = prompt
        parts[-1].append(row)
        spent += len(completions[row])
    return [np.array(part, dtype=np.int64) for part in parts]
