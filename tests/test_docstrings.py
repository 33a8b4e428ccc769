"""Examples in docstrings run as they are; those of `import scalerl` are in test_api.py."""

import doctest
import functools
import re
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from wandb_files import write_wandb

from scalerl.callbacks import follow, live_forecast
from scalerl.forecast.report import figures
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import Settings
from scalerl.training.environments import protocol
from scalerl.training.graders import judge

SOURCE = Path(protocol.__file__).parents[2]
SMALL = (live_forecast, figures)


def block(text: str | None, begins: str) -> str:
    """Return the lines of an example, from the line that begins so to the next blank line."""
    (example,) = re.findall(rf"^( *{re.escape(begins)}.*?)\n\s*\n", text or "", re.DOTALL | re.MULTILINE)
    return textwrap.dedent(example)


def test_every_interactive_example_is_run():
    holders = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if ">>> " in path.read_text()}
    assert holders == {"api.py", "forecast/curves/__init__.py", "callbacks/follow.py", *map(file_of, SMALL)}


def file_of(module: ModuleType) -> str:
    return str(Path(module.__file__ or "").relative_to(SOURCE))


@pytest.mark.parametrize("module", SMALL, ids=file_of)
def test_small_examples_print_what_they_say(module: ModuleType):
    done = doctest.testmod(module)
    assert done.attempted
    assert not done.failed


def test_log_of_the_example_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write_wandb(Path("wandb/latest-run"), [0.2 + 0.4 * step / (step + 3) for step in range(10)])
    (example,) = doctest.DocTestParser().get_examples(follow.__doc__ or "")
    exec(example.source, {"follow": functools.partial(follow, every_s=0.01, until_quiet_s=0.02)})
    assert capsys.readouterr().out.count("\n") == 1


def test_environment_of_the_example_plays():
    text = protocol.__doc__ or ""
    names: dict = {}
    exec(text[text.index("class Guess") : text.index("None ends a conversation")], names)
    guess = names["Guess"](None, 142, most=100)
    assert [guess.step(text) for text in ("7", "50", "what", "42")] == ["higher", "lower", "a number, please", 1.0]


def test_judge_of_the_example_is_a_grader():
    changes = tomllib.loads(block(judge.__doc__, "[task.graders.style]"))
    settings = [f"task.graders.style.{key}={value!r}" for key, value in changes["task"]["graders"]["style"].items()]
    grader = load_recipe("tiny-cpu", settings).task.graders["style"]
    assert isinstance(grader, Settings)
    assert grader.name == "judge"
