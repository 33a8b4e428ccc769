"""A GRPO recipe after the names of TRL's GRPOConfig: scalerl recipe check examples/peers/trl_grpo.py"""

from trl import GRPOConfig  # pyright: ignore[reportMissingImports]

args = GRPOConfig(
    output_dir="outputs/grpo",
    loss_type="cispo",
    epsilon_high=0.28,
    scale_rewards="group",
    num_generations=16,
    max_completion_length=4096,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_iterations=1,
    use_vllm=True,
    cast_lm_head_to_fp32=True,
    mask_truncated_completions=True,
    beta=0.0,
    learning_rate=1e-6,
)
