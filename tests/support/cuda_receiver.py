"""The other end of weights on a GPU, in a process of its own: a vLLM worker's methods around a model of this file."""

from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch

from scalerl.training.rollout.vllm.worker import WeightReceiver


def logits_of(worker: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits that a worker computes from hidden states."""
    with torch.inference_mode():
        return worker.model_runner.get_model().compute_logits(hidden.to(worker.device)).float().cpu()


class BodyAndHead:
    """What WeightReceiver uses of vLLM's model: one body weight and a head in bf16, loaded by name."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        self.body = torch.zeros(hidden, hidden, dtype=torch.bfloat16, device="cuda")
        shard = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=vocabulary)
        weight = torch.zeros(vocabulary, hidden, dtype=torch.bfloat16, device="cuda")
        self.lm_head = SimpleNamespace(weight=weight, shard_indices=shard)
        self.logits_processor = SimpleNamespace(_apply_head=lambda head, hidden, bias: hidden @ head.weight.T)

    def load_weights(self, weights: Any) -> None:
        for name, weight in weights:
            (self.lm_head.weight if name == "lm_head.weight" else self.body).copy_(weight)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.logits_processor._apply_head(self.lm_head, hidden, None)


class Worker(WeightReceiver):
    def __init__(self, vocabulary: int, hidden: int, *, fp32_head: bool) -> None:
        self.device = torch.device("cuda")
        model = BodyAndHead(vocabulary, hidden)

        def reload(weights_iterator: Any) -> None:
            model.load_weights(weights_iterator)

        self.model_runner = SimpleNamespace(get_model=lambda: model, reload_weights=reload)
        self.scalerl_prepare(fp32_head, ["lm_head.weight"])


def receive(connection: Connection, vocabulary: int, hidden: int) -> None:
    """Answer each parcel with its tensors, the body that was loaded, and the logits of both kinds of head."""
    workers = [Worker(vocabulary, hidden, fp32_head=fp32) for fp32 in (True, False)]
    while (message := connection.recv()) is not None:
        parcel, states = message
        tensors = {name: tensor.cpu() for name, tensor in parcel.items()}
        logits = []
        for worker in workers:
            assert not worker.scalerl_open(parcel)
            worker.scalerl_load(False)
            logits.append(logits_of(worker, states))
        connection.send((tensors, workers[0].model_runner.get_model().body.cpu(), *logits))
