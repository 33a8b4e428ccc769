"""Sampling in several turns against the same tokens in one: what turns, tools and their processes cost.

    python benchmarks/turns.py                      the table of docs/environments.md, some minutes on two cores
    python benchmarks/turns.py --turns 1,4 --tool-ms 0 --conversations 32
    python benchmarks/turns.py --engine vllm        with vLLM, in an environment that has it

Conversations have 64 sampled tokens in the mean, however many turns they have: a random model whose stop tokens are so
many that turns are as long. After each turn but the last the environment waits and says four tokens. It runs in a
process per conversation, as an environment of a user's does; "in process" is the same one without. Tokens per second of
CPU time, with the environments' processes counted, are what to compare where other programs keep the machine busy.
`prefill saved` is the share of prompt tokens that follow-up turns found in the cache.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

from rollout_speed import make_model

sys.path.append(str(Path(__file__).parent))

from scalerl.recipe.parts import EnvironmentSettings
from scalerl.training.environments.build import build_steps
from scalerl.training.environments.protocol import Step
from scalerl.training.environments.turns import Playing, TurnsEngine
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.types import LengthPlan, Problem, Request, derive_seed

VOCABULARY = 512
SAMPLED = 64
PROMPT = 16
OBSERVED = 4
CONTEXT = 512


def make_requests(num: int, *, environment: str) -> list[Request]:
    problem = Problem(id="0", prompt="", answer="", task="benchmark")
    return [
        Request(
            group=str(number),
            index=0,
            problem=problem,
            prompt_tokens=tuple((number * 31 + place * 7) % VOCABULARY for place in range(PROMPT)),
            seed=derive_seed("turns", number),
            length=LengthPlan(answer_budget=CONTEXT - PROMPT),
            environment=environment,
        )
        for number in range(num)
    ]


def observe(step: Step) -> list[int]:
    return [int(word) for word in step.observation.split()]


def cpu_s(steps: Any) -> float:
    """Return the CPU time of this process, and of the one that environments are forked from with its ended forks."""
    ticks = 0
    if steps is not None and steps.pid != os.getpid():
        fields = Path(f"/proc/{steps.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def vllm_engine(slots: int) -> Any:
    from scalerl.training.rollout.vllm.engine import VllmEngine
    from scalerl.training.rollout.vllm.spec import EngineSpec, environment

    os.environ.update(environment(on_gpu=False))
    model = make_model(vocabulary=VOCABULARY, context=CONTEXT)
    model.config.architectures = [type(model).__name__]
    engine = VllmEngine(EngineSpec(config=model.config.to_json_string(), slots=slots, context=CONTEXT, stop_tokens=()))
    engine.push_weights(model.state_dict(), 0)
    return engine


def make_engine(name: str, slots: int, turns: int) -> Any:
    """Return an engine whose turns are as long as `turns` of them are to be."""
    stop_tokens = range(turns * VOCABULARY // SAMPLED)
    if name == "vllm":
        # One for all: it takes longer to start than to sample.
        engine = vllm_engine(slots)
        engine._stop_tokens = frozenset(stop_tokens)
        return engine
    model = make_model(vocabulary=VOCABULARY, context=CONTEXT)
    return TorchEngine(model, slots=slots, max_length=CONTEXT, stop_tokens=tuple(stop_tokens), chunk=8)


def measure(name: str, turns: int, tool_s: float | None, *, num: int, slots: int, in_process: bool) -> dict[str, float]:
    """Return speeds of `num` conversations; without a tool, of single completions."""
    inner = make_engine(name, slots, turns)
    environments, steps = {}, None
    if tool_s is not None:
        own: dict[str, Any] = {"turns": turns, "tool_s": tool_s, "max_turns": turns}
        settings = EnvironmentSettings(name="waiting:Wait", in_process=in_process, step_s=120.0, **own)
        steps = build_steps(settings)
        environments["own"] = Playing(
            settings=settings,
            steps=steps,
            observe=observe,
            opened=lambda request, step: request.prompt_tokens,
        )
    engine = TurnsEngine(inner, environments, decode=lambda tokens: "", context=CONTEXT, slots=slots)
    requests = make_requests(num + 1, environment="own" if environments else "")
    # The first imports the environment.
    for some in (requests[num:], requests[:num]):
        cpu_before, begun, prefilled_before = cpu_s(steps), time.perf_counter(), engine.work.prefilled
        engine.submit(some)
        completions = []
        while engine.num_pending:
            completions += engine.poll()
    seconds, prefilled = time.perf_counter() - begun, engine.work.prefilled - prefilled_before
    used_s = cpu_s(steps) - cpu_before
    if steps is not None:
        steps.close()
    sampled = sum(completion.num_written for completion in completions)
    prompts = sum(PROMPT + start - 1 for completion in completions for start, _ in completion.turns or ((0, 0),))
    return {
        "per_s": sampled / seconds,
        "per_cpu_s": sampled / used_s,
        "turns": sum(len(completion.turns) or 1 for completion in completions) / num,
        "saved": 1 - prefilled / prompts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", default="1,2,4,8")
    parser.add_argument("--tool-ms", default="0,10,100")
    parser.add_argument("--conversations", type=int, default=256)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--engine", choices=["torch", "vllm"], default="torch")
    parser.add_argument("--in-process", action="store_true", help="environments in the process that samples")
    arguments = parser.parse_args()
    name = arguments.engine
    sizes = {"num": arguments.conversations, "slots": arguments.slots, "in_process": arguments.in_process}
    measure(name, 1, None, **{**sizes, "num": arguments.slots})
    alone = measure(name, 1, None, **sizes)
    print("| turns | tool, ms | tokens per s | tokens per CPU s | against one completion | prefill saved |")
    print("|---|---|---|---|---|---|")
    print(f"| one completion | | {alone['per_s']:,.0f} | {alone['per_cpu_s']:,.0f} | 1 | |")
    for turns in map(int, arguments.turns.split(",")):
        for tool_ms in map(float, arguments.tool_ms.split(",")):
            made = measure(name, turns, tool_ms / 1e3, **sizes)
            print(
                f"| {made['turns']:.1f} | {tool_ms:g} | {made['per_s']:,.0f} | {made['per_cpu_s']:,.0f} | "
                f"{made['per_cpu_s'] / alone['per_cpu_s']:.2f} | {made['saved']:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
