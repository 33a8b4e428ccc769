"""The whole algorithm on one page: synchronous ScaleRL over the library, on the embedded model.

    python examples/one_page_loop.py [steps]

Every formula is the library's own. What the real loop adds is in loop/pipeline.py (generation and training at the same
time, with a bound on lag), training/run/checkpoint.py and training/run/evaluate.py.
"""

import sys

import torch

from scalerl.config import load_recipe
from scalerl.recipe.choose import choose
from scalerl.training.models.load import head, hidden_states
from scalerl.training.rl.advantages import BASELINES, NORMALISATIONS
from scalerl.training.rl.filters import effective_batch, trainable_tokens, trained_tokens
from scalerl.training.rl.logprobs import log_probs_and_entropy
from scalerl.training.rl.losses import LOSSES, LossInputs
from scalerl.training.rl.weights import WEIGHTS
from scalerl.training.run.evaluate import evaluate_all
from scalerl.training.run.inputs import load_inputs, training_prompts
from scalerl.training.run.parts import build_curriculum, build_engine, build_grading, request_maker


def main(steps: int = 5) -> None:
    recipe = load_recipe(
        "tiny-cpu", ["pipeline.max_lag=0", "evaluation.num_prompts=50", "evaluation.samples_per_prompt=2"]
    )
    inputs = load_inputs(recipe)
    model, engine, grading = inputs.model.model, build_engine(recipe, inputs), build_grading(inputs, recipe.reward)
    prompts = training_prompts(inputs, recipe.rollout)
    make_requests = request_maker(inputs, prompts, recipe.pipeline, recipe.rollout, seed=recipe.seed).requests
    curriculum = build_curriculum(recipe.curriculum, prompts, seed=recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.optimizer.lr, eps=recipe.optimizer.eps)

    for step in range(steps):
        # 1. Ask: a batch of problems, several completions each, with the log-prob of every token that was sampled.
        for _ in range(recipe.pipeline.groups_per_batch):
            issued = curriculum.next()
            assert issued is not None
            engine.submit(make_requests(issued))
        arrived: dict[str, list] = {}
        while engine.num_pending:
            for completion in engine.poll():
                arrived.setdefault(completion.request.group, []).append(completion)
        # 2. Grade: `correct` goes to the curriculum, before any filter; `reward` is trained on.
        grading.submit([sorted(each, key=lambda completion: completion.request.index) for each in arrived.values()])
        groups = grading.poll()
        for graded in groups:
            counts = {"num_correct": graded.num_correct, "num_graded": graded.num_graded}
            curriculum.graded(graded.key, **counts, num_asked=len(graded.completions))
            curriculum.trained(graded.key)
        completions = [completion for group in groups for completion in group.completions]

        # 3. Flatten: one entry per token, with its completion and group.
        group = torch.tensor([index for index, graded in enumerate(groups) for _ in graded.completions])
        owner = torch.cat([torch.full((len(completion),), index) for index, completion in enumerate(completions)])
        old = torch.cat([torch.tensor(completion.log_probs) for completion in completions])
        sampled = torch.cat([torch.tensor(~completion.forced) for completion in completions])
        correct = torch.tensor([float(verdict is True) for graded in groups for verdict in graded.correct])
        rewards = torch.tensor([reward for graded in groups for reward in graded.rewards])

        # 4. Filter, then advantages, then token weights: statistics of the whole batch, computed once.
        trainable = trainable_tokens(sampled, old)
        batch = effective_batch(
            group,
            correct,
            torch.ones_like(correct, dtype=torch.bool),
            rewards,
            torch.tensor([completion.truncated for completion in completions]),
            torch.zeros(len(completions), dtype=torch.long).index_add(0, owner, trainable.long()),
            drop_truncated=recipe.filter.drop_truncated,
            zero_variance=recipe.filter.zero_variance,
            baseline=choose(BASELINES, recipe.advantage.baseline),
            normalise=choose(NORMALISATIONS, recipe.advantage.normalisation),
        )
        trained = trained_tokens(trainable, owner, batch.kept)
        weights = choose(WEIGHTS, recipe.weights)(group[owner], owner, trained)

        # 5. Log-probs of the same tokens under the weights being trained, with an FP32 head; the loss; one update.
        log_probs = torch.zeros_like(old)
        place = 0
        for index, completion in enumerate(completions):
            if batch.kept[index]:
                ids = torch.tensor([*completion.request.prompt_tokens, *completion.tokens.tolist()])
                hidden = hidden_states(model, ids[None, :-1])[0, len(completion.request.prompt_tokens) - 1 :]
                exact = head(model)
                new, _ = log_probs_and_entropy(hidden, exact.weight, ids[-len(completion) :], bias=exact.bias)
                log_probs = torch.cat([log_probs[:place], new, log_probs[place + len(completion) :]])
            place += len(completion)
        loss_inputs = LossInputs(
            log_probs=log_probs,
            generator_log_probs=old,
            advantages=batch.advantages[owner],
            completion_of_token=owner,
            trained=trained,
        )
        token_loss = choose(LOSSES, recipe.loss)(loss_inputs)
        loss = (weights * token_loss.loss).sum()
        if loss.requires_grad:
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.grad_clip)
            optimizer.step()

        # 6. Push: the next batch is sampled by the policy just made.
        engine.push_weights({name: value.detach() for name, value in model.named_parameters()}, step + 1)
        print(f"step {step + 1}: correct {correct.mean():.3f}, kept {int(batch.kept.sum())} of {len(completions)}")

    result = evaluate_all(engine, inputs, step=steps)["main"]
    print(f"evaluation: {result.reward:.3f} over {result.num_graded} samples")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
