"""Study files and what they stand for: arms, budgets, inert arms, and everything a user can get wrong."""

from pathlib import Path

import pytest

from scalerl.errors import StudyError
from scalerl.recipe.load import load_layers, load_recipe, shipped
from scalerl.recipe.tree import expand
from scalerl.study.leave_one_out import LEAVE_ONE_OUT
from scalerl.study.plan import StudyPlan, changes_of, check_runnable, make_plan, show_changes
from scalerl.study.spec import divided, load_study


def plan_of(tmp_path: Path, text: str, *overrides: str, gpu: bool = False) -> StudyPlan:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    of_study, of_recipes = divided(overrides)
    return make_plan(*load_study(file, of_study), of_recipes, gpu=gpu)


def planned(name: str, *, gpu: bool = True) -> StudyPlan:
    return make_plan(*load_study(name), gpu=gpu)


def problems(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        plan_of(tmp_path, text, *overrides)
    return list(caught.value.problems)


ONE_ARM = 'base = "tiny-cpu"\n[arms.dapo]\nloss = "dapo"\n'


# What ships -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped("study"))
def test_every_shipped_study_can_be_planned(name):
    plan = planned(name)
    assert plan.study.description
    assert len(plan.runs) == len(plan.arms) * len(plan.study.seeds) >= 2
    assert all(arm.changes for arm in plan.arms[1:])


def test_the_questions_of_the_paper_are_there():
    asked = {
        "loo", "loss", "off-policy", "max-lag", "precision", "aggregation", "normalisation", "zero-variance",
        "curriculum", "length-control", "prevalent-recipes", "batch-size", "generations-per-prompt", "context-length",
        "model-size", "multi-task", "cispo-cap", "gspo-scale",
    }  # fmt: skip
    assert asked <= set(shipped("study"))


OF_ONE_BASE = {
    "model-size": "it names a model of its own",
    "multi-task": "it names tasks of its own",
    "tools": "its base knows the tool",
    "precision": "a CPU computes in FP32 anyway",
}


@pytest.mark.parametrize("name", sorted(set(shipped("study")) - set(OF_ONE_BASE)))
def test_study_is_asked_of_another_base(name):
    of_study, of_recipes = divided(["base=tiny-cpu"])
    plan = make_plan(*load_study(name, of_study), of_recipes, gpu=False)
    check_runnable(plan)
    tiny = load_recipe("tiny-cpu")
    assert all(arm.recipe.budget == tiny.budget for arm in plan.arms)
    assert {arm.recipe.model.path for arm in plan.arms} == {tiny.model.path}
    assert [arm.name for arm in plan.arms][1:] == [arm.name for arm in planned(name).arms][1:]


def test_another_base_leaves_amounts_of_compute_behind(tmp_path):
    text = ONE_ARM + "budget.steps = 9\n[budget]\nsteps = 7\n[fit]\nuntil_compute = 5\nskip_before = 0.1\n"
    text += "[holdout]\nfrom_compute = 6\n"
    (tmp_path / "other.toml").write_text('extends = "tiny-cpu"\nbudget.steps = 3\n')
    other = f"base={tmp_path / 'other.toml'}"
    plan = plan_of(tmp_path, text, other, "fit.until_compute=2.5")
    assert [arm.recipe.budget.steps for arm in plan.arms] == [3, 3]
    assert (plan.study.fit.skip_before, plan.study.fit.until_compute, plan.study.holdout) == (0.1, 2.5, None)
    assert [arm.recipe.budget.steps for arm in plan_of(tmp_path, text, other, "budget.steps=5").arms] == [5, 5]


def test_shipped_studies_vary_the_settings_of_the_paper():
    for arm in planned("prevalent-recipes").arms[1:]:
        assert changes_of(arm.recipe, load_recipe(arm.name)) == {}
    pipelines = [arm.recipe.pipeline for arm in planned("generations-per-prompt").arms]
    assert {pipeline.groups_per_batch * pipeline.completions_per_group for pipeline in pipelines} == {768}
    assert sorted(arm.recipe.loss.model_dump()["cap"] for arm in planned("cispo-cap").arms) == [4, 5, 8]
    clips = [arm.recipe.loss.model_dump() for arm in planned("gspo-scale").arms]
    assert sorted(clip["clip_high"] / 4 for clip in clips) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    assert [clip["clip_low"] for clip in clips] == pytest.approx([0.75 * clip["clip_high"] for clip in clips])
    study = planned("batch-size").study
    assert study.holdout is not None
    computes = (study.fit.skip_before_compute, study.fit.until_compute, study.holdout.from_compute)
    assert computes == (1500, 15_000, 15_000)
    alone, both = planned("multi-task").arms
    assert list(alone.recipe.tasks) == ["math"]
    assert {task: part.name for task, part in both.recipe.tasks.items()}["code"] == "programs"


# Leave one out --------------------------------------------------------------------------------------------------------


def test_leave_one_out_restores_the_papers_baseline():
    plan = planned("loo")
    assert plan.base.name == "scalerl"
    changed = {
        arm.name: {key: new for key, (_, new) in arm.changes.items() if new is not None} for arm in plan.arms[1:]
    }
    assert changed == {
        "ppo-off-policy-8": {"pipeline.max_lag": 7, "pipeline.push_every": 8, "pipeline.drain": True},
        "dapo-loss": {"loss.name": "dapo", "loss.clip_low": 0.2, "loss.clip_high": 0.26},
        "no-fp32-head": {"model.fp32_head": "none"},
        "sample-average": {"weights.name": "sample"},
        "prompt-normalisation": {"advantage.normalisation.name": "prompt"},
        "no-zero-variance-filter": {"filter.zero_variance": False},
        "uniform-sampling": {"curriculum.name": "uniform"},
        "length-penalty": {"length.name": "penalty", "length.max_length": 14336, "length.cache": 2048},
    }


def test_leave_one_out_covers_all_of_scalerl():
    """All components at once give the paper's baseline, but for the two arms that the baseline has not."""
    recipe = load_recipe("scalerl")
    layers = [
        (name, expand(change(recipe)))
        for name, change in LEAVE_ONE_OUT.items()
        if name not in ("ppo-off-policy-8", "length-penalty")
    ]
    assert changes_of(load_layers("scalerl", layers), load_recipe("base")).keys() == {"budget.gpu_hours"}


def test_the_length_penalty_fits_the_recipe_it_is_derived_from(tmp_path):
    plan = plan_of(tmp_path, 'base = "tiny-cpu"\nleave_one_out = ["length-penalty"]\n')
    assert plan.arms[1].recipe.length.model_dump() == {"name": "penalty", "max_length": 48, "cache": 6}


def test_component_the_base_lacks_is_skipped(tmp_path):
    plan = plan_of(tmp_path, 'base = "base"\nleave_one_out = true\n', gpu=True)
    skipped = {arm.name for arm in plan.arms if arm.skipped == "the base does not have this component"}
    assert skipped == set(LEAVE_ONE_OUT) - {"ppo-off-policy-8", "length-penalty"}
    assert {run.arm for run in plan.runs} == {"base", "ppo-off-policy-8", "length-penalty"}


# Arms -----------------------------------------------------------------------------------------------------------------


def test_an_arm_is_the_base_with_the_common_changes_then_its_own(tmp_path):
    plan = plan_of(
        tmp_path,
        """
        base = "tiny-cpu"
        seeds = [3, 5]
        set = { loss = { name = "dapo", clip_low = 0.1 }, optimizer.lr = 1e-3 }
        [arms.wide]
        loss.clip_high = 0.4
        [arms.cispo]
        loss = "cispo"
        optimizer.lr = 1e-4
        """,
    )
    base, wide, cispo = plan.arms
    assert base.recipe.loss.model_dump() == {"name": "dapo", "clip_low": 0.1, "clip_high": 0.26}
    assert wide.changes == {"loss.clip_high": (0.26, 0.4)}
    assert cispo.recipe.loss.model_dump() == {"name": "cispo", "cap": 5.0}
    assert cispo.changes["optimizer.lr"] == (1e-3, 1e-4)
    assert show_changes(wide) == "loss.clip_high = 0.4"
    assert [(run.name, run.recipe.seed) for run in plan.runs] == [
        (f"{arm}-seed{seed}", seed) for seed in (3, 5) for arm in ("tiny-cpu", "wide", "cispo")
    ]


def test_an_empty_table_names_the_base(tmp_path):
    plan = plan_of(tmp_path, ONE_ARM + "[arms.cispo]\n")
    assert ([arm.name for arm in plan.arms], plan.base.changes, plan.adds_base) == (["cispo", "dapo"], {}, False)
    assert plan_of(tmp_path, ONE_ARM).adds_base


def test_user_override_keeps_what_an_arm_changes(tmp_path):
    plan = plan_of(tmp_path, ONE_ARM, "loss.cap=4", "weights=token", "budget.steps=7")
    assert plan.base.recipe.loss.model_dump() == {"name": "cispo", "cap": 4.0}
    assert {arm.recipe.weights.name for arm in plan.arms} == {"token"}
    assert {arm.recipe.budget.steps for arm in plan.arms} == {7}


def test_set_can_change_the_study(tmp_path):
    plan = plan_of(tmp_path, ONE_ARM, "seeds=[4]", "fit.until=0.5", "compute=flops", "arms.dapo.loss.clip_low=0.1")
    assert [run.name for run in plan.runs] == ["tiny-cpu-seed4", "dapo-seed4"]
    assert (plan.study.fit.until, plan.study.compute) == (0.5, "flops")
    assert plan.arms[1].recipe.loss.model_dump() == {"name": "dapo", "clip_low": 0.1, "clip_high": 0.26}
    # Another choice comes without the settings of the one it replaces.
    plan = plan_of(tmp_path, ONE_ARM.replace('"dapo"', "{ name = 'dapo', clip_low = 0.1 }"), "arms.dapo.loss=gspo")
    assert plan.arms[1].recipe.loss.name == "gspo"


def test_set_finds_arms_with_dots_in_their_names(tmp_path):
    text = ONE_ARM + "[arms.'lr-1.5']\noptimizer.lr = 1.5\n"
    assert plan_of(tmp_path, text, "arms.lr-1.5.optimizer.lr=1.25").arms[2].recipe.optimizer.lr == 1.25


def test_users_choice_drops_the_studys_settings(tmp_path):
    text = 'set.loss = { name = "gspo", length_normalised = false }\n' + ONE_ARM.replace("loss =", "weights =")
    text = text.replace('"dapo"', '"token"')
    assert plan_of(tmp_path, text, "loss=cispo").base.recipe.loss.model_dump() == {"name": "cispo", "cap": 5.0}
    kept = plan_of(tmp_path, text, "loss=gspo").base.recipe.loss.model_dump()
    assert (kept["name"], kept["length_normalised"]) == ("gspo", False)


def test_study_budget_replaces_the_recipes(tmp_path):
    text = ONE_ARM + "budget.steps = 9\n[arms.gspo]\nloss = 'gspo'\n[budget]\nflops = 1e12\n"
    budgets = [arm.recipe.budget.model_dump(exclude_none=True) for arm in plan_of(tmp_path, text).arms]
    assert budgets == [{"flops": 1e12}, {"steps": 9}, {"flops": 1e12}]
    arms = plan_of(tmp_path, text, "budget.steps=2").arms
    assert [arm.recipe.budget.model_dump(exclude_none=True) for arm in arms] == [{"steps": 2}] * 3


def test_recipe_files_are_relative_to_the_study_file(tmp_path):
    (tmp_path / "own.toml").write_text('extends = "tiny-cpu"\nweights = "token"\n')
    constant = 'weights = { name = "constant", denominator = 2.0 }'
    base, full = plan_of(tmp_path, f'base = "own.toml"\n[arms.full]\nrecipe = "scalerl"\n{constant}\n').arms
    assert (base.name, base.recipe.weights.name, full.recipe.task.name) == ("own", "token", None)
    assert full.recipe.weights.model_dump() == {"name": "constant", "denominator": 2.0}


def test_inert_arm_is_reported_and_not_run(tmp_path):
    text = ONE_ARM + "[arms.no-fp32]\nmodel.fp32_head = 'none'\n"
    plan = plan_of(tmp_path, text)
    (skipped,) = [arm.skipped for arm in plan.arms if arm.skipped]
    assert skipped.startswith("inert on this device: model.fp32_head changes nothing, since the body is float32")
    assert {run.arm for run in plan.runs} == {"tiny-cpu", "dapo"}
    assert [arm.skipped for arm in plan_of(tmp_path, text, gpu=True).arms] == [None] * 3
    # On a bfloat16 body the same arm acts on a CPU too.
    assert [arm.skipped for arm in plan_of(tmp_path, text, "model.dtype=bfloat16").arms] == [None] * 3
    # One active setting is enough.
    assert [arm.skipped for arm in plan_of(tmp_path, text + "weights = 'token'\n").arms] == [None] * 3


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, message",
    [
        ('bas = "x"\n' + ONE_ARM, 'bas is not a setting of a study, which has description, base, set, arms'),
        ('seed = [1]\n' + ONE_ARM, 'did you mean "seeds"?'),
        ('loss = "dapo"\n' + ONE_ARM, "settings of the recipe belong in [set] or in an arm"),
        (ONE_ARM + "[fit]\nuntill = 0.5\n", 'fit.untill is not a setting of fit, which has skip_before, until, skip'),
        (ONE_ARM + "[holdout]\nfrom = 1.0\nto = 1.0\n", "holdout.to is not a setting of holdout, which has from"),
        ("[arms.x]\nloss = 'dapo'\n", 'base is not set, but a study needs it; give the recipe that arms change'),
        ('base = "tiny-cpu"\n', "it has no arms: add [arms.NAME] tables of changes, or leave_one_out = true"),
        ("seeds = []\n" + ONE_ARM, "seeds is [] but must be a list with at least 1 item"),
        ("set.seed = 3\n" + ONE_ARM, "set.seed is 3, but a study sets the seeds of its runs: set seeds instead"),
        ("seeds = [1, 1]\n" + ONE_ARM, "seeds = [1, 1] repeats a seed"),
        ("seeds = [-1]\n" + ONE_ARM, "seeds contains -1, but a seed must be at least 0"),
        ("seeds = [0.5]\n" + ONE_ARM, "seeds.0 is 0.5 but must be a whole number"),
        ("seeds = 3\n" + ONE_ARM, "seeds is 3 but must be a list"),
        ("leave_one_out = 'yes'\n" + ONE_ARM, 'leave_one_out is "yes" but must be a list of names, true or false'),
        ("leave_one_out = ['dapo']\n" + ONE_ARM, 'leave_one_out contains "dapo"; choices: ppo-off-policy-8'),
        ("compute = 'hours'\n" + ONE_ARM, 'compute is "hours" but must be "gpu_hours", "flops"'),
        (ONE_ARM + "[fit]\nuntil = 0.5\nuntil_compute = 9\n", "until_compute is 9: set only one of them"),
        (ONE_ARM + "[fit]\nskip_before_compute = 9\nuntil_compute = 9\n", "nothing is left to fit"),
        (ONE_ARM + "[fit]\nuntil_compute = 9\n[holdout]\nfrom_compute = 5\n", "cannot test the fit"),
        (ONE_ARM + "[holdout]\n", "holdout is empty: set from, a share, or from_compute in it"),
        (ONE_ARM + "[fit]\nuntil = 1.5\n", "fit.until is 1.5 but must be at most 1"),
        (ONE_ARM + "[fit]\nskip_before = 0.6\nuntil = 0.5\n", "nothing is left to fit"),
        (ONE_ARM + "[fit]\nuntil = 0.6\n[holdout]\nfrom = 0.5\n", "a point that is fitted cannot test the fit"),
        (ONE_ARM + "[budget]\n", "budget is empty: set steps, gpu_hours or flops in it"),
        (ONE_ARM + "[budget]\nsteps = 0\n", "budget.steps is 0 but must be at least 1"),
        (ONE_ARM + "[budget]\nhours = 1\n", "budget.hours is not a setting of budget, which has steps, gpu_hours"),
        (ONE_ARM + "[arms.'a/b']\nweights = 'token'\n", 'arms."a/b" cannot name a folder'),
        (ONE_ARM + "[arms.a]\n[arms.b]\n", "the arms a, b change nothing, so each equals the base: keep one"),
        ("leave_one_out = true\n" + ONE_ARM.replace("arms.dapo", "arms.dapo-loss"), "leave_one_out adds: rename it"),
        ("arms = 3\nbase = 'tiny-cpu'\n", "arms is 3 but must be a table"),
        ("base = ", "is not valid TOML"),
    ],
)  # fmt: skip
def test_invalid_study_is_refused_with_its_file(tmp_path, text, message):
    (sentence,) = problems(tmp_path, text)
    assert message in sentence
    assert sentence.startswith(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    "text, override, message",
    [
        ('base = "tiny-cpu"\n[arms.a]\nloss = "cispo"\n', "", "study mine: the arm a equals the base: it changes"),
        (ONE_ARM + "[arms.b]\nloss = 'dapo'\n", "", "study mine: the arms dapo and b are equal: remove one"),
        (ONE_ARM + "[arms.b]\nloss = { name = 'dapo', clip_low = 0.2 }\n", "", "the arms dapo and b are equal"),
        (ONE_ARM.replace("dapo]", "tiny-cpu]"), "", "the arm tiny-cpu has the name of the base recipe"),
        ('base = "tiny-cpu"\n[arms.a]\nloss = "dappo"\n', "", 'study mine, [arms.a]: loss.name is "dappo" but must'),
        ('set.lr = 1\n' + ONE_ARM, "", "study mine, [set]: lr is not a setting of a recipe"),
        ('base = "tiny-cpuu"\n[arms.a]\nloss = "dapo"\n', "", 'there is no recipe "tiny-cpuu"'),
        ('base = "tiny-cpu"\n[arms.a]\nrecipe = "tiny-cp"\n', "", 'did you mean "tiny-cpu"?'),
        ('base = "gone.toml"\n[arms.a]\nloss = "dapo"\n', "", "gone.toml cannot be read: No such file or directory"),
        # A user's --set
        (ONE_ARM, "seed=3", "--set seed=3: a study sets the seeds of its runs: use --set seeds=[...]"),
        (ONE_ARM, "seeds=3", "with --set seeds=3: seeds is 3 but must be a list"),
        (ONE_ARM, "fit.untill=0.5", "with --set fit.untill=0.5: fit.untill is not a setting of fit"),
        (ONE_ARM, "arms.dapoo.loss.clip_low=0.1", "must look like arms.NAME.KEY=VALUE, where NAME is one of dapo"),
        (ONE_ARM, "arms.dapo=0.1", "must look like arms.NAME.KEY=VALUE"),
        (ONE_ARM, "arms.dapo.seed=1", "arms.dapo.seed is 1, but a study sets the seeds of its runs"),
        (ONE_ARM, "weights=tokn", 'study mine: --set weights=tokn: weights.name is "tokn"'),
    ],
)  # fmt: skip
def test_invalid_arm_or_change_is_refused_before_any_run(tmp_path, text, override, message):
    (sentence,) = problems(tmp_path, text, *filter(None, [override]))
    assert message in sentence


def test_every_problem_is_reported_once_with_its_table(tmp_path):
    text = 'base = "tiny-cpu"\nset.pipeline.push_every = 0\n[arms.a]\nloss = "x"\n[arms.b]\nweights = "y"\n'
    assert len(problems(tmp_path, text)) == 1  # the base itself is invalid
    sentences = problems(tmp_path, text.replace("set.pipeline.push_every = 0\n", ""))
    assert [sentence.partition(":")[0] for sentence in sentences] == ["study mine, [arms.a]", "study mine, [arms.b]"]


def test_file_of_a_study_is_suggested_for_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(ONE_ARM)
    with pytest.raises(StudyError, match=r'there is no study "mine".*did you mean "mine\.toml"\?'):
        load_study("mine")
