"""The study folder: who may write into it, what it says, and what a resumed study may have changed."""

import json

import pytest
from small_study import NAMES, STUDY, open_only, plan_of, run

from scalerl.errors import BusyError, RunFolderError, StoreError, StudyError
from scalerl.runfolder import store
from scalerl.study import folder as study_folder
from scalerl.study.folder import last_reward, open_study, read_study


def test_study_folder_has_the_plan_and_all_recipes(tmp_path):
    open_only(tmp_path)
    study = read_study(tmp_path / "out")
    assert study is not None
    assert (study["base"], study["shared_device"], study["jobs"]) == ("cispo", False, 1)
    assert [(row["arm"], row["seed"], row["folder"]) for row in study["runs"]] == [
        (*name.split("-seed")[:1], int(name[-1]), f"runs/{name}") for name in NAMES
    ]
    assert study["arms"][1]["changes"]["loss.name"] == {"base": "cispo", "arm": "dapo"}
    for name in NAMES:
        recipe = json.loads((tmp_path / "out" / "recipes" / f"{name}.json").read_text())
        assert (recipe["seed"], recipe["loss"]["name"]) == (int(name[-1]), name.split("-")[0])


def test_used_folder_is_refused(tmp_path):
    open_only(tmp_path)
    with pytest.raises(StudyError, match="already contains a study: continue it with --resume"):
        open_only(tmp_path)
    (tmp_path / "out" / "study.json").unlink()
    with pytest.raises(StudyError, match="contains no study to resume"):
        open_only(tmp_path, resume=True)
    # It was killed before it wrote its plan.
    (tmp_path / "out" / "recipes" / "cispo-seed0.json").write_text("{")
    open_only(tmp_path)
    (tmp_path / "out" / "study.json").unlink()
    (tmp_path / "out" / "runs" / "cispo-seed0").mkdir()
    with pytest.raises(StudyError, match="already exists and is not empty"):
        open_only(tmp_path)


def test_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(RunFolderError, match=r"file/out cannot be created: .*file is a file, not a folder; choose")
    with refused, open_study(plan_of(tmp_path), tmp_path / "file/out", jobs=1, shares_device=False, resume=False):
        pass
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").symlink_to(tmp_path / "gone" / "lock")
    with pytest.raises(StoreError, match=r"cannot write .*out: No such file or directory"):
        open_only(tmp_path)


def test_arms_and_seeds_may_be_added_to_a_study(ended):
    more = STUDY.replace("[0, 1]", "[0, 1, 2]") + "[arms.gspo]\nloss = 'gspo'\n"
    _, log = run(ended, text=more, resume=True, jobs=6)
    assert {name for kind, name in log.events if kind == "done"} == {
        "dapo-seed1", "cispo-seed2", "dapo-seed2", "gspo-seed0", "gspo-seed1", "gspo-seed2"
    }  # fmt: skip


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('loss = "dapo"', "loss = { name = 'dapo', clip_high = 0.3 }", "loss.clip_high of the arm dapo was 0.26"),
        ("steps = 4", "steps = 3", "budget.steps of the arm cispo was 4 and is 3 now"),
        ("steps = 4", "flops = 1e12", "budget.steps of the arm cispo was 4 and is null now"),
        ("seeds = [0, 1]", "seeds = [0]", "the run cispo-seed1 of .*study.json is no longer in the study"),
        ("[arms.dapo]", "[arms.clipped]", "the arm dapo of .*study.json is no longer in the study"),
    ],
)  # fmt: skip
def test_changed_study_is_not_resumed(tmp_path, old, new, message):
    open_only(tmp_path)
    with pytest.raises(StudyError, match=message):
        open_only(tmp_path, text=STUDY.replace(old, new), resume=True)


UNREADABLE = r"out/study\.json is not a readable plan of a study: restore it, or"
ANOTHER = r"; another version of scalerl wrote that file, or it is damaged: resume with that version"
RECIPES, RUNS = "recipes/dapo-seed1.json", "runs/dapo-seed1/recipe.json"
MISSPELT = rf'{{}}: loss\.clip_hihg is not a setting of loss\.name = "dapo".* clip_low, clip_high{ANOTHER}'


def damaged(recipe: dict) -> dict:
    return {**recipe, "loss": {**recipe["loss"], "clip_hihg": 0.5}}


@pytest.mark.parametrize(
    "place, change, message",
    [
        *[("study.json", text, UNREADABLE) for text in ("{", "[]", "{}", '{"runs": [1]}', '{"runs": [{"arm": "a"}]}')],
        *[(place, damaged, MISSPELT.format(place)) for place in (RECIPES, RUNS)],
        (RECIPES, '{"loss": ', r"recipes/dapo-seed1\.json.* or it is damaged: .* restore the file, or"),
        (
            RECIPES,
            lambda recipe: {**recipe, "weights": {"name": "constant"}},
            rf"weights\.denominator is not set, but .* needs it{ANOTHER}",
        ),
        # A setting that is left out has its default, which here the base changes.
        (
            RECIPES,
            lambda recipe: {key: value for key, value in recipe.items() if key not in ("filter", "learner")},
            r"learner\.micro_batch_tokens of the arm dapo was \d+ and is 4096 now",
        ),
        (RECIPES, lambda recipe: {key: value for key, value in recipe.items() if key != "filter"}, None),
    ],
)
def test_study_whose_files_cannot_be_read_is_not_resumed(ended, place, change, message):
    file = ended / "out" / place
    file.write_text(change if isinstance(change, str) else json.dumps(change(json.loads(file.read_text()))))
    if message is None:
        open_only(ended, resume=True)
        return
    with pytest.raises(StudyError, match=message):
        open_only(ended, resume=True)


def test_two_studies_do_not_run_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(study_folder, "_LOCK_WAIT_S", 0.2)
    plan, out = plan_of(tmp_path), tmp_path / "out"
    with (
        open_study(plan, out, jobs=1, shares_device=False, resume=False),
        pytest.raises(BusyError, match=r"a study is already running in .*out"),
        open_study(plan, out, jobs=1, shares_device=False, resume=True),
    ):
        pass
    open_only(tmp_path, resume=True)


def test_last_reward_is_that_of_the_first_set(tmp_path):
    assert last_reward(tmp_path) is None
    (tmp_path / store.EVALS).write_text("not json\nnor this\n")
    assert last_reward(tmp_path) is None
    (tmp_path / store.EVALS).unlink()
    for step, reward in enumerate([0.1, 0.2, float("nan"), "high"]):
        store.append_row(tmp_path / store.EVALS, {"step": step, "attempt": 1, "set": "main", "reward": reward})
    store.append_row(tmp_path / store.EVALS, {"step": 4, "attempt": 1, "set": "other", "reward": 0.9})
    assert last_reward(tmp_path) == 0.2
