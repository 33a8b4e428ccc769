"""Runs of a lease: weights of a generator that is made to differ (benchmarks/leased_run.py)."""

import importlib

import pytest
import torch
from tiny_models import SAMPLED, sampled_model

from scalerl.training.rollout.torch.engine import TorchEngine

rounding = importlib.import_module("leased_run")


@pytest.mark.parametrize(("kind", "levels"), [("int8", 255), ("int4", 15), ("int3", 7)])
def test_rows_have_few_levels_and_keep_their_largest(kind: str, levels: int):
    weight = torch.randn(8, 4000, generator=torch.Generator().manual_seed(0))
    narrow = rounding.rounded(weight, kind)
    assert max(len(row.unique()) for row in narrow) <= levels
    torch.testing.assert_close(narrow.abs().amax(dim=1), weight.abs().amax(dim=1))
    assert (narrow - weight).abs().max() <= 0.51 * (weight.abs().amax() / rounding.LARGEST[kind])


def test_fp8_keeps_two_digits_of_small_weights_too():
    weight = torch.tensor([[1.0, 0.1, 0.01, -0.3]])
    torch.testing.assert_close(rounding.rounded(weight, "fp8"), weight, rtol=0.07, atol=0)


def test_only_matrices_of_layers_are_rounded():
    names = (
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
    )
    weights = {name: torch.randn(3, 5) for name in names}
    made = rounding.rounded_weights(weights, "int4")
    assert [name for name in names if not torch.equal(made[name], weights[name])] == [names[-1]]


def test_engines_begin_and_go_on_with_rounded_weights(monkeypatch):
    for name in ("__init__", "_load"):
        monkeypatch.setattr(TorchEngine, name, getattr(TorchEngine, name))  # restored afterwards
    rounding.round_pushes("int3")
    model = sampled_model(SAMPLED["llama"])
    engine = TorchEngine(model, slots=1, max_length=16, stop_tokens=[0])
    projection = "model.layers.0.mlp.up_proj.weight"
    given = dict(model.state_dict())
    assert len(engine.weights[projection][0].unique()) <= 7 < len(given[projection][0].unique())
    given[projection] = 2 * given[projection]
    engine.push_weights({name: given[name] for name in dict(model.named_parameters())}, 1)
    torch.testing.assert_close(engine.weights[projection], rounding.rounded(given[projection], "int3"))
    engine.close()
