"""Convert groups to flat arrays (for safetensors) and JSON types for a checkpoint, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.types import Completion, Episode, Group, LengthPlan, Problem, Request

_PER_TOKEN = ("tokens", "log_probs", "versions", "forced")


def pack_groups(groups: Sequence[Group]) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Return the concatenated tokens of all groups as arrays, and the rest as JSON types."""
    completions = [completion for group in groups for completion in group.completions]
    prompts = [np.array(completion.request.prompt_tokens, dtype=np.int32) for completion in completions]
    arrays: dict[str, NDArray[Any]] = {
        "tokens": _joined([completion.tokens for completion in completions], np.int32),
        "log_probs": _joined([completion.log_probs for completion in completions], np.float32),
        "versions": _joined([completion.versions for completion in completions], np.int32),
        "forced": _joined([completion.forced for completion in completions], np.bool_),
        "prompt_tokens": _joined(prompts, np.int32),
    }
    meta = [
        {
            "key": group.key,
            "problem": asdict(group.problem),
            "correct": list(group.correct),
            "rewards": list(group.rewards),
            "values": list(group.values),
            "scores": {name: list(values) for name, values in group.scores.items()},
            "completions": [_completion_meta(completion) for completion in group.completions],
        }
        for group in groups
    ]
    experts = [completion.experts for completion in completions if completion.experts is not None]
    if experts and len(experts) == len(completions):
        arrays["experts"] = np.concatenate(experts)
    return arrays, meta


def unpack_groups(arrays: Mapping[str, NDArray[Any]], meta: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """Return groups equal to those that pack_groups was given."""
    token_place, prompt_place, fed_place = 0, 0, 0
    groups: list[Group] = []
    for packed in meta:
        problem, completions = Problem(**packed["problem"]), []
        for entry in packed["completions"]:
            token_end = token_place + entry["num_tokens"]
            prompt_end = prompt_place + entry["num_prompt_tokens"]
            length = entry["length"]
            request = Request(
                group=packed["key"],
                index=entry["index"],
                problem=problem,
                prompt_tokens=tuple(arrays["prompt_tokens"][prompt_place:prompt_end].tolist()),
                seed=entry["seed"],
                length=LengthPlan(
                    thinking_budget=length["thinking_budget"],
                    thinking_end=tuple(length["thinking_end"]),
                    marker=tuple(length["marker"]),
                    answer_budget=length["answer_budget"],
                ),
                temperature=entry["temperature"],
                top_p=entry["top_p"],
                environment=entry.get("environment", ""),
            )
            episode = entry.get("episode")
            # The last token of a completion was not fed to the model.
            fed_end = fed_place + entry["num_prompt_tokens"] + entry["num_tokens"] - 1
            per_token = {name: arrays[name][token_place:token_end] for name in _PER_TOKEN}
            completions.append(
                Completion(
                    request=request,
                    **per_token,
                    finish=entry["finish"],
                    interrupted_at=entry["interrupted_at"],
                    turns=tuple((start, end) for start, end in entry.get("turns", ())),
                    episode=None if episode is None else Episode(**episode),
                    experts=arrays["experts"][fed_place:fed_end] if "experts" in arrays else None,
                )
            )
            token_place, prompt_place, fed_place = token_end, prompt_end, fed_end
        groups.append(
            Group(
                key=packed["key"],
                problem=problem,
                completions=tuple(completions),
                correct=tuple(packed["correct"]),
                rewards=tuple(packed["rewards"]),
                # A checkpoint of an earlier version has neither.
                values=tuple(packed.get("values", ())),
                scores={name: tuple(values) for name, values in packed.get("scores", {}).items()},
            )
        )
    if (token_place, prompt_place) != (len(arrays["tokens"]), len(arrays["prompt_tokens"])):
        raise ValueError(
            f"the groups have {token_place} tokens and {prompt_place} prompt tokens, but their arrays hold "
            f"{len(arrays['tokens'])} and {len(arrays['prompt_tokens'])}"
        )
    return tuple(groups)


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])


def _completion_meta(completion: Completion) -> dict[str, Any]:
    request, episode = completion.request, completion.episode
    conversation = {"environment": request.environment, "turns": completion.turns}
    return {
        "index": request.index,
        "seed": request.seed,
        # Not what recognises the end of thinking: it is large, and a sampled completion needs it no more.
        "length": asdict(replace(request.length, ending=None)),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "finish": completion.finish,
        "interrupted_at": completion.interrupted_at,
        "num_tokens": len(completion),
        "num_prompt_tokens": len(request.prompt_tokens),
        **({} if episode is None else {**conversation, "episode": asdict(episode)}),
    }
