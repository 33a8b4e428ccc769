"""scalerl recipe check: the shipped recipes of three frameworks, with the differences that they have from ScaleRL."""

import json
from pathlib import Path

import pytest
from commands import scalerl

from scalerl.config import list_recipes, load_recipe, settings_of
from scalerl.config.peers import FRAMEWORKS, check_recipe
from scalerl.errors import UsageError

EXAMPLES = Path(__file__).parents[1] / "examples" / "peers"
EXPECTED = {
    "verl.yaml": {
        "cap_relative", "cap", "average", "normalisation", "fp32_head", "refills", "not_streaming", "anchor",
        "no_curriculum", "no_interruption", "start_kl",
    },
    "trl_grpo.py": {
        "cap_too_low", "average", "normalisation", "fp32_one_side", "no_zero_variance_filter", "not_streaming",
        "clip_never_acts", "no_curriculum", "no_interruption",
    },
    "prime_rl.toml": {
        "loss", "start_kl", "average", "normalisation", "fp32_one_side", "no_zero_variance_filter", "no_curriculum",
        "no_interruption", "discards", "lag_cannot_bind",
    },
}  # fmt: skip


def kinds(path: Path, framework: str | None = None) -> set[str]:
    return {row.kind for row in check_recipe(path, framework).differences}


@pytest.mark.parametrize("name", EXPECTED)
def test_differences_of_the_shipped_recipes(name: str):
    assert kinds(EXAMPLES / name) == EXPECTED[name]


@pytest.mark.parametrize(("name", "framework"), [(name, name.split(".")[0].split("_g")[0]) for name in EXPECTED])
def test_frameworks_are_recognised(name: str, framework: str):
    assert check_recipe(EXAMPLES / name).framework == framework.replace("_", "-")


@pytest.mark.parametrize("name", EXPECTED)
def test_translations_name_our_own_settings(name: str):
    known = {key for recipe in list_recipes() for key in settings_of(load_recipe(recipe))}
    known |= {key.rsplit(".", 1)[0] for key in known} | {"loss.clip_low", "loss.clip_high", "length.max_length"}
    assert {row.ours for row in check_recipe(EXAMPLES / name).translations} <= known


def test_relative_cap_is_translated_to_an_absolute_one():
    ours = {row.ours: row.our_value for row in check_recipe(EXAMPLES / "verl.yaml").translations}
    assert ours["loss.cap"] == pytest.approx(1.28)
    assert ours["pipeline.push_every"] == 4
    assert ours["weights.name"] == "token"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_settings_that_are_changed_as_told_differ_no_more(tmp_path: Path):
    text = (EXAMPLES / "verl.yaml").read_text()
    text = text.replace("clip_ratio_low: 0.2", "clip_ratio_low: 1").replace(
        "clip_ratio_high: 0.28", "clip_ratio_high: 4"
    )
    text = text.replace(
        "adv_estimator: grpo",
        "adv_estimator: reinforce_plus_plus_baseline\n  rollout_correction:\n    bypass_mode: true",
    )
    text = text.replace("use_kl_loss: true", "use_kl_loss: false")
    gone = EXPECTED["verl.yaml"] - kinds(written(tmp_path, "verl.yaml", text))
    assert gone == {"cap_relative", "cap", "normalisation", "anchor", "start_kl"}


def test_hydra_overrides_of_a_script_are_read(tmp_path: Path):
    script = written(
        tmp_path,
        "run.sh",
        "# a comment\npython -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo \\\n"
        "  actor_rollout_ref.actor.clip_ratio_high=0.28 +data.train_batch_size=128 \\\n"
        "  actor_rollout_ref.actor.ppo_mini_batch_size=128\n",
    )
    checked = check_recipe(script)
    assert checked.framework == "verl"
    assert {"loss", "clip_never_acts"} <= {row.kind for row in checked.differences}


def test_arguments_of_trl_are_read_from_any_format(tmp_path: Path):
    given = {"loss_type": "cispo", "epsilon_high": 5.0, "scale_rewards": "batch", "num_iterations": 4}
    command = "trl grpo --loss_type cispo --epsilon-high 5.0 --scale_rewards batch --num_iterations=4 --use_vllm"
    files = [
        written(tmp_path, "args.json", json.dumps(given)),
        written(tmp_path, "args.yaml", "\n".join(f"{key}: {value}" for key, value in given.items())),
        written(tmp_path, "run.sh", command),
    ]
    for path in files:
        found = kinds(path, "trl")
        assert "anchor" in found
        assert not found & {"cap", "cap_too_low", "loss", "normalisation", "clip_never_acts"}


def test_fp32_head_without_vllm_is_on_both_sides(tmp_path: Path):
    path = written(tmp_path, "args.json", json.dumps({"cast_lm_head_to_fp32": True, "loss_type": "grpo"}))
    assert not kinds(path) & {"fp32_head", "fp32_one_side"}


def test_lag_binds_with_enough_in_flight(tmp_path: Path):
    text = (EXAMPLES / "prime_rl.toml").read_text().replace("oversampling_factor = 2.0", "max_inflight_rollouts = 2304")
    assert "lag_cannot_bind" not in kinds(written(tmp_path, "rl.toml", text))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: [", "cannot be parsed"),
        ("a.toml", "a = ", "is not valid TOML"),
        ("a.json", "[1]", "does not hold a table of settings"),
        ("a.py", "x = 1", "no GRPOConfig"),
        ("a.py", "x = (", "cannot be parsed"),
        ("a.yaml", "colour: red", "--framework"),
        ("a.sh", "echo 'unclosed", "cannot be parsed: No closing quotation"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str):
    with pytest.raises(UsageError, match=message):
        check_recipe(written(tmp_path, name, text))


def test_python_files_are_not_run(tmp_path: Path):
    marker = tmp_path / "ran"
    text = f"open({str(marker)!r}, 'w')\nargs = GRPOConfig(loss_type='grpo', output_dir=__import__('os').getcwd())\n"
    assert check_recipe(written(tmp_path, "a.py", text)).framework == "trl"
    assert not marker.exists()


def test_command_prints_and_gives_json():
    assert set(FRAMEWORKS) == {"trl", "verl", "prime-rl"}
    printed = scalerl("recipe", "check", str(EXAMPLES / "verl.yaml"))
    assert "clip_ratio_high=4" in printed.stdout
    content = json.loads(scalerl("recipe", "check", str(EXAMPLES / "prime_rl.toml"), "--json").stdout)
    assert content["framework"] == "prime-rl"
    assert {row["kind"] for row in content["differences"]} == EXPECTED["prime_rl.toml"]
