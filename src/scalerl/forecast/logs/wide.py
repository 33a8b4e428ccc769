"""Tables with a column for each run, as a row for each run and step.

Names tell first: wandb's 'run - metric', 'metric (run)', or one metric at the beginning or the end of all names, as in
reward_a, reward_b, loss_a, loss_b. Otherwise values do: at least two columns whose names say nothing that is measured
have one unit, as 'baseline' and 'ours'; columns of another unit (turns, lengths) are not runs.
"""

import os.path
import re

import numpy as np

from scalerl.forecast.logs.columns import (
    AXES,
    are_splits,
    has_role,
    is_average,
    is_benchmark,
    is_kind_of_reward,
    is_measured,
    is_part,
    is_rate,
    is_spread,
    is_statistic,
    names_a_variant,
    plain,
    reward_rank,
    with_role,
)
from scalerl.forecast.logs.facts import Fact, fact, facts_of
from scalerl.forecast.logs.frame import Frame, Names, concatenated, grouped, objects
from scalerl.forecast.logs.names import without_seed
from scalerl.forecast.logs.selection import Selection

VALUE = "value"
_SEPARATOR = " - "
# What stands between the words of a name; a dot, @ and = join them.
_BREAK = re.compile(r"(?:(?![.@=])[\W_])+")
_EDGES = " _-/()[]"
_LETTER = re.compile(r"[A-Za-z]")
_BRACKETS = re.compile(r"([^()\[\]]*[^()\[\]\s])\s*[(\[]([^()\[\]]+)[)\]]")
_MOST_PER_CENT = 100.0
# The correlation of values with their order from which they rise, or fall.
_CLEARLY = 0.5
# More columns are metrics; comparing each with each takes long.
_MAX_COLUMNS_OF_RUNS = 800
# Runs in per cent reach heights within this factor of each other's.
_ALIKE = 2.0

Cells = dict[str, tuple[str, str]]
"""The run and the metric of columns."""
# What all runs of a table share.
_SHARED = ("step", "coarse", *AXES, "cost", "elapsed", "wall_clock", "seconds_per_step")


def one_column_per_run(frame: Frame, options: Selection) -> tuple[Frame, tuple[Fact, ...]] | None:
    """A table with a column for each run gets a row for each run and step; where they are benchmarks, for each set."""
    measured = _measured(frame)
    spreads = _spreads(measured)
    columns = [name for name in measured if name not in spreads]
    if len(columns) > _MAX_COLUMNS_OF_RUNS:
        return None
    cells = _by_names(frame, columns) or _by_values(frame, columns)
    if not cells:
        siblings = _by_place([name for name in columns if reward_rank(name)])
        return frame, facts_of("siblings", columns=tuple(siblings))
    if {*options.columns} & {*cells}:
        return None
    runs = tuple(dict.fromkeys(run for run, _ in cells.values()))
    metrics = tuple(dict.fromkeys(metric for _, metric in cells.values()))
    base = frame.without({*columns, *spreads} - {*options.columns})
    owner = _owner(runs)
    parts: list[Frame] = []
    for run in runs:
        own = {metric: frame.numbers(name) for name, (each, metric) in cells.items() if each == run}
        is_known = np.isfinite([*own.values()]).any(axis=0)
        parts.append(base.having({owner: objects([run] * len(frame)), **own}).take(is_known))
    others = tuple(name for name in columns if name not in cells)
    made = fact("one_column_per_run", columns=runs, metrics=metrics)
    return concatenated(parts), (made, *facts_of("columns_beside_runs", columns=others))


def word_columns(frame: Frame) -> list[str]:
    """Return the columns of words that may name something: neither numbers nor times."""
    names = [name for name in frame.columns if frame.is_words(name) and not frame.known(name).any()]
    return [name for name in names if not has_role(name, "step", "wall_clock", "date", "elapsed")]


def _owner(runs: Names) -> str:
    """Return what columns are named after: benchmarks, seeds or runs."""
    if all(is_benchmark(run) for run in runs):
        return "benchmark"
    return "run" if any(without_seed(run) for run in runs) else "seed"


