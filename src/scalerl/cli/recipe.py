"""scalerl recipe list | show | diff | check: show and compare recipes, and translate those of other frameworks."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scalerl.cli import options as opt
from scalerl.cli.console import show, table
from scalerl.cli.options import argument, option

if TYPE_CHECKING:
    from scalerl.recipe.recipe import Recipe

app = typer.Typer(
    help="List, show and compare recipes, and translate those of other frameworks.",
    no_args_is_help=True,
)

_HEAD = "model.fp32_head"
_BASELINE = "advantage.baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One of ScaleRL's eight components, as a recipe sets it."""

    component: str
    field: str
    """Dotted key of the axis."""
    setting: str
    as_scalerl: bool
    note: str
    """Says if it has no effect on this machine, or acts at one end but should act at both."""


def gpu_visible() -> bool:
    """Return whether this machine has a GPU to train on, without importing torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*")) or any(Path("/dev", name).exists() for name in ("dxg", "kfd"))


_EIGHT = {
    "pipeline": "off-policy scheme",
    "loss": "loss",
    "weights": "loss average",
    "advantage.normalisation": "advantage norm",
    _HEAD: "FP32 head",
    "filter.zero_variance": "zero-variance filter",
    "curriculum": "curriculum",
    "length": "length control",
}
"""The eight components in the order of the paper, by key."""


def components(recipe: "Recipe", *, gpu: bool) -> list[Component]:
    """Return the eight components in the order of the paper."""
    from scalerl.recipe.effects import inert
    from scalerl.recipe.load import load_recipe

    scalerl = load_recipe("scalerl")
    without_effect = inert(recipe, gpu=gpu)
    rows: list[Component] = []
    for key, name in _EIGHT.items():
        notes: list[str] = []
        if key == "advantage.normalisation" and _BASELINE in without_effect:
            notes.append(f"{_BASELINE} is inert: {without_effect[_BASELINE]}")
        if key == _HEAD and recipe.model.fp32_head in ("generator", "learner"):
            notes.append(f"acts at one end only: set {_HEAD} = both")
        if key in without_effect:
            notes.append(f"inert here: {without_effect[key]}")
        setting = _setting(recipe, key)
        as_scalerl = _at(recipe, key) == _at(scalerl, key)
        rows.append(Component(component=name, field=key, setting=setting, as_scalerl=as_scalerl, note="; ".join(notes)))
    return rows


def _setting(recipe: "Recipe", key: str) -> str:
    """Return the value of an axis in words."""
    from scalerl.recipe.recipe import mode_name

    pipeline = recipe.pipeline
    filters = recipe.filter
    match key:
        case "pipeline":
            lag = f"max_lag {pipeline.max_lag}, push_every {pipeline.push_every}, drain {show_value(pipeline.drain)}"
            return f"{mode_name(pipeline)}: {lag}"
        case "filter.zero_variance":
            refill = f", refilled by at most {filters.refill} batches" if filters.refill else ""
            return show_value(filters.zero_variance) + refill
    value = _at(recipe, key)
    return value if isinstance(value, str) else _named(value)


def _at(recipe: "Recipe", key: str) -> Any:
    """Return the value of an axis; for the pipeline, only the settings that define the off-policy scheme."""
    from scalerl.recipe.recipe import value_at

    if key == "pipeline":
        return recipe.pipeline.model_dump(include={"max_lag", "push_every", "drain", "waits_for"})
    if key == "filter.zero_variance":
        return recipe.filter.zero_variance, recipe.filter.refill
    return value_at(recipe, key)


def show_value(value: Any) -> str:
    """Return a value as written in TOML."""
    if value is None:
        return "-"
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


def _named(part: Any) -> str:
    settings = [f"{name} {show_value(value)}" for name, value in part if name not in ("name", "marker", "thinking_end")]
    return f"{part.name} ({', '.join(settings)})" if settings else part.name


@app.command("list")
def list_command(as_json: bool = opt.JSON) -> None:
    """List the recipes that come with the package.

    [dim]scalerl recipe list[/dim]
    """
    from scalerl.recipe.load import list_recipes, load_recipe
    from scalerl.recipe.recipe import mode_name

    recipes = {name: load_recipe(name) for name in list_recipes()}
    rows = [(name, mode_name(r.pipeline), r.loss.name, r.description) for name, r in recipes.items()]
    content = {"recipes": {name: recipe.description for name, recipe in recipes.items()}}
    show("recipe list", as_json, content, lambda: [table(("recipe", "off-policy", "loss", "what it is"), rows)])


@app.command("show")
def show_command(name: str = opt.RECIPE, overrides: list[str] | None = opt.OVERRIDES, as_json: bool = opt.JSON) -> None:
    """Show how a recipe sets ScaleRL's eight components, then every setting; recipe diff shows what else differs.

    [dim]scalerl recipe show tiny-cpu --set pipeline.max_lag=0[/dim]

    A value of --set is TOML or plain text. To use escapes, write the quotes: --set 'KEY="a\\nb"'.
    """
    from scalerl.recipe.load import load_recipe
    from scalerl.recipe.recipe import body_dtype
    from scalerl.recipe.secrets import hidden
    from scalerl.recipe.tree import settings_of
    from scalerl.training.loop.slots import expected_lag, full_slots, lag_words

    recipe = load_recipe(name, overrides or ())
    gpu = gpu_visible()
    rows = components(recipe, gpu=gpu)
    lag = expected_lag(recipe.rollout.slots or full_slots(recipe.pipeline), recipe.pipeline)

    def text() -> Iterator[Any]:
        yield f"{name}: {hidden(recipe.description)}" if recipe.description else name
        device = "a GPU is visible" if gpu else "no GPU is visible"
        dtype = body_dtype(recipe.model, gpu=gpu)
        yield f"on this machine: {device}; the body is {dtype} (model.dtype = {recipe.model.dtype})"
        cells = [(row.component, row.setting, "yes" if row.as_scalerl else "no") for row in rows]
        yield table(("component", "set to", "as ScaleRL"), cells)
        yield f"  lag: {lag_words(lag)}{'' if recipe.rollout.slots else ' (fewer if memory is short)'}"
        yield from (f"  {row.component}: {row.note}" for row in rows if row.note)
        settings = settings_of(recipe)
        shown = {key: show_value(hidden(setting.value, key)) for key, setting in settings.items()}
        shown |= dict.fromkeys(recipe.derived, "derived (train --check)")
        yield table(("setting", "value", "meaning"), [(key, shown[key], s.doc) for key, s in settings.items()])

    content = {"recipe": hidden(recipe.model_dump(mode="json")), "components": [asdict(row) for row in rows]}
    show("recipe show", as_json, content | {"expected_lag": asdict(lag)}, text)


@app.command("diff")
def diff_command(
    name: str = opt.RECIPE,
    other: str | None = argument("OTHER", "The second recipe. Left out: the first one, changed by --set.", None),
    overrides: list[str] | None = opt.OVERRIDES,
    as_json: bool = opt.JSON,
) -> None:
    """Show the settings in which two recipes differ; --set changes the second.

    [dim]scalerl recipe diff scalerl grpo[/dim]
    """
    from scalerl.recipe.load import load_recipe
    from scalerl.recipe.secrets import hidden
    from scalerl.recipe.tree import differences, settings_of

    left = load_recipe(name)
    right = load_recipe(other or name, overrides or ())
    differing: dict[str, dict[str, Any]] = {}
    for key, (before, after) in differences(left, right).items():
        if key != "description":
            differing[key] = {"left": hidden(before, key), "right": hidden(after, key)}
    meanings = settings_of(left) | settings_of(right)
    rows = [(key, *map(show_value, values.values()), meanings[key].doc) for key, values in differing.items()]
    made = table(("setting", name, other or f"{name}, changed", "meaning"), rows)
    show("recipe diff", as_json, {"settings": differing}, lambda: [made if rows else "No setting differs."])


@app.command("check")
def check_command(
    file: Path = argument(
        "FILE", "verl's YAML or overrides, TRL's arguments (YAML, JSON, Python, a command), prime-rl's TOML."
    ),
    framework: str | None = option(
        "NAME", "trl, verl or prime-rl. Unset: detected.", check=opt.one_of("trl", "verl", "prime-rl")
    ),
    as_json: bool = opt.JSON,
) -> None:
    """Translate another framework's recipe to ours; list where it differs from ScaleRL and which setting to change.

    Nothing is run or imported: the file is read as text.

    [dim]scalerl recipe check verl.yaml
    scalerl recipe check train_grpo.py
    scalerl recipe check rl.toml[/dim]
    """
    from scalerl.recipe.peers import check_recipe

    checked = check_recipe(file, framework)

    def text() -> Iterator[Any]:
        yield f"{file}: a recipe of {checked.framework}"
        rows = [
            (row.theirs, f"{show_value(row.value)}{' (default)' * row.is_default}",
             f"{row.ours} = {show_value(row.our_value)}")
            for row in checked.translations
        ]  # fmt: skip
        yield table(("their setting", "value", "ours"), rows)
        yield f"{len(checked.differences)} differences from ScaleRL:"
        for number, row in enumerate(checked.differences, start=1):
            change = f"Set {row.change}" if row.change else f"There is no setting for it in {checked.framework}"
            yield f"{number:3}. {row.statement}.\n     {change}."

    show("recipe check", as_json, {"file": str(file), **asdict(checked)}, text)
