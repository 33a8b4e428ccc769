"""Methods added to every vLLM worker (worker_extension_cls): load new weights between steps, apply the FP32 head."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from scalerl.training.remote.weights import Unmapped
from scalerl.training.rl.head_products import split_weight
from scalerl.training.rl.logprobs import head_logits


class WeightReceiver:
    """Methods that the engine calls by name in all workers (collective_rpc). vLLM's worker has the attributes."""

    device: torch.device
    model_runner: Any
    _scalerl_weights: dict[str, Tensor]

    def scalerl_prepare(self, fp32_head: bool, head_names: list[str]) -> None:
        """Watch the weights that are loaded from now on; with `fp32_head`, compute logits with unrounded head weights.

        `head_names` are the names that the head's weight may have in a push; a tied head has the embedding's name.
        """
        self._scalerl_head_names = frozenset(head_names)
        self._scalerl_head = None
        if not fp32_head:
            return
        model = self.model_runner.get_model()
        self._scalerl_set_head(model.lm_head.weight.detach())
        load = model.load_weights
        model.load_weights = lambda weights: load(self._scalerl_watched(weights))
        model.logits_processor._apply_head = self._scalerl_apply_head

    def scalerl_open(self, weights: Mapping[str, Tensor]) -> str:
        """Open the weights of a version without loading them; return "", or why they cannot be opened."""
        try:
            self._scalerl_weights = dict(weights.items())
        except Unmapped as error:
            self._scalerl_weights = {}
            return str(error)
        return ""

    def scalerl_load(self, tied: bool) -> None:
        """Load the opened weights; requests and their caches are kept. `tied` means that head and embedding are one."""
        weights = self._scalerl_weights
        self._scalerl_weights = {}
        pairs = ((name, weight) for name, weight in weights.items() if not (tied and name == "lm_head.weight"))
        self.model_runner.reload_weights(weights_iterator=_by_expert(pairs))
        self._scalerl_repack_tied_head()
        if self.device.type == "cuda":
            # The weights may be the learner's own memory, which may change as soon as we answer.
            torch.cuda.current_stream(self.device).synchronize()

    def _scalerl_repack_tied_head(self) -> None:
        """On a CPU, update the packed copy of a tied head: reloading the embedding does not change it."""
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
        if self.device.type != "cpu" or head is None or embedding is None:
            return
        if getattr(head, "weight", None) is embedding.weight:
            head.quant_method.process_weights_after_loading(head)

    def _scalerl_watched(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass weights on, and keep the head's weight before vLLM rounds it."""
        for name, weight in weights:
            if name in self._scalerl_head_names:
                shard = self.model_runner.get_model().lm_head.shard_indices
                self._scalerl_set_head(weight[shard.org_vocab_start_index : shard.org_vocab_end_index])
            yield name, weight

    def _scalerl_set_head(self, rows: Tensor) -> None:
        """Store the head in the form in which its product is fastest; a shard may be padded with rows of zeros."""
        weight = self.model_runner.get_model().lm_head.weight
        width = rows.shape[1]
        rows = rows[: len(weight)]
        is_split = self.device.type == "cuda" and weight.dtype == torch.bfloat16
        if self._scalerl_head is None:
            shape, dtype = (
                ((len(weight), 2 * width), torch.bfloat16) if is_split else ((len(weight), width), torch.float32)
            )
            with torch.inference_mode(False):
                self._scalerl_head = torch.zeros(shape, dtype=dtype, device=self.device)
        own = self._scalerl_head[: len(rows)]
        if is_split:
            split_weight(rows, into=own)
        else:
            own.copy_(rows)

    def _scalerl_apply_head(self, lm_head: Any, hidden: Tensor, bias: Tensor | None) -> Tensor:
        assert self._scalerl_head is not None, "the head is set before it is used"
        return head_logits(hidden, self._scalerl_head, bias=bias, fp32=True)


def _by_expert(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with a separate name for each expert, as in files; transformers joins the experts of a layer."""
    for name, weight in weights:
        layer, _, joined = name.rpartition(".experts.")
        kinds = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(joined if layer else "")
        if kinds is None:
            yield name, weight
            continue
        for kind, part in zip(kinds, weight.chunk(len(kinds), dim=1), strict=True):
            for number, one in enumerate(part):
                yield f"{layer}.experts.{number}.{kind}.weight", one
