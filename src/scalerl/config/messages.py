"""Validation errors as problems of a recipe: where each came from, the field, the value, the choices, a suggestion."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scalerl.config.parts import Settings
from scalerl.config.recipe import Recipe, settings_in
from scalerl.config.suggest import closest, did_you_mean, quoted
from scalerl.config.tree import AXES, dotted, known_keys, table_class
from scalerl.errors import RecipeProblem

# Settings that people look for and that are left out deliberately.
_HINTS = {
    "rollout.top_p": "rollout.top_p cannot be set: the log-probs that training divides by would not be those of the "
    "sampled distribution; top_p is for evaluation only (evaluation.top_p)",
    "model.trust_remote_code": "model.trust_remote_code cannot be set in a recipe: code that comes with a model runs "
    "only if you say so each time, with --trust-remote-code (trust_remote_code=True in Python)",
    "extends": 'extends cannot be set here: it belongs into a recipe file, as its first line (extends = "scalerl")',
}

# Names that other frameworks use, and how to get the same thing here.
_MADE_OF = {
    "grpo": 'GRPO is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2, or the recipe grpo',
    "ppo": 'PPO\'s clip is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2',
    "reinforce": 'REINFORCE with a capped ratio is loss = "cispo"; with pipeline.max_lag = 0 the ratio is 1',
    "rloo": 'RLOO is advantage.baseline = "leave_one_out" with loss = "cispo"',
    "npr": 'NPR is curriculum = "no_positive_resampling"',
}

# What other frameworks call a setting, where the spelling is too different to be found by similarity.
_ALIASES = {
    "batch_size": "pipeline.groups_per_batch",
    "group_size": "pipeline.completions_per_group",
    "num_generations": "pipeline.completions_per_group",
    "learning_rate": "optimizer.lr",
    "max_grad_norm": "optimizer.grad_clip",
    "max_steps": "budget.steps",
    "max_tokens": "length.max_length",
}

KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "dict_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "a list that is not empty",
}
"""What a setting must be, by the type of pydantic's error."""

TABLE_ERRORS = ("model_type", "model_attributes_type")

_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}


class Origins:
    """Which file or --set each key of a merged recipe came from."""

    def __init__(self) -> None:
        self.otherwise = ""
        """What is named where no layer has set a key."""
        self._labels: list[str] = []
        self._layer_of: dict[str, int] = {}

    def add(self, label: str, keys: Sequence[str]) -> None:
        """Add a layer; `label` names it in messages."""
        self._labels.append(label)
        self._layer_of.update(dict.fromkeys(keys, len(self._labels) - 1))

    def label(self, *keys: str) -> str:
        """Return the latest layer that set one of these keys; otherwise one of their tables; otherwise the file."""
        layers = [
            layer
            for set_key, layer in self._layer_of.items()
            for key in keys
            if set_key == key or set_key.startswith(f"{key}.") or key.startswith(f"{set_key}.")
        ]
        if layers:
            return self._labels[max(layers)]
        tables = [key.rpartition(".")[0] for key in keys if "." in key]
        return self.label(*tables) if tables else self.otherwise


