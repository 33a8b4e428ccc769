"""What generators report. All values are frozen and can be pickled."""

from dataclasses import dataclass, field, replace

from scalerl.types import Completion, LengthPlan, Problem, Request, Work

_NO_PROBLEM, _NO_LENGTH = Problem(id="", prompt="", answer="", task=""), LengthPlan(answer_budget=0)


def bare(request: Request) -> Request:
    """Return the request without its problem, of which an engine needs nothing."""
    return replace(request, problem=_NO_PROBLEM)


def sampled(completion: Completion) -> Completion:
    """Return the completion with no more of its request, which the driver has, than its key and seed."""
    return replace(completion, request=replace(completion.request, prompt_tokens=(), length=_NO_LENGTH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a generator's engine took, in all since it started: what simulations need to know."""

    chunks: int = 0
    """Calls of the engine that sampled."""
    busy_s: float = 0.0
    """Seconds spent in these calls."""
    active: int = 0
    """Sum over these calls of the requests that were being sampled."""
    copies: int = 0
    """Pushes of weights that were applied."""
    copy_s: float = 0.0
    """Seconds in which sampling paused for them."""

    def __add__(self, other: "Pace") -> "Pace":
        return Pace(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def __sub__(self, other: "Pace") -> "Pace":
        return Pace(**{name: getattr(self, name) - getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a generator has done."""

    completions: tuple[Completion, ...] = ()
    """Those since the last report; see `sampled`."""
    work: Work = field(default_factory=Work)
    """Work since the generator started, outside of pauses."""
    eval_work: Work = field(default_factory=Work)
    """The same within pauses."""
    pace: Pace = field(default_factory=Pace)
    version: int = -1
    """The version that its engine samples with."""
    unmapped: str = ""
    """Why it could not reach the weights of the last push; it waits for the same ones in another way."""

    def __add__(self, other: "Report") -> "Report":
        """Add up what two generators did."""
        work, eval_work = self.work + other.work, self.eval_work + other.eval_work
        return Report(work=work, eval_work=eval_work, pace=self.pace + other.pace)
