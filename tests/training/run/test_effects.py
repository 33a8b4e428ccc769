"""Three steps with every setting changed: what acts does, and what has no effect is said (scalerl.recipe.effects).

python -m pytest -m slow -s tests/training/run/test_effects.py      prints the table
"""

import hashlib
import itertools
from functools import cache
from pathlib import Path

import pytest
import torch

from scalerl.recipe.effects import CONDITIONS, TASK_CONDITIONS, inert, without_effect
from scalerl.recipe.keys import is_at
from scalerl.recipe.load import changed_recipe, load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.tree import known_keys
from scalerl.training.run.run import TrainingRun

BASE = (
    "task.num_problems=16",
    "task.min_terms=2",
    "task.max_terms=3",
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=4",
    "pipeline.max_lag=2",
    "rollout.slots=16",
    "evaluation.num_prompts=4",
    "evaluation.samples_per_prompt=1",
    "length.thinking_min=12",
    "length.thinking_max=20",
    "optimizer.warmup_steps=2",
    "optimizer.lr=1e-3",
    "optimizer.eps=1e-8",
    "budget.steps=3",
)
"""Some answers of most groups are right. The lag is above 0 from the second step on."""
EPOCHS = ("task.num_problems=6", "evaluation.num_prompts=2")
CONTEXTS = {
    "alone": (),
    "adapters": ("model.lora.rank=2",),
    "epochs": ("curriculum.threshold=0.5", *EPOCHS),
    "cut": ('length={name="none", max_length=12}',),
    "penalty": ('length={name="penalty", max_length=24, cache=12}',),
    "plain": ("advantage.normalisation=none", "kl.coefficient=0.5"),
    "by prompt": ("advantage.normalisation=prompt",),
    "gae": ("advantage.credit=gae", "filter.zero_variance=false"),
    "gae without loss": ("advantage.credit=gae", "loss=none", "kl.coefficient=0.5", "kl.estimator=reverse"),
    "kl": ("kl.coefficient=0.5",),
    "reverse": ("kl.coefficient=0.5", "kl.estimator=reverse"),
    "sharper": ("kl.coefficient=0.5", 'kl.reference={name="self", temperature_frac=0.5}'),
    "distil": ("loss=none", "kl.coefficient=0.5", 'kl.reference={name="self", temperature_frac=0.5}'),
    "falling": ("optimizer.schedule=linear", "optimizer.warmup_steps=0"),
    "no warm-up": ("optimizer.warmup_steps=0",),
    "constant": ("weights={name='constant', denominator=100}", "advantage.normalisation=none"),
    "rounds": ("pipeline.max_lag=1", "pipeline.push_every=2", "pipeline.drain=true"),
    "synchronous": ("pipeline.max_lag=0",),
    "tool": ("task.environment=calculator", "rollout.context=96", 'length={name="none", max_length=24}'),
    "greedy": ("evaluation.temperature=0",),
    "dapo": ("loss=dapo", "loss.clip_low=0.001", "loss.clip_high=0.001"),
    "gspo": ("loss=gspo", "loss.clip_low=0.001", "loss.clip_high=0.001"),
    "tis": ("loss={name='tis', cap=1.0}",),
    "band": ("correction={name='band', low=0.9, high=1.1}",),
    "truncate": ("correction={name='sequence_truncate', cap=1.01}",),
    "mask": ("correction={name='sequence_mask', low=0.8, high=1.2}",),
    "bonus": ("entropy={name='bonus', coefficient=0.1}",),
    "clip": ("entropy={name='clip_cov', fraction=0.1, low=-9, high=9}",),
    "imitation": ("imitation=correct",),
    "pools": ("curriculum={name='pools', hard=0.1, hard_frac=0.0, easy=0.5, easy_frac=0.0}", *EPOCHS),
}  # fmt: skip
CASES = """
seed = 1
model.dtype = "bfloat16"
model.fp32_head = "none"
model.lora.rank = 2
model.lora.alpha = 64.0 | alone | adapters
model.lora.targets = ["q_proj"] | alone | adapters
model.lora.bits = 4 | adapters
task.template = "{prompt} "
task.grader = "choice"
task.environment.name = "calculator" | cut
task.environment.max_turns = 1 | alone
task.environment.max_tokens = 3 | alone | tool
task.environment.rewards = "sum" | alone
task.environment.reward_range = [0.0, 2.0] | alone
task.environment.in_process = true | alone
task.environment.step_s = 50.0 | alone
task.environment.step_cpu_s = 20.0 | alone
task.environment.step_memory_mb = 600 | alone
curriculum.name = "uniform" | epochs
curriculum.threshold = 0.25 | epochs
curriculum.easy = 0.9 | pools
curriculum.hard = 0.3 | pools
curriculum.easy_frac = 1.0 | pools
curriculum.hard_frac = 1.0 | pools
length = {name="none", max_length=30} | penalty
length.thinking_min = 8
length.thinking_max = 14
length.marker = "1</think>"
length.answer_budget = 2
length.max_length = 20 | cut | penalty
length.cache = 4 | penalty
loss = {name="dapo", clip_low=0.001, clip_high=0.001}
loss.cap = 0.5 | alone | tis
loss.clip_low = 0.5 | dapo | gspo
loss.clip_high = 0.5 | dapo | gspo
loss.length_normalised = false | gspo
correction.name = "sequence_truncate" | alone | distil
correction.low = 0.98 | band | mask
correction.high = 1.001 | band | mask
correction.cap = 0.5 | truncate
correction.length_normalised = true | truncate | mask
weights.name = "token"
weights.denominator = 7.0 | constant
entropy.name = "bonus" | alone | distil
entropy.coefficient = 0.5 | bonus
entropy.fraction = 0.3 | clip
entropy.low = -0.001 | clip
entropy.high = 0.001 | clip
imitation.name = "correct"
imitation.coefficient = 0.5 | imitation
kl.coefficient = 0.1 | alone | kl
kl.estimator.name = "reverse" | alone | sharper
kl.estimator.cap = 0.5 | reverse
kl.reference = {name="self", temperature_frac=0.5} | alone
kl.reference.temperature_frac = 0.8 | sharper
kl.reference.hint = "{prompt}{answer}" | sharper
advantage.baseline.name = "leave_one_out" | plain | by prompt | gae | distil
advantage.normalisation.name = "prompt" | alone | distil
advantage.credit.name = "gae" | constant
advantage.credit.name = "states" | alone
advantage.credit.gamma = 0.5 | gae
advantage.credit.lam = 0.1 | gae
advantage.credit.level = "turn" | gae
critic.lr = 0.1 | alone | gae | gae without loss
critic.warmup_steps = 2 | alone | gae
reward.correct = 3.0 | alone | plain | by prompt | distil | gae
reward.wrong = -3.0 | alone | plain | by prompt | distil | gae
reward.threshold = 0.5
grading.num_workers = 1
grading.timeout_s = 20.0
grading.cpu_limit_s = 2.0
grading.memory_limit_mb = 600
filter.zero_variance = false | alone | constant
filter.refill = 2
filter.drop_truncated = false | cut
pipeline.max_lag = 0
pipeline.drain = true | synchronous
pipeline.waits_for = "groups" | rounds | synchronous
pipeline.groups_per_batch = 3
pipeline.completions_per_group = 3
optimizer.lr = 2e-3
optimizer.schedule = "linear" | no warm-up
optimizer.decay_steps = 9 | alone | falling
optimizer.final_lr_frac = 0.5 | alone | falling
optimizer.warmup_steps = 1
optimizer.beta1 = 0.5
optimizer.beta2 = 0.9
optimizer.eps = 1e-3
optimizer.weight_decay = 0.5
optimizer.grad_clip = 0.01
optimizer.bits = 8
optimizer.on_host = true
learner.micro_batch_tokens = 2000
learner.share_prompts = false
learner.gradient_checkpointing = true
learner.silent_s = 20.0
learner.start_s = 20.0
rollout.slots = 4
rollout.context = 72
rollout.max_prompt_tokens = 24
rollout.temperature = 0.5
rollout.vllm.memory_share = 0.5
rollout.vllm.tensor_parallel = 2
rollout.vllm.devices = [0]
rollout.vllm.prefix_caching = false
rollout.vllm.quantisation = "fp8"
rollout.vllm.python = "python"
rollout.vllm.engine_args = {max_num_seqs=4}
rollout.gpus_per_generator = 1
rollout.max_replacements = 2
rollout.silent_s = 5.0
evaluation.every = 3
evaluation.num_prompts = 3
evaluation.samples_per_prompt = 2
evaluation.temperature = 0.5
evaluation.top_p = 0.5 | alone | greedy
evaluation.seed = 1
budget.steps = 4
budget.gpu_hours = 9.0
budget.flops = 1e18
checkpoint.every = 3
checkpoint.every_minutes = 2.0
checkpoint.keep = 3
checkpoint.best = "none"
sinks = ["tensorboard"]
description = "another"
sft.lr = 1e-3
"""
"""A change of one setting, and the contexts to try it in: by default alone."""
NOT_TRIED = {
    "model.path task.name task.graders task.thinking_end tasks evaluation.sets": "another model or other problems",
    "task.chat task.system task.thinking_start": "act where the model has a template, or the prompt opens its thinking",
    "pipeline.push_every": "only together with max_lag; tests/training/loop/test_pipeline.py",
    "curriculum.history": "acts from the third epoch on; tests/training/tasks/test_curriculum.py",
    "model.router_replay": "refused without experts; tests/training/learner/test_experts.py",
    "kl.reference.path kl.reference.url kl.reference.model kl.reference.api_key kl.reference.params "
    "kl.reference.num_parallel": "another model; tests/training/learner/test_references.py",
    "advantage.credit.weight": "only with turns; tests/training/rl/test_credit.py",
    "learner.ranks learner.sharding learner.shard_size rollout.engine rollout.generators "
    "cluster.address": "other processes; tests/training/learner/test_ranks.py",
    "sft derived": "not read by training",
}


