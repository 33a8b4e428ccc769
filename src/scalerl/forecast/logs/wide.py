"""Tables with a column for each run, as a row for each run and step.

wandb exports 'run - metric'. Otherwise names or values tell. By names, the columns beside steps and compute are a
grid: every metric of every run, as reward_a, reward_b, loss_a, loss_b. By values, at least two columns whose names do
not say what is measured have one unit, as 'baseline' and 'ours'; columns of another unit (turns, lengths) are not runs.
"""

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
    reward_rank,
    with_role,
)
from scalerl.forecast.logs.facts import Fact, fact, facts_of
from scalerl.forecast.logs.frame import Floats, Frame, Names, concatenated, grouped, objects
from scalerl.forecast.logs.names import num_shared, without_seed
from scalerl.forecast.logs.selection import Selection

VALUE = "value"
_SEPARATOR = " - "
# A word of a name; 'lr=1e-6' is one.
_WORD = re.compile(r"[\w.]*+=[-+.\w]++|[^\W_]++(?:[.@][^\W_]++)*+")
_LETTER = re.compile(r"[A-Za-z]")
_BRACKETS = re.compile(r"([^()\[\]]*[^()\[\]\s])\s*[(\[]([^()\[\]]+)[)\]]")
# More columns are metrics; comparing each with each takes long.
_MAX_COLUMNS_OF_RUNS = 800
# Columns of one unit begin within this factor of each other's peaks.
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
        siblings = _grid([name for name in columns if reward_rank(name)])
        return frame, facts_of("siblings", columns=tuple(siblings))
    if {*options.columns} & {*cells}:
        return None
    runs = tuple(dict.fromkeys(run for run, _ in cells.values()))
    metrics = tuple(dict.fromkeys(metric for _, metric in cells.values()))
    others = tuple(name for name in columns if name not in cells)
    base = frame.without({*columns, *spreads} - {*options.columns})
    owner = _owner(runs)
    parts: list[Frame] = []
    for run in runs:
        own = {metric: frame.numbers(name) for name, (each, metric) in cells.items() if each == run}
        is_known = np.isfinite([*own.values()]).any(axis=0)
        parts.append(base.having({owner: objects([run] * len(frame)), **own}).take(is_known))
    made = fact("one_column_per_run", columns=runs, metrics=metrics)
    return concatenated(parts), (made, *facts_of("columns_beside_runs", columns=others))


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
        is_of_a_run = _SEPARATOR in name  # 'grpo - step' is of a run
        values = frame.numbers(name)[frame.known(name)]
        is_constant = len(values) == 0 or (len(frame) > 1 and values.min() == values.max())
        steps = np.diff(values)
        is_index = len(values) == len(frame) > 1 and bool((steps == 1).all()) and values[0] in (0, 1)
        if not is_constant and (is_of_a_run or not (is_index or name in shared)):
            names.append(name)
    return names


def _spreads(names: Names) -> set[str]:
    """Return the columns of a spread or mean of others: reward_std beside reward, wandb's __MIN and __MAX, or std."""
    words = {name: tuple(_WORD.findall(name)) for name in names}
    wholes = {*words.values()}
    spreads: set[str] = set()
    for name, each in words.items():
        is_beside = len(names) > 2 if len(each) == 1 else each[:-1] in wholes
        if each and is_beside and is_spread(each[-1]):
            spreads.add(name)
    return spreads


# By names


def _by_names(frame: Frame, columns: Names) -> Cells:
    """Return run and metric of columns that are every metric of every run, as their names say."""
    return _of_an_export(frame, columns) or _in_brackets(columns) or _grid(columns) or _of_seeds(columns)


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
    """Return run and metric of columns such as acc (baseline) and acc (length); none where brackets hold no runs.

    There the word for a quantity names a run. A statistic does not, and neither does the part of a reward.
    """
    cells: Cells = {}
    for name in columns:
        match = _BRACKETS.fullmatch(name.strip())
        if match and not all(is_spread(word) for word in _WORD.findall(match[2])):
            cells[name] = match[2].strip(), match[1]
    if any(_is_no_run_of(run, metric) for run, metric in cells.values()):
        return {}
    runs = _runs_by_metric(cells)
    best = next((runs[metric] for metric in runs if reward_rank(metric) or is_average(metric)), set[str]())
    return {name: cell for name, cell in cells.items() if runs[cell[1]] == best} if len(best) > 1 else {}


