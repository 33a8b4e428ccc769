"""Read a recipe: a name or a file, the recipe that it extends, and --set on top.

recipes/scalerl.toml  <-  extends  <-  mine.toml  <-  --set loss.cap=4  ->  Recipe
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from scalerl.errors import RecipeError, RecipeProblem, UserError, not_utf8
from scalerl.recipe.keys import Tree, dotted, leaves, nested
from scalerl.recipe.messages import Origins, problems_of
from scalerl.recipe.recipe import Recipe, trusting
from scalerl.recipe.suggest import did_you_mean
from scalerl.recipe.tree import DEFAULT_NAMES, expand, is_named, merge
from scalerl.runfolder.json_text import parse_json

_SUFFIX = ".toml"
DERIVED = "derived"
"""Key of the list of settings that are derived from the model and the problems."""


def shipped(kind: Literal["recipe", "study"]) -> dict[str, Traversable]:
    """Return the files of the recipes or studies that come with the package, by name."""
    folder = files("scalerl") / kind / {"recipe": "recipes", "study": "studies"}[kind]
    found = {entry.name.removesuffix(_SUFFIX): entry for entry in folder.iterdir() if entry.name.endswith(_SUFFIX)}
    return dict(sorted(found.items()))


def list_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return list(shipped("recipe"))


Layer = tuple[str, Tree]
"""Settings, and the name of their origin in messages."""


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe by name or file, with `key=value` overrides; RecipeError lists every problem."""
    return load_layers(name_or_path, [override_layer(text) for text in overrides])


def load_layers(name_or_path: str | Path, *groups: Sequence[Layer]) -> Recipe:
    """Return a recipe by name or file, with groups of layers on top, one after the other.

    Within a group, the order matters only for the same key.
    """
    tree: dict[str, Any] = {}
    for key, name in DEFAULT_NAMES.items():
        tree = merge(tree, nested(key, {"name": name}))
    origins = Origins()
    for label, layer in _file_layers(name_or_path):
        tree = _merged(tree, layer)
        origins.add(label, [key for key, _ in leaves(layer)])
        origins.otherwise = label
    for layers in groups:
        tree = _with_layers(tree, layers, origins)
    return _validated(tree, origins)