BESIDES_STEPS = {
    "reward.threshold grading rollout.context rollout.max_prompt_tokens": "a limit that is reached",
    "model.trust_remote_code kl.reference.params kl.reference.num_parallel kl.reference.api_key optimizer.on_host "
    "learner cluster rollout.engine rollout.generators rollout.gpus_per_generator "
    "rollout.max_replacements rollout.silent_s rollout.vllm": "time, memory, processes, up to rounding",
    # Of a file, the problems that are withheld for evaluations are not trained on.
    "evaluation": "evaluations",
    "budget": "the end",
    "checkpoint sinks description": "files",
    "sft": "SFT",
}
"""What settings act on that do not act on the steps of a run."""


def acts_on(key: str) -> str:
    """Return what a setting acts on."""
    targets = [target for keys, target in BESIDES_STEPS.items() if any(is_at(key, each) for each in keys.split())]
    return targets[0] if targets else "steps"


def cases() -> list[tuple[str, str, str]]:
    """Return key, change and context of every case."""
    found = []
    for line in CASES.strip().splitlines():
        change, *contexts = (part.strip() for part in line.split("|"))
        key, _, value = (part.strip() for part in change.partition("="))
        found += [(key, f"{key}={value}", context) for context in contexts or ["alone"]]
    return found


