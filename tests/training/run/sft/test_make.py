import dataclasses
import json
import math
import os
import shutil
import signal
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import forked
import pytest
import torch
from needs import needs_bubblewrap
from transformers import AutoModelForCausalLM, AutoTokenizer
from until import wait_until

from scalerl.cli.sft import reached
from scalerl.errors import LearnerError, ModelError, RunFolderError, TaskError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import SftSettings
from scalerl.recipe.recipe import Recipe
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.loop.requests import Text
from scalerl.training.models.load import EMBEDDED
from scalerl.training.models.tiny import TinyShape, build_tokenizer
from scalerl.training.run.evaluate import evaluate_model
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.sft import learner as learner_module
from scalerl.training.run.sft.make import MADE_BY, NEW_DEFAULTS, SftPlan, SftProgress, SftResult, load_material, sft
from scalerl.training.tasks.build import build_tasks

SUMS = "{name='arithmetic', num_problems=10, min_terms=2, max_terms=3, max_number=9}"
CODE = "{name='programs', num_problems=4, max_steps=2}"
MICRO = {"num_demonstrations": 660, "num_heldout": 60, "steps": 40, "batch_tokens": 800, "lr": 1e-2}
MICRO |= {"warmup_frac": 0.08, "model": "new"}
SMALL = TinyShape(hidden=32, intermediate=64, layers=1, heads=2, context=64)


def recipe_of(*changes: str, task: str = SUMS, **settings: Any) -> Recipe:
    own = [f"sft.{name}={value}" for name, value in (settings if "model" in settings else MICRO | settings).items()]
    tasks = changes if any(change.startswith("tasks.") for change in changes) else (f"task={task}", *changes)
    return load_recipe("scalerl", ["evaluation.num_prompts=10", *own, *tasks])


TINY_BASE, TINY_CODE_BASE = (str(files("scalerl") / "assets" / name) for name in EMBEDDED[:2])


def text_of(folder: str | Path) -> Text:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Text(tokenizer=tokenizer, stop_tokens=(tokenizer.eos_token_id,))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SftResult:
    torch.set_num_threads(1)
    return made_by(recipe_of(), tmp_path_factory.mktemp("sft") / "model", record={"recipe": "micro"})


def made_by(recipe: Recipe, out: Path, **more: Any) -> SftResult:
    result = sft(recipe, out, shape=SMALL, **more)
    assert result is not None
    return result


def test_the_heldout_loss_falls(made: SftResult):
    assert [point.step for point in made.curve] == list(range(0, 41, 2))
    assert made.curve[0].train_loss is None
    losses = [point.heldout_loss for point in made.curve[::5]]
    assert losses[0] == pytest.approx(math.log(20), abs=0.3)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]


def test_ranks_make_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forked.children(monkeypatch)
    alone = made_by(recipe_of(steps=2), tmp_path / "alone")
    result = made_by(recipe_of("learner.ranks=2", "learner.sharding=full", steps=2), tmp_path / "model")
    losses = [point.heldout_loss for point in result.curve]
    assert losses == pytest.approx([point.heldout_loss for point in alone.curve], rel=1e-3)
    trained, expected = (AutoModelForCausalLM.from_pretrained(each.folder).state_dict() for each in (result, alone))
    for name, weight in expected.items():
        torch.testing.assert_close(trained[name], weight, rtol=0, atol=1e-2)
    assert not (tmp_path / "model.checkpoints").exists()


def test_the_folder_is_an_ordinary_one_with_a_record(made: SftResult):
    model = AutoModelForCausalLM.from_pretrained(made.folder)
    tokenizer = AutoTokenizer.from_pretrained(made.folder)
    assert model.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) == made.num_parameters
    assert model.config.vocab_size == len(tokenizer)
    assert {"model.safetensors", "config.json", "tokenizer.json", MADE_BY} <= {p.name for p in made.folder.iterdir()}
    assert tokenizer.eos_token_id == model.config.eos_token_id != tokenizer.pad_token_id
    prompt = tokenizer("1+2=")["input_ids"]
    assert (prompt[0], len(prompt)) == (tokenizer.bos_token_id, 5)
    record = json.loads((made.folder / MADE_BY).read_text())
    assert (record["recipe"], record["shape"]["hidden"]) == ("micro", 32)
    assert (record["settings"]["steps"], record["plan"]["num_steps"]) == (40, 40)
    assert record["curve"][0]["train_loss"] is None
    assert record["curve"][-1]["heldout_loss"] == pytest.approx(made.curve[-1].heldout_loss, abs=1e-4)
    assert record["gain_last_fifth"] == pytest.approx(made.gain_last_fifth, abs=1e-4)