def _measured(frame: Frame) -> list[str]:
    """Return the columns that may be of single runs: numbers that differ, and neither compute nor the row's number."""
    shared = {*with_role(frame.columns, *_SHARED)}
    names: list[str] = []
    for name in frame.columns:
        values = frame.numbers(name)[frame.known(name)]
        is_constant = len(values) == 0 or (len(frame) > 1 and values.min() == values.max())
        is_index = len(values) == len(frame) > 1 and values[0] in (0, 1) and bool((np.diff(values) == 1).all())
        is_of_a_run = _SEPARATOR in name  # 'grpo - step' is of a run
        if not is_constant and (is_of_a_run or not (is_index or name in shared)):
            names.append(name)
    return names


def _spreads(names: Names) -> set[str]:
    """Return the columns of a spread or mean of others: reward_std beside reward, wandb's __MIN and __MAX, or std."""
    wholes = set(map(plain, names))
    spreads: set[str] = set()
    for name in names:
        whole, _, last = plain(name).rpartition("_")
        is_beside = whole in wholes if whole else len(names) > 2
        if is_beside and is_spread(last):
            spreads.add(name)
    return spreads


# By names


def _by_names(frame: Frame, columns: Names) -> Cells:
    """Return run and metric of columns that are every metric of every run, as their names say."""
    return _of_an_export(frame, columns) or _in_brackets(columns) or _by_place(columns)


def _by_place(columns: Names) -> Cells:
    return _grid(_split(columns, from_end=False)) or _grid(_split(columns, from_end=True))


def _of_an_export(frame: Frame, columns: Names) -> Cells:
    """Return run and metric of wandb's 'run - metric'."""
    cells: Cells = {}
    for name in columns:
        run, separator, metric = name.rpartition(_SEPARATOR)
        if separator:
            cells[name] = run, metric
    has_companions = any(f"{name}__MIN" in frame for name in cells)
    return cells if has_companions or len(cells) == len(columns) else {}


def _in_brackets(columns: Names) -> Cells:
    """Return run and metric of columns such as acc (baseline) and acc (length); there a quantity names a run, too.

    A split, a benchmark, a number, a statistic and the part of a reward name none.
    """
    matches = {name: _BRACKETS.fullmatch(name.strip()) for name in columns}
    runs: dict[str, Cells] = {}
    for name, match in matches.items():
        if match is None:
            continue
        metric, run = match.groups()
        words = _BREAK.split(run)
        is_part_of_it = not is_rate(metric) and any(map(is_kind_of_reward, words))
        is_none = are_splits([run]) or is_benchmark(run) or not _LETTER.search(run)
        if is_none or is_part_of_it or all(map(is_spread, words)):
            return {}
        runs.setdefault(metric, {})[name] = run, metric
    rewards = [cells for metric, cells in runs.items() if reward_rank(metric) and len(cells) > 1]
    return {name: cell for cells in rewards for name, cell in cells.items()}


def _split(columns: Names, *, from_end: bool) -> Cells:
    """Return run and metric of each column: the metric is what all names with its first, or last, word share."""
    texts: dict[str, str] = {}
    for name in columns:
        text = name.strip(_EDGES)
        texts[name] = text[::-1] if from_end else text
    cells: Cells = {}
    for family in grouped(columns, lambda name: _BREAK.split(texts[name])[0]):
        length = _length_shared([texts[name] for name in family], has_numbers=not from_end)
        for name in family:
            parts = texts[name][length:], texts[name][:length]
            run, metric = (part[::-1].strip(_EDGES) if from_end else part.strip(_EDGES) for part in parts)
            cells[name] = run, metric
    return {name: cells[name] for name in columns}