def _is_no_run_of(run: str, metric: str) -> bool:
    """Return whether brackets hold a split, a benchmark, a number, or which part of a reward it is."""
    if are_splits([run]) or is_benchmark(run) or not _LETTER.search(run):
        return True
    is_part_of_it = not is_rate(metric) and any(is_kind_of_reward(word) for word in _WORD.findall(run))
    return bool(without_seed(run)) and is_part_of_it


def _runs_by_metric(cells: Cells) -> dict[str, set[str]]:
    runs: dict[str, set[str]] = {}
    for run, metric in cells.values():
        runs.setdefault(metric, set()).add(run)
    return runs


def _of_seeds(columns: Names) -> Cells:
    """Return seed and metric of columns such as seed0_acc and seed1_acc, beside acc_mean and acc_std of them."""
    apart = [name for name in columns if not any(is_spread(word) for word in _WORD.findall(name.replace("_", " ")))]
    cells = _grid(apart) if len(apart) < len(columns) else {}
    return {} if any(without_seed(run) for run, _ in cells.values()) else cells


def _grid(columns: Names) -> Cells:
    """Return run and metric of columns that are every metric of every run; none if they are not.

    What is left of a name without its metric names a run, unless it says what is measured, or makes a part of a whole.
    """
    for from_end in (False, True):
        cells = _split(columns, from_end)
        runs = _runs_by_metric(cells)
        are_equal = all(each == {run for run, _ in cells.values()} for each in runs.values())
        has_several = any(len(each) > 1 for each in runs.values())
        has_reward = any(reward_rank(metric) or is_average(metric) for metric in runs)
        is_no_run = any(_is_no_run(run) or is_part(name) > is_part(metric) for name, (run, metric) in cells.items())
        if are_equal and has_several and has_reward and not is_no_run:
            return {name: (run, VALUE if is_average(metric) else metric) for name, (run, metric) in cells.items()}
    return {}


def _is_no_run(name: str) -> bool:
    """Return whether a part of a name says what is measured, or ends with how, as in a_mean and a_std."""
    if not name or is_statistic(name):
        return True
    last = _WORD.findall(name)[-1]
    return is_spread(last) or is_average(last)


def _split(columns: Names, from_end: bool) -> Cells:
    """Return run and metric of each column if the metric stands first, or last, in its name."""
    turn = -1 if from_end else 1
    words = {name: [*_WORD.finditer(name)][::turn] for name in columns}
    texts = {name: [word[0] for word in words[name]] for name in columns}
    cells: Cells = {}
    for family in grouped(columns, lambda name: texts[name][0] if texts[name] else name):
        num = _num_of_the_metric([texts[name] for name in family], may_end_before_number=from_end)
        for name in family:
            metric, run = words[name][:num], words[name][num:]
            cells[name] = _text(name, run[::turn]), _text(name, metric[::turn])
    return {name: cells[name] for name in columns}


def _num_of_the_metric(texts: list[list[str]], *, may_end_before_number: bool) -> int:
    """Return how many first words of names are their metric: those that all share, and something is left for the run.

    A number alone does not name a run: the word before it does, as in reward (seed 1).
    """
    num = min(num_shared(texts), *(len(each) - 1 for each in texts))
    is_number = any(each[num].isdigit() for each in texts if each[num:])
    return num - 1 if is_number and num > 1 and not may_end_before_number else num


def _text(name: str, words: list[re.Match[str]]) -> str:
    return name[words[0].start() : words[-1].end()] if words else ""


