"""Messages of generators to the driver. All are frozen and can be pickled."""

from dataclasses import asdict, dataclass, field, replace

from scalerl.training.types import Completion, LengthPlan, Problem, Request, Work

_NO_PROBLEM = Problem(id="", prompt="", answer="", task="")
_NO_LENGTH = LengthPlan(answer_budget=0)


def bare(request: Request) -> Request:
    """Return the request without its problem, which an engine does not need."""
    return replace(request, problem=_NO_PROBLEM)


def sampled(completion: Completion) -> Completion:
    """Return the completion with only the key and seed of its request; the driver has the rest."""
    return replace(completion, request=replace(completion.request, prompt_tokens=(), length=_NO_LENGTH))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimes:
    """Counts and times of a generator's engine since it started, for metrics and simulations."""

    chunks: int = 0
    """Number of calls of the engine that sampled."""
    busy_s: float = 0.0
    """Seconds spent in these calls."""
    active: int = 0
    """Number of requests being sampled, summed over these calls."""
    copies: int = 0
    """Number of pushes of weights applied."""
    copy_s: float = 0.0
    """Seconds for which sampling paused to apply them."""

    def __add__(self, other: "EngineTimes") -> "EngineTimes":
        theirs = asdict(other)
        return EngineTimes(**{name: ours + theirs[name] for name, ours in asdict(self).items()})

    def __sub__(self, other: "EngineTimes") -> "EngineTimes":
        theirs = asdict(other)
        return EngineTimes(**{name: ours - theirs[name] for name, ours in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The completions and the work of a generator."""

    completions: tuple[Completion, ...] = ()
    """Completions since the last report; see `sampled`."""
    work: Work = field(default_factory=Work)
    """Work since the generator started, outside pauses."""
    eval_work: Work = field(default_factory=Work)
    """Work since the generator started, inside pauses."""
    times: EngineTimes = field(default_factory=EngineTimes)
    version: int = -1
    """The version of the weights that its engine samples with."""
    unmapped: str = ""
    """Why it could not map the weights of the last push, which must be sent as a copy; empty if it could."""

    def __add__(self, other: "Report") -> "Report":
        """Return the sum of the work and times of two generators."""
        work = self.work + other.work
        eval_work = self.eval_work + other.eval_work
        return Report(work=work, eval_work=eval_work, times=self.times + other.times)
