"""The output head of the generator: from hidden states to logits."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from scalerl.training.rl.head_products import split_weight
from scalerl.training.rl.logprobs import head_logits


class OutputHead:
    """A copy of the head in the dtype and memory layout in which its product is fastest.

    With a bf16 body, an FP32 head has the learner's unrounded weights, so that the log-probs of engine and learner
    differ only because of the body.
    """

    def __init__(self, model: Any, source: Any, *, fp32: bool) -> None:
        """`model` is the engine's copy, in any dtype; `source` is the model that it was copied from."""
        head = model.get_output_embeddings()
        self._own = head.weight
        self._fp32 = fp32
        self._names = [name for name, weight in model.state_dict(keep_vars=True).items() if weight is head.weight]
        self._bias_names = [name for name, bias in model.state_dict(keep_vars=True).items() if bias is head.bias]
        original = source.get_output_embeddings()
        # A head that never changes is shared with the source; the second part of its bf16 numbers would be 0.
        rounds = self._own.dtype == torch.bfloat16 and self._own is not original.weight
        self._splits = fp32 and self._own.is_cuda and rounds
        self._weight = self._prepared(original.weight.detach())
        self._bias = None if head.bias is None else self._valued(original.bias.detach())

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the head from pushed weights, by any of its names if it is tied."""
        weight = next((weights[name].detach() for name in self._names if name in weights), None)
        if weight is None:
            # With adapters, other weights do not change.
            return
        if self._splits:
            split_weight(weight, into=self._weight)
        elif (prepared := self._prepared(weight)) is not self._own:
            self._weight.copy_(prepared)
        if self._bias is not None:
            self._bias.copy_(weights[self._bias_names[0]].detach())

    def logits(self, hidden: Float[Tensor, "slots hidden"]) -> Float[Tensor, "slots vocab"]:
        return head_logits(hidden, self._weight, bias=self._bias, fp32=self._fp32)

    def _prepared(self, weight: Tensor) -> Tensor:
        if self._splits:
            rows, width = self._own.shape
            return split_weight(weight, into=self._own.new_empty((rows, 2 * width)))
        if self._own.is_cuda:
            return self._own
        # Column-major: on a CPU the library would reorder a row-major matrix for every product.
        return self._valued(weight).T.contiguous().T

    def _valued(self, values: Tensor) -> Tensor:
        wide = torch.promote_types(self._own.dtype, torch.float32)
        dtype = wide if self._fp32 else self._own.dtype
        return values.to(device=self._own.device, dtype=dtype, copy=True)
