import subprocess
import sys
from typing import Any

import pytest

from scalerl.errors import RecipeError
from scalerl.recipe.choose import choose, import_function, keyword_settings
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import CustomSettings, MixedTaskSettings, Settings
from scalerl.recipe.tree import AXES
from scalerl.training.tasks.curriculum import CURRICULA
from scalerl.training.tasks.length import LENGTHS


def scaled(value, *, factor=2.0):
    return value * factor


def needy(value, *, power):
    return value**power


def typed(*, seed: int = 0, share: float = 0.5, path: str = "") -> float:
    return share


class Scaled(Settings):
    name: str = "scaled"
    factor: float = 3.0


TABLE = {"scaled": scaled, "plain": abs}


def test_a_name_becomes_its_function_with_its_settings():
    assert choose(TABLE, Scaled(factor=5.0))(2) == 10


def test_import_path_chooses_a_users_function(monkeypatch, tmp_path):
    (tmp_path / "my_losses.py").write_text("def doubled(value, *, factor=2):\n    return value * factor\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = load_recipe("scalerl", ["loss=my_losses:doubled", "loss.factor=7"])
    assert choose({}, recipe.loss)(3) == 21
    assert choose({}, load_recipe("scalerl", ["loss=my_losses:doubled"]).loss)(3) == 6


def custom(name: str, **settings: Any) -> CustomSettings:
    return CustomSettings.model_validate({"name": name, **settings})


@pytest.mark.parametrize(
    "part, message",
    [
        (custom("no_such_module:f"), 'no module is called "no_such_module"'),
        (
            custom("scalerl.training.types:derive_sed"),
            'scalerl.training.types has no "derive_sed"; did you mean "derive_seed"?',
        ),
        (custom("scalerl:__version__"), "it is not a function but str"),
        (custom("scalerl.recipe.choose:import_function", cap=3), "cap is not a setting of"),
        (Scaled(name="scald"), 'choices: "scaled", "plain"; did you mean "scaled"?'),
        (load_recipe("scalerl").task, "task.name is not set"),
        (custom("builtins:min"), '"builtins:min" has no known signature'),
        (custom(f"{__name__}:scaled", fctor=1), ':scaled", which has factor; did you mean "factor"'),
        (custom(f"{__name__}:needy"), "power is not set"),
        (custom(f"{__name__}:typed", seed="many"), "but must be a whole number"),
        (custom(f"{__name__}:typed", seed=True), "but must be a whole number"),
        (custom(f"{__name__}:typed", path=3), "but must be text"),
        (MixedTaskSettings.model_validate({"name": "scaled", "wieght": 2.0}), 'did you mean "weight"?'),
    ],
)
def test_errors_name_what_is_wrong(part, message):
    with pytest.raises(RecipeError) as caught:
        choose(TABLE, part)
    assert message in str(caught.value)


def test_whole_number_is_a_number():
    assert choose({}, custom(f"{__name__}:typed", share=1))() == 1


@pytest.mark.parametrize(
    "name, code, reason",
    [
        ("wordy_losses", "raise RuntimeError('no licence:\\n  ask for one')", "RuntimeError: no licence: ask for one"),
        ("script_of_losses", "import sys\nsys.exit('usage:\\n  script FILE')", "SystemExit: usage: script FILE"),
    ],
)
def test_failing_import_is_reported_on_one_line(monkeypatch, tmp_path, name, code, reason):
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError) as caught:
        import_function(f"{name}:f")
    assert str(caught.value) == f'"{name}:f" cannot be imported: {reason}'


def test_console_script_finds_modules_in_current_folder(tmp_path):
    """Such a script has its own folder on sys.path, not the current one; installed packages come before that."""
    (tmp_path / "my_losses.py").write_text("from my_numbers import FACTOR\ndef f(value):\n    return FACTOR * value\n")
    (tmp_path / "my_numbers.py").write_text("FACTOR = 7\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('not the one that was meant')\n")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "script.py"
    script.write_text(
        "import sys\nfrom scalerl.recipe.choose import import_function\n"
        "assert not {'', sys.argv[1]} & set(sys.path)\n"
        "print(import_function('my_losses:f')(6), import_function('json:dumps')([1]))\n"
        "import_function('my_losses:f')\n"
        "assert sys.path.count(sys.argv[1]) == 1 and sys.path[-1] == sys.argv[1]\n"
    )
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (run.stdout, run.returncode) == ("42 [1]\n", 0), run.stderr


def _tables():
    pytest.importorskip("torch")
    from scalerl.training.learner.references import REFERENCES
    from scalerl.training.rl.advantages import BASELINES, NORMALISATIONS
    from scalerl.training.rl.correction import CORRECTIONS
    from scalerl.training.rl.credit import CREDITS
    from scalerl.training.rl.entropy import CONTROLS
    from scalerl.training.rl.imitation import IMITATIONS
    from scalerl.training.rl.kl import ESTIMATORS
    from scalerl.training.rl.losses import LOSSES
    from scalerl.training.rl.weights import WEIGHTS

    return {
        "loss": LOSSES,
        "correction": CORRECTIONS,
        "weights": WEIGHTS,
        "entropy": CONTROLS,
        "imitation": IMITATIONS,
        "kl.estimator": ESTIMATORS,
        "kl.reference": REFERENCES,
        "advantage.baseline": BASELINES,
        "advantage.normalisation": NORMALISATIONS,
        "advantage.credit": CREDITS,
        "curriculum": CURRICULA,
        "length": LENGTHS,
    }


def test_choices_match_the_functions_keyword_arguments():
    """The recipe's names, settings and defaults, and the functions' keyword-only arguments, are the same."""
    tables = _tables()
    assert tables.keys() == AXES.keys()
    for axis, choices in AXES.items():
        assert choices.keys() == tables[axis].keys(), axis
        for name, part in choices.items():
            arguments = keyword_settings(tables[axis][name])
            assert arguments.keys() == part.model_fields.keys() - {"name"}, f"{axis} {name}"
            for setting, argument in arguments.items():
                if argument.default is not argument.empty:
                    assert part.model_fields[setting].default == argument.default, f"{axis} {name} {setting}"


def test_filter_settings_are_those_of_the_filters():
    pytest.importorskip("torch")
    from scalerl.recipe.parts import FilterSettings
    from scalerl.training.rl.filters import effective_batch

    # Refilling comes before a batch is there (training/loop/refill.py).
    assert keyword_settings(effective_batch).keys() >= FilterSettings.model_fields.keys() - {"refill"}
