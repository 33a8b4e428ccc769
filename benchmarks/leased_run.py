"""Train a run of a lease: as `scalerl train` does, with nothing beside it that takes time from others.

    python benchmarks/leased_run.py RECIPE --out RUN
    python benchmarks/leased_run.py RECIPE --out RUN --generator int8          fp8, int8, int4 or int3

No forecast is made at evaluations, and no checkpoint is written before the last, since runs beside each other share the
cores.

With --generator the generator is made to differ: it samples with rounded weights. The matrices of the layers are
rounded at the start and at every push, as an engine with quantised weights rounds them: fp8 (e4m3) with one scale per
row, integers with one scale per row. The head, the embedding and the arithmetic stay as they are. Evaluations sample
with the rounded weights, too.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LARGEST = {"fp8": 448.0, "int8": 127.0, "int4": 7.0, "int3": 3.0}
"""The largest number of each kind; scales bring that of a row to it."""
NOT_ROUNDED = ("embed", "lm_head", "norm", "bias")


def rounded(weight: Tensor, kind: str) -> Tensor:
    """Return a matrix as it is after rounding and back."""
    wide = weight.detach().float()
    scale = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / LARGEST[kind]
    scaled = wide / scale
    narrow = scaled.to(torch.float8_e4m3fn).float() if kind == "fp8" else scaled.round()
    return (narrow * scale).to(weight.dtype)


def rounded_weights(weights: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return all weights, the matrices of the layers rounded."""
    return {
        name: weight if weight.ndim != 2 or any(part in name for part in NOT_ROUNDED) else rounded(weight, kind)
        for name, weight in weights.items()
    }


def round_pushes(kind: str) -> None:
    """Make engines of this process round what they are given, and what they begin with."""
    from scalerl.training.rollout.torch.engine import TorchEngine

    begin, load = TorchEngine.__init__, TorchEngine._load

    def begin_rounded(self: TorchEngine, *given: Any, **settings: Any) -> None:
        begin(self, *given, **settings)
        self._load(dict(self.weights), self.version)

    def load_rounded(self: TorchEngine, weights: Mapping[str, Any], version: int) -> None:
        load(self, rounded_weights(weights, kind), version)

    TorchEngine.__init__, TorchEngine._load = begin_rounded, load_rounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--generator", choices=tuple(LARGEST))
    arguments = parser.parse_args()
    if arguments.generator:
        round_pushes(arguments.generator)
    from scalerl import train

    rare = {"checkpoint.every": 1_000_000, "checkpoint.every_minutes": 1000.0, "checkpoint.best": "none"}
    end = train(arguments.recipe, arguments.out, settings=rare)
    print(f"{end.ended}: {end.reason}")


if __name__ == "__main__":
    main()