def show(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def wrong_names(tree: Mapping[str, Any], origins: Origins) -> Iterator[RecipeProblem]:
    """Yield a problem for each axis whose name is not one of its choices, and for a setting that no file may have."""
    model = tree.get("model")
    if isinstance(model, Mapping) and (key := "model.trust_remote_code").rpartition(".")[2] in model:
        yield RecipeProblem(origin=origins.label(key), statement=_HINTS[key])
    for key, choices in AXES.items():
        table: Any = tree
        for name in key.split("."):
            table = table.get(name, {}) if isinstance(table, Mapping) else {}
        name = table.get("name") if isinstance(table, Mapping) else None
        if name is not None and not (isinstance(name, str) and (":" in name or name in choices)):
            made_of = _MADE_OF.get(str(name).lower())
            yield RecipeProblem(
                origin=origins.label(f"{key}.name"),
                statement=f"{key}.name is {show(name)} but must be one of {quoted(choices)}, or an import path "
                f'"package.module:function"',
                suggestion=f"; {made_of}" if made_of else did_you_mean(str(name), choices),
            )


def problems_of(error: ErrorDetails, tree: Mapping[str, Any], origins: Origins) -> Iterator[RecipeProblem]:
    """Yield the problems that one pydantic error reports; several when it holds several conflicts."""
    if error["type"] == "conflict":
        for sentence in error.get("ctx", {})["sentences"]:
            yield RecipeProblem(origin=origins.label(*settings_in(sentence)), statement=sentence)
        return
    key = _dotted_key(error["loc"])
    statement, suggestion = (_HINTS[key], "") if key in _HINTS else _described(error, key, tree)
    yield RecipeProblem(origin=origins.label(key), statement=statement, suggestion=suggestion)


def _dotted_key(loc: Sequence[int | str]) -> str:
    """Return the key as a user wrote it, without pydantic's marks of which choice of an axis it tried."""
    key, parts = "", list(loc)
    while parts:
        part = parts.pop(0)
        if key in AXES and part == "built-in":
            parts = parts[1:]
        elif not (key in AXES and part == "custom"):
            key = dotted(key, str(part))
    return key


def _described(error: ErrorDetails, key: str, tree: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong with one key of a recipe, and a suggestion (empty where there is none)."""
    kind, value = error["type"], show(error["input"])
    if kind == "extra_forbidden":
        return _unknown_key(key, tree)
    if key in AXES and kind in TABLE_ERRORS:
        return f"{key} is {value} but must be a name or a table with one; the names are {quoted(AXES[key])}", ""
    if kind in TABLE_ERRORS:
        fields, suggestion = _fields(key, error["input"])
        return f"{key} is {value} but must be a table{fields}", suggestion
    # The place of an entry in a list is not part of the setting's name.
    names = [part for part in key.split(".") if not (part.isdigit() and int(part) in error["loc"])]
    part = _class_at(".".join(names[:-1]), tree) if kind == "literal_error" else Recipe
    return described(error, key, part.model_fields.get(names[-1]), _owner(key, tree) if kind == "missing" else "")


def described(error: ErrorDetails, key: str, field: FieldInfo | None, owner: str) -> tuple[str, str]:
    """Return what is wrong with the value of one key, and a suggestion (empty where there is none)."""
    kind, value = error["type"], show(error["input"])
    if kind == "missing":
        return f"{key} is not set, and {owner} needs it", ""
    if kind == "literal_error" and field is not None:
        choices = list(_literals(field.annotation))
        statement = f"{key} is {value} but must be one of {', '.join(map(show, choices))}"
        return statement, did_you_mean(str(error["input"]), [choice for choice in choices if isinstance(choice, str)])
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{key} is {value} but must be {words} {error.get('ctx', {})[bound]}", ""
    if kind in KINDS:
        return f"{key} is {value} but must be {KINDS[kind]}", ""
    if kind == "string_pattern_mismatch":
        return f'{key} is {value} but must be an import path "package.module:function"', ""
    return f"{key} is {value}: {error['msg'][0].lower()}{error['msg'][1:]}", ""


def _literals(annotation: Any) -> Iterator[str | bool]:
    for argument in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield argument
        else:
            yield from _literals(argument)


def _class_at(table: str, tree: Mapping[str, Any]) -> type[Settings]:
    """Return the class of the table at this key, by the names its axes have in `tree`."""
    part: type[Settings] = Recipe
    value: Any = tree
    key = ""
    for name in table.split(".") if table else []:
        key, value = dotted(key, name), value[name]
        part = AXES[key][value["name"]] if key in AXES else (table_class(part.model_fields[name]) or part)
    return part


def _fields(key: str, value: Any) -> tuple[str, str]:
    """Return what the table at this key holds, and which of its settings the given value may have been meant for."""
    part: type[Settings] | None = Recipe
    for name in key.split("."):
        part = table_class(part.model_fields[name]) if part and name in part.model_fields else None
    if part is None:
        return "", ""
    choices = {name: AXES.get(dotted(key, name), {}) for name in part.model_fields}
    fields = [f"{name} ({quoted(names)})" if names else name for name, names in choices.items()]
    meant = [name for name, names in choices.items() if isinstance(value, str) and value in names]
    return f" with {', '.join(fields)}", f'; did you mean {key}.{meant[0]} = "{value}"?' if meant else ""


def _chosen_name(table: str, tree: Mapping[str, Any]) -> str:
    return _class_at(table, tree).model_fields["name"].default


def _owner(key: str, tree: Mapping[str, Any]) -> str:
    table = key.rpartition(".")[0]
    return f'{table}.name = "{_chosen_name(table, tree)}"' if table in AXES else table or "a recipe"


def _unknown_key(key: str, tree: Mapping[str, Any]) -> tuple[str, str]:
    table, _, name = key.rpartition(".")
    settings = [setting for setting in _class_at(table, tree).model_fields if setting != "name" or table not in AXES]
    has = f"which has {', '.join(settings)}" if settings else "which has no settings"
    if table in AXES:
        owners = [choice for choice, part in AXES[table].items() if name in part.model_fields]
        if owners:
            chosen = f'{table}.name is "{_chosen_name(table, tree)}"'
            return f"{key} is a setting of {quoted(owners)}, but {chosen}, {has}", ""
        settings = [*settings, "name"]
    return f"{key} is not a setting of {_owner(key, tree)}, {has}", _meant(name, settings)


def _meant(name: str, settings: Sequence[str]) -> str:
    """Suggest what an unknown name stands for: a setting of the same table, a known alias, or another table's."""
    if name not in _ALIASES and (own := did_you_mean(name, settings)):
        return own
    # Of settings with the same name the first counts. The cutoff is higher than within a table: there are many keys.
    keys = {key.rpartition(".")[2]: key for key in reversed(list(known_keys()))}
    del keys["name"]
    close = closest(name, keys, cutoff=0.75)
    key = _ALIASES.get(name) or (keys[close] if close else None)
    return f'; did you mean "{key}"?' if key else ""
