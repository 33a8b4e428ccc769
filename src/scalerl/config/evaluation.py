"""The settings of evaluations: how often, on what, and how each set is sampled."""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from scalerl.config.parts import Fraction, Settings, TaskSettings


class EvalSetSettings(TaskSettings):
    """A further evaluation set; what is not set here is as for the others, but for the number of problems."""

    num_prompts: int | None = Field(default=None, ge=1)
    """Problems of this set; not set: all rows of a file or data set, 1000 of a task that makes its own."""
    samples_per_prompt: int | None = Field(default=None, ge=1)
    """Completions sampled for each problem of this set."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of this set; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample this set from the smallest set of tokens with this probability."""


class EvalSampling(NamedTuple):
    """How the problems of one evaluation set are sampled."""

    samples_per_prompt: int
    temperature: float
    top_p: float


class EvaluationSettings(Settings):
    every: int = Field(default=100, ge=1)
    """Steps between two evaluations; there is always one before the first step."""
    num_prompts: int = Field(default=1000, ge=1)
    """Problems of the task that are withheld from training and evaluated on."""
    samples_per_prompt: int = Field(default=16, ge=1)
    """Completions sampled for each problem; the reported value is the mean of `correct`."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this probability."""
    overlap: Fraction = 0.0
    """Share of the slots that an evaluation may use while training goes on; 0 pauses training for each evaluation."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Selects the withheld problems and the sampling noise: with equal seeds runs can be compared per prompt."""
    sets: dict[str, EvalSetSettings] = Field(default_factory=dict)
    """Further evaluation sets, each a task under its own name: [evaluation.sets.NAME]."""

    def sampling(self, name: str) -> EvalSampling:
        """Return how the set of this name is sampled."""
        own = self.sets.get(name)
        values = {field: None if own is None else getattr(own, field) for field in EvalSampling._fields}
        return EvalSampling(**{key: getattr(self, key) if value is None else value for key, value in values.items()})

    def sampling_of_sets(self) -> Iterator[tuple[str, EvalSampling]]:
        """Yield the sampling of the tasks' own sets and of each further set, with the table that sets it."""
        # A name that no set can have, for what holds without one.
        yield "evaluation", self.sampling("")
        for name, own in self.sets.items():
            if own.temperature is not None or own.samples_per_prompt is not None:
                yield f"evaluation.sets.{name}", self.sampling(name)
