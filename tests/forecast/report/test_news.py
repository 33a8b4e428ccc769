"""What a snapshot adds to the one before it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from scalerl.forecast.report.alarms import Alarm, AlarmKind
from scalerl.forecast.report.board.news import News
from scalerl.forecast.report.board.snapshot import Snapshot
from scalerl.forecast.report.document import Level, Say, say, sections
from scalerl.forecast.report.safe_files import Root
from scalerl.forecast.report.sources import Source


def said(kind: str, **values: Any) -> Say:
    return replace(say(kind, **values), level=Level.ANSWER)


def doubling(action: str) -> Say:
    return said("doubling", action=action, doubling=0.02, worth=0.01, p_worth=0.7)


def alarm(value: float = 0.1, ended: float | None = None) -> Say:
    return Alarm(kind=AlarmKind.ENTROPY, subject="main", value=value, began=3.0, ended=ended).say(run="")


def snapshot(*blocks: Say, status: str = "running", kind: Literal["run", "study"] = "run") -> Snapshot:
    source = Source(path=Path("first"), root=Root(), kind=kind, name="first")
    return Snapshot(
        source=source, status=status, state=f"{status}: budget spent", document=sections(("answer/", "", blocks))
    )


def told(*snapshots: Snapshot) -> list[str]:
    texts: list[str] = []
    news = News(texts.append)
    for each in snapshots:
        news(each)
    return texts


FLAT = alarm()


def test_first_look_is_no_news():
    assert told(snapshot(said("rising", name="first", share=0.4), FLAT, status="done")) == []


def test_another_decision_is_news_and_another_number_is_not():
    first, moved = (snapshot(said("rising", name="first", share=share)) for share in (0.4, 0.5))
    levelled = snapshot(said("levelling_off", name="first", share=0.9), doubling("stop"))
    (text,) = told(first, moved, levelled, levelled)
    assert text == f"first: {said('levelling_off', name='first', share=0.9).text} {doubling('stop').text}"
    assert len(told(first, levelled, first)) == 2


def test_action_alone_is_another_decision():
    assert len(told(*(snapshot(doubling(action)) for action in ("go on", "go on", "stop")))) == 1


def test_look_without_an_answer_forgets_none():
    rising = snapshot(said("rising", name="first", share=0.4))
    assert told(rising, snapshot(), rising) == []


def test_alarm_is_news_each_time_it_begins():
    texts = told(snapshot(), snapshot(FLAT), snapshot(alarm(0.2)), snapshot(alarm(ended=9.0)), snapshot(FLAT))
    assert texts == [f"first: Warning: {FLAT.text}"] * 2


def test_end_is_news_with_its_reason():
    assert told(snapshot(), snapshot(status="done"), snapshot(status="done")) == ["first: done: budget spent"]


def test_alarms_of_a_study_are_those_of_its_runs():
    assert told(snapshot(kind="study"), snapshot(FLAT, kind="study")) == []
