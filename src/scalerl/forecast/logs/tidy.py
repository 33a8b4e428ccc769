"""Frames of other shapes as frames with one row per run and step.

Each function takes a frame and the options, and returns another frame with the fact that says so, or None where the
frame does not have that shape. A column that an option names stays as it is.
"""

import re
from collections import Counter

import numpy as np

from scalerl.forecast.logs.amounts import seconds_since_1970
from scalerl.forecast.logs.columns import (
    AXES,
    Unit,
    are_splits,
    has_role,
    is_evaluation,
    is_measured,
    is_training_word,
    reward_rank,
    unit_of,
    with_role,
    without_unit,
)
from scalerl.forecast.logs.facts import Fact, facts_of
from scalerl.forecast.logs.frame import Floats, Frame, Words, numbered, objects, steps_of_names
from scalerl.forecast.logs.readers.budget import MAX_COLUMNS
from scalerl.forecast.logs.selection import Selection
from scalerl.forecast.logs.wide import one_column_per_run, word_columns

Reshaped = tuple[Frame, tuple[Fact, ...]] | None

APART = "evaluations_apart"
"""The fact that says that evaluations are read apart from the training rewards beside them."""
_MIN_STEPS = 3
_HOURS_BEHIND = re.compile(r"(?!.*gpu).*(?:hours?|hrs?|[_ ]h)", re.IGNORECASE)
_STEP_WORD = re.compile(r"step|iter|epoch|update|checkpoint|ckpt|round", re.IGNORECASE)
# Kinds of rows; with more words a column names runs or sets.
_MAX_KINDS = 12
# A step as ms-swift writes it, '5/400', and as folders are named, 'checkpoint-5'.
_STEP = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*+)?(\d{1,15})(?:\s*/\s*\d+)?")


def tidied(frame: Frame, options: Selection, is_printed: bool = False) -> tuple[Frame, list[Fact]]:
    """Return a frame with one row per run and step, in the order in which the rows were logged.

    What a console printed is no table: its names are never those of runs or steps.
    """
    facts: list[Fact] = []
    tables = () if is_printed else (one_metric_per_row, one_column_per_run)
    by_value = (clocks_by_value, steps_in_words, steps_in_names)
    for reshape in (without_units, *by_value, *tables, evaluations_apart, two_prefixes, in_order, epochs):
        frame, changes = reshape(frame, options) or (frame, ())
        facts += changes
    return frame, facts


def first(frame: Frame, *roles: str) -> str:
    """Return the first column that has one of these roles by its name; "" if there is none."""
    return next(iter(with_role(frame.columns, *roles)), "")


def written_units(frame: Frame, options: Selection) -> dict[str, Unit]:
    """Return the units in which a log writes its amounts, by the names that the columns have without them."""
    units: dict[str, Unit] = {}
    for name in frame.columns:
        unit = unit_of(name)
        if unit is None or reward_rank(name) is not None:
            continue
        if name in options.columns:
            units[name] = unit._replace(on_axis=1.0)
        else:
            units[without_unit(name)[0]] = unit
    return units


def without_units(frame: Frame, options: Selection) -> Reshaped:
    """Amounts in thousands or millions, as in a column tokens (B), are counted in ones."""
    counted: dict[str, Floats] = {}
    scaled: list[str] = []
    for name in frame.columns:
        short, size = without_unit(name)
        if short not in frame and name not in options.columns and reward_rank(name) is None:
            counted[short] = size * frame.numbers(name)
            scaled.append(name)
    return frame.without(scaled).having(counted), facts_of("units", columns=tuple(scaled))


def _are_metrics(words: Words, is_named: bool) -> bool:
    """Return whether words name what is measured: each comes several times, and some or most of them are known."""
    names = {*words.tolist()}
    if 2 * len(names) > len(words) or len(names) > MAX_COLUMNS or "" in names:
        return False
    num = sum(map(is_measured, names))
    return num > 0 if is_named else 2 * num >= len(names) and any(map(reward_rank, names))


