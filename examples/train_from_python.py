"""Train on your own problems with your own grader and loss, then fit the curve: all of it from Python.

python examples/train_from_python.py FOLDER [steps]        two CPU cores, about a minute
"""

import sys
from collections.abc import Iterator

import scalerl
from scalerl.training.rl.losses import LossInputs, TokenLoss


def problems() -> Iterator[dict[str, str]]:
    """Sums, as rows; a file or a data set of the hub would do as well."""
    for a in range(1, 21):
        for b in range(1, 21):
            yield {"prompt": f"{a}+{b}-{(a * b) % 7}=", "answer": str(a + b - (a * b) % 7)}


def near(text: str, answer: str, /, *, thinking_end: str) -> float:
    """Partial credit: how near the number after the thinking is. 1 is correct, 0 is wrong."""
    given = text.rpartition(thinking_end)[2].strip()
    return max(0.0, 1 - abs(int(given) - int(answer)) / 10) if given.lstrip("-").isdigit() else 0.0


def reinforce(inputs: LossInputs, *, cap: float = 2.0) -> TokenLoss:
    """REINFORCE with a capped importance ratio, which carries no gradient."""
    ratio = (inputs.log_probs - inputs.generator_log_probs).detach().exp()
    loss = -ratio.clamp(max=cap) * inputs.advantages * inputs.log_probs
    return TokenLoss(loss=loss, ratio=ratio, clipped=ratio > cap)


def main() -> None:
    folder, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    run = scalerl.train(
        "tiny-cpu",
        folder,
        problems=problems,
        grader=near,
        loss=reinforce,
        settings={"budget.steps": steps, "evaluation": {"every": max(1, steps // 10), "num_prompts": 50}},
    )
    first, last = run.evals[0], run.evals[-1]
    print(f"correct: {first['reward']:.3f} before training, {last['reward']:.3f} after {last['step']} steps")
    print(f"mean value of the grader: {first['score']:.3f} before, {last['score']:.3f} after")
    fit = scalerl.fit_run(folder)
    decision = scalerl.decide(fit)
    print(f"curve: {decision.state}, {decision.action}; ceiling {fit.params['ceiling']:.3f}")


if __name__ == "__main__":
    main()
