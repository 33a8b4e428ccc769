"""What a look adds to the one before it."""

from typing import Any

from scalerl.report.board.look import Look
from scalerl.report.board.news import News


def said(kind: str, level: str = "answer", **values: Any) -> dict[str, Any]:
    return {"type": "say", "kind": kind, "level": level, "text": f"{kind} {values}", "values": values}


def look(*blocks: dict[str, Any], status: str = "running", kind: str = "run") -> Look:
    row = {"key": "k", "name": "first", "kind": kind, "status": status, "reason": "budget spent"}
    return Look(row=row, sections=[{"key": "answer/", "blocks": list(blocks)}])


def told(*looks: Look) -> list[str]:
    texts: list[str] = []
    news = News(texts.append)
    for each in looks:
        news(each)
    return texts


FLAT = said("alarm_flat", "warning", subject="main", value=0.1)


def test_first_look_is_no_news():
    assert told(look(said("rising", name="first"), FLAT, status="done")) == []


def test_another_decision_is_news_and_another_number_is_not():
    first, moved = (look(said("rising", name="first", share=share)) for share in (0.4, 0.5))
    levelled = look(said("levelling_off", name="first", share=0.9), said("doubling", action="stop"))
    (text,) = told(first, moved, levelled, levelled)
    assert text.startswith("first: levelling_off")
    assert "stop" in text
    assert len(told(first, levelled, first)) == 2


def test_action_alone_is_another_decision():
    assert len(told(*(look(said("doubling", action=action, p=0.5)) for action in ("go on", "go on", "stop")))) == 1


def test_look_without_an_answer_forgets_none():
    rising = look(said("rising", name="first"))
    assert told(rising, look(), rising) == []


def test_alarm_is_news_each_time_it_begins():
    again = said("alarm_flat", "warning", subject="main", value=0.2)
    over = said("alarm_flat", "why", subject="main")
    texts = told(look(), look(FLAT), look(again), look(over), look(FLAT))
    assert [text.startswith("first: Warning: alarm_flat") for text in texts] == [True, True]


def test_end_is_news_with_its_reason():
    assert told(look(), look(status="done"), look(status="done")) == ["first: done: budget spent"]


def test_alarms_of_a_study_are_those_of_its_runs():
    assert told(look(kind="study"), look(FLAT, kind="study")) == []