def one_metric_per_row(frame: Frame, options: Selection) -> Reshaped:
    """A table with a column of names of metrics and a column of values gets a column for each name."""
    step = first(frame, "step")
    metric = _column_of_metrics(frame)
    value = _column_of_values(frame)
    if not (step and metric and value) or {metric, value} & {*options.columns}:
        return None
    labels = [step]
    for name in frame.columns:
        if name not in (metric, value, step) and (frame.is_words(name) or has_role(name, "run", "seed")):
            labels.append(name)
    metrics = frame.words(metric).tolist()
    # A metric that a step already has was logged again, by a resumed run: its row comes later.
    times = Counter[tuple[int, str]]()
    places: list[tuple[int, int]] = []
    for place, name in zip(frame.groups(labels).tolist(), metrics, strict=True):
        times[place, name] += 1
        places.append((place, times[place, name]))
    row = numbered(places)
    values = frame.numbers(value)
    wide: dict[str, Floats] = {}
    for name in dict.fromkeys(metrics):
        wide[name] = np.full(row.max() + 1, np.nan)
    for at, name in enumerate(metrics):
        wide[name][row[at]] = values[at]
    _, firsts = np.unique(row, return_index=True)
    return frame.take(firsts).without([metric, value]).having(wide), ()


def _column_of_metrics(frame: Frame) -> str:
    """Return the column of words that name what is measured; "" if there is none."""
    texts = [name for name in frame.columns if frame.is_words(name) and not frame.known(name).any()]
    named = with_role(texts, "metric")
    return next((name for name in [*named, *texts] if _are_metrics(frame.words(name), name in named)), "")


def _column_of_values(frame: Frame) -> str:
    """Return the column that is named as values, or else the only one of numbers; "" if there are several."""
    others = with_role(frame.columns, "step", "coarse", *AXES, "elapsed", "wall_clock", "run", "seed")
    numbers = [name for name in frame.columns if name not in others and frame.known(name).any()]
    return first(frame, "value") or (numbers[0] if len(numbers) == 1 else "")


def clocks_by_value(frame: Frame, options: Selection) -> Reshaped:
    """A column of seconds since 1970 is a time of day, and one that ends with 'hours' counts hours, under any name."""
    has_clock = bool(with_role(frame.columns, "wall_clock"))
    has_hours = bool(with_role(frame.columns, "hours"))
    found: dict[str, str] = {}
    for name in frame.columns:
        if name in options.columns or frame.is_words(name) or has_role(name, *AXES, "wall_clock", "date", "elapsed"):
            continue
        values = frame.numbers(name)[frame.known(name)]
        if len(values) < _MIN_STEPS or values[-1] <= values[0] or reward_rank(name) is not None:
            continue
        if np.isfinite(seconds_since_1970(values)).all():
            if not has_clock:
                found.setdefault("timestamp", name)
        elif not has_hours and _HOURS_BEHIND.fullmatch(name) and (np.diff(values) >= 0).all() and values[0] >= 0:
            found.setdefault("hours", name)
    if not found:
        return None
    renamed = {role: frame.numbers(name) for role, name in found.items()}
    return frame.without(found.values()).having(renamed), ()


def steps_in_names(frame: Frame, options: Selection) -> Reshaped:
    """Names that differ in one rising number, as ckpt_100, ckpt_200, are steps, where nothing else counts them."""
    if with_role(frame.columns, "step", "coarse", *AXES, "elapsed", "wall_clock"):
        return None
    for name in word_columns(frame):
        words = frame.words(name)
        is_of_an_item = has_role(name, "item") or np.isfinite(seconds_since_1970(words)).any()
        if name in options.columns or is_of_an_item or (words == "").any():
            continue
        steps = steps_of_names(words)
        if steps is not None and (not has_role(name, "run", "arm", "metric") or _STEP_WORD.search(words[-1])):
            return frame.having({"step": steps}), ()
    return None


