"""The functions of `import scalerl`."""

import ast
import doctest
import inspect
import json
import pydoc
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_code import sums

import scalerl
import scalerl.forecast.curves
from scalerl.errors import ExtraError, GraderError, InputError, RecipeError
from scalerl.recipe.import_path import import_function, is_local, path_of
from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store

FUNCTIONS = ("read", "train", "evaluate", "sft", "export", "fit_run", "load_recipe", "decide", "compare")
SMALL = {
    "pipeline": {"groups_per_batch": 2, "completions_per_group": 2, "max_lag": 1},
    "length": {"thinking_min": 6, "thinking_max": 8},
    "rollout.slots": 8,
    "evaluation": {"num_prompts": 2, "samples_per_prompt": 2, "every": 1},
    "budget.steps": 2,
}
ROWS = [{"prompt": f"{n}+1+2=", "answer": n + 3} for n in range(12)]


def test_import_is_light_and_modules_are_loaded_when_they_are_used():
    code = (
        "import sys, scalerl; heavy = {'torch', 'numpy', 'pydantic', 'scipy', 'transformers'} & set(sys.modules); "
        "assert not heavy, heavy; assert scalerl.errors.UserError; assert 'numpy' not in sys.modules; "
        "assert scalerl.curves.fit and scalerl.config.Recipe and scalerl.joint.plan; "
        "assert scalerl.decide and scalerl.compare and scalerl.State.RISING; "
        "assert scalerl.callbacks.LiveForecast; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'curve'"):
        scalerl.curve  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "call",
    [
        lambda: scalerl.train("tiny-cpu", "out"),
        lambda: scalerl.evaluate("tiny-base"),
        lambda: scalerl.sft("tiny-cpu", "out"),
        lambda: scalerl.export("runs/first", "out"),
    ],
    ids=["train", "evaluate", "sft", "export"],
)
@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_training_without_its_packages_names_the_extra(
    call: Callable[[], object], package: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraError, match=rf"{package} is missing.*scalerl\[train\]"):
        call()


def test_every_function_is_typed_and_documented():
    shown = pydoc.plain(pydoc.render_doc(scalerl))
    for words in ('scalerl.train("tiny-cpu"', "fit_run(folder", "grader=near", "Fit the curve of a run folder"):
        assert words in shown
    for function in (getattr(scalerl, name) for name in FUNCTIONS):
        signature = inspect.signature(function)
        annotations = [signature.return_annotation, *(each.annotation for each in signature.parameters.values())]
        assert function.__doc__
        assert signature.empty not in annotations