def _length_shared(texts: Names, *, has_numbers: bool) -> int:
    """Return how many characters texts share, in whole words; of each at least a word is left.

    A number alone does not name a run, the word before it does: reward (seed 1).
    """
    ends = [match.end() for match in _BREAK.finditer(os.path.commonprefix(texts))]
    if has_numbers and len(ends) > 1 and any(_BREAK.split(text[ends[-1] :])[0].isdigit() for text in texts):
        ends.pop()
    return ends[-1] if ends else 0


def _grid(cells: Cells) -> Cells:
    """Return these columns if they are every metric of every run, with a reward among the metrics; else none.

    What is left of a name without its metric names a run, unless it says what is measured, or makes a part of a whole.
    """
    runs: dict[str, set[str]] = {}
    for name, (run, metric) in cells.items():
        runs.setdefault(metric, set()).add(run)
        if _is_no_run(run) or is_part(name) > is_part(metric):
            return {}
    are_equal = len(set(map(frozenset, runs.values()))) == 1
    has_several = len({run for run, _ in cells.values()}) > 1
    has_reward = any(reward_rank(metric) or is_average(metric) for metric in runs)
    if not (are_equal and has_several and has_reward):
        return {}
    return {name: (run, VALUE if is_average(metric) else metric) for name, (run, metric) in cells.items()}


def _is_no_run(name: str) -> bool:
    """Return whether a part of a name says what is measured, or ends with how, as in a_mean and a_std."""
    last = _BREAK.split(name)[-1]
    return not last or is_statistic(name) or is_spread(last) or is_average(last)


# By values


def _by_values(frame: Frame, columns: Names) -> Cells:
    """Return the columns that are one metric of different runs or benchmarks, if they are at least half of all."""
    if not _is_one_row_per_step(frame) or any(reward_rank(name) and is_statistic(name) for name in columns):
        return {}
    runs = [name for name in columns if is_benchmark(name)]
    if len(runs) < 2:
        runs = [name for name in columns if not is_benchmark(name) and _may_name_a_run(name)]
    runs = _of_one_unit(frame, runs)
    if len(runs) < 2 or 2 * len(runs) < len(columns) or _move_apart(frame, runs):
        return {}
    return {name: (name, VALUE) for name in runs}


def _move_apart(frame: Frame, names: Names) -> bool:
    """Return whether one column clearly rises and another clearly falls, as a score and a loss do."""
    trends: list[float] = []
    for name in names:
        values = frame.numbers(name)[frame.known(name)]
        if len(values) > 2 and values.min() < values.max():
            trends.append(float(np.corrcoef(np.arange(len(values)), values)[0, 1]))
    return min(trends, default=0.0) < -_CLEARLY and max(trends, default=0.0) > _CLEARLY


def _is_one_row_per_step(frame: Frame) -> bool:
    """Return whether a column counts compute, differently in each row, and no words tell rows apart."""
    axes = with_role(frame.columns, "step", "coarse", *AXES, "elapsed")
    if not axes or frame.num_groups(axes[:1]) < len(frame):
        return False
    return all(frame.num_groups([name]) == 1 for name in word_columns(frame))


def _may_name_a_run(name: str) -> bool:
    """Return whether no word of a name says what is measured; lr=1e-6 and no_kl name runs."""
    if "=" in name or names_a_variant(name):
        return True
    is_said = is_statistic(name) and not are_splits([name])
    return _LETTER.search(name) is not None and not (is_said or is_measured(name) or reward_rank(name))


def _of_one_unit(frame: Frame, names: Names) -> list[str]:
    """Return the columns that are shares; without those all columns, if they are per cent of about one size."""
    shares: list[str] = []
    highest: list[float] = []
    for name in names:
        values = frame.numbers(name)[frame.known(name)]
        low, high = float(values.min()), float(values.max())
        is_per_cent = low >= 0 and high <= _MOST_PER_CENT and not (values % 1 == 0).all()
        if low >= -1 and high <= 1:
            shares.append(name)
        else:
            highest.append(high if is_per_cent else np.inf)
    if len(shares) > 1:
        return shares
    are_alike = len(highest) > 1 and max(highest) <= _ALIKE * min(highest) < np.inf
    return [*names] if are_alike and not shares else []
