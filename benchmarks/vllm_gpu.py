"""What has to hold for vLLM on a GPU, and could not be run on the CPU that the engine was written on.

    python benchmarks/vllm_gpu.py                                     a small random Llama on the first GPU
    python benchmarks/vllm_gpu.py --model FOLDER --slots 256          a model of yours
    python benchmarks/vllm_gpu.py --tensor-parallel 2                 over two GPUs

It needs a GPU and vLLM (pip install "scalerl[vllm]"). Each line is one check with its figure: that vLLM's second model
runner takes our sampler, that new weights arrive by CUDA IPC in the middle of answers, that the head is FP32, that
generator and learner agree, and how fast it is against the torch engine. The exit code is the number of checks that
failed.
"""

import argparse
import copy
import sys
import time
from typing import Any

import numpy as np
import torch
from rollout_speed import LENGTHS, PROMPT, make_model, make_requests, push_s, run_engine

from scalerl.config.rollout import RolloutSettings, VllmSettings
from scalerl.models.load import LoadedModel, load_model
from scalerl.rl.logprobs import head_logits
from scalerl.rollout import ENGINES
from scalerl.types import Completion

MOST_KL = 0.01
"""As in analysis/signals.py: more than the rounding of bf16 bodies explains."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    return parser.parse_args()


def build(name: str, model: Any, arguments: argparse.Namespace) -> Any:
    vllm = VllmSettings(tensor_parallel=arguments.tensor_parallel)
    settings = RolloutSettings(slots=arguments.slots, context=PROMPT + LENGTHS[1], vllm=vllm)
    loaded = LoadedModel(model=model, tokenizer=Any, stop_tokens=(), context=PROMPT + LENGTHS[1])  # pyright: ignore[reportArgumentType]
    return ENGINES[name](loaded, settings, dtype=torch.bfloat16, fp32_head=True)


def drained(engine: Any, requests: list[Any], pushes: list[Any]) -> list[Completion]:
    """Sample all requests, with a push of each of these weights on the way."""
    engine.submit(requests)
    completions = []
    while engine.num_pending:
        completions += engine.poll()
        if pushes and engine.work.decoded > 0:
            engine.push_weights(pushes.pop(0), engine.version + 1)
    return completions


@torch.no_grad()
def k3(model: Any, completions: list[Completion]) -> tuple[float, float]:
    """Return the KL of generator and learner at equal weights (rl/metrics.py), and the largest ratio."""
    body = copy.deepcopy(model.base_model).to(torch.bfloat16)
    log_ratios = []
    for completion in completions:
        prompt = completion.request.prompt_tokens
        tokens = torch.tensor([[*prompt, *completion.tokens.tolist()]], device=model.device)
        hidden = body(tokens).last_hidden_state[0, len(prompt) - 1 : -1]
        log_probs = torch.log_softmax(head_logits(hidden, model.get_output_embeddings().weight.float()), dim=-1)
        own = log_probs.gather(1, tokens[0, len(prompt) :, None])[:, 0].cpu().numpy()
        log_ratios.append(own - completion.log_probs)
    joined = np.concatenate(log_ratios).astype(np.float64)
    return float(np.mean(np.expm1(joined) - joined)), float(np.exp(joined.max()))


def main() -> int:
    arguments = options()
    if not torch.cuda.is_available():
        print("There is no GPU here: this script is for a machine that has one, with vLLM installed.")
        return 2
    if arguments.model:
        model = load_model(arguments.model, dtype=torch.float32, device="cuda").model
    else:
        model = make_model().to("cuda")
    requests, failed = make_requests(arguments.requests), 0

    def check(name: str, figure: str, holds: bool) -> None:
        nonlocal failed
        failed += not holds
        print(f"{'ok' if holds else 'FAILED':<8}{name:<56}{figure}", flush=True)

    begun = time.perf_counter()
    engine = build("vllm", model, arguments)
    check("vLLM starts and takes weights by CUDA IPC", f"{time.perf_counter() - begun:.0f} s", True)
    ours = build("torch", model, arguments)
    results = [{c.request.key: c for c in drained(each, requests, [])} for each in (ours, engine)]
    equal = np.mean([results[0][key].tokens.tolist() == results[1][key].tokens.tolist() for key in results[0]])
    check("completions equal to the torch engine's", f"{equal:.1%} (bf16 bodies round differently)", bool(equal > 0.2))
    kl, ratio = k3(model, list(results[1].values())[:128])
    check("KL of vLLM and the learner at equal weights", f"{kl:.2g}, largest ratio {ratio:.3g}", kl < MOST_KL)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    mixed = drained(engine, requests, [weights] * 3)
    num_mixed = sum(len(set(completion.versions.tolist())) > 1 for completion in mixed)
    check("completions that a push reached on the way", f"{num_mixed} of {len(mixed)}", num_mixed > 0)
    check("a push", f"{1000 * push_s(engine, model):.1f} ms (torch: {1000 * push_s(ours, model):.1f} ms)", True)
    rates = []
    for each in (ours, engine):
        num_tokens, seconds = min((run_engine(each, requests) for _ in range(2)), key=lambda pair: pair[1])
        rates.append(num_tokens / seconds)
    check("tokens per second", f"{rates[1]:,.0f} (torch: {rates[0]:,.0f})", True)
    for each in (ours, engine):
        each.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
