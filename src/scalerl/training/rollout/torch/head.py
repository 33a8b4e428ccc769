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
        self._own_weight = head.weight
        self._fp32 = fp32
        # A tied head has several names.
        self._names = [name for name, weight in model.state_dict(keep_vars=True).items() if weight is head.weight]
        self._bias_names = [name for name, bias in model.state_dict(keep_vars=True).items() if bias is head.bias]
        original = source.get_output_embeddings()
        # A head that never changes is shared with the source, in bf16: nothing was rounded, so there is no second part.
        is_rounded = self._own_weight.dtype == torch.bfloat16 and self._own_weight is not original.weight
        self._splits = fp32 and self._own_weight.is_cuda and is_rounded
        self._weight = self._prepared(original.weight.detach())
        self._bias = None if head.bias is None else self._in_its_dtype(original.bias.detach())

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the head from pushed weights, by any of its names if it is tied."""
        pushed_names = [name for name in self._names if name in weights]
        if not pushed_names:
            # With adapters, other weights do not change.
            return
        weight = weights[pushed_names[0]].detach()
        if self._splits:
            split_weight(weight, into=self._weight)
        else:
            prepared = self._prepared(weight)
            # The engine's own weight is up to date already.
            if prepared is not self._own_weight:
                self._weight.copy_(prepared)
        if self._bias is not None:
            self._bias.copy_(weights[self._bias_names[0]].detach())

    def logits(self, hidden: Float[Tensor, "slots hidden"]) -> Float[Tensor, "slots vocab"]:
        return head_logits(hidden, self._weight, bias=self._bias, fp32=self._fp32)

    def _prepared(self, weight: Tensor) -> Tensor:
        """Return a weight of the learner as the product takes it: in two parts, as the engine's own, or on a CPU."""
        if self._splits:
            rows, width = self._own_weight.shape
            return split_weight(weight, into=self._own_weight.new_empty((rows, 2 * width)))
        if self._own_weight.is_cuda:
            return self._own_weight
        # Column-major: on a CPU the library would reorder a row-major matrix for every product.
        return self._in_its_dtype(weight).T.contiguous().T

    def _in_its_dtype(self, values: Tensor) -> Tensor:
        """Return a copy in the dtype of the head, on the engine's device."""
        wide = torch.promote_types(self._own_weight.dtype, torch.float32)
        dtype = wide if self._fp32 else self._own_weight.dtype
        return values.to(device=self._own_weight.device, dtype=dtype, copy=True)
