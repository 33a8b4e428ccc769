"""What a run says of itself: stalls, uneven time, the axis of its forecast."""

from scalerl.config import load_recipe
from scalerl.report.alarms import alarm_text
from scalerl.run.health import Health

END = {"gpu_hours": 10.0, "flops": 1e15, "tokens": 1e6, "step": 100}


def evaluations(hours: list[float]) -> list[dict[str, object]]:
    return [
        {
            "step": place,
            "set": "main",
            "gpu_hours": spent,
            "flops": 1e12 * place,
            "tokens": 100 * place,
            "reward": 0.2 + 0.6 * place**2 / (place**2 + 60),
            "num_samples": 1000,
        }
        for place, spent in enumerate(hours)
    ]


EVEN = evaluations([0.1 * place for place in range(21)])
BUSY = evaluations([0.1 * place for place in range(11)] + [1.0 + 0.8 * place for place in range(1, 11)])


def axis_of(rows) -> str | None:
    health = Health(load_recipe("tiny-cpu"), trained_s=0.0)
    outlook = health.outlooks(rows, ["main"], END.get)["main"]
    assert outlook is not None
    return outlook.axis


def test_forecast_is_over_flops_where_time_is_uneven():
    assert axis_of(EVEN) == "gpu_hours"
    assert axis_of(BUSY) == "flops"


def test_uneven_time_and_stalls_are_told_once():
    health = Health(load_recipe("tiny-cpu"), trained_s=0.0)
    total = 0.0
    for seconds in [0.5] * 8 + [69.0]:
        total += seconds
        total -= health.stalled_s(total)
    uneven, stalled = health.alarms(BUSY, [], {}, {})
    assert (uneven.kind, stalled.kind, stalled.value) == ("uneven_time", "stalled", 68.5)
    assert "fitted over FLOPs" in alarm_text(uneven)
    assert "stood still for 68 s" in alarm_text(stalled)
    assert health.alarms(BUSY, [], {}, {}) == []


def test_first_step_of_a_drained_round_may_be_long():
    drained = ["pipeline.max_lag=3", "pipeline.push_every=4", "pipeline.drain=true"]
    health, total = Health(load_recipe("tiny-cpu", drained), trained_s=0.0), 0.0
    for seconds in [20.0, 0.5, 0.5, 0.5] * 8:
        total += seconds
        assert health.stalled_s(total) == 0
    assert health.alarms([], [], {}, {}) == []


def test_each_exception_of_a_grader_is_told_once():
    health = Health(load_recipe("tiny-cpu"), trained_s=0.0)
    assert [alarm.kind for alarm in health.alarms([], [], {}, {"mine": "KeyError: 3"})] == ["grader_error"]
    assert health.alarms([], [], {}, {"mine": "KeyError: 3"}) == []
