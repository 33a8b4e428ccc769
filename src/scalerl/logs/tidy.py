"""Frames of other shapes as frames with one row per run and step.

Each function takes a frame and the options, and returns another frame with the fact that says so, or None where the
frame does not have that shape. A column that an option names stays as it is.
"""

from collections import Counter

import numpy as np

from scalerl.logs.amounts import seconds_since_1970
from scalerl.logs.columns import are_splits, is_evaluation, is_measured, is_training_word, reward_rank, with_role
from scalerl.logs.facts import Fact, fact
from scalerl.logs.frame import Cells, Floats, Frame, concatenated, numbered, objects
from scalerl.logs.selection import Selection
from scalerl.logs.source import MAX_COLUMNS

Reshaped = tuple[Frame, Fact | None] | None

_SEPARATOR = " - "
_COMPANIONS = ("__MIN", "__MAX")
# Columns of one metric have peaks within this factor.
_ALIKE = 10.0
VALUE = "value"


def tidied(frame: Frame, asked: Selection) -> tuple[Frame, list[Fact]]:
    """Return a frame with one row per run and step, in the order in which the rows were logged."""
    facts: list[Fact] = []
    for reshape in (one_metric_per_row, one_column_per_run, evaluations_apart, two_prefixes, in_order):
        if reshaped := reshape(frame, asked):
            frame = reshaped[0]
            facts += [reshaped[1]] if reshaped[1] else []
    return frame, facts


def one_metric_per_row(frame: Frame, asked: Selection) -> Reshaped:
    """A table with a column of names and a column of values gets a column for each name."""
    roles = [next(iter(with_role(frame.columns, role)), "") for role in ("step", "metric", "value")]
    step, metric, value = roles
    words = frame.words(metric)
    names = Counter(words.tolist())
    is_long = all(roles) and 2 * len(names) <= len(frame) and len(names) <= MAX_COLUMNS and not asked.named.keys() & roles
    if not is_long or "" in names or not any(map(is_measured, names)):
        return None
    labels = [name for name in frame.columns if name not in roles and _names_runs(frame, name)]
    # A metric that a step already has was logged again, by a resumed run: its row comes later.
    at = frame.groups([step, *labels])
    row = numbered(zip(at, _nth(zip(at, words, strict=True)), strict=True))
    _, first = np.unique(row, return_index=True)
    wide: dict[str, Cells] = {}
    for name in names:
        wide[name] = np.full(len(first), np.nan)
        wide[name][row[words == name]] = frame.numbers(value)[words == name]
    return frame.take(first).without([metric, value]).having(wide), None


def _nth(keys: "zip[tuple[object, ...]]") -> list[int]:
    """Return how often each key came before."""
    seen: Counter[object] = Counter()
    counts = []
    for key in keys:
        counts.append(seen[key])
        seen[key] += 1
    return counts


def _names_runs(frame: Frame, column: str) -> bool:
    return frame.is_words(column) or bool(with_role([column], "run", "arm", "seed"))


def one_column_per_run(frame: Frame, asked: Selection) -> Reshaped:
    """A table with a column for each run gets a row for each run and step.

    wandb exports 'run - metric' beside its __MIN and __MAX. Other tables have a step and columns of numbers, none of
    which is named as anything that trainers measure.
    """
    companions = [name for name in frame.columns if name.endswith(_COMPANIONS)]
    columns = [name for name in frame.columns if name not in companions]
    parts = {name: name.rpartition(_SEPARATOR) for name in columns}
    runs = {name: (run, metric) for name, (run, separator, metric) in parts.items() if separator}
    is_export = any(f"{name}__MIN" in frame for name in runs) or len(runs) == len(columns) - 1 > 0
    runs = runs if is_export else {name: (name, VALUE) for name in _alike(frame)}
    if not runs or asked.named.keys() & runs.keys():
        return None
    base, frames = frame.without([*runs, *companions]), []
    for run in dict.fromkeys(run for run, _ in runs.values()):
        measured = {metric: frame.columns[name] for name, (owner, metric) in runs.items() if owner == run}
        rows = np.any([frame.has(name) for name, (owner, _) in runs.items() if owner == run], axis=0)
        frames.append(base.having({"run": objects([run] * len(frame)), **measured}).take(rows))
    metrics = tuple(dict.fromkeys(metric for _, metric in runs.values()))
    names = tuple(dict.fromkeys(run for run, _ in runs.values()))
    return concatenated(frames), fact("one_column_per_run", columns=names, metrics=metrics)


