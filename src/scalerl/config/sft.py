"""The settings of `scalerl sft`. Those that are not set follow from the model and the demonstrations."""

from typing import Annotated, Literal

from pydantic import Field

from scalerl.config.parts import Fraction, Settings

NEW_MODEL = "new"


class SftSettings(Settings):
    """How a base model is made from demonstrations; RL's optimizer settings are not used."""

    model: str = ""
    """Model to start from, named as model.path is, which is used if this is empty; "new" builds a small Llama."""
    new_tokens: Literal["none", "characters", "words"] = "none"
    """Tokens to add to the tokenizer: for characters of the demonstrations that it does not know, or for those and for
    words that it writes with several tokens. A new model has all characters anyway."""
    lr: float | None = Field(default=None, gt=0)
    """Largest learning rate; not set: 3e-5, the paper's, or 2e-3 for a new model."""
    epochs: float | None = Field(default=None, gt=0)
    """Times that every demonstration is trained on; not set: 4, as in the paper, unless steps is set."""
    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps, instead of epochs; not set for a new model: 5000."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens of a step, prompts included; not set: the smaller of 2 million and an eighth of an epoch, or 9000 for a
    new model."""
    warmup_frac: Fraction = 0.04
    """Share of the steps over which the learning rate rises linearly."""
    final_lr_frac: Fraction = 0.02
    """The learning rate falls along a cosine to this fraction of lr."""
    context: int | None = Field(default=None, ge=2)
    """Demonstrations of more tokens are left out; not set: the model's context."""
    num_demonstrations: int | None = Field(default=None, ge=2)
    """Largest number of demonstrations; not set: all of a file, of a task that makes its own 10,000, or 250,000 for a
    new model."""
    num_heldout: int = Field(default=4000, ge=1)
    """Demonstrations that only measure the loss; at most a tenth of all."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """AdamW's decay of the mean squared gradient."""
    grad_clip: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0 turns clipping off."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between two measurements of the held-out loss, each with a checkpoint; not set: a twentieth of the run."""
    num_measured: int = Field(default=32, ge=0)
    """Evaluation problems on which the result's pass rate is measured at the end; 0 measures none."""
