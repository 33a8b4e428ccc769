"""A validation error as one sentence: where it came from, the field, the value, the choices, and what was meant."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from scalerl.config.parts import Settings
from scalerl.config.recipe import Recipe
from scalerl.config.suggest import closest, did_you_mean, quoted
from scalerl.config.tree import AXES, dotted, known_keys, table_class

# Settings that people look for and that are left out on purpose.
_HINTS = {
    "rollout.top_p": "rollout.top_p cannot be set: the log-probs that training divides by would not be those of the "
    "sampled distribution; top_p is for evaluation only (evaluation.top_p)",
    "extends": 'extends cannot be set here: it belongs into a recipe file, as its first line (extends = "scalerl")',
}

# Names that are choices elsewhere, and what makes the same thing here.
_MADE_OF = {
    "grpo": 'GRPO is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2, or the recipe grpo',
    "ppo": 'PPO\'s clip is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2',
    "reinforce": 'REINFORCE with a capped ratio is loss = "cispo"; with pipeline.max_lag = 0 the ratio is 1',
    "rloo": 'RLOO is advantage.baseline = "leave_one_out" with loss = "cispo"',
    "npr": 'NPR is curriculum = "no_positive_resampling"',
}

# What settings are called elsewhere, too far from our word to be found by spelling.
_ALIASES = {
    "batch_size": "pipeline.groups_per_batch",
    "group_size": "pipeline.completions_per_group",
    "num_generations": "pipeline.completions_per_group",
    "learning_rate": "optimizer.lr",
    "max_grad_norm": "optimizer.grad_clip",
    "max_steps": "budget.steps",
    "max_tokens": "length.max_length",
}

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "dict_type": "a table",
    "tuple_type": "a list",
}

_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}


class Origins:
    """Which file or --set each key of a merged recipe came from."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._layer_of: dict[str, int] = {}

    def add_layer(self, label: str, keys: Sequence[str]) -> None:
        self._labels.append(label)
        self._layer_of.update(dict.fromkeys(keys, len(self._labels) - 1))

    def label(self, *keys: str) -> str:
        """The latest layer that said something about these keys, or else about their tables, or else the recipe."""
        layers = [
            layer
            for set_key, layer in self._layer_of.items()
            for key in keys
            if set_key == key or set_key.startswith(f"{key}.") or key.startswith(f"{set_key}.")
        ]
        if layers:
            return self._labels[max(layers)]
        tables = [key.rpartition(".")[0] for key in keys if "." in key]
        if tables:
            return self.label(*tables)
        files = [label for label in self._labels if not label.startswith("--set")]
        return files[-1]


def show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def wrong_names(tree: Mapping[str, Any], origins: Origins) -> Iterator[str]:
    """Axes whose name is no choice."""
    for key, choices in AXES.items():
        table: Any = tree
        for name in key.split("."):
            table = table.get(name, {}) if isinstance(table, Mapping) else {}
        name = table.get("name") if isinstance(table, Mapping) else None
        if name is not None and not (isinstance(name, str) and (":" in name or name in choices)):
            made_of = _MADE_OF.get(str(name).lower())
            yield (
                f"{origins.label(f'{key}.name')}: {key}.name is {show(name)} but must be one of "
                f'{quoted(choices)}, or an import path "package.module:function"'
                f"{f'; {made_of}' if made_of else did_you_mean(str(name), choices)}"
            )


def sentences(error: ErrorDetails, tree: Mapping[str, Any], origins: Origins) -> Iterator[str]:
    """The sentences for one pydantic error; several when it holds several conflicts."""
    context = error.get("ctx", {})
    if error["type"] == "conflict":
        for fields, message in context["found"]:
            yield f"{origins.label(*fields)}: {message}"
        return
    key = _dotted_key(error["loc"])
    yield f"{origins.label(key)}: {_HINTS.get(key) or _sentence(error, key, tree)}"


