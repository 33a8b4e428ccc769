"""References of the KL part: log-probs and gradients against the models that they stand for."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import VERSION, make_completion, make_group, random_batch
from learners import gradients_of, make_learner
from tiny_models import tiny_model

from scalerl.errors import LearnerError, RecipeError
from scalerl.training.models.load import load_tokenizer
from scalerl.training.rl.kl import KlInputs, reverse
from scalerl.training.types import Batch


def test_term_leaves_the_first_gradient_and_no_later_one():
    batch = random_batch(1, clean=True)
    plain, row = gradients_of(make_learner(), batch)
    assert "loss/reference_kl" not in row
    held, row = gradients_of(make_learner("kl.coefficient=0.5"), batch)
    assert row["loss/reference_kl"] == pytest.approx(0, abs=1e-9)
    for name in plain:
        torch.testing.assert_close(held[name], plain[name], rtol=1e-4, atol=1e-7)


def distance_after(steps: int, *settings: str) -> float:
    """Return how far the policy is from its start, in KL, after training on one preference."""
    learner = make_learner("optimizer.lr=3e-3", *settings)
    start = learner.policy.model(torch.tensor([[3, 2]])).logits[0, -1].log_softmax(-1).detach()
    completions = [make_completion("0/a", i, [3, 2], [4, 1] if i < 4 else [5, 1]) for i in range(8)]
    group = make_group(completions, [True] * 4 + [False] * 4)
    for step in range(steps):
        row = learner.step(Batch(version=VERSION + step, groups=[group]))
        assert ("loss/reference_kl" in row) == bool(settings)
    now = learner.policy.model(torch.tensor([[3, 2]])).logits[0, -1].log_softmax(-1).detach()
    return float((now.exp() * (now - start)).sum())


def test_term_holds_the_policy_near_its_start():
    assert distance_after(8, "kl.coefficient=5.0") < 0.5 * distance_after(8)


def test_start_is_the_first_model_also_after_a_resume():
    learner = make_learner("kl.coefficient=0.5", "optimizer.lr=3e-3")
    first = learner.step(random_batch(1, clean=True))
    resumed = make_learner("kl.coefficient=0.5", "optimizer.lr=3e-3")
    resumed.load_state_dict(learner.state_dict())
    rows = [made.step(random_batch(2, clean=True, version=VERSION + 1)) for made in (learner, resumed)]
    assert rows[0]["loss/reference_kl"] == pytest.approx(rows[1]["loss/reference_kl"], rel=1e-6)
    assert rows[1]["loss/reference_kl"] > first["loss/reference_kl"] + 1e-6


# -- distillation ------------------------------------------------------------------------------------------------------

DISTIL = ("loss=none", "kl.coefficient=1", "kl.estimator=reverse", "filter.zero_variance=false", "weights=token")


def log_probs_of(model: Any, prompt: Any, completion: Any, temperature: float = 1.0) -> torch.Tensor:
    """Return the log-prob of each token of a completion after a prompt."""
    ids = torch.tensor([[*prompt, *completion.tokens.tolist()]])
    logits = model(input_ids=ids).logits[0] / temperature
    places = torch.arange(len(completion)) + len(prompt) - 1
    return logits.log_softmax(-1)[places, torch.tensor(completion.tokens, dtype=torch.long)]


def expected_gradients(batch: Batch, score: Any) -> dict[str, torch.Tensor]:
    """Return the gradient of the mean reverse KL, one completion at a time; `score` gives those of the reference."""
    model = tiny_model("smollm")
    completions = [completion for group in batch.groups for completion in group.completions]
    num_tokens = sum(int((~completion.forced).sum()) for completion in completions)
    total = torch.zeros(())
    for completion in completions:
        kept = torch.from_numpy(~completion.forced)
        ours = log_probs_of(model, completion.request.prompt_tokens, completion)[kept]
        inputs = KlInputs(
            log_probs=ours,
            generator_log_probs=torch.tensor(completion.log_probs)[kept],
            reference_log_probs=score(model, completion).detach()[kept],
        )
        total = total + reverse(inputs).sum() / num_tokens
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def with_hints(batch: Batch, hint: tuple[int, ...]) -> Batch:
    """Return a batch whose requests also have a longer prompt."""
    groups = []
    for group in batch.groups:
        completions = tuple(
            replace(each, request=replace(each.request, hint_tokens=(*hint, *each.request.prompt_tokens)))
            for each in group.completions
        )
        groups.append(replace(group, completions=completions))
    return Batch(version=batch.version, groups=groups)


def teacher_model() -> Any:
    """A model with preferences: those of random weights are weak."""
    model = tiny_model("smollm", seed=7)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(6)
    return model


@pytest.fixture(scope="module")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    teacher_model().save_pretrained(folder)
    load_tokenizer("tiny-base").save_pretrained(folder)
    return folder


class Completions(BaseHTTPRequestHandler):
    """OpenAI's completions with echo, by a real model."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.seen.append((self.headers.get("Authorization"), body))
        assert body["echo"]
        choices = []
        for index, ids in enumerate(body["prompt"]):
            with torch.no_grad(), server.lock:
                log_probs = server.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            values = log_probs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()
            choices.append({"index": index, "logprobs": {"token_logprobs": [None, *values, -1.0]}})
        reply = {"choices": choices[::-1]} if server.answers else {"choices": [{"index": 0, "text": "no"}]}
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any, **__: Any) -> None: ...