class Watcher(RunObserver):
    """Keeps what it sees, and asks to stop after a step, or kills its process after one when a file exists."""

    def __init__(self, stop_after: float = math.inf, kill_after: float = math.inf, exists: Path = Path("/")) -> None:
        self.curve: list[SftProgress] = []
        self.plan: SftPlan | None = None
        self.step = 0
        self.stop_after, self.kill_after, self.exists = stop_after, kill_after, exists

    def planned(self, plan: SftPlan) -> None:
        self.plan = plan

    def stepped(self, row: Mapping[str, Any]) -> None:
        self.step = row["step"]
        if self.step == self.kill_after:
            wait_until(self.exists.exists, 300, str(self.exists))
            os.kill(os.getpid(), signal.SIGKILL)

    def measured(self, progress: SftProgress) -> None:
        self.curve.append(progress)

    def stopping(self) -> bool:
        return self.step >= self.stop_after


def test_stopped_and_killed_run_resumes_to_the_same_weights(made: SftResult, tmp_path: Path):
    out, recipe = tmp_path / "model", recipe_of()
    assert sft(recipe, out, shape=SMALL, observer=Watcher(stop_after=21)) is None
    assert not out.exists()
    with pytest.raises(RunFolderError, match="add --resume to continue it"):
        sft(recipe, out, shape=SMALL)
    with pytest.raises(RunFolderError, match="was started with other settings"):
        sft(recipe_of(lr=1e-3), out, shape=SMALL, resume=True)
    # A fork: SIGKILL leaves no time to write anything.
    child = os.fork()
    if child == 0:
        # The checkpoint before is written while training continues.
        saved = tmp_path / "model.checkpoints" / "step-00000030"
        sft(recipe, out, shape=SMALL, resume=True, observer=Watcher(kill_after=31, exists=saved))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    watcher = Watcher()
    result = made_by(recipe, out, resume=True, observer=watcher)
    assert watcher.plan is not None
    assert watcher.plan.first_step == 30
    assert [dataclasses.replace(point, elapsed_s=0.0) for point in result.curve] == [
        dataclasses.replace(point, elapsed_s=0.0) for point in made.curve
    ]
    trained, expected = (AutoModelForCausalLM.from_pretrained(each).state_dict() for each in (out, made.folder))
    assert all(weight.equal(expected[name]) for name, weight in trained.items())
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    with pytest.raises(RunFolderError, match="nothing to resume"):
        sft(recipe, tmp_path / "other", shape=SMALL, resume=True)


def test_run_is_not_resumed_from_another_base(made: SftResult, tmp_path: Path):
    other = shutil.copytree(made.folder, tmp_path / "other")
    recipe, out = recipe_of(num_demonstrations=200, steps=4), tmp_path / "model"
    assert sft(recipe, out, model=str(made.folder), observer=Watcher(stop_after=1)) is None
    with pytest.raises(RunFolderError, match="was started with other model"):
        sft(recipe, out, model=str(other), resume=True)
    result = made_by(recipe, out, model=str(made.folder), resume=True)
    assert json.loads((result.folder / MADE_BY).read_text())["model"] == str(made.folder)


def test_run_is_not_resumed_with_another_shape(tmp_path: Path):
    recipe, out = recipe_of(num_demonstrations=200, steps=4), tmp_path / "model"
    assert sft(recipe, out, shape=SMALL, observer=Watcher(stop_after=1)) is None
    with pytest.raises(RunFolderError, match="was started with other shape"):
        sft(recipe, out, shape=dataclasses.replace(SMALL, intermediate=96), resume=True)