def _dotted_key(loc: Sequence[int | str]) -> str:
    """The key as a user wrote it: without pydantic's marks of which choice of an axis it tried."""
    key, parts = "", list(loc)
    while parts:
        part = parts.pop(0)
        if key in AXES and part == "built-in":
            parts = parts[1:]
        elif not (key in AXES and part == "custom"):
            key = dotted(key, str(part))
    return key


def _sentence(error: ErrorDetails, key: str, tree: Mapping[str, Any]) -> str:
    kind, value, context = error["type"], show(error["input"]), error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(key, tree)
    if kind == "missing":
        return f"{key} is not set, and {_owner(key, tree)} needs it"
    if kind == "literal_error":
        choices = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return f"{key} is {value} but must be one of {quoted(choices)}{did_you_mean(str(error['input']), choices)}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{key} is {value} but must be {words} {context[bound]}"
    if key in AXES and kind in ("model_type", "model_attributes_type"):
        return f"{key} is {value} but must be a name or a table with one; the names are {quoted(AXES[key])}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key} is {value} but must be a table{_fields(key, error['input'])}"
    if kind in _KINDS:
        return f"{key} is {value} but must be {_KINDS[kind]}"
    if kind == "string_pattern_mismatch":
        return f'{key} is {value} but must be an import path "package.module:function"'
    return f"{key} is {value}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _class_at(table: str, tree: Mapping[str, Any]) -> type[Settings]:
    """The class of the table at this key, by the names its axes have in `tree`."""
    part: type[Settings] = Recipe
    value: Any = tree
    key = ""
    for name in table.split(".") if table else []:
        key, value = dotted(key, name), value[name]
        part = AXES[key][value["name"]] if key in AXES else (table_class(part.model_fields[name]) or part)
    return part


def _fields(key: str, value: Any) -> str:
    """What the table at this key holds, and where in it the value given would belong."""
    part: type[Settings] | None = Recipe
    for name in key.split("."):
        part = table_class(part.model_fields[name]) if part and name in part.model_fields else None
    if part is None:
        return ""
    choices = {name: AXES.get(dotted(key, name), {}) for name in part.model_fields}
    fields = [f"{name} ({quoted(names)})" if names else name for name, names in choices.items()]
    meant = [name for name, names in choices.items() if isinstance(value, str) and value in names]
    return f" with {', '.join(fields)}" + (f'; did you mean {key}.{meant[0]} = "{value}"?' if meant else "")


def _owner(key: str, tree: Mapping[str, Any]) -> str:
    table = key.rpartition(".")[0]
    if table in AXES:
        return f'{table}.name = "{_class_at(table, tree).model_fields["name"].default}"'
    return table or "a recipe"


def _unknown_key(key: str, tree: Mapping[str, Any]) -> str:
    table, _, name = key.rpartition(".")
    settings = [setting for setting in _class_at(table, tree).model_fields if setting != "name" or table not in AXES]
    if table in AXES:
        has = f"which has {', '.join(settings)}" if settings else "which has no settings"
        owners = [choice for choice, part in AXES[table].items() if name in part.model_fields]
        if owners:
            return f"{key} is a setting of {quoted(owners)}, but {_owner(key, tree).replace('=', 'is')}, {has}"
        return f"{key} is no setting of {_owner(key, tree)}, {has}{_meant(name, [*settings, 'name'])}"
    return f"{key} is no setting of {table or 'a recipe'}, which has {', '.join(settings)}{_meant(name, settings)}"


def _meant(name: str, settings: Sequence[str]) -> str:
    """What an unknown name stands for: one of the table's own settings, a word from elsewhere, or another table's."""
    if name not in _ALIASES and (own := did_you_mean(name, settings)):
        return own
    # Of settings of one name the first counts. Nearer than within a table, since there are many to be near to.
    keys = {key.rpartition(".")[2]: key for key in reversed(list(known_keys()))}
    del keys["name"]
    close = closest(name, keys, cutoff=0.75)
    key = _ALIASES.get(name) or (keys[close] if close else None)
    return f'; did you mean "{key}"?' if key else ""
