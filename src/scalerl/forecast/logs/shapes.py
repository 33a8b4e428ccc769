"""Frames of other shapes as frames with one row per run and step: a row is a moment, a column is a quantity.

Each function takes a frame and the options, and returns another frame with the fact that says so, or None where the
frame does not have that shape. A column that an option names stays as it is.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from scalerl.forecast.logs.amounts import seconds_since_1970
from scalerl.forecast.logs.columns import (
    AXES,
    Unit,
    are_splits,
    has_role,
    in_ones,
    is_benchmark,
    is_evaluation,
    is_measured,
    is_training_word,
    reward_rank,
    with_role,
)
from scalerl.forecast.logs.facts import Fact, fact, facts_of
from scalerl.forecast.logs.frame import Floats, Frame, Words, concatenated, numbered, objects, steps_of_names
from scalerl.forecast.logs.names import num_shared, without_seed
from scalerl.forecast.logs.readers.budget import MAX_COLUMNS
from scalerl.forecast.logs.selection import Selection

Reshaped = tuple[Frame, tuple[Fact, ...]] | None

APART = "evaluations_apart"
"""The fact that says that evaluations are read apart from the training rewards beside them."""
VALUE = "value"
"""What is measured where nothing names it."""
_OF_A_RUN = " - "
_EDGES = " _-/([:"
# What all runs of a table share.
_SHARED = ("step", "coarse", *AXES, "elapsed", "wall_clock", "seconds_per_step", "cost")
_MIN_STEPS = 3
_HOURS = re.compile(r"(?!.*gpu)(?:(?:.*[_ ])?(?:hours?|hrs?)(?:[_ ].*)?|.*(?:hours?|hrs?|[_ ]h))", re.IGNORECASE)
_STEP_WORD = re.compile(r"step|iter|epoch|update|checkpoint|ckpt|round", re.IGNORECASE)
# Kinds of rows; with more words a column names runs or sets.
_MAX_KINDS = 12
# A step as ms-swift writes it, '5/400', and as folders are named, 'checkpoint-5'.
_STEP = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*+)?(\d{1,15})(?:\s*/\s*\d+)?")


def shaped(frame: Frame, options: Selection, *, is_printed: bool = False) -> tuple[Frame, list[Fact]]:
    """Return a frame with one row per run and step, in the order in which the rows were logged.

    What a console printed is no table: its names are never those of runs or steps.
    """
    facts: list[Fact] = []
    tables = () if is_printed else (one_metric_per_row, exported_runs)
    by_value = (clocks_by_value, steps_in_words, steps_in_names)
    for reshape in (without_units, *by_value, *tables, evaluations_apart, in_order, epochs):
        frame, changes = reshape(frame, options) or (frame, ())
        facts += changes
    return frame, facts


def first(frame: Frame, *roles: str) -> str:
    """Return the first column that has one of these roles by its name; "" if there is none."""
    return next(iter(with_role(frame.columns, *roles)), "")


def word_columns(frame: Frame) -> list[str]:
    """Return the columns of words that may name something: neither numbers nor times."""
    names = [name for name in frame.columns if frame.is_words(name) and not frame.known(name).any()]
    return [name for name in names if not has_role(name, "step", "wall_clock", "date", "elapsed")]


# Units ----------------------------------------------------------------------------------------------------------------


def written_units(frame: Frame, options: Selection) -> dict[str, Unit]:
    """Return the units in which a log writes its amounts, by the names that the columns have without them."""
    units: dict[str, Unit] = {}
    for name in frame.columns:
        counted = in_ones(name)
        if counted is None or reward_rank(name) is not None:
            continue
        short, _, unit = counted
        if name in options.columns:
            units[name] = unit._replace(on_axis=1.0)
        else:
            units[short] = unit
    return units


def without_units(frame: Frame, options: Selection) -> Reshaped:
    """Amounts in thousands or millions, as in a column tokens (B), are counted in ones."""
    ones: dict[str, Floats] = {}
    scaled: list[str] = []
    for name in frame.columns:
        counted = in_ones(name)
        if counted is None or counted[0] in frame or name in options.columns or reward_rank(name) is not None:
            continue
        short, size, _ = counted
        ones[short] = size * frame.numbers(name)
        scaled.append(name)
    return frame.without(scaled).having(ones), facts_of("units", columns=tuple(scaled))


# A row per metric, and a column per run -------------------------------------------------------------------------------


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
        own = frame.words(metric) == name
        wide[name] = np.full(row.max() + 1, np.nan)
        wide[name][row[own]] = values[own]
    _, firsts = np.unique(row, return_index=True)
    return frame.take(firsts).without([metric, value]).having(wide), ()


def _column_of_metrics(frame: Frame) -> str:
    """Return the column of words that name what is measured; "" if there is none."""
    texts = [name for name in frame.columns if frame.is_words(name) and not frame.known(name).any()]
    named = with_role(texts, "metric")
    return next((name for name in [*named, *texts] if _are_metrics(frame.words(name), name in named)), "")


def _are_metrics(words: Words, is_named: bool) -> bool:
    """Return whether words name what is measured: each comes several times, and some or most of them are known."""
    names = {*words.tolist()}
    if 2 * len(names) > len(words) or len(names) > MAX_COLUMNS or "" in names:
        return False
    num = sum(map(is_measured, names))
    return num > 0 if is_named else 2 * num >= len(names) and any(map(reward_rank, names))


def _column_of_values(frame: Frame) -> str:
    """Return the column that is named as values, or else the only one of numbers; "" if there are several."""
    others = with_role(frame.columns, "step", "coarse", *AXES, "elapsed", "wall_clock", "run", "seed")
    numbers = [name for name in frame.columns if name not in others and frame.known(name).any()]
    return first(frame, "value") or (numbers[0] if len(numbers) == 1 else "")


def exported_runs(frame: Frame, options: Selection) -> Reshaped:
    """Columns named 'run - metric', as wandb exports them, are of one run each; without __MIN and __MAX beside them."""
    cells: dict[str, tuple[str, str]] = {}
    ends: list[str] = []
    for name in frame.columns:
        run, separator, metric = name.rpartition(_OF_A_RUN)
        if metric.endswith(("__MIN", "__MAX")):
            ends.append(name)
        elif separator:
            cells[name] = run, metric
    is_of_all = True
    for name in frame.columns:
        is_varying = len({*frame.values(name).tolist()}) > 1
        if name not in cells and name not in ends and is_varying and not has_role(name, *_SHARED):
            is_of_all = False
    if not cells or {*options.columns} & {*cells} or not (ends or is_of_all):
        return None
    return gathered(frame.without(ends), cells)


def gathered(frame: Frame, cells: dict[str, tuple[str, str]]) -> tuple[Frame, tuple[Fact, ...]]:
    """Return a table in which the columns of each run, given with run and metric, are rows of it."""
    runs = tuple(dict.fromkeys(run for run, _ in cells.values()))
    metrics = tuple(dict.fromkeys(metric for _, metric in cells.values()))
    base = frame.without(cells)
    owner = _owner(runs)
    parts: list[Frame] = []
    for run in runs:
        own = {metric: frame.numbers(name) for name, (each, metric) in cells.items() if each == run}
        is_known = np.isfinite([*own.values()]).any(axis=0)
        parts.append(base.having({owner: objects([run] * len(frame)), **own}).take(is_known))
    return concatenated(parts), (fact("one_column_per_run", columns=runs, metrics=metrics),)


def _owner(runs: Sequence[str]) -> str:
    """Return what columns are named after: benchmarks, seeds or runs."""
    if all(is_benchmark(run) for run in runs):
        return "benchmark"
    return "run" if any(without_seed(run) for run in runs) else "seed"


def columns_asked(frame: Frame, y: str) -> dict[str, tuple[str, str]]:
    """Return run and metric of the columns of --y if it names several, as 'baseline,ours', each of a run."""
    names = y.split(",")
    if len(names) == 1 or y in frame or not all(name in frame for name in names):
        return {}
    # What is measured may stand at the beginning of all names, or at their end: acc_a, acc_b.
    begin = num_shared(names)
    end = num_shared([name[::-1] for name in names])
    shared = (names[0][:begin].strip(_EDGES), names[0][len(names[0]) - end :].strip(_EDGES))
    metric = next(filter(reward_rank, shared), VALUE)
    return {name: (name, metric) for name in names}


# Steps and clocks -----------------------------------------------------------------------------------------------------


def clocks_by_value(frame: Frame, options: Selection) -> Reshaped:
    """A column of seconds since 1970 is a time of day, and one with 'hours' in its name counts hours."""
    has_clock = bool(with_role(frame.columns, "wall_clock"))
    has_hours = bool(with_role(frame.columns, "hours"))
    found: dict[str, str] = {}
    for name in frame.columns:
        if name in options.columns or frame.is_words(name) or has_role(name, *AXES, "wall_clock", "date", "elapsed"):
            continue
        values = frame.values(name)
        if len(values) < _MIN_STEPS or values[-1] <= values[0] or reward_rank(name) is not None:
            continue
        if np.isfinite(seconds_since_1970(values)).all():
            if not has_clock:
                found.setdefault("timestamp", name)
        elif not has_hours and _HOURS.fullmatch(name) and (np.diff(values) >= 0).all() and values[0] >= 0:
            found.setdefault("hours", name)
    renamed = {role: frame.numbers(name) for role, name in found.items()}
    return frame.without(found.values()).having(renamed), ()


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


def in_order(frame: Frame, options: Selection) -> Reshaped:
    """Rows are put in the order of their time of day, if every row has one; rows with the newest first are turned."""
    times = wall_times(frame)
    if not np.isnan(times).any():
        return frame.take(np.argsort(times, kind="stable")), ()
    rises = np.diff(frame.values(first(frame, "step")))
    return (frame.take(slice(None, None, -1)), ()) if (rises < 0).sum() > 2 and (rises <= 0).all() else None


def epochs(frame: Frame, options: Selection) -> Reshaped:
    """Steps that begin anew in each epoch are counted through."""
    step = first(frame, "step")
    coarse = first(frame, "coarse")
    known = np.flatnonzero(frame.known(step) & frame.known(coarse))
    counted = frame.numbers(step).copy()
    rises = np.diff(counted[known])
    turns = np.diff(frame.numbers(coarse)[known])
    falls = rises < 0
    if not falls.any() or (falls != (turns > 0)).any():
        return None
    counted[known[1:]] += np.cumsum(np.where(falls, np.median([1.0, *rises[~falls]]) - rises, 0.0))
    num = int(falls.sum()) + 1
    return frame.having({step: counted}), facts_of("steps_per_epoch", step=step, coarse=coarse, num=num)


def wall_times(frame: Frame) -> Floats:
    """Return the time of day of each row, NaN where it has none; a date and a time may stand in two columns."""
    clock = first(frame, "wall_clock")
    date = first(frame, "date")
    seconds = seconds_since_1970(frame.columns.get(clock, frame.numbers("")))
    if not date or np.isfinite(seconds).any():
        return seconds
    pairs = zip(frame.words(date), frame.words(clock), strict=True)
    return seconds_since_1970(objects(f"{day} {time}" for day, time in pairs))


# Kinds of rows --------------------------------------------------------------------------------------------------------


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