def test_diverged_run_ends_at_its_next_measurement(tmp_path: Path):
    out = tmp_path / "model"
    with pytest.raises(LearnerError, match=r"loss is nan after step \d+: .* start again with a lower sft\.lr$"):
        sft(recipe_of(lr=1e18, steps=20), out, shape=SMALL)
    # The weights of that step are not saved.
    assert not out.exists()
    assert list((tmp_path / "model.checkpoints").iterdir()) == []


def test_step_without_a_finite_loss_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nothing, training = learner_module.none, iter([math.nan, 0.0, 0.0])

    def failing_once(inputs: Any) -> Any:
        made = nothing(inputs)
        return dataclasses.replace(made, loss=made.loss + next(training)) if torch.is_grad_enabled() else made

    monkeypatch.setattr(learner_module, "none", failing_once)
    result = made_by(recipe_of(steps=3), tmp_path / "model")
    assert [point.train_loss is None for point in result.curve] == [True, True, False, False]
    assert result.curve[1].heldout_loss == result.curve[0].heldout_loss > result.curve[3].heldout_loss


def test_it_goes_on_from_a_given_model(made: SftResult, tmp_path: Path):
    watcher = Watcher()
    recipe = recipe_of(model=made.folder, num_demonstrations=200, steps=2)
    result = made_by(recipe, tmp_path / "next", observer=watcher)
    assert result.curve == tuple(watcher.curve)
    assert result.curve[0].heldout_loss < made.curve[6].heldout_loss
    assert result.num_parameters == made.num_parameters
    assert result.plan.lr == 3e-5
    assert f"scalerl eval {tmp_path / 'next'} --recipe mine" in reached(result, "mine")


def test_several_tasks_share_a_base_by_weight(tmp_path: Path):
    wide = dataclasses.replace(SMALL, context=128)
    changes = (f"tasks.sums={SUMS}", "tasks.sums.weight=3", f"tasks.code={CODE}")
    recipe = recipe_of(*changes, new_tokens="words", steps=2)
    result = sft(recipe, tmp_path / "both", shape=wide)
    assert result is not None
    assert (result.plan.num_demonstrations, result.plan.num_heldout) == (600, 60)
    text, tasks = text_of(tmp_path / "both"), build_tasks(recipe.task, recipe.tasks, recipe.evaluation)
    for demonstrated in tasks.values():
        assert demonstrated.demonstrations is not None
        for item in demonstrated.demonstrations(20, 0):
            ids = text.encode(item.completion)
            assert text.tokenizer.unk_token_id not in ids
            assert text.decode(ids) == item.completion
    assert len(text.encode("def f(x):")) == len(["def", " ", "f", "(", "x", ")", ":"])
    assert json.loads((tmp_path / "both" / MADE_BY).read_text())["vocabulary_size"] == len(text.tokenizer)
    shares = load_material(recipe, "new", wide, RunObserver(), solved=tmp_path / "solved.json").examples
    sums = {item.problem.prompt for item in cast(Any, tasks["sums"].demonstrations)(495, 0)}
    heldout = [text.decode(list(example.request.prompt_tokens[1:])) for example in shares.heldout]
    assert [prompt in sums for prompt in heldout] == [True] * 45 + [False] * 15


def test_a_known_model_learns_new_tokens(made: SftResult, tmp_path: Path):
    settings = {"num_demonstrations": 200, "steps": 12, "new_tokens": "words", "lr": 1e-2, "trivial_samples": 0}
    result = made_by(recipe_of(task=CODE, model=made.folder, **settings), tmp_path / "more")
    assert result.num_parameters > made.num_parameters
    assert result.curve[-1].heldout_loss < 0.7 * result.curve[0].heldout_loss
    old, new = (text_of(folder) for folder in (made.folder, tmp_path / "more"))
    assert new.encode("<think>1+2=3</think>") == old.encode("<think>1+2=3</think>")


