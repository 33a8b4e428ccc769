"""Settings that follow from the model and the problems (run/derive.py): what own-model makes of a folder and a file."""

import json
import shutil
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from scalerl.recipe.load import changed_recipe, load_recipe
from scalerl.training.models.load import load_config
from scalerl.training.run.derive import derive
from scalerl.training.run.memory import Gpus, ModelSizes, memory_of
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.run import TrainingRun
from scalerl.training.run.sft.make import sft

SUMS = [{"question": f"{n}+{n}=", "answer": f"twice {n}. #### {2 * n}"} for n in range(1, 101)]
LETTERS = [{"prompt": f"{n}?", "answer": "ABCD"[n % 4]} for n in range(40)]
WORDS = [{"prompt": f"{n}?", "answer": "some words"} for n in range(40)]


def own_model(folder: Path, rows: list[dict[str, str]], *overrides: str):
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_recipe("own-model", ["model.path=tiny-base", f"task={path}", *overrides])


def test_everything_open_is_derived(tmp_path):
    recipe, made = derive(own_model(tmp_path, SUMS))
    assert recipe.derived == ()
    assert {each.key: each.value for each in made} == {
        "task.chat": False,
        "task.grader": "numeric",
        "rollout.max_prompt_tokens": 16,  # the longest has 8, in steps of 16
        "length.max_length": 64,
        "rollout.context": 80,
        "pipeline.groups_per_batch": 10,  # a tenth of the problems
        "rollout.slots": 80,
        "evaluation.num_prompts": 20,  # a fifth
        "optimizer.lr": 4e-5,
        # On a CPU no memory is saved.
        "model.lora.rank": 0,
        "model.lora.bits": 16,
        "optimizer.bits": 32,
        "optimizer.on_host": False,
        "learner.micro_batch_tokens": 32768,
    }
    assert derive(recipe) == (recipe, ())


def test_memory_of_the_gpu_decides_the_savings(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(str(files("scalerl") / "assets" / "tiny-base"), folder)
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    config = json.loads((folder / "config.json").read_text()) | shape
    config |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16", "max_position_embeddings": 4096}))
    recipe, made = derive(own_model(tmp_path, SUMS, f"model.path={folder}"), Gpus.parse("1x24"))
    assert (recipe.model.lora.rank, recipe.model.lora.bits) == (32, 4)
    assert recipe.optimizer.lr == pytest.approx(1e-5)
    assert recipe.rollout.slots is not None
    assert memory_of(recipe, ModelSizes.from_config(load_config(str(folder))), Gpus.parse("1x24")).fits
    # Adapters set by hand stay, and so does what else is set.
    changes = ("model.lora.rank=8", "rollout.slots=16")
    recipe, made = derive(own_model(tmp_path, SUMS, f"model.path={folder}", *changes), Gpus.parse("1x24"))
    assert (recipe.model.lora.rank, recipe.model.lora.bits, recipe.rollout.slots) == (8, 4, 16)
    assert not {each.key for each in made} & {"model.lora.rank", "rollout.slots"}


def test_resumed_run_keeps_derived_settings(tmp_path, monkeypatch):
    settings = ("rollout.slots=8", "pipeline.groups_per_batch=4", "pipeline.completions_per_group=2")
    short = ("length.max_length=8", "evaluation.num_prompts=2", "evaluation.samples_per_prompt=1")
    recipe = own_model(tmp_path, SUMS, *settings, *short, "budget.steps=1")
    TrainingRun(recipe, tmp_path / "run").train()
    # Another machine would derive another rate.
    monkeypatch.setattr("scalerl.training.run.derive.RATE", 1.0)
    more = changed_recipe(recipe, ["budget.steps=2"])
    run = TrainingRun(more, tmp_path / "run", resume=True)
    assert run.recipe.optimizer.lr == 4e-5
    run.train()


@pytest.mark.parametrize("rows, grader", [(SUMS, "numeric"), (LETTERS, "choice"), (WORDS, "exact")])
def test_grader_follows_from_the_references(tmp_path, rows, grader):
    assert derive(own_model(tmp_path, rows))[0].task.grader == grader


def test_settings_of_the_recipe_are_kept_and_used(tmp_path):
    overrides = ("length.max_length=40", "task.grader=exact", "pipeline.groups_per_batch=4")
    recipe, made = derive(own_model(tmp_path, SUMS, *overrides))
    rollout = recipe.rollout
    assert recipe.task.grader == "exact"
    assert (rollout.context - rollout.max_prompt_tokens, rollout.slots) == (40, 32)
    assert not {each.key for each in made} & {"length.max_length", "task.grader", "pipeline.groups_per_batch"}


def test_a_length_control_without_a_max_length_keeps_its_own_settings(tmp_path):
    settings = ("thinking_min=20", "thinking_max=40", "answer_budget=20")
    interrupted = own_model(tmp_path, SUMS, "length.name=interruption", *(f"length.{each}" for each in settings))
    recipe, made = derive(interrupted)
    assert (recipe.length.name, recipe.rollout.context) == ("interruption", 16 + 40 + 20)
    assert "length.max_length" not in {each.key for each in made}


@pytest.fixture
def chat_model(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(str(files("scalerl") / "assets" / "tiny-base"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}====="
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return folder


def test_chat_template_of_the_tokenizer_is_used(tmp_path, chat_model):
    recipe, _ = derive(own_model(tmp_path, SUMS, f"model.path={chat_model}"))
    assert recipe.task.chat
    assert recipe.rollout.max_prompt_tokens == 16  # 8 and the 5 of the template


def test_sft_encodes_with_the_derived_settings(tmp_path, chat_model):
    class Watcher(RunObserver):
        def planned(self, plan):
            self.plan = plan

        def stopping(self):
            return True

    def inputs_per_demonstration(*overrides: str) -> float:
        settings = ("sft.num_heldout=10", "sft.epochs=1", "sft.batch_tokens=99999", "sft.trivial_samples=0")
        demonstrated = own_model(tmp_path, SUMS, "task.demonstration_field=answer", *settings, *overrides)
        watcher = Watcher()
        sft(demonstrated, tmp_path / f"out{len(overrides)}", model=str(chat_model), observer=watcher)
        return watcher.plan.batch_tokens / watcher.plan.num_demonstrations

    # The five of the template, instead of <bos>.
    assert inputs_per_demonstration() == pytest.approx(inputs_per_demonstration("task.chat=false") + 4)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["task=missing.jsonl"], "missing.jsonl cannot be read"),
        (['task=""'], r"task\.name is not set"),
        (['derived=["loss.cap"]'], '"loss.cap", which cannot be derived'),
        (["rollout.max_prompt_tokens=128"], "max_prompt_tokens is 128, but the model's context has only 128 tokens"),
        (["rollout.max_prompt_tokens=500"], "max_prompt_tokens is 500, but the model's context has only 128 tokens"),
    ],
)
def test_settings_that_cannot_be_derived_are_named(tmp_path, overrides, message):
    with pytest.raises(Exception, match=message):
        derive(own_model(tmp_path, SUMS, *overrides))


def test_run_has_the_derived_settings(tmp_path):
    recipe = changed_recipe(own_model(tmp_path, SUMS), ["budget.steps=1", "evaluation.num_prompts=4"])
    with closing(TrainingRun(recipe, tmp_path / "run")) as run:
        made = run.recipe
    assert (made.derived, made.rollout.context, made.evaluation.num_prompts) == ((), 80, 4)
