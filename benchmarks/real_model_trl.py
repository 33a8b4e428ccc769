"""TRL's GRPOTrainer on what real_model.py measures: the same model, problems, batch, lengths and evaluations, one GPU.

    pip install trl datasets; python benchmarks/real_model_trl.py FOLDER --train FILE --test FILE --out DIR [--vllm]

FOLDER is a model folder, which scalerl makes of a GGUF file under SCALERL_CACHE. With --vllm, answers are sampled by
vLLM in the same process (colocate); otherwise by transformers. A step is one update on 32 problems x 16 answers of up
to 384 tokens; 250 test problems x 4 are evaluated before the first step and every ten steps. The loss is CISPO without
a KL term, as in our recipe; the grader is ours. Printed, and written to DIR/summary.json: seconds, rewards, answers per
hour and peak memory.
"""

import argparse
import gzip
import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from scalerl.training.graders.rules import numeric

TEMPLATE = "{prompt}\n\nReason step by step, and end with the answer as a number."
LARGEST_RATIO = 5.0


def read(path: str, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the problems of a file as chats with their answers."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][:limit]
    return [
        {"prompt": [{"role": "user", "content": TEMPLATE.format(prompt=row["question"])}], "answer": row["answer"]}
        for row in rows
    ]


def reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each right answer, else 0."""
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [float(bool(numeric(text, wanted))) for text, wanted in zip(texts, answer, strict=True)]


def train(args: argparse.Namespace) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    started = time.monotonic()
    # By name: TRL is needed for this benchmark alone, and is not a dependency of scalerl.
    datasets: Any = importlib.import_module("datasets")
    trl: Any = importlib.import_module("trl")
    on_gpu = torch.cuda.is_available()
    batch = args.groups * args.samples
    lengths: list[int] = []

    class Times(TrainerCallback):
        """Notes when steps end, and rewards of evaluations."""

        def __init__(self) -> None:
            self.began = 0.0
            self.ends: list[float] = []
            self.evaluations: list[dict[str, float]] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.monotonic()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.monotonic())

        def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            metrics: dict[str, float] = given["metrics"]
            now = time.monotonic()
            self.evaluations.append(
                {
                    "step": state.global_step,
                    "reward": metrics["eval_reward"],
                    "seconds": metrics["eval_runtime"],
                    "at_s": now - started,
                }
            )

    def measured_reward(completions: Sequence[Any], completion_ids: Any, **others: Any) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        return reward(completions, **others)

    times = Times()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        reward_funcs=measured_reward,
        train_dataset=datasets.Dataset.from_list(read(args.train)),
        eval_dataset=datasets.Dataset.from_list(read(args.test, args.eval_problems)),
        callbacks=[times],
        args=trl.GRPOConfig(
            output_dir=str(args.out / "trl"),
            per_device_train_batch_size=args.micro,
            gradient_accumulation_steps=batch // args.micro,
            num_generations=args.samples,
            num_generations_eval=args.eval_samples,
            per_device_eval_batch_size=args.eval_problems * args.eval_samples,
            max_completion_length=args.length,
            loss_type="cispo",
            epsilon_high=LARGEST_RATIO,
            scale_rewards="batch",
            beta=0.0,
            temperature=1.0,
            top_k=0,
            learning_rate=args.lr,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=10,
            max_steps=args.steps,
            eval_strategy="steps",
            eval_steps=args.every,
            eval_on_start=True,
            use_cpu=not on_gpu,
            bf16=on_gpu,
            gradient_checkpointing=False,
            use_vllm=args.vllm,
            **(
                {
                    "vllm_mode": "colocate",
                    "vllm_gpu_memory_utilization": 0.3,
                    "vllm_max_model_length": args.context,
                }
                if args.vllm
                else {}
            ),
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    seconds = times.ends[-1] - times.began
    evaluated = sum(each["seconds"] for each in times.evaluations)
    return {
        "peer": f"trl {trl.__version__}",
        "vllm": args.vllm,
        "steps": len(times.ends),
        "start_up_s": times.began - started,
        "seconds_to_last_step": times.ends[-1] - started,
        "evaluation_s": evaluated,
        "training_s": seconds - evaluated,
        "step_s": [round(end - start, 3) for start, end in zip(times.ends, times.ends[1:], strict=False)],
        "steps_per_hour_of_training": 3600 * len(times.ends) / (seconds - evaluated),
        "answers_per_hour_of_training": 3600 * len(times.ends) * batch / (seconds - evaluated),
        "mean_length": sum(lengths) / max(len(lengths), 1),
        "evaluations": times.evaluations,
        "peak_gb": torch.cuda.max_memory_reserved() / 1e9 if on_gpu else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--micro", type=int, default=64, help="answers per pass")
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--context", type=int, default=768)
    parser.add_argument("--eval-problems", type=int, default=250)
    parser.add_argument("--eval-samples", type=int, default=4)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--lr", type=float, default=3e-6)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    summary = train(args) | {"command": " ".join(sys.argv)}
    text = json.dumps(summary, indent=1)
    (args.out / "summary.json").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
