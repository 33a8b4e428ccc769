"""One engine for training and evaluation: whose requests are served, and whose work is counted."""

from contracts.requests import make_request
from fake_engine import FakeEngine

from scalerl.loop.seams import PausableEngine
from scalerl.loop.shared import SharedEngine, estimated_work
from scalerl.types import Completion, LengthPlan, Work


def requests(first: int, num: int) -> list:
    return [make_request(first + place, plan=LengthPlan(answer_budget=4)) for place in range(num)]


def keys(completions: list[Completion]) -> list[str]:
    return sorted(completion.request.key for completion in completions)


def shared_fake(*, slots: int = 4, pausable: bool = True) -> tuple[SharedEngine, FakeEngine]:
    engine = FakeEngine(polls=lambda _: 2, slots=slots)
    return SharedEngine(engine, pausable=engine if pausable else None), engine


def test_each_purpose_gets_its_own_completions():
    shared, _ = shared_fake()
    mine, theirs = requests(0, 3), requests(10, 3)
    shared.submit(mine)
    shared.evaluation.submit(theirs)
    assert (shared.num_pending, shared.evaluation.num_pending) == (3, 3)
    trained, evaluated = [], []
    while shared.num_pending:
        trained += shared.poll()
    while shared.evaluation.num_pending:
        evaluated += shared.evaluation.poll()
    assert keys(trained) == keys_of(mine)
    assert keys(evaluated) == keys_of(theirs)
    assert all(completion.request.purpose == "evaluation" for completion in evaluated)


def keys_of(asked: list) -> list[str]:
    return sorted(request.key for request in asked)


def test_evaluation_alone_pauses_training_and_takes_all_slots():
    shared, engine = shared_fake(slots=4)
    shared.submit(requests(0, 4))
    shared.poll()
    before = shared.work
    with shared.alone():
        shared.evaluation.submit(requests(10, 8))
        assert engine.num_pending == 8
        while shared.evaluation.num_pending:
            shared.evaluation.poll()
    assert shared.work == before
    assert keys(shared.poll()) == keys_of(requests(0, 4))
    assert shared.eval_work.decoded == 8 * 4


def test_engine_that_cannot_pause_serves_both():
    shared, _ = shared_fake(pausable=False)
    shared.submit(requests(0, 2))
    with shared.alone():
        shared.evaluation.submit(requests(10, 4))
        evaluated: list[Completion] = []
        while len(evaluated) < 4:
            evaluated += shared.evaluation.poll()
    assert keys(shared.poll()) == keys_of(requests(0, 2))
    assert shared.eval_work == sum((estimated_work(each) for each in evaluated), Work())
    assert shared.work.decoded == 2 * 4


def test_training_work_never_falls():
    shared, _ = shared_fake(pausable=False)
    shared.evaluation.submit(requests(10, 2))
    seen = []
    while shared.evaluation.num_pending:
        shared.evaluation.poll()
        seen.append(shared.work.decoded)
    assert seen == sorted(seen)


def test_fake_engine_can_pause():
    assert isinstance(FakeEngine(), PausableEngine)
