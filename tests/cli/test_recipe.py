import re
from importlib.resources import files
from typing import Any

import pytest
from commands import checked_json
from typer.testing import CliRunner

from scalerl.cli import recipe as recipe_module
from scalerl.cli.recipe import app, components
from scalerl.recipe.load import list_recipes, load_recipe
from scalerl.training.loop.slots import expected_lag, full_slots


@pytest.fixture(autouse=True)
def wide_screen_without_a_gpu(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(recipe_module, "gpu_visible", lambda: False)


def run(*arguments: str, exit_code: int = 0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == exit_code, result.output
    return result


def printed_json(*arguments: str) -> dict[str, Any]:
    """What a command prints with --json."""
    return checked_json(run(*arguments, "--json").stdout)


def test_list_names_every_recipe():
    output = run("list").stdout
    assert all(name in output for name in list_recipes())
    assert printed_json("list")["recipes"].keys() == set(list_recipes())


def test_show_has_eight_components_and_every_setting():
    output = run("show", "scalerl").stdout
    assert "PipelineRL-8 (bounds the mean lag): max_lag 8, push_every 1, drain false" in output
    assert "inert here: the body is float32" in output
    assert "learner.micro_batch_tokens" in output
    shown = printed_json("show", "scalerl")
    assert len(shown["components"]) == 8
    assert all(component["as_scalerl"] for component in shown["components"])
    assert shown["recipe"] == load_recipe("scalerl").model_dump(mode="json")
    assert (shown["expected_lag"]["slots"], shown["expected_lag"]["binds"]) == (9 * 768, True)
    lag = "128 slots for batches of 128: expected lag 1.5 steps on average, 4 for the oldest group; max_lag = 8"
    assert lag in run("show", "tiny-cpu").stdout


def test_tables_fit_a_screen_and_are_wide_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (("list",), ("show", "scalerl"), ("diff", "scalerl", "grpo")):
        lines = run(*words).stdout.splitlines()
        assert max(map(len, lines)) > 120
        assert not [line for line in lines if line.startswith("   ") and line.strip()], "a cell is folded"
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    output = run("show", "scalerl").stdout
    assert "pipeline.completions_per_group" in output
    assert "PipelineRL-8 (bounds the mean lag): max_lag 8, push_every 1, drain false" not in output


HEAD, NORM, LOO = "model.fp32_head", "advantage.normalisation", "advantage.baseline=leave_one_out"


@pytest.mark.parametrize(
    "words, gpu, field, note",
    [
        ("scalerl model.fp32_head=learner", True, HEAD, "acts at one end only"),
        ("scalerl model.fp32_head=none", True, HEAD, ""),
        ("scalerl", True, HEAD, ""),
        ("scalerl", False, HEAD, "inert here: the body is float32"),
        ("scalerl model.dtype=bfloat16", False, HEAD, ""),
        ("scalerl", True, "length", ""),
        (f"base {LOO}", True, NORM, "advantage.baseline is inert: leave_one_out scales"),
        (f"base {LOO} {NORM}=none", True, NORM, ""),
        # Exact only while all kept groups are of one size, which no setting can promise.
        (f"scalerl {LOO}", True, NORM, ""),
    ],
)
def test_components_say_which_are_inert(words, gpu, field, note):
    name, *overrides = words.split()
    (row,) = [row for row in components(load_recipe(name, overrides), gpu=gpu) if row.field == field]
    assert note in row.note
    assert bool(row.note) == bool(note)
    assert row.as_scalerl == (name == "scalerl" and not any(each.startswith(field) for each in overrides))


def test_refilled_batches_are_named():
    rows = components(load_recipe("scalerl", ["filter.refill=10"]), gpu=True)
    differing = [(row.field, row.setting) for row in rows if not row.as_scalerl]
    assert differing == [("filter.zero_variance", "true, refilled by at most 10 batches")]


def test_show_applies_changes():
    text = r"[bold]a\nb"
    changes = ("--set", "loss=dapo", "--set", f"model.path={text}", "--set", 'task.system="a\\nb"')
    recipe = printed_json("show", "scalerl", *changes)["recipe"]
    # TOML, or else text as it stands.
    assert (recipe["loss"]["name"], recipe["model"]["path"], recipe["task"]["system"]) == ("dapo", text, "a\nb")
    output = run("show", "scalerl", "--set", "loss.cap=4", "--set", f"model.path={text}").stdout
    assert text in output
    assert "14k completions; changed: loss.cap=4" in output


DIFFERING: dict[str, dict[str, tuple[Any, Any]]] = {
    "dapo magistral": {
        "pipeline.max_lag": (7, 8),
        "pipeline.push_every": (8, 1),
        "pipeline.drain": (True, False),
    },
    # Clips of dapo and gspo share their keys and not their descriptions.
    "base gspo --set loss.clip_low=0.2 --set loss.clip_high=0.26": {
        "loss.name": ("dapo", "gspo"),
        "loss.length_normalised": (None, True),
    },
    "scalerl --set loss.cap=4": {"loss.cap": (5.0, 4.0)},
    "scalerl scalerl": {},
}


@pytest.mark.parametrize("words", DIFFERING)
def test_diff_shows_only_differing_settings(words):
    differing = printed_json("diff", *words.split())["settings"]
    assert {key: (sides["left"], sides["right"]) for key, sides in differing.items()} == DIFFERING[words]
    output = run("diff", *words.split()).stdout
    assert all(key in output for key in differing)
    assert "optimizer.lr" not in output
    assert (output == "No setting differs.\n") == (not differing)


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("command", ["show", "diff"])
def test_no_key_is_printed(command, more):
    output = run(command, "scalerl", "--set", 'task={name="my:rows", api_key="abcdef123456"}', *more).stdout
    assert "api_key" in output
    assert "abcdef123456" not in output


def test_every_recipe_states_the_lag_to_expect():
    for name in list_recipes():
        text = (files("scalerl") / "recipe" / "recipes" / f"{name}.toml").read_text()
        stated = re.search(r"mean lag of\s+(?:# )?about ([\d.]+) steps", text)
        assert stated is not None, name
        recipe = load_recipe(name)
        lag = expected_lag(recipe.rollout.slots or full_slots(recipe.pipeline), recipe.pipeline)
        assert float(stated[1]) == pytest.approx(lag.mean, abs=0.06), name
