"""Keys and tokens do not reach a run folder, a message or a report."""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import scalerl
from small_runs import SHORT

from scalerl.cli import study
from scalerl.errors import GraderError, RecipeError, StudyError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import trusting
from scalerl.recipe.secrets import HIDDEN, from_environment, hidden, is_secret, is_secret_name, redact, secrets_in
from scalerl.runfolder import store

KEY = "sk-live-0123456789abcdef"


SECRETS = """
api_key apiKey auth_token judge_key key judge.password openai_key HF_TOKEN WANDB_API_KEY OPENAI_API_KEY OPENAI_KEY
ANTHROPIC_API_KEY KAGGLE_KEY GH_PAT GITHUB_TOKEN GITLAB_TOKEN MYSQL_PWD PGPASSWORD DB_PASS DB_PASSWORD JWT
REDIS_PASSWORD JWT_SECRET DSN SENTRY_DSN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_STORAGE_KEY GOOGLE_API_KEY
GOOGLE_APPLICATION_CREDENTIALS HUGGINGFACEHUB_API_TOKEN NPM_TOKEN SSH_PRIVATE_KEY CLIENT_SECRET SMTP_PASS SESSION_COOKIE
"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_names_of_secrets(name: str):
    assert is_secret_name(name)
    assert is_secret(name, KEY)


NO_SECRETS = """
max_prompt_tokens answer_key path tokenizer keyword micro_batch_tokens pass_rate passed PATH pattern compass_x KEYBOARD
SSH_AUTH_SOCK bypass PWD OLDPWD PWD_STYLE
"""


@pytest.mark.parametrize("name", NO_SECRETS.split())
def test_other_names_are_no_secrets(name: str):
    assert not is_secret_name(name)


@pytest.mark.parametrize("value", ["</s>", "env:JUDGE_KEY", 123456789, "a text with spaces", "<|im_end|>"])
def test_values_that_are_no_secrets(value: object):
    assert not is_secret("stop_token", value)


def test_settings_are_hidden_at_any_depth():
    settings = {"graders": {"judge": {"api_key": KEY, "url": f"https://me:{KEY}@host/v1", "most": 3}}, "tokens": [1, 2]}
    shown = hidden(settings)
    assert KEY not in json.dumps(shown)
    assert shown == {
        "graders": {"judge": {"api_key": HIDDEN, "url": f"https://{HIDDEN}@host/v1", "most": 3}},
        "tokens": [1, 2],
    }
    assert [name for name, _ in secrets_in(settings)] == ["graders.judge.api_key", "graders.judge.url"]


@pytest.mark.parametrize(
    "text",
    [
        f"HTTPError: https://me:{KEY}@host/v1 refused",
        f"401 for https://host/v1?api_key={KEY}&n=1",
        f"Authorization: Bearer {KEY}",
        f'--set task.graders.judge.api_key="{KEY}": not a setting',
        f"the key {KEY} is wrong",
        "from a file: hf_abcdefghijklmnopqrst",
    ],
)
@pytest.mark.parametrize("name", ["JUDGE_TOKEN", "OPENAI_KEY", "NAMED_BY_A_SETTING"])
def test_messages_are_redacted(monkeypatch: pytest.MonkeyPatch, text: str, name: str):
    key = "0123-4567-89ab-cdef"  # not known by how it begins
    text = text.replace(KEY, key)
    monkeypatch.setenv(name, key)
    assert from_environment({"judge": "env:NAMED_BY_A_SETTING"} if name.startswith("NAMED") else {}, "it") is not None
    assert key not in redact(text)
    assert "hf_abc" not in redact(text)
    assert HIDDEN in redact(text)
    assert (
        redact("reward.threshold = 0.12345678 of 12345678 tokens") == "reward.threshold = 0.12345678 of 12345678 tokens"
    )


@pytest.mark.parametrize("part", ["a", "a.", "A_", "a ", "a=", "Bearer ", "sk-", "://", "a://", "a://b@", " ", "\n"])
def test_long_texts_take_no_time(part: str):
    """A board redacts the files of strangers, and a regular expression cannot be interrupted."""
    began = time.process_time()
    redact(part * (50_000 // len(part)))
    assert time.process_time() - began < 1


TINY = (
    *SHORT,
    "task.num_problems=8",
    "pipeline.groups_per_batch=2",
    "pipeline.completions_per_group=2",
    "pipeline.max_lag=1",
    "rollout.slots=4",
    "evaluation.num_prompts=2",
    "evaluation.samples_per_prompt=1",
    "budget.steps=1",
    "sinks=['tensorboard']",
    'task.graders.exact.name="exact"',
    'task.graders.judge={name="own_code:keyed", weight=0, url="https://me:pass-word-1@host/v1"}',
)


def trained_folder(folder: Path, *settings: str) -> str:
    """Train, resume, and return all text of the run folder."""
    from scalerl.training.run.run import TrainingRun

    recipe = load_recipe("tiny-cpu", [*TINY, *settings])
    TrainingRun(recipe, folder).train()
    TrainingRun(load_recipe("tiny-cpu", [*TINY, *settings, "budget.steps=2"]), folder, resume=True).train()
    files = [path for path in folder.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    assert {store.RECIPE, store.ENV, store.STATUS} <= {path.name for path in files}
    return "\n".join(path.read_bytes().decode(errors="replace") for path in files)


def test_no_key_reaches_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-0123456789")
    written = trained_folder(tmp_path / "run", f'task.graders.judge.api_key="{KEY}"')
    assert "own_code:keyed" in written
    for secret in (KEY, "wandb-0123456789", "pass-word-1"):
        assert secret not in written


def test_grader_reads_its_key_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from scalerl.training.run.run import TrainingRun

    settings = [*TINY, 'task.graders.judge.api_key="env:JUDGE_KEY"', "task.graders.judge.refuses=true"]
    with pytest.raises(RecipeError, match="the environment variable JUDGE_KEY, which is not set"):
        TrainingRun(load_recipe("tiny-cpu", settings), tmp_path / "run")
    monkeypatch.setenv("JUDGE_KEY", KEY)
    run = TrainingRun(load_recipe("tiny-cpu", settings), tmp_path / "run")
    # The grader raises with its key in the message.
    with pytest.raises(GraderError, match=r"PermissionError: \(hidden\) may not judge"):
        run.train()
    assert KEY not in (tmp_path / "run" / store.STATUS).read_text()
    assert json.loads((tmp_path / "run" / store.RECIPE).read_text())["task"]["graders"]["judge"]["api_key"] == (
        "env:JUDGE_KEY"
    )


def test_a_study_refuses_a_key_in_its_recipes(tmp_path: Path):
    from scalerl.study.plan import make_plan
    from scalerl.study.spec import load_study

    file = tmp_path / "study.toml"
    file.write_text('base = "tiny-cpu"\nseeds = [1]\n[arms.dapo]\nloss = "dapo"\n')
    name, study = load_study(str(file))
    with pytest.raises(StudyError, match=r'api_key looks like a secret.*"env:NAME"') as caught:
        make_plan(name, study, [*TINY, f'task.graders.judge.api_key="{KEY}"'], gpu=False)
    assert KEY not in str(caught.value)


def model_with_code(tmp_path: Path) -> Path:
    """Return a model whose own code, when it is run, makes the file `ran`."""
    from importlib.resources import files
    from shutil import copytree

    model = tmp_path / "model"
    copytree(str(files("scalerl") / "assets" / "tiny-base"), model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "own.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    return model


def test_commands_run_code_of_a_model_only_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What a study starts is noted and not run: it is the command that is tried here."""
    model = json.dumps(str(model_with_code(tmp_path)))
    train = ("train", "tiny-cpu", "--set", f"model.path={model}", "--out", tmp_path / "run", "--check")
    refused = scalerl(*train)
    assert refused.returncode == 2
    assert "--trust-remote-code" in refused.stderr
    assert not (tmp_path / "ran").exists()
    with suppress(AttributeError):
        scalerl(*train, "--trust-remote-code")
    assert (tmp_path / "ran").exists()

    file, noted, program = (tmp_path / name for name in ("study.toml", "words", "note.py"))
    program.write_text(f"import pathlib, sys; pathlib.Path({str(noted)!r}).write_text(' '.join(sys.argv))")
    monkeypatch.setattr(study, "TRAIN", (sys.executable, str(program)))
    file.write_text(f'base = "tiny-cpu"\nseeds = [1]\n[arms.other]\nmodel.path = {model}\n')
    for allowed in ((), ("--trust-remote-code",)):
        scalerl("study", file, "--dry-run", *allowed)
        assert ("--trust-remote-code" in noted.read_text().split()) == bool(allowed)


def test_code_of_a_model_is_not_run(tmp_path: Path):
    from scalerl.errors import ModelError
    from scalerl.training.run.inputs import load_inputs

    model = model_with_code(tmp_path)
    recipe = load_recipe("tiny-cpu", [f"model.path={json.dumps(str(model))}"])
    with pytest.raises(ModelError, match=r"its own Python code, which is not run: .* --trust-remote-code"):
        load_inputs(recipe)
    assert not (tmp_path / "ran").exists()
    # No file and no --set allows it, only the word of this call, which is not written down.
    with pytest.raises(RecipeError, match=r"model\.trust_remote_code is true: no recipe may say so"):
        load_recipe("tiny-cpu", ["model.trust_remote_code=true"])
    trusted = trusting(recipe, trust_remote_code=True)
    with suppress(ModelError):
        load_inputs(trusted)
    assert (tmp_path / "ran").exists()
    assert "trust_remote_code" not in trusted.model_dump_json()


def test_error_of_the_command_line_hides_a_key():
    with pytest.raises(RecipeError) as caught:
        load_recipe("tiny-cpu", [f'sft.api_key="{KEY}"'])
    assert KEY not in redact(str(caught.value))