def changed_recipe(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with `key=value` overrides; RecipeError lists every problem."""
    if not overrides:
        return recipe
    origins = Origins()
    tree = _with_layers(recipe.model_dump(mode="json"), [override_layer(text) for text in overrides], origins)
    return _validated(tree, origins)


def with_derived(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with derived values; no settings are left to derive."""
    tree = {**recipe.model_dump(mode="json"), DERIVED: ()}
    for key, value in values.items():
        tree = merge(tree, nested(key, value))
    return trusting(_validated(tree, Origins()), trust_remote_code=recipe.model.trust_remote_code)


def override_layer(text: str) -> Layer:
    """Return the layer of a user's `--set text`."""
    return f"--set {text}", expand(nested(*read_override(text)))


def given_keys(overrides: Sequence[str]) -> Iterator[str]:
    """Yield the keys of the settings that a user's `--set` texts change."""
    for text in overrides:
        _, layer = override_layer(text)
        for key, _ in leaves(layer):
            yield key


def _with_layers(tree: Tree, layers: Sequence[Layer], origins: Origins) -> dict[str, Any]:
    """Return a tree with a group of layers on top."""
    # Merge all into one layer, so that the order of a name and its settings does not matter.
    above: dict[str, Any] = {}
    for label, layer in layers:
        # A change of name keeps the settings of other --set options.
        above = merge(above, layer, keeps=True)
        origins.add(label, [key for key, _ in leaves(layer)])
    tree = _merged(tree, above)
    if layers and "description" not in above and isinstance(tree.get("description"), str):
        changes = ", ".join(" ".join(label.removeprefix("--set ").split()) for label, _ in layers)
        tree["description"] = tree["description"] and f"{tree['description']}; changed: {changes}"
    return tree


def _with_own_defaults(layer: Tree) -> Tree:
    """Return a layer that chooses loss = "none" with the defaults that fit it.

    There is something to learn from every completion, also where all of a group, or of a problem, are right.
    """
    layer = merge({"filter": {"zero_variance": False}}, layer)
    if "curriculum" in layer:
        return layer
    return {**layer, "curriculum": {"name": "uniform"}}


def _merged(tree: Tree, layer: Tree) -> dict[str, Any]:
    """Return a layer merged over the tree; settings of the layer are no longer derived."""
    set_here = [key for key, _ in leaves(layer)]
    if _loss(layer) == "none" != _loss(tree):
        layer = _with_own_defaults(layer)
    derived = tree.get(DERIVED)
    if isinstance(derived, list | tuple):
        tree = {**tree, DERIVED: [key for key in derived if key not in set_here]}
    return merge(tree, layer)


def _loss(tree: Tree) -> Any:
    """Return the name of the loss in a tree of settings; None if it has none."""
    loss = tree.get("loss")
    return loss.get("name") if isinstance(loss, Mapping) else None


def load_written(file: Path) -> Recipe:
    """Return the recipe that a run or a study has written; RecipeError if another version wrote it."""
    try:
        return load_recipe(file)
    except RecipeError as error:
        first = error.details[0]
        # No suggestion: a program wrote the file, so nothing in it is misspelt.
        statement = f"{first.statement}; another version of scalerl wrote that file"
        raise RecipeError(RecipeProblem(origin=first.origin, statement=statement)) from None


def _validated(tree: Tree, origins: Origins) -> Recipe:
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    raise RecipeError(*(problem for detail in errors for problem in problems_of(detail, tree, origins)))


def _file_layers(name_or_path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the files of a recipe as (label, tree), beginning with the one that extends no other."""
    layers: list[tuple[str, dict[str, Any]]] = []
    seen: list[str] = []
    reference = name_or_path
    folder = Path()
    asked_by = ""
    while True:
        label, source, identity = locate("recipe", reference, RecipeError, folder, asked_by)
        if identity in seen:
            raise RecipeError(f"{asked_by}extends goes in a circle: {' -> '.join([*seen, identity])}")
        seen.append(identity)
        tree = read_table(f"{asked_by}{label}", source, RecipeError)
        parent = tree.pop("extends", None)
        if layers:
            # The description of a recipe does not apply to recipes that extend it.
            tree.pop("description", None)
        layers.append((label, _anchored(expand(tree), source)))
        if parent is None:
            return layers[::-1]
        if not isinstance(parent, str):
            raise RecipeError(
                f"{label}: extends is {json.dumps(parent, default=str)} but must be a recipe's name or file"
            )
        folder = source.parent if isinstance(source, Path) else Path()
        reference = parent
        asked_by = f"{label}: "


def _anchored(tree: dict[str, Any], source: Path | Traversable) -> dict[str, Any]:
    """Return a file's settings; paths of data files relative to the file are resolved.

    Paths that do not exist there, and those in files written by a program, remain relative to the current folder.
    """
    if not isinstance(source, Path) or source.suffix != _SUFFIX:
        return tree

    def anchored(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: anchored(inner, dotted(key, name)) for name, inner in value.items()}
        table, _, name = key.rpartition(".")
        if name not in ("path", "evaluation_path") or not (is_named(table) and isinstance(value, str) and value):
            return value
        beside = source.parent / value
        return str(beside) if "\0" not in value and beside.exists() else value

    return anchored(tree, "")


def locate(
    kind: Literal["recipe", "study"],
    reference: str | Path,
    error: type[UserError],
    folder: Path = Path(),
    asked_by: str = "",
) -> tuple[str, Path | Traversable, str]:
    """Return the label of a recipe or study for messages, its file, and an identifier of the file."""
    text = str(reference)
    named = shipped(kind)
    if "\0" in text:
        field = "extends is " if asked_by else ""
        raise error(f"{asked_by}{field}{json.dumps(text)}, but no {kind} or file can have a null byte in its name")
    is_path = isinstance(reference, Path) or text.endswith((_SUFFIX, ".json")) or "/" in text or "\\" in text
    if text in named and not is_path:
        return f"{kind} {text}", named[text], text
    path = Path(folder, reference)
    if is_path or path.exists():
        if kind == "recipe" and path.is_dir():
            # The folder of a run contains its recipe.
            path = path / "recipe.json"
        return str(path), path, str(path.resolve())
    meant = did_you_mean(text, named)
    if Path(folder, f"{text}{_SUFFIX}").is_file():
        meant = f'; did you mean "{text}{_SUFFIX}"?'
    where = f"scalerl {kind} list shows all; your own file is given by its path"
    raise error(f'{asked_by}there is no {kind} "{text}"{meant} ({where})')


def read_table(
    label: str, source: Path | Traversable, error: type[UserError], parse: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """Return the table in a TOML or JSON file, or in a file that `parse` reads; raise `error` if that fails."""
    if parse is not None:
        fault_words = "cannot be parsed"
    elif source.name.endswith(".json"):
        parse = parse_json
        fault_words = "is not valid JSON"
    else:
        parse = tomllib.loads
        fault_words = "is not valid TOML"
    try:
        # Accept the byte-order mark that some editors write.
        tree = parse(source.read_text(encoding="utf-8-sig"))
    except OSError as fault:
        raise error(f"{label} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError as fault:
        raise error(not_utf8(label, fault)) from None
    except (ValueError, SyntaxError, RecursionError) as fault:
        if isinstance(fault, UserError):
            raise
        raise error(f"{label} {fault_words}: {fault}") from None
    if not isinstance(tree, dict):
        raise error(f"{label} does not contain a table of settings")
    return tree


def read_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of a user's `key=value`."""
    key, equals, value_text = text.partition("=")
    key = key.strip()
    value_text = value_text.strip()
    if equals and not value_text and all(key.split(".")):
        raise RecipeError(f"--set {text}: has no value; an empty one is written --set '{key}=\"\"'")
    if not equals or not all(key.split(".")):
        raise RecipeError(f"--set {text}: must look like key=value, for example loss.cap=4")
    try:
        parsed = tomllib.loads(f"value = {value_text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    # Anything that is not a TOML value is text, so that names and paths need no quotes in a shell.
    return key, parsed["value"] if parsed.keys() == {"value"} else value_text