@pytest.mark.parametrize(
    "documented",
    [scalerl.forecast.curves, scalerl.load_recipe, scalerl.callbacks.LiveForecast],
)
def test_examples_of_docstrings_run(documented: object):
    (example, *_) = doctest.DocTestFinder(recurse=False).find(
        documented, "example", globs={"scalerl": scalerl, **vars(scalerl.callbacks), **vars(scalerl.curves)}
    )
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_examples_of_help_run_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On small runs: what is changed are settings, never what the examples call."""
    seven = {**SMALL, "budget.steps": 7}
    train, runs = scalerl.train, {}
    documented = "\n".join(getattr(scalerl, name).__doc__ or "" for name in FUNCTIONS)

    def shorter(recipe: str, out: str, **others: Any) -> scalerl.TrainedRun:
        if out not in runs:
            runs[out] = train(recipe, out, **{**others, "settings": seven})
        return runs[out]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scalerl, "train", shorter)
    shutil.copy(Path(scalerl.__file__).parent / "assets" / "example_runs.csv", "runs.csv")
    Path("mine.toml").write_text(
        'extends = "tiny-cpu"\n'
        "sft = {num_demonstrations = 40, num_heldout = 4, batch_tokens = 600}\n"
        "evaluation = {num_prompts = 2, samples_per_prompt = 1}\n"
    )
    names: dict[str, Any] = {}
    blocks = [textwrap.dedent(text) for text in re.findall(r"(?:^    .*\n|^\n)+", scalerl.__doc__ or "", re.MULTILINE)]
    assert sum("scalerl." in block for block in blocks) == 4
    exec("\n".join(blocks), names)
    grades = runs["runs/mine"].metrics
    # The grader reads the answers of the model, without raising, and rewards some of them.
    assert not any("grader/error" in row for row in grades)
    assert any(row["reward/mean"] > -1 for row in grades)
    for example in doctest.DocTestParser().get_examples(documented):
        exec(example.source.replace('"tiny-cpu", sets', '"mine.toml", sets'), names)


def test_examples_of_docstrings_call_functions_as_they_are():
    text = "\n".join([scalerl.__doc__ or "", *(getattr(scalerl, name).__doc__ for name in FUNCTIONS)])
    calls = re.findall(r"scalerl\.(?:curves\.)?\w+\((?:[^()]|\([^()]*\))*\)", text)
    assert len(calls) >= 10
    for call in calls:
        node = ast.parse(call, mode="eval").body
        assert isinstance(node, ast.Call)
        function = eval(ast.unparse(node.func), {"scalerl": scalerl})
        inspect.signature(function).bind(*node.args, **{word.arg: word.value for word in node.keywords if word.arg})


def test_page_shows_everything_and_its_examples_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
    named = set(re.findall(r"\w+", text))
    functions = [name for name in scalerl.curves.__all__ if inspect.isfunction(getattr(scalerl.curves, name))]
    assert len(functions) > 10
    assert not {*functions, *scalerl.__all__} - {"__version__"} - named
    logs, example, _ = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    exec(example, {})
    shown = capsys.readouterr().out
    assert shown.startswith("levelling off ")
    assert "0.60" in shown
    assert "take ('new',)" in shown
    assert 'scalerl.read("runs.csv", x="hours", y="score", by="recipe")' in logs
    shutil.copy(Path(scalerl.__file__).parent / "assets" / "example_runs.csv", tmp_path / "runs.csv")
    monkeypatch.chdir(tmp_path)
    exec(logs, {})
    assert re.match(r"levelling off (stop|open) 0\.8\d\d \[0\.8\d\d, 0\.8\d\d\]\n", capsys.readouterr().out)


def test_settings_are_those_of_the_command_line():
    recipe = scalerl.load_recipe("tiny-cpu", {"loss": "dapo", "optimizer": {"lr": 1e-3}, "sinks": ("wandb",)})
    assert recipe == load_recipe("tiny-cpu", ["loss=dapo", "optimizer.lr=1e-3", 'sinks=["wandb"]']).model_copy(
        update={"description": recipe.description}
    )
    again = scalerl.load_recipe(recipe, {"loss.clip_high": 0.3})
    assert again.loss.model_dump() == {**recipe.loss.model_dump(), "clip_high": 0.3}
    with pytest.raises(RecipeError, match=r"optimizer\.lrr"):
        scalerl.load_recipe(recipe, {"optimizer.lrr": 1})


def test_rows_and_a_local_grader_train(tmp_path: Path):
    seen: list[str] = []

    def grade(text: str, answer: str) -> float:
        seen.append(answer)
        return 0.25 if len(text) % 2 else 0.75

    run = scalerl.train("tiny-cpu", tmp_path / "run", problems=ROWS, grader=grade, settings=SMALL)
    assert (run.ended, len(run.metrics), [row["step"] for row in run.evals]) == ("budget", 2, [0, 1, 2])
    assert set(seen) <= {str(row["answer"]) for row in ROWS}
    assert all(0.25 <= row["score"] <= 0.75 and row["reward"] == 0 for row in run.evals)
    # Values differ where none is correct, and are trained on.
    assert all(-0.5 <= row["reward/mean"] <= 0.5 for row in run.metrics)
    resumed = scalerl.train(
        "tiny-cpu", tmp_path / "run", problems=ROWS, grader=grade, settings={**SMALL, "budget.steps": 3}, resume=True
    )
    assert len(resumed.metrics) == 3
    with pytest.raises(InputError):
        run.fit()


def test_local_grader_that_raises_costs_its_verdict(tmp_path: Path):
    def picky(text: str, answer: str) -> bool:
        if int(answer) % 2:
            raise LookupError("odd")
        return True

    run = scalerl.train("tiny-cpu", tmp_path / "run", problems=ROWS, grader=picky, settings=SMALL)
    recorded = [json.loads(line) for line in (tmp_path / "run" / store.METRICS).read_text().splitlines()]
    assert sum(row.get("grader/error", 0) for row in [*recorded, *run.evals]) > 0

    async def judge(text: str, answer: str) -> bool:
        return True

    with pytest.raises(GraderError, match="coroutine function that cannot be imported"):
        scalerl.train("tiny-cpu", tmp_path / "other", problems=ROWS, grader=judge, settings=SMALL)


def test_importable_functions_keep_their_path():
    assert path_of(sums, "problems") == "own_code:sums"
    assert not is_local("own_code:sums")
    nameless = path_of(lambda: ROWS, "problems")
    assert is_local(nameless)
    assert nameless.endswith(":problems")
    assert import_function(nameless)() is ROWS


def test_evaluation_and_fits_by_name(tmp_path: Path):
    (row,) = scalerl.evaluate("tiny-base", settings=SMALL, sets=["main"])
    assert (row["set"], row["num_samples"]) == ("main", 4)
    path = tmp_path / "log.csv"
    lines = [f"{step * 10},{0.8 * step / (step + 4):.4f}" for step in range(1, 31)]
    path.write_text("\n".join(["gpu_hours,reward", *lines]))
    fit = scalerl.fit_run(path)
    assert 0.5 < fit.params["ceiling"] <= 1
