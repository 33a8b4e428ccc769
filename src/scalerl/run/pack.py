"""Convert groups to flat arrays (for safetensors) and JSON types for a checkpoint, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.types import Completion, Episode, Group, LengthPlan, Problem, Request

_PER_TOKEN = {"tokens": np.int32, "log_probs": np.float32, "versions": np.int32, "forced": np.bool_}
_OF_REQUEST = ("index", "seed", "temperature", "top_p", "environment")
_OF_COMPLETION = ("finish", "interrupted_at", "turns")
_OF_GROUP = ("correct", "rewards", "values")


def pack_groups(groups: Sequence[Group]) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Return the concatenated tokens of all groups as arrays, and the rest as JSON types."""
    completions = [completion for group in groups for completion in group.completions]
    arrays = {
        name: _joined([getattr(completion, name) for completion in completions], dtype)
        for name, dtype in _PER_TOKEN.items()
    }
    arrays["prompt_tokens"] = _joined([completion.request.prompt_tokens for completion in completions], np.int32)
    meta = [
        {
            "key": group.key,
            "problem": asdict(group.problem),
            **{name: list(getattr(group, name)) for name in _OF_GROUP},
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
            request = Request(
                group=packed["key"],
                problem=problem,
                prompt_tokens=tuple(arrays["prompt_tokens"][prompt_place:prompt_end].tolist()),
                length=LengthPlan(**{name: _tuples(value) for name, value in entry["length"].items()}),
                **_there(entry, _OF_REQUEST),
            )
            episode = entry.get("episode")
            # The last token of a completion was not fed to the model.
            fed_end = fed_place + entry["num_prompt_tokens"] + entry["num_tokens"] - 1
            completions.append(
                Completion(
                    request=request,
                    **{name: arrays[name][token_place:token_end] for name in _PER_TOKEN},
                    **_there(entry, _OF_COMPLETION),
                    episode=None if episode is None else Episode(**episode),
                    experts=arrays["experts"][fed_place:fed_end] if "experts" in arrays else None,
                )
            )
            token_place, prompt_place, fed_place = token_end, prompt_end, fed_end
        scores = {name: tuple(values) for name, values in packed.get("scores", {}).items()}
        groups.append(
            Group(
                key=packed["key"],
                problem=problem,
                completions=tuple(completions),
                scores=scores,
                **_there(packed, _OF_GROUP),
            )
        )
    if (token_place, prompt_place) != (len(arrays["tokens"]), len(arrays["prompt_tokens"])):
        raise ValueError(
            f"the groups have {token_place} tokens and {prompt_place} prompt tokens, but their arrays hold "
            f"{len(arrays['tokens'])} and {len(arrays['prompt_tokens'])}"
        )
    return tuple(groups)


def _there(packed: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the fields among these that are there: a checkpoint of an earlier version has fewer."""
    return {name: _tuples(packed[name]) for name in names if name in packed}


def _tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _joined(parts: Sequence[Any], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *(np.asarray(part, dtype=dtype) for part in parts)])


def _completion_meta(completion: Completion) -> dict[str, Any]:
    request, episode = completion.request, completion.episode
    return {
        **{name: getattr(request, name) for name in _OF_REQUEST},
        **{name: getattr(completion, name) for name in _OF_COMPLETION},
        # Not what recognises the end of thinking: it is large, and a sampled completion needs it no more.
        "length": asdict(replace(request.length, ending=None)),
        "num_tokens": len(completion),
        "num_prompt_tokens": len(request.prompt_tokens),
        **({} if episode is None else {"episode": asdict(episode)}),
    }
