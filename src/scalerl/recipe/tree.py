"""A recipe as a tree of tables: find axes, merge trees, and list settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from pydantic.fields import FieldInfo

from scalerl.recipe.keys import Tree, dotted
from scalerl.recipe.parts import CustomSettings, Settings
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.task_settings import own_meanings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One leaf of a recipe."""

    key: str
    value: Any
    doc: str


class Place(NamedTuple):
    """A place in a recipe that may hold a setting, an axis or a table."""

    key: str
    field: FieldInfo
    choices: dict[str, type[Settings]]
    """The built-in choices of an axis by name; empty elsewhere."""
    table: type[Settings] | None
    """The class of a plain table; None elsewhere."""


def _parts_in(annotation: Any) -> Iterator[type[Settings]]:
    """Yield the classes of tables in a type, such as those of a union."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts_in(argument)


def axis_choices(field: FieldInfo) -> dict[str, type[Settings]]:
    """Return the built-in choices of an axis by name; empty for a field that is not an axis."""
    parts = list(_parts_in(field.annotation))
    if CustomSettings not in parts:
        return {}
    return {part.model_fields["name"].default: part for part in parts if part is not CustomSettings}


def table_class(field: FieldInfo) -> type[Settings] | None:
    """Return the class of a field that is, or may be, a plain table."""
    types = set(get_args(field.annotation) or [field.annotation])
    types.discard(type(None))
    if len(types) != 1:
        return None
    (annotation,) = types
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return None


def walk(part: type[Settings] = Recipe, table: str = "") -> Iterator[Place]:
    """Yield every place that a recipe may have; of an axis also those below each of its choices."""
    for name, field in _fields_in_files(part).items():
        key = dotted(table, name)
        choices = axis_choices(field)
        if choices:
            yield Place(key, field, choices, None)
            for choice in choices.values():
                yield from walk(choice, key)
            continue
        inner = table_class(field)
        yield Place(key, field, {}, inner)
        if inner is not None:
            yield from walk(inner, key)


def _fields_in_files(part: type[Settings]) -> dict[str, FieldInfo]:
    """Return the fields that a recipe file may contain."""
    return {name: field for name, field in part.model_fields.items() if not field.exclude}


AXES = {place.key: place.choices for place in walk() if place.choices}
"""Choices of each axis: {"loss": {"cispo": Cispo, ...}, ...}."""

DEFAULT_NAMES = {place.key: place.field.get_default().name for place in walk() if place.key in AXES}
"""Name of the default choice of each axis."""

PROBLEM_FILES = (".jsonl", ".json", ".parquet", ".jsonl.gz")
"""Suffixes of files of problems."""


def is_named(key: str) -> bool:
    """Return whether the table at a key is a named choice, which may be written as its bare name."""
    if key in AXES or key == "task":
        return True
    table, _, name = key.rpartition(".")
    if table in ("tasks", "evaluation.sets"):
        return bool(name)
    # A task may have an environment of its own.
    return name == "environment" and is_named(table)


def expand(tree: Tree, table: str = "") -> dict[str, Any]:
    """Replace bare names by tables: loss = "dapo" becomes loss = {name = "dapo"}, and a file of problems its task."""
    expanded: dict[str, Any] = {}
    for name, value in tree.items():
        key = dotted(table, name)
        if isinstance(value, str) and is_named(key):
            if key not in AXES and value.endswith(PROBLEM_FILES):
                value = {"name": "file", "path": value}
            else:
                value = {"name": value}
        if isinstance(value, Mapping):
            value = expand(value, key)
        expanded[name] = value
    return expanded


def merge(below: Any, above: Any, key: str = "", *, keeps: bool = False) -> Any:
    """Return `above` merged over `below`.

    A named table with a different name replaces the other, whose settings are of another choice; with `keeps` these
    settings stay.
    """
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    have_names = "name" in above and "name" in below
    is_renamed = is_named(key) and have_names and above["name"] != below["name"]
    if is_renamed and not keeps:
        return dict(above)
    merged = dict(below)
    for name, value in above.items():
        if name in merged:
            value = merge(merged[name], value, dotted(key, name), keeps=keeps)
        merged[name] = value
    return merged


def names_of(part: type[Settings]) -> list[str]:
    """Return the names of a table's settings in a file."""
    return [field.alias or name for name, field in part.model_fields.items()]


def settings_of(part: Settings, table: str = "", doc: str = "") -> dict[str, Setting]:
    """Return every setting of a recipe by its dotted key, in the order of the classes, with its description.

    `doc` describes the whole table; it is also the description of an axis's name.
    """
    settings: dict[str, Setting] = {}
    for name, own_doc in _docs_of(part).items():
        key = dotted(table, name)
        value = getattr(part, name)
        are_tables = isinstance(value, Mapping) and all(isinstance(inner, Settings) for inner in value.values())
        if isinstance(value, Settings):
            settings |= settings_of(value, key, own_doc)
        elif are_tables:
            for inner_name, inner in value.items():
                settings |= settings_of(inner, dotted(key, inner_name))
        else:
            if name == "name":
                own_doc = own_doc or doc
            settings[key] = Setting(key=key, value=value, doc=own_doc)
    return settings


def _docs_of(part: Settings) -> dict[str, str]:
    """Return the description of each field of a table, and of each setting that only its task or function knows."""
    docs: dict[str, str] = {}
    for name, field in _fields_in_files(type(part)).items():
        words = (field.description or "").split()
        docs[name] = " ".join(words)
    if part.model_extra:
        docs |= own_meanings(getattr(part, "name", None), part.model_extra)
    return docs


def differences(left: Recipe, right: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two recipes differ, by dotted key; None if one recipe lacks the setting."""
    before = _values_of(left)
    after = _values_of(right)
    different = [key for key in before | after if before.get(key) != after.get(key)]
    # Keep the settings of one table together, also if a choice that only one recipe has comes last.
    tables = list(dict.fromkeys(_outermost_table(key) for key in before | after))
    different.sort(key=lambda key: tables.index(_outermost_table(key)))
    return {key: (before.get(key), after.get(key)) for key in different}


def _outermost_table(key: str) -> str:
    table, _, _ = key.partition(".")
    return table


def _values_of(recipe: Recipe) -> dict[str, Any]:
    return {key: setting.value for key, setting in settings_of(recipe).items()}


def known_keys(part: type[Settings] = Recipe) -> list[str]:
    """Return the key of every setting that a recipe may have."""
    return [place.key for place in walk(part) if not place.choices and place.table is None]
