"""scalerl recipe check: the shipped recipes of three frameworks, with the differences that they have from ScaleRL."""

import json
from pathlib import Path

import pytest
from commands import scalerl

from scalerl.errors import UsageError
from scalerl.recipe.peers import SCALERL, check_recipe, read_settings
from scalerl.recipe.tree import known_keys

EXAMPLES = Path(__file__).parents[2] / "examples" / "peers"
ALWAYS = {"weights.name", "advantage.normalisation.name", "model.fp32_head", "curriculum.name", "length.name"}
EXPECTED = {
    "verl.yaml": {"loss.cap", "floor", "filter.refill", "pipeline.drain", "anchor", "kl.coefficient"},
    "trl_grpo.py": {"loss.cap", "filter.zero_variance", "pipeline.drain", "clip_never_acts", "correction.name"},
    "prime_rl.toml": {"loss.name", "kl.coefficient", "filter.zero_variance", "discards", "lag_cannot_bind"},
}


def kinds(path: Path, framework: str | None = None) -> set[str]:
    return {row.kind for row in check_recipe(path, framework).differences}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", EXPECTED)
def test_shipped_recipes_are_recognised_and_translated(name: str):
    checked = check_recipe(EXAMPLES / name)
    assert name.startswith(checked.framework.replace("-", "_"))
    found = [row.kind for row in checked.differences]
    assert len(found) == len(set(found))
    assert set(found) == ALWAYS | EXPECTED[name]
    assert {row.ours for row in checked.translations} | SCALERL.keys() <= set(known_keys())
    printed = scalerl("recipe", "check", EXAMPLES / name).stdout
    assert all(row.statement in printed and row.change in printed for row in checked.differences)
    content = json.loads(scalerl("recipe", "check", EXAMPLES / name, "--json").stdout)
    assert [row["kind"] for row in content["differences"]] == found


def test_relative_cap_is_translated_to_an_absolute_one():
    ours = {row.ours: row.our_value for row in check_recipe(EXAMPLES / "verl.yaml").translations}
    assert ours["loss.cap"] == pytest.approx(1.28)
    assert (ours["pipeline.push_every"], ours["weights.name"]) == (4, "token")


VERL = {
    "clip_ratio_low: 0.2": "clip_ratio_low: 1",
    "clip_ratio_high: 0.28": "clip_ratio_high: 4",
    "adv_estimator: grpo": "adv_estimator: reinforce_plus_plus_baseline\n  rollout_correction: {bypass_mode: true}",
    "use_kl_loss: true": "use_kl_loss: false",
}


@pytest.mark.parametrize(
    ("name", "changes", "gone"),
    [
        ("verl.yaml", VERL, {"loss.cap", "floor", "advantage.normalisation.name", "anchor", "kl.coefficient"}),
        ("prime_rl.toml", {"oversampling_factor = 2.0": "max_inflight_rollouts = 2304"}, {"lag_cannot_bind"}),
        ("trl_grpo.py", {"epsilon_high=0.28": "epsilon_high=5.0"}, {"loss.cap"}),
        ("trl_grpo.py", {"use_vllm=True": "use_vllm=False"}, {"model.fp32_head", "correction.name"}),
        (
            "trl_grpo.py",
            {"use_vllm=True": 'use_vllm=True, vllm_importance_sampling_mode="token_truncate"'},
            {"correction.name"},
        ),
    ],
)
def test_settings_that_are_changed_as_told_differ_no_more(tmp_path: Path, name: str, changes: dict, gone: set):
    text = (EXAMPLES / name).read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    assert (ALWAYS | EXPECTED[name]) - kinds(written(tmp_path, name, text)) == gone


