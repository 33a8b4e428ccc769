"""Trained completions per second on one batch: our learner against a plain loop over transformers.

    python benchmarks/learner_speed.py                 one table; the same model, batch, loss and threads for each row
    python benchmarks/learner_speed.py --threads 1
    python benchmarks/learner_speed.py --prompt 128 --answer 98        long prompts: computed once for 8 completions

The batch: 128 completions of up to 48 tokens (16 problems x 8, prompts of 8 to 16), a Llama of 0.8M parameters. Nothing
is filtered out, so both rows train on every completion. The plain loop is the obvious implementation: one padded
rectangle, an attention mask, logits of all positions, AdamW; the learner packs. "prompts repeated" is the learner with
learner.share_prompts = false. A row is a function of METHODS:
(model, batch) -> one step. On a GPU, benchmarks/gpu.py measures the learner against the device.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scalerl.recipe.load import load_recipe
from scalerl.training.rl.losses import LossInputs, cispo
from scalerl.training.run.learners import build_learner
from scalerl.training.types import Batch, Completion, Group, LengthPlan, Problem, Request

LIMIT = 1.1
"""Least speed of the learner, as a multiple of the plain loop's."""

VOCAB = 64


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            tie_word_embeddings=True,
        )
    ).eval()


def make_batch(
    version: int, *, num_groups: int = 16, per_group: int = 8, longest: int = 48, prompt: int | None = None
) -> Batch:
    """Return completions of realistic lengths, some at the limit; half of each group is correct.

    With `prompt` every prompt has that length, and every completion the longest.
    """
    rng = np.random.default_rng(version)
    groups = []
    for g in range(num_groups):
        problem = Problem(id=str(g), prompt=str(g), answer="", task="benchmark")
        prompt_tokens = tuple(rng.integers(2, VOCAB, prompt or rng.integers(8, 17)).tolist())
        completions = []
        for i in range(per_group):
            length = longest if prompt else int(rng.integers(8, longest + 8).clip(max=longest))
            completions.append(
                Completion(
                    request=Request(
                        group=str(g),
                        index=i,
                        problem=problem,
                        prompt_tokens=prompt_tokens,
                        seed=i,
                        length=LengthPlan(answer_budget=longest),
                    ),
                    tokens=rng.integers(2, VOCAB, length).astype(np.int32),
                    log_probs=np.full(length, -np.log(VOCAB), dtype=np.float32),
                    versions=np.full(length, version, dtype=np.int32),
                    forced=np.zeros(length, dtype=np.bool_),
                    finish="stop",
                )
            )
        correct = tuple(i % 2 == 0 for i in range(per_group))
        rewards = tuple(1.0 if verdict else -1.0 for verdict in correct)
        groups.append(
            Group(key=str(g), problem=problem, completions=tuple(completions), correct=correct, rewards=rewards)
        )
    return Batch(version=version, groups=groups)


def learner_steps(*settings: str) -> Callable[[Batch], dict[str, float]]:
    return build_learner(make_model(), load_recipe("scalerl", ["budget.steps=1", *settings])).step


def plain_steps() -> Callable[[Batch], dict[str, float]]:
    """Return steps on one padded rectangle, with advantages of +1 and -1 and the token average."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-7)

    def step(batch: Batch) -> dict[str, float]:
        rows = [(group, i) for group in batch.groups for i in range(len(group.completions))]
        completions = [group.completions[i] for group, i in rows]
        sequences = [np.concatenate([c.request.prompt_tokens, c.tokens]) for c in completions]
        width = max(map(len, sequences))
        ids, mask, trained, generator, advantages = (np.zeros((len(rows), width)) for _ in range(5))
        for row, (completion, sequence) in enumerate(zip(completions, sequences, strict=True)):
            start, end = len(completion.request.prompt_tokens), len(sequence)
            ids[row, :end], mask[row, :end] = sequence, 1
            trained[row, start:end], generator[row, start:end] = 1, completion.log_probs
            advantages[row] = rows[row][0].rewards[rows[row][1]]
        tokens = torch.from_numpy(ids).long()
        logits = model(input_ids=tokens, attention_mask=torch.from_numpy(mask).long(), use_cache=False).logits
        log_probs = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).flatten()
        of_token = torch.arange(len(rows)).repeat_interleave(width - 1)
        flat = [torch.from_numpy(array[:, 1:]).float().flatten() for array in (generator, advantages, trained)]
        inputs = LossInputs(
            log_probs=log_probs,
            generator_log_probs=flat[0],
            advantages=flat[1],
            completion_of_token=of_token,
            trained=flat[2].bool(),
        )
        loss = cispo(inputs).loss.sum() / flat[2].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss/value": loss.item()}

    return step


METHODS: dict[str, Callable[[], Callable[[Batch], object]]] = {
    "learner": learner_steps,
    "prompts repeated": lambda: learner_steps("learner.share_prompts=false"),
    "plain transformers": plain_steps,
}


def measure(seconds: float, make_batch: Callable[[int], Batch] = make_batch) -> dict[str, list[float]]:
    """Return the seconds of each step, with the methods in turn, so that a busy machine slows all of them."""
    steps = {name: make() for name, make in METHODS.items()}
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    end, version = time.perf_counter() + seconds, 0
    while version < 4 or time.perf_counter() < end:
        batch = make_batch(version)
        for name, step in steps.items():
            start = time.perf_counter()
            step(batch)
            # The first step pays for what is set up once.
            if version:
                times[name].append(time.perf_counter() - start)
        version += 1
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="of torch; all cores unless told")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long to measure")
    parser.add_argument("--prompt", type=int, help="tokens of every prompt, up to 256; 8 to 16 unless told")
    parser.add_argument("--answer", type=int, default=48, help="tokens of the longest completion, up to 256")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    times = measure(arguments.seconds, functools.partial(make_batch, prompt=arguments.prompt, longest=arguments.answer))
    num_completions = sum(len(group.completions) for group in make_batch(0).groups)
    print(f"{num_completions} completions a step, {torch.get_num_threads()} threads, {len(times['learner'])} steps")
    print(f"{'method':<22}{'seconds':>10}{'completions/s':>16}{'speed':>8}")
    # What else the machine does only adds: the fastest step is the one it disturbed least.
    fastest = {name: min(values) for name, values in times.items()}
    for name, value in fastest.items():
        ratio = fastest["plain transformers"] / value
        print(f"{name:<22}{value:>10.3f}{num_completions / value:>16.0f}{ratio:>8.2f}")
    speed = fastest["plain transformers"] / fastest["learner"]
    print(f"learner: {speed:.2f} times the plain loop (least: {LIMIT})")
    return 0 if speed >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
