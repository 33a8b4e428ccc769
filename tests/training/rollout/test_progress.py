"""SlotProgress in chunks against a plain loop over one completion's tokens."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.training.rollout.progress import FREE, CompletionProgress, SlotProgress
from scalerl.training.types import Ending, LengthPlan

STOP = 0


def reference(plan: LengthPlan, stream) -> tuple[list[int], list[bool], bool]:
    """Token by token, as the plan's docstring says; `stream(i)` is what the model would sample at index i."""
    tokens, forced, limit, ended = [], [], plan.max_tokens, plan.thinking_budget is None
    while len(tokens) < limit:
        index = len(tokens)
        place = -1 if ended or plan.thinking_budget is None else index - plan.thinking_budget
        is_forced = 0 <= place < len(plan.marker)
        tokens.append(plan.marker[place] if is_forced else stream(index))
        forced.append(is_forced)
        if tokens[-1] == STOP and not is_forced:
            return tokens, forced, True
        thinking = plan.thinking_budget is not None and len(tokens) <= plan.thinking_budget and not ended
        if thinking and _ends(plan, tokens):
            ended, limit = True, len(tokens) + plan.answer_budget
    return tokens, forced, False


def one_by_one(plan: LengthPlan, stream) -> tuple[list[int], list[bool], bool]:
    progress, tokens, forced = CompletionProgress(plan), [], []
    while len(tokens) < progress.limit:
        given = progress.forced(len(tokens))
        tokens.append(stream(len(tokens)) if given == FREE else given)
        forced.append(given != FREE)
        progress.take(tokens[-1])
        if tokens[-1] == STOP and not forced[-1]:
            return tokens, forced, True
    return tokens, forced, False


TEXTS = ("", "a", "ab", "b", "ba", "aab")


def _ends(plan: LengthPlan, tokens: list[int]) -> bool:
    if plan.ending is None:
        return bool(plan.thinking_end) and tuple(tokens[-len(plan.thinking_end) :]) == plan.thinking_end
    # Whatever the tokens before it are, the last one completes the first end that is in the text.
    return str(plan.ending.key[0]) in "".join(TEXTS[token] for token in tokens)


endings = st.none() | st.text("ab", min_size=1, max_size=4).map(lambda end: Ending.of_text(end, TEXTS))
tokens_of = st.integers(0, 5)
plans = st.builds(
    LengthPlan,
    thinking_budget=st.none() | st.integers(0, 12),
    ending=endings,
    thinking_end=st.lists(tokens_of, max_size=3).map(tuple),
    marker=st.lists(tokens_of, max_size=4).map(tuple),
    answer_budget=st.integers(1, 12),
)


@settings(max_examples=100)
@given(st.lists(plans, min_size=1, max_size=10), st.integers(1, 7), st.integers(1, 3), st.integers(0, 2**32))
def test_chunks_of_all_slots_give_what_a_plain_loop_gives(waiting, chunk, slots, seed):
    # Few tokens and rare stops: most patterns that end thinking occur, many of them across two chunks.
    streams = np.random.default_rng(seed).choice(6, (len(waiting), 40), p=[0.04, 0.4, 0.2, 0.2, 0.1, 0.06])
    progress = SlotProgress(slots, [STOP])
    holders: list[int | None] = [None] * slots
    results: dict[int, tuple[list[int], list[bool], bool]] = {}
    partial: dict[int, tuple[list[int], list[bool]]] = {}
    submitted = 0
    while len(results) < len(waiting):
        for slot in range(slots):
            if holders[slot] is None and submitted < len(waiting):
                holders[slot] = submitted
                partial[submitted] = ([], [])
                progress.start([slot], [waiting[submitted]])
                submitted += 1
        forced = progress.forced(chunk)
        sampled = np.array(
            [
                [
                    0 if number is None else streams[number, int(progress.count[slot]) + step]
                    for slot, number in enumerate(holders)
                ]
                for step in range(chunk)
            ]
        )
        tokens = np.where(forced >= 0, forced, sampled)
        result = progress.apply(tokens)
        for slot, number in enumerate(holders):
            if number is None:
                assert result.num_kept[slot] == 0
                continue
            kept = result.num_kept[slot]
            partial[number][0].extend(tokens[:kept, slot].tolist())
            partial[number][1].extend(result.forced[:kept, slot].tolist())
            if result.finished[slot]:
                results[number] = (*partial[number], bool(result.stopped[slot]))
                holders[slot] = None
    for number, plan in enumerate(waiting):
        expected = reference(plan, lambda index, number=number: int(streams[number, index]))
        assert results[number] == expected
        assert one_by_one(plan, lambda index, number=number: int(streams[number, index])) == expected


@given(st.text("<>/thk ", min_size=1, max_size=6), st.lists(st.text("<>/thk ", max_size=4), min_size=1, max_size=30))
def test_text_is_recognised_however_it_is_spelled(end, parts):
    texts = sorted(set(parts))
    ending = Ending.of_text(end, texts)
    state, seen = 0, ""
    for part in parts:
        seen += part
        state = ending.after(state, texts.index(part))
        assert (state == ending.width) == (end in seen), seen
        if end in seen:
            break