@pytest.mark.parametrize("start, end", [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|think|>", "(done)*")])
def test_tags_are_one_token_each_and_survive_decoding(start: str, end: str):
    answer = AnswerFormat(thinking_start=start, thinking_end=end)
    tokenizer = build_tokenizer(iter([f"{start}12+3=15{end}"]), answer)
    text = f"{start}12+3=15{end}15"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == 11
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer("9")["input_ids"] == [tokenizer.bos_token_id, tokenizer.unk_token_id]


def test_impossible_sft_is_refused(made: SftResult, tmp_path: Path):
    path = tmp_path / "plain.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": "d"}\n')
    plain = recipe_of("evaluation.num_prompts=1", task=f"{{name='file', path='{path}'}}")
    tags = (f"tasks.a={SUMS}", f"tasks.b={SUMS}", "tasks.b.thinking_start=[", "tasks.b.thinking_end=]")
    for recipe, folder, shape, error, message in (
        (plain, "none", SMALL, TaskError, "no demonstrations to learn from"),
        (recipe_of(*tags), "none", SMALL, TaskError, "the tasks a, b have different thinking_start or thinking_end"),
        (recipe_of(), path / "below", SMALL, ValueError, f"cannot be created: {path} is a file, not a folder"),
        (recipe_of(), made.folder, SMALL, ValueError, "exists and is not empty"),
        (recipe_of(), path, SMALL, ValueError, "exists and is not empty"),
        (recipe_of(model="/no/such/model"), "none", SMALL, ModelError, "/no/such/model"),
        (recipe_of(), "short", TinyShape(context=8), TaskError, "0 of 660 demonstrations .* have at most 8 tokens"),
    ):
        with pytest.raises(error, match=message):
            sft(recipe, tmp_path / folder, shape=shape)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plain.jsonl"]


def test_the_embedded_base_is_the_one_on_record():
    """That it samples as it did then is in ../test_golden.py."""
    record = json.loads((Path(TINY_BASE) / MADE_BY).read_text())
    model = AutoModelForCausalLM.from_pretrained(TINY_BASE)
    assert model.dtype == torch.float32
    assert 0.8e6 < sum(p.numel() for p in model.parameters()) == record["num_parameters"] < 1e6
    assert record["gain_last_fifth"] < 0.02


@needs_bubblewrap
def test_code_base_scores_as_recorded():
    """Pass rates of 20 problems at temperature 1, by our engine; the record is by transformers' `generate`."""
    torch.set_num_threads(1)
    record = json.loads((Path(TINY_CODE_BASE) / MADE_BY).read_text())
    assert (Path(TINY_CODE_BASE) / "model.safetensors").stat().st_size < 4e6
    few = ("evaluation.num_prompts=20", "evaluation.samples_per_prompt=1", f"model.path={TINY_CODE_BASE}")
    rows = evaluate_model(load_recipe("tiny-math-code", [*few, "grading.timeout_s=60", "grading.cpu_limit_s=30"]))
    for row in rows:
        expected = record["pass_rates"][row["set"]]["temperature_1"]
        # Three standard errors of 20 problems; the record's own are few.
        assert row["reward"] == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / 20))
        assert 0.15 < expected < 0.7
    assert len(rows) == len(record["pass_rates"])


def test_the_recipe_of_the_base_is_the_one_it_was_made_by():
    record = json.loads((Path(TINY_BASE) / MADE_BY).read_text())
    task = dict(load_recipe(record["recipe"]).task)
    assert {key: value for key, value in record["task"].items() if key != "operations"} == {
        key: value for key, value in task.items() if key != "num_problems"
    }
    # The defaults for a new model are those it was made by; then a batch was 256 demonstrations, not tokens.
    made_by, defaults = record["settings"], SftSettings()
    assert defaults.num_heldout == made_by["num_heldout"]
    assert TinyShape(**made_by["shape"]) == TinyShape()
    assert (made_by["lr"], made_by["steps"]) == (NEW_DEFAULTS["lr"], NEW_DEFAULTS["steps"])
    assert defaults.warmup_frac * NEW_DEFAULTS["steps"] == made_by["warmup_steps"]