TRL = "trl grpo --loss_type dapo --use_vllm --vllm_importance_sampling_cap 4.0 --vllm_importance_sampling_mode"
RS, IS = "algorithm.rollout_correction.rollout_rs", "algorithm.rollout_correction.rollout_is"
ACTOR = "actor_rollout_ref.actor"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{TRL} sequence_mask", {"correction.name": "sequence_mask", "correction.high": 4.0}),
        (f"{TRL} sequence_truncate", {"correction.name": "sequence_truncate", "correction.cap": 4.0}),
        (f"{TRL} token_mask", {"correction.name": "band", "correction.high": 4.0}),
        (f"{TRL} token_truncate", {"correction.name": "none"}),
        (f"{IS}=token", {}),
        (f"{IS}=sequence {IS}_threshold=3.0", {"correction.name": "sequence_truncate", "correction.cap": 3.0}),
        (f"{RS}=token {RS}_threshold=2.0 {RS}_threshold_lower=0.5",
         {"correction.name": "band", "correction.low": 0.5, "correction.high": 2.0}),
        (f"{IS}=sequence {RS}=seq_sum_k1 {RS}_threshold=0.5_2.0",
         {"correction.name": "sequence_mask", "correction.low": 0.5, "correction.high": 2.0}),
        (f"{ACTOR}.policy_loss.loss_mode=clip_cov {ACTOR}.policy_loss.clip_cov_ub=4.0",
         {"entropy.name": "clip_cov", "entropy.fraction": 0.0002, "entropy.low": 1.0, "entropy.high": 4.0}),
        (f"{ACTOR}.entropy_coeff=0.001 algorithm.filter_groups.enable=True "
         "algorithm.filter_groups.max_num_gen_batches=10", {"entropy.coefficient": 0.001, "filter.refill": 10}),
    ],
)  # fmt: skip
def test_corrections_entropy_and_refill_are_translated(tmp_path: Path, text: str, expected: dict):
    is_trl = text.startswith("trl")
    path = written(tmp_path, "run.sh", text if is_trl else f"{text} algorithm.adv_estimator=grpo")
    checked = check_recipe(path)
    tables = ("correction.", "entropy.", "filter.refill")
    ours = {row.ours: row.our_value for row in checked.translations if row.ours.startswith(tables)}
    assert {**({} if is_trl or "filter.refill" in expected else {"filter.refill": 0}), **expected} == ours
    differs = "correction.name" in {row.kind for row in checked.differences}
    assert differs == (expected.get("correction.name", "none") != "none")


def test_cap_of_a_clip_is_told_from_one_that_is_only_another(tmp_path: Path):
    text = (EXAMPLES / "trl_grpo.py").read_text()
    for cap, scales in (("0.28", True), ("2.0", False)):
        path = written(tmp_path, "trl_grpo.py", text.replace("epsilon_high=0.28", f"epsilon_high={cap}"))
        (row,) = (row for row in check_recipe(path).differences if row.kind == "loss.cap")
        assert ("only scales the learning rate" in row.statement) == scales


GIVEN = {"loss_type": "cispo", "epsilon_high": 5.0, "scale_rewards": "batch", "num_iterations": 4}
SCRIPT = """# a comment
python -m verl.trainer.main_ppo \\
  algorithm.adv_estimator=grpo actor_rollout_ref.actor.clip_ratio_high=0.28 +data.train_batch_size=128 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=128
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("args.json", json.dumps(GIVEN)),
        ("args.yaml", "\n".join(f"{key}: {value}" for key, value in GIVEN.items())),
        ("run.sh", "trl grpo --loss_type cispo --epsilon-high 5.0 --scale_rewards batch --num_iterations=4 --use_vllm"),
        ("run.sh", SCRIPT),
    ],
)
def test_arguments_are_read_from_any_format(tmp_path: Path, name: str, text: str):
    found, is_trl = kinds(written(tmp_path, name, text)), text != SCRIPT
    settled = {"loss.cap", "loss.name", "advantage.normalisation.name", "clip_never_acts"}
    assert found & (settled | {"anchor"}) == ({"anchor"} if is_trl else settled - {"loss.cap"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "trl grpo --epsilon_high None --temperature .5 --max_completion_length 1_024 --run_name '[\"A\"]'"),
        (
            "args.py",
            "a = GRPOConfig(epsilon_high=None, temperature=+0.5, max_completion_length=1_024, run_name=['A'], beta=x)",
        ),
    ],
)
def test_values_of_arguments_are_read_as_python_has_them(tmp_path: Path, name: str, text: str):
    path = written(tmp_path, name, text)
    given = {"epsilon_high": None, "temperature": 0.5, "max_completion_length": 1024, "run_name": ["A"]}
    assert read_settings(path) == given
    checked = check_recipe(path, "trl")
    rows = {row.theirs: (row.is_default, row.our_value) for row in checked.translations}
    assert (rows["epsilon_high"], rows["temperature"]) == ((True, 0.2), (False, 0.5))
    assert checked.not_read == ("run_name",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: [", "cannot be parsed"),
        ("a.toml", "a = ", "is not valid TOML"),
        ("a.json", "[1]", "does not contain a table of settings"),
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