@contextmanager
def serving(*, answers: bool = True) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
    server.model, server.seen, server.answers = teacher_model(), [], answers
    server.lock = threading.Lock()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def at(server: Any, **more: Any) -> str:
    """Return the setting of a server as the reference."""
    table = {"name": "server", "url": f"http://127.0.0.1:{server.server_address[1]}/v1", "model": "m", **more}
    return "kl.reference={" + ", ".join(f"{key}={json.dumps(value)}" for key, value in table.items()) + "}"


def check_distils(batch: Batch, learner: Any, score: Any) -> dict[str, float]:
    gradients, row = gradients_of(learner, batch)
    for name, expected in expected_gradients(batch, score).items():
        torch.testing.assert_close(gradients[name], expected, rtol=1e-3, atol=1e-6, msg=name)
    return row


def test_a_teachers_gradient_is_that_of_one_completion_at_a_time(teacher_folder: Path):
    batch, teacher = random_batch(3, clean=True), teacher_model()
    reference = f'kl.reference={{name="teacher", path="{teacher_folder}"}}'
    learner = make_learner(*DISTIL, reference, "learner.micro_batch_tokens=40")
    row = check_distils(
        batch, learner, lambda _, completion: log_probs_of(teacher, completion.request.prompt_tokens, completion)
    )
    assert row["loss/reference_kl"] > 0
    assert row["batch/flops"] == pytest.approx(
        4 / 3 * make_learner("filter.zero_variance=false").step(batch)["batch/flops"]
    )


def test_a_server_gives_what_the_same_model_here_gives(teacher_folder: Path, monkeypatch: pytest.MonkeyPatch):
    batch = random_batch(4, clean=True)
    teacher = teacher_model()
    monkeypatch.setenv("TEACHER", "open-sesame")
    with serving() as server:
        learner = make_learner(
            *DISTIL, at(server, api_key="env:TEACHER", params=1000.0), "learner.micro_batch_tokens=40"
        )
        row = check_distils(
            batch, learner, lambda _, completion: log_probs_of(teacher, completion.request.prompt_tokens, completion)
        )
        assert {key for key, _ in server.seen} == {"Bearer open-sesame"}
        asked = [tuple(ids) for _, body in server.seen for ids in body["prompt"]]
    completions = [completion for group in batch.groups for completion in group.completions]
    assert sorted(asked) == sorted((*each.request.prompt_tokens, *each.tokens.tolist()) for each in completions)
    alone = make_learner("filter.zero_variance=false").step(batch)["batch/flops"]
    assert row["batch/flops"] == pytest.approx(alone + 2000 * sum(map(len, asked)))


def test_a_server_without_log_probs_ends_the_run():
    with serving(answers=False) as server, pytest.raises(LearnerError, match="returned no log-probs of the prompt"):
        make_learner(*DISTIL, at(server)).step(random_batch(4, clean=True))
    with pytest.raises(RecipeError, match="the environment variable NOWHERE, which is not set"):
        make_learner(*DISTIL, 'kl.reference={name="server", url="http://h", model="m", api_key="env:NOWHERE"}')


def test_a_hint_is_read_by_the_reference_alone():
    batch = with_hints(random_batch(5, clean=True), (9, 8, 7))
    learner = make_learner(
        *DISTIL, 'kl.reference={name="self", hint="{answer} {prompt}"}', "learner.micro_batch_tokens=40"
    )
    row = check_distils(
        batch, learner, lambda model, completion: log_probs_of(model, completion.request.hint_tokens, completion)
    )
    plain = make_learner("filter.zero_variance=false").step(batch)["batch/flops"]
    assert 4 / 3 * plain < row["batch/flops"] < 2 * plain


def test_a_lower_temperature_sharpens_the_policy():
    batch = random_batch(6, clean=True)
    learner = make_learner(*DISTIL, 'kl.reference={name="self", temperature_frac=0.5}')
    check_distils(
        batch,
        learner,
        lambda model, completion: log_probs_of(model, completion.request.prompt_tokens, completion, temperature=0.5),
    )


def test_distillation_reaches_its_teacher(teacher_folder: Path):
    """On tokens that the policy samples, its distribution becomes the teacher's."""
    teacher, learner = (
        teacher_model(),
        make_learner(*DISTIL, f'kl.reference={{name="teacher", path="{teacher_folder}"}}', "optimizer.lr=1e-2"),
    )
    prompt = (3, 2)
    generator = torch.Generator().manual_seed(0)

    def distribution(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)

    goal = distribution(teacher)
    distances = []
    for step in range(40):
        ours = distribution(learner.policy.model)
        distances.append(float((ours.exp() * (ours - goal)).sum()))
        tokens = torch.multinomial(ours.exp(), 64, replacement=True, generator=generator).tolist()
        completions = [
            make_completion("0/a", i, prompt, [token], log_probs=[float(ours[token])]) for i, token in enumerate(tokens)
        ]
        learner.step(Batch(version=VERSION + step, groups=[make_group(completions, [True] * 32 + [False] * 32)]))
    assert distances[0] > 0.05
    assert distances[-1] < 0.1 * distances[0]