# By values


def _by_values(frame: Frame, columns: Names) -> Cells:
    """Return the columns that are one metric of different runs by their values, if they are most of the columns."""
    if not _is_one_row_per_step(frame) or any(_is_reward(name) for name in columns):
        return {}
    sets = [name for name in columns if is_benchmark(name)]
    nameless = [name for name in columns if "=" in name or (_LETTER.search(name) and not _says_what(name))]
    best = sets if len(sets) > 1 else _largest_family(frame, nameless)
    if not best:
        return {}
    metrics = [name for name in columns if name not in (*nameless, *sets) and is_statistic(name)]
    unclear = {*columns} - {*nameless, *sets, *metrics}
    runs = {*best, *(name for name in unclear if _goes_with(frame, name, best[0]))}
    are_most = 2 * len(runs) >= len(columns) and len(runs) > max(len(metrics), 1)
    return {name: (name, VALUE) for name in columns if name in runs} if are_most else {}


def _is_one_row_per_step(frame: Frame) -> bool:
    """Return whether a column counts compute, differently in each row, and no words tell rows apart."""
    axes = with_role(frame.columns, "step", "coarse", *AXES, "elapsed")
    if not axes or frame.num_groups(axes[:1]) < len(frame):
        return False
    return all(frame.num_groups([name]) == 1 for name in word_columns(frame))


def _largest_family(frame: Frame, names: Names) -> list[str]:
    """Return the most columns whose values are like those of one of them; amounts move as it does, too."""
    values = {name: frame.numbers(name)[frame.known(name)] for name in names}
    best: list[str] = []
    for name in names:
        alike = [other for other in names if _are_alike(values[other], values[name])]
        if _kind(values[name]) != "rate":
            alike = [other for other in alike if other == name or _goes_with(frame, other, name)]
        if len(alike) > len(best):
            best = alike
    return best


def word_columns(frame: Frame) -> list[str]:
    """Return the columns of words that may name something: neither numbers nor times."""
    names = [name for name in frame.columns if frame.is_words(name) and not frame.known(name).any()]
    return [name for name in names if not has_role(name, "step", "wall_clock", "date", "elapsed")]


def _says_what(name: str) -> bool:
    """Return whether a word of a name says what is measured."""
    is_said = is_statistic(name) and not are_splits([name])
    return is_said or is_measured(name) or reward_rank(name) is not None


def _is_reward(name: str) -> bool:
    """Return whether a whole name says that a column is a reward; one of a run may contain such a word."""
    return reward_rank(name) is not None and is_statistic(name)


def _are_alike(one: Floats, other: Floats) -> bool:
    """Return whether columns have one unit: both are rates, or the values of each begin near those of the other."""
    if _kind(one) != _kind(other):
        return False
    is_near = one.min() <= _ALIKE * np.abs(other).max() and other.min() <= _ALIKE * np.abs(one).max()
    return _kind(one) == "rate" or bool(is_near)


def _kind(values: Floats) -> str:
    if values.min() >= -1 and values.max() <= 1:
        return "rate"
    return "count" if (values % 1 == 0).all() else "amount"


def _goes_with(frame: Frame, name: str, run: str) -> bool:
    """Return whether a column has values in most rows of a run, of about its size, and moves in its direction."""
    known = frame.known(name) & frame.known(run)
    fewer = min(frame.known(name).sum(), frame.known(run).sum())
    if 2 * known.sum() <= fewer:
        return False
    one, other = frame.numbers(name)[known], frame.numbers(run)[known]
    peaks = np.abs(one).max(), np.abs(other).max()
    is_of_one_size = max(peaks) <= _ALIKE * min(peaks) and _kind(one) == _kind(other)
    return bool(is_of_one_size and _rise(one) * _rise(other) > 0)


def _rise(values: Floats) -> float:
    """Return how far the later half lies above the earlier one."""
    half = len(values) // 2
    return float(values[half:].mean() - values[:half].mean()) if half else 0.0