def _alike(frame: Frame) -> list[str]:
    """Return the columns beside the step, if all of them may be one metric of different runs; else none."""
    steps = with_role(frame.columns, "step", "coarse")[:1]
    others = [name for name in frame.columns if name not in steps]
    if not steps or len(others) < 2 or any(map(is_measured, others)) or any(map(frame.is_words, others)):
        return []
    values = [np.abs(frame.columns[name][frame.has(name)]) for name in others]
    peaks = [own.max(initial=0.0) for own in values]
    lows = [frame.columns[name][frame.has(name)].min(initial=0.0) for name in others]
    is_rate = min(lows) >= -1 and max(peaks) <= 100
    return others if all(map(len, values)) and (is_rate or max(peaks) <= _ALIKE * min(peaks)) else []


def evaluations_apart(frame: Frame, asked: Selection) -> Reshaped:
    """Evaluations that share columns with training get their own, as eval/acc, where a word such as split=eval tells."""
    for column in with_role(frame.columns, "split"):
        split = frame.words(column)
        words = set(split.tolist()) - {""}
        tests = sorted(word for word in words if not is_training_word(word))
        if len(words) < 2 or not tests or not are_splits(words) or column in asked.separating:
            continue
        apart: dict[str, Cells] = {}
        emptied: dict[str, Cells] = {}
        for name in frame.columns:
            values, seen = frame.numbers(name), set(split[frame.has(name)].tolist())
            if reward_rank(name) and not is_evaluation(name) and not seen.isdisjoint(tests):
                apart |= {f"{word}/{name}": np.where(split == word, values, np.nan) for word in tests if word in seen}
                emptied[name] = np.where(np.isin(split, tests), np.nan, values)
        if apart:
            empty = [name for name, cells in emptied.items() if np.isnan(cells).all()]
            made = frame.having({**emptied, **apart}).without([column, *empty])
            return made, fact("evaluations_apart", columns=tuple(apart))
    return None


def two_prefixes(frame: Frame, asked: Selection) -> Reshaped:
    """A column of evaluations whose first rows have another prefix is one: test_score/a and val/test_score/a."""
    rewards = [name for name in frame.columns if reward_rank(name) and is_evaluation(name)]
    for short in rewards:
        long = [name for name in rewards if name.endswith(f"/{short}") and not (frame.has(name) & frame.has(short)).any()]
        if len(long) == 1 and not asked.named.keys() & {short, *long}:
            values = np.where(frame.has(short), frame.numbers(short), frame.numbers(long[0]))
            return frame.having({long[0]: values}).without([short]), fact("one_column", column=long[0], others=(short,))
    return None


def in_order(frame: Frame, asked: Selection) -> Reshaped:
    """Rows are put in the order of their time of day, if every row has one; rows with the newest first are turned."""
    times = wall_times(frame)
    if len(frame) and not np.isnan(times).any():
        return (frame.take(np.argsort(times, kind="stable")), None) if (np.diff(times) < 0).any() else None
    steps = frame.numbers(next(iter(with_role(frame.columns, "step")), None))
    steps = steps[~np.isnan(steps)]
    is_turned = len(np.unique(steps)) > 3 and (np.diff(steps) <= 0).all()
    return (frame.take(slice(None, None, -1)), None) if is_turned else None


def wall_times(frame: Frame) -> Floats:
    """Return the time of day of each row, NaN where it has none; a date and a time may stand in two columns."""
    clock, date = (next(iter(with_role(frame.columns, role)), None) for role in ("wall_clock", "date"))
    if clock is None:
        return np.full(len(frame), np.nan)
    seconds = seconds_since_1970(frame.columns[clock])
    if date is None or not np.isnan(seconds).all():
        return seconds
    pairs = zip(frame.words(date), frame.words(clock), strict=True)
    return seconds_since_1970(objects(f"{day} {time}" for day, time in pairs))
