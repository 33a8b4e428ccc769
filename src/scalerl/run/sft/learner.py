"""A step of supervised fine-tuning: packed rows, log-probs in chunks, AdamW with warm-up and a cosine.

    examples -> packed rows (learner/packed_attention.py) -> log-probs of completions alone (rl/logprobs.py) -> AdamW

The loss of a step is the mean negative log-prob over the completion tokens of its batch, however the batch is cut into
rows, so the gradient does not depend on the cut.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from scalerl.config.parts import LearnerSettings, SftSettings
from scalerl.learner.body import check_body, compile_layers, make_body, prepare_for_training
from scalerl.learner.packed_attention import pack, packed_hidden_states
from scalerl.models.load import head
from scalerl.rl.logprobs import log_probs_and_entropy
from scalerl.run.sft.demonstrations import Example

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01
_LARGEST_NORM = 1.0
_FINAL_LR = 0.02
"""Fraction of the learning rate at the end of the cosine."""


class SftLearner:
    """A model and its optimiser; trains the model in place."""

    def __init__(
        self,
        model: "PreTrainedModel",
        settings: SftSettings,
        learner: LearnerSettings,
        *,
        lr: float,
        num_steps: int,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._settings = model, settings
        self._lr, self._num_steps = lr, num_steps
        self._row_tokens = learner.micro_batch_tokens
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._body = make_body(model, dtype)
        check_body(self._body)
        prepare_for_training(self._body, learner.gradient_checkpointing is True)
        if model.device.type == "cuda":
            compile_layers(self._body)
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=lr,
            betas=_BETAS,
            weight_decay=_WEIGHT_DECAY,
            fused=True,
        )
        self.num_steps_done = 0

    def step(self, batch: Sequence[Example]) -> Tensor:
        """Train on a batch; return its loss, still on the device."""
        num_targets = sum(example.num_targets for example in batch)
        total = torch.zeros((), dtype=torch.float64, device=self._model.device)
        for row in rows(batch, self._row_tokens):
            loss = self._loss(row) / num_targets
            loss.backward()
            total += loss.detach()
        parameters = list(self._parameters.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, _LARGEST_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = self._lr * schedule(self.num_steps_done, self._num_steps, self._settings)
        # A batch whose gradient is not finite must not end the model; AdamW's kernel itself skips it.
        self._optimizer.found_inf = (~norm.isfinite()).float()  # pyright: ignore[reportAttributeAccessIssue]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._refresh_body()
        self.num_steps_done += 1
        return total

    @torch.no_grad()
    def loss(self, examples: Sequence[Example]) -> float:
        """Return the mean negative log-prob of completion tokens, in nats."""
        sums = [self._loss(row).double() for row in rows(examples, self._row_tokens)]
        return torch.stack(sums).sum().item() / sum(example.num_targets for example in examples)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return what a checkpoint needs: weights and the optimiser's moments."""
        moments = {
            f"{name}/{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._optimizer.state[parameter].items()
        }
        weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return {"weights": weights, "optimizer": moments}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]], num_steps_done: int) -> None:
        """Continue exactly from where state_dict was taken."""
        for name, parameter in self._parameters.items():
            parameter.copy_(state["weights"][name])
        self._optimizer.state.clear()
        for key, value in state["optimizer"].items():
            name, _, moment = key.rpartition("/")
            parameter = self._parameters[name]
            self._optimizer.state[parameter][moment] = value.to(parameter.device, copy=True)
        self.num_steps_done = num_steps_done
        self._refresh_body()

    def _loss(self, row: Sequence[Example]) -> Tensor:
        """Return the summed negative log-prob of the completions of one packed row."""
        device = self._model.device
        lengths = [example.num_inputs for example in row]
        starts = np.cumsum([0, *lengths[:-1]])
        ids = torch.from_numpy(np.concatenate([example.tokens[:-1] for example in row])).to(device)
        # Each target is predicted one place before its own.
        places = [start + example.targets - 1 for start, example in zip(starts, row, strict=True)]
        targets = np.concatenate([example.tokens[example.targets] for example in row])
        hidden = packed_hidden_states(self._body, ids, pack(lengths).to(device))
        master = head(self._model)
        log_probs, _ = log_probs_and_entropy(
            hidden[torch.from_numpy(np.concatenate(places)).to(device)],
            master.weight,
            torch.from_numpy(targets).to(device),
            bias=master.bias,
        )
        return -log_probs.sum()

    @torch.no_grad()
    def _refresh_body(self) -> None:
        copies: list[Tensor] = [copy for copy in self._body.parameters() if copy.requires_grad]
        masters: list[Tensor] = list(self._parameters.values())
        if any(copy is not master for copy, master in zip(copies, masters, strict=True)):
            torch._foreach_copy_(copies, masters)  # pyright: ignore[reportPrivateImportUsage]


def rows(examples: Sequence[Example], tokens: int) -> Iterator[list[Example]]:
    """Cut examples into rows of at most `tokens` tokens, those of similar length together."""
    row: list[Example] = []
    spent = 0
    for example in sorted(examples, key=lambda example: -example.num_inputs):
        if row and spent + example.num_inputs > tokens:
            yield row
            row, spent = [], 0
        row.append(example)
        spent += example.num_inputs
    if row:
        yield row


def schedule(step: int, num_steps: int, settings: SftSettings) -> float:
    """Return the learning rate of a step as a share of the largest: a linear warm-up, then a cosine."""
    num_warmup = math.ceil(settings.warmup_frac * num_steps)
    if step < num_warmup:
        return (step + 1) / num_warmup
    place = (step - num_warmup) / max(1, num_steps - num_warmup)
    return _FINAL_LR + (1 - _FINAL_LR) * 0.5 * (1 + math.cos(math.pi * place))
