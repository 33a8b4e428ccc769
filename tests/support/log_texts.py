"""Console output as trainers print it, for tests: made from a list of steps and rewards."""

from collections.abc import Callable, Sequence

RAY = "\x1b[36m(main_task pid=926049)\x1b[0m "


def rising(num: int) -> list[float]:
    """Rewards that rise from 0.30 towards 0.70."""
    return [round(0.3 + 0.4 * step / (step + num / 4), 4) for step in range(1, num + 1)]


def verl(rewards: Sequence[float], first: int = 1, every: int = 1) -> str:
    """verl behind Ray's coloured prefix: evaluations every few steps, NUL bytes and other lines in between."""
    lines = ["\0\0\0Loading checkpoint shards: 100%|##| 4/4 [00:01<00:00,  3.1it/s]", f"{RAY}WARNING: a, b, or: c"]
    for step, reward in enumerate(rewards, start=first):
        line = f"step:{step} - actor/kl_loss:0.001 - actor/lr:1e-06 - timing_s/step:36.000 - critic/score/mean:{reward}"
        line += f" - critic/score/max:1.000 - val-core/openai/gsm8k/acc/mean@1:{reward}" if step % every == 0 else ""
        lines += [f"{RAY}{line} - perf/throughput:np.float64(1234.5)", f"{RAY}Training Progress:  1%|1   | {step}/435"]
    return "\n".join(lines) + "\n"


def trl(rewards: Sequence[float], every: int = 1, bars: bool = True) -> str:
    """TRL: dicts whose values may be strings, between the redrawn lines of a progress bar."""
    text = "The following generation flags are not valid: {'temperature'}\n"
    text += "\r  0%|          | 0/250 [00:00<?, ?it/s]" if bars else ""
    for number, reward in enumerate(rewards, start=1):
        bar = f"\r  4%|4         | {number * every}/250 [02:01<48:36, 12.15s/it]" if bars else ""
        text += f"{bar}\r          \r{{'loss': '0.01', 'grad_norm': 0.1, 'reward': '{reward}', 'reward_std': nan, "
        text += f"'rewards/accuracy_reward/mean': {reward / 2}, 'epoch': 0.0{number}}}\n{bar}"
    return text + "\n{'train_runtime': 1234.5, 'train_loss': 0.01, 'epoch': 1.0}\n"


def tinker(rewards: Sequence[float], name: str = "run_a") -> str:
    lines = [f"[{name}] Loading ...", f"[{name}] 7473 examples | model=Q/Q-8B seed=42 rank=32 lr=3e-05"]
    total = len(rewards)
    for step, reward in enumerate(rewards, start=1):
        lines.append(f"[{name}]  {step:2}/{total} | loss=-0.9862 | reward={reward:.3f} | acc={100 * reward:.1f}%")
    return (
        "\n".join([*lines, f"[{name}] === FINAL REPORT ===", f"[{name}] Steps: {total} | Group: 4 | LR: 3e-05"]) + "\n"
    )


def prime_rl(rewards: Sequence[float]) -> str:
    text = ""
    for step, reward in enumerate(rewards):
        text += f"16:43:08    INFO Starting orchestrator step {step}\n"
        text += "\rGenerating rollouts (train):  25%|##5       | 32/128 [00:05<00:15,  6.14it/s]\n"
        text += f"16:43:08 SUCCESS Step {step} | Time: 36.00s | Reward: {reward} | Throughput: 3,500.7 tokens/s | "
        text += "Seq. Length: 142.7 tokens/sample | Async Level: 1 | Max. Off-Policy Level: 0\n"
    return text


def slime(rewards: Sequence[float]) -> str:
    text = ""
    for step, reward in enumerate(rewards):
        text += f"(RolloutManager pid=18) [2026-04-15 07:57:53] rollout.py:1193 - perf {step}: "
        text += "{'rollout/response_len/mean': 2773.7, 'perf/rollout_time': 371.2}\n"
        text += (
            f"(TrainActor pid=19) [2026-04-15 07:57:54] data.py:88 - rollout {step}: {{'rollout/raw_reward': {reward}, "
        )
        text += "'rollout/rewards': 0.0, 'rollout/truncated': 1.0}\n"
    return text


def openrlhf(rewards: Sequence[float]) -> str:
    line = "(PPOTrainer pid=3) INFO Global step {}: {{'policy_loss': 0.1, 'reward': {}, 'kl': tensor(0.01)}}\n"
    return "".join(line.format(step, reward) for step, reward in enumerate(rewards, start=1))


def blocks(rewards: Sequence[float]) -> str:
    """A headline per step, then one value per line, as NeMo-RL prints them."""
    text = ""
    for step, reward in enumerate(rewards, start=1):
        text += (
            f"\n=================== Step {step}/100 ===================\n> Preparing batch...\n\nTraining Results:\n"
        )
        text += f"  * Loss: 0.01\n  * Avg Reward: {reward}\n\nTiming:\n  * Total step time: 36.00s\n"
    return text


def key_values(rewards: Sequence[float]) -> str:
    line = "2025-01-01 10:00:00 INFO train step={} loss=0.1 reward={} lr=1e-6\n"
    return "".join(line.format(step, reward) for step, reward in enumerate(rewards, start=1))


STYLES: dict[str, Callable[[Sequence[float]], str]] = {
    "verl": verl,
    "trl": trl,
    "tinker": tinker,
    "prime_rl": prime_rl,
    "slime": slime,
    "openrlhf": openrlhf,
    "blocks": blocks,
    "key_values": key_values,
}