def recipe_of(context: str, *change: str) -> Recipe:
    return changed_recipe(changed_recipe(load_recipe("tiny-cpu", BASE), CONTEXTS[context]), change)


def trained(recipe: Recipe) -> tuple[str, torch.Tensor]:
    """Return the tokens of three steps, as a digest, and the weights after them."""
    torch.set_num_threads(1)
    # A run writes nothing until `train`.
    run = TrainingRun(recipe, Path("no-such-folder"))
    tokens = hashlib.sha256()
    try:
        for done in itertools.islice(run.pipeline.steps(), 3):
            for group in done.batch.groups:
                tokens.update(group.key.encode())
                for completion in group.completions:
                    tokens.update(completion.tokens.tobytes())
        weights = torch.cat([weight.double().flatten() for weight in run.learner.weights().values()])
    finally:
        run.close()
    return tokens.hexdigest(), weights


@cache
def trained_in(context: str) -> tuple[str, torch.Tensor]:
    return trained(recipe_of(context))


def has_changed(change: str, context: str) -> bool:
    tokens, weights = trained_in(context)
    other_tokens, other_weights = trained(recipe_of(context, change))
    if tokens != other_tokens or weights.shape != other_weights.shape:
        return True
    # A mean, because AdamW magnifies the rounding of gradients near 0 in single weights.
    return float((weights - other_weights).abs().mean()) > 1e-6


def silenced(key: str, change: str, context: str) -> bool:
    """Return whether the table says that a setting has no effect here; then `--check` must say so."""
    recipe = recipe_of(context, change)
    is_silent = any(is_at(key, table) or is_at(table, key) for table in inert(recipe, gpu=False))
    said = [sentence for sentence in without_effect(recipe, gpu=False) if is_at(sentence.split(" = ")[0], key)]
    assert bool(said) == is_silent, said
    return is_silent


@pytest.mark.slow
def test_three_steps_with_every_setting_changed():
    wrong, table = [], []
    for key, change, context in cases():
        target = acts_on(key)
        is_silent = silenced(key, change, context)
        expected = target == "steps" and not is_silent
        acts = has_changed(change, context)
        table.append(f"{key:34} {context:18} {target:12} {'no effect, said' if is_silent else '':16} {acts}")
        print(table[-1], flush=True)
        if acts != expected:
            wrong.append(table[-1])
    assert not wrong


def test_every_setting_is_tried_or_has_a_reason():
    tried = {key for key, _, _ in cases()}
    left_out = [table for keys in NOT_TRIED for table in keys.split()]
    missing = {
        key
        for key in known_keys()
        if key.removesuffix(".name") not in tried
        and key not in tried
        and not any(is_at(key, table) for table in left_out)
    }
    assert not missing


def test_every_condition_is_tried_on_both_sides():
    recipes = [recipe_of(context, change) for _, change, context in cases()]
    for row in CONDITIONS:
        assert not all(row.holds(recipe) for recipe in recipes), row.keys
    for row in TASK_CONDITIONS:
        assert not all(row.holds(recipe.task) for recipe in recipes), row.keys