def evaluations_apart(frame: Frame, options: Selection) -> Reshaped:
    """Evaluations that share columns with training get their own, as eval/acc, where a word says split=eval."""
    rewards = [name for name in frame.columns if reward_rank(name) and not is_evaluation(name)]
    for column in _columns_of_kinds(frame):
        kinds = frame.words(column)
        apart: dict[str, Floats] = {}
        training: dict[str, Floats] = {}
        empty = [column]
        for name in rewards:
            rest = frame.numbers(name)
            for word in sorted({*kinds.tolist()} - {""}):
                cells = np.where(kinds == word, rest, np.nan)
                if not is_training_word(word) and np.isfinite(cells).any():
                    apart[f"{word}/{name}"] = cells
                    rest = np.where(kinds == word, np.nan, rest)
            training[name] = rest
            if np.isnan(rest).all():
                empty.append(name)
        if apart and column not in options.columns:
            return frame.having({**apart, **training}).without(empty), facts_of(APART, columns=tuple(apart))
    return None


def _columns_of_kinds(frame: Frame) -> list[str]:
    """Return the columns whose words are kinds of rows: those named so, and others that hold train and eval."""
    named = with_role(frame.columns, "split")
    others = [name for name in frame.columns if name not in named and not has_role(name, "run", "arm")]
    found: list[str] = []
    for name in filter(frame.is_words, [*named, *others]):
        words = {*frame.words(name).tolist()} - {""}
        is_few = 1 < len(words) <= _MAX_KINDS
        if is_few and are_splits(words) and (name in named or any(map(is_training_word, words))):
            found.append(name)
    return found


def two_prefixes(frame: Frame, options: Selection) -> Reshaped:
    """A column of evaluations whose first rows have another prefix is one: test_score/a and val/test_score/a."""
    for long in frame.columns:
        short = long.partition("/")[2]
        is_one = short in frame and not (frame.known(long) & frame.known(short)).any()
        if is_one and is_evaluation(short) and reward_rank(short):
            values = np.where(frame.known(short), frame.numbers(short), frame.numbers(long))
            return frame.having({long: values}).without([short]), facts_of("one_column", column=long, others=(short,))
    return None


def steps_in_words(frame: Frame, options: Selection) -> Reshaped:
    """Steps may be words such as 'checkpoint-5' and '5/400'."""
    step = first(frame, "step")
    if not frame.is_words(step):
        return None
    words = frame.words(step)
    # 10k, 20k are numbers with a unit, which no name says.
    values = steps_of_names(words) if words[-1][:1].isalpha() else None
    if values is None:
        matches = [_STEP.fullmatch(word) for word in words]
        values = np.array([float(match[1]) if match else np.nan for match in matches])
    return (frame.having({step: values}), ()) if np.isfinite(values).any() else None


def in_order(frame: Frame, options: Selection) -> Reshaped:
    """Rows are put in the order of their time of day, if every row has one; rows with the newest first are turned."""
    times = wall_times(frame)
    if not np.isnan(times).any():
        return frame.take(np.argsort(times, kind="stable")), ()
    rises = np.diff(frame.numbers(first(frame, "step"))[frame.known(first(frame, "step"))])
    return (frame.take(slice(None, None, -1)), ()) if (rises < 0).sum() > 2 and (rises <= 0).all() else None


def epochs(frame: Frame, options: Selection) -> Reshaped:
    """Steps that begin anew in each epoch are counted through."""
    step, coarse = first(frame, "step"), first(frame, "coarse")
    known = np.flatnonzero(frame.known(step) & frame.known(coarse))
    counted = frame.numbers(step).copy()
    rises, turns = np.diff(counted[known]), np.diff(frame.numbers(coarse)[known])
    falls = rises < 0
    if not falls.any() or (falls != (turns > 0)).any():
        return None
    counted[known[1:]] += np.cumsum(np.where(falls, np.median([1.0, *rises[~falls]]) - rises, 0.0))
    num = int(falls.sum()) + 1
    return frame.having({step: counted}), facts_of("steps_per_epoch", step=step, coarse=coarse, num=num)


def wall_times(frame: Frame) -> Floats:
    """Return the time of day of each row, NaN where it has none; a date and a time may stand in two columns."""
    clock, date = first(frame, "wall_clock"), first(frame, "date")
    seconds = seconds_since_1970(frame.columns.get(clock, frame.numbers("")))
    if not date or np.isfinite(seconds).any():
        return seconds
    pairs = zip(frame.words(date), frame.words(clock), strict=True)
    return seconds_since_1970(objects(f"{day} {time}" for day, time in pairs))
