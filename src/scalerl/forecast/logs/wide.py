"""Tables with a column for each run, as a row for each run and step.

wandb exports 'run - metric'. Otherwise names or values tell. By names, the columns beside steps and compute are a
grid: every metric of every run, as reward_a, reward_b, loss_a, loss_b. By values, at least two columns whose names do
not say what is measured have one unit, as 'baseline' and 'ours'; columns of another unit (turns, lengths) are not runs.
"""

import re
from collections.abc import Mapping

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

Cell = tuple[str, str]
"""The run and the metric of a column."""


def one_column_per_run(frame: Frame, options: Selection) -> tuple[Frame, tuple[Fact, ...]] | None:
    """A table with a column for each run gets a row for each run and step; where they are benchmarks, for each set."""
    common = [name for name in frame.columns if _SEPARATOR not in name]  # 'grpo - step' is of a run
    shared = {*with_role(common, "step", "coarse", *AXES, "cost", "elapsed", "wall_clock", "seconds_per_step")}
    measured = [name for name in frame.columns if name not in shared and _may_differ(frame, name)]
    spreads = _spreads(measured)
    columns = [name for name in measured if name not in spreads]
    if len(columns) > _MAX_COLUMNS_OF_RUNS:
        return None
    by_name = _of_an_export(frame, columns) or _in_brackets(columns) or _grid(columns) or _of_seeds(columns)
    cells = by_name or _of_one_unit(frame, columns)
    if not cells:
        siblings = _grid([name for name in columns if reward_rank(name)])
        return frame, facts_of("siblings", columns=tuple(siblings))
    if {*options.columns} & {*cells}:
        return None
    runs, metrics = (tuple(dict.fromkeys(part)) for part in zip(*cells.values(), strict=True))
    owner = "benchmark" if all(map(is_benchmark, runs)) else "run" if any(map(without_seed, runs)) else "seed"
    base, frames = frame.without({*columns, *spreads} - {*options.columns}), list[Frame]()
    for run in runs:
        own = {metric: frame.numbers(name) for name, (each, metric) in cells.items() if each == run}
        is_known = np.isfinite([*own.values()]).any(axis=0)
        frames.append(base.having({owner: objects([run] * len(frame)), **own}).take(is_known))
    others = tuple(name for name in columns if name not in cells)
    made = fact("one_column_per_run", columns=runs, metrics=metrics)
    return concatenated(frames), (made, *facts_of("columns_beside_runs", columns=others))


def _may_differ(frame: Frame, name: str) -> bool:
    """Return whether a column has numbers that may differ between runs: no constant, and not the number of the row."""
    values = frame.numbers(name)[frame.known(name)]
    is_index = (
        _SEPARATOR not in name
        and len(values) == len(frame) > 1
        and bool((np.diff(values) == 1).all())
        and values[0] in (0, 1)
    )
    return len({*values.tolist()}) > (len(frame) > 1) and not is_index


def _spreads(names: Names) -> set[str]:
    """Return the columns of a spread or mean of others: reward_std beside reward, wandb's __MIN and __MAX, or std."""
    words = {name: (*_WORD.findall(name),) for name in names}
    there = {*words.values(), ()} if len(names) > 2 else {*words.values()}
    return {
        name
        for name, (*rest, last) in ((name, each) for name, each in words.items() if each)
        if (*rest,) in there and is_spread(last) and (rest or len(names) > 2)
    }


def _of_an_export(frame: Frame, columns: Names) -> dict[str, Cell]:
    """Return run and metric of wandb's 'run - metric'."""
    parts = {name: name.rsplit(_SEPARATOR, 1) for name in columns if _SEPARATOR in name}
    is_export = any(f"{name}__MIN" in frame for name in parts) or len(parts) == len(columns)
    return {name: (run, metric) for name, (run, metric) in parts.items()} if is_export else {}


# By names


def _in_brackets(columns: Names) -> dict[str, Cell]:
    """Return run and metric of columns such as acc (baseline) and acc (length); none where brackets hold no runs.

    There the word for a quantity names a run. A statistic does not, and neither does the part of a reward.
    """
    parts = {name: match for name in columns if (match := _BRACKETS.fullmatch(name.strip()))}
    cells = {name: (match[2].strip(), match[1]) for name, match in parts.items()
             if not all(map(is_spread, _WORD.findall(match[2])))}  # fmt: skip
    is_no_run = any(
        are_splits([run]) or is_benchmark(run) or not _LETTER.search(run) or (without_seed(run) and _is_of(metric, run))
        for run, metric in cells.values()
    )
    return {} if is_no_run else _of_equal_runs(cells)


def _is_of(metric: str, run: str) -> bool:
    """Return whether a word in the name of a run says which part of a reward it is; a rate has no parts."""
    return not is_rate(metric) and any(map(is_kind_of_reward, _WORD.findall(run)))


def _of_equal_runs(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return the columns of metrics that have the same runs, several, as the first reward or average has."""
    runs = {metric: {run for run, other in cells.values() if other == metric} for _, metric in cells.values()}
    best = next((each for metric, each in runs.items() if reward_rank(metric) or is_average(metric)), set[str]())
    of_best = {name: cell for name, cell in cells.items() if runs[cell[1]] == best}
    return of_best if len(best) > 1 else {}


def _of_seeds(columns: Names) -> dict[str, Cell]:
    """Return seed and metric of columns such as seed0_acc and seed1_acc, beside acc_mean and acc_std of them."""
    apart = [name for name in columns if not any(map(is_spread, _WORD.findall(name.replace("_", " "))))]
    cells = _grid(apart) if len(apart) < len(columns) else {}
    return {} if any(without_seed(run) for run, _ in cells.values()) else cells


def _grid(columns: Names) -> dict[str, Cell]:
    """Return run and metric of columns that are every metric of every run; none if they are not.

    What is left of a name without its metric names a run, unless it says what is measured, or makes a part of a whole.
    """
    for from_end in (False, True):
        cells = _cells(columns, from_end)
        is_no_run = any(_is_no_run(run) or is_part(name) > is_part(metric) for name, (run, metric) in cells.items())
        if not is_no_run and len(_of_equal_runs(cells)) == len(columns) > 0:
            return {name: (run, VALUE if is_average(metric) else metric) for name, (run, metric) in cells.items()}
    return {}


def _is_no_run(name: str) -> bool:
    """Return whether a part of a name says what is measured, or ends with how, as in a_mean and a_std."""
    return not name or is_statistic(name) or is_spread(_WORD.findall(name)[-1]) or is_average(_WORD.findall(name)[-1])


def _cells(columns: Names, from_end: bool) -> dict[str, Cell]:
    """Return run and metric of each column if the metric stands first, or last, in its name."""
    turn = -1 if from_end else 1
    words = {name: [*_WORD.finditer(name)][::turn] for name in columns}
    cells: dict[str, Cell] = {}
    for family in grouped(columns, lambda name: words[name][0][0] if words[name] else name):
        num = num_shared([[word[0] for word in words[name]] for name in family])
        num = min(num, *(len(words[name]) - 1 for name in family))  # something is left to name the run
        # A number alone does not name a run: the word before it does, as in reward (seed 1).
        is_bare = not from_end and any(words[name][num][0].isdigit() for name in family if words[name][num:])
        num -= is_bare and num > 1
        for name in family:
            cells[name] = _text(name, words[name][num:][::turn]), _text(name, words[name][:num][::turn])
    return {name: cells[name] for name in columns}


def _text(name: str, words: list[re.Match[str]]) -> str:
    return name[words[0].start() : words[-1].end()] if words else ""


# By values


def _of_one_unit(frame: Frame, columns: Names) -> dict[str, Cell]:
    """Return the columns that are one metric of different runs by their values, if they are most of the columns."""
    axis = next(iter(with_role(frame.columns, "step", "coarse", *AXES, "elapsed")), "")
    is_long = len({*frame.words(axis)}) < len(frame) or any(
        frame.num_groups([name]) > 1 for name in word_columns(frame)
    )
    if not axis or is_long or any(map(_is_reward, columns)):
        return {}
    plain = [name for name in columns if "=" in name or (_LETTER.search(name) and not _says_what(name))]
    sets = [name for name in columns if is_benchmark(name)]
    values = {name: frame.numbers(name)[frame.known(name)] for name in plain}
    units = [[name for name in plain if _are_alike(values[name], each)] for each in values.values()]
    units = [sets] if len(sets) > 1 else units
    best = max(units, key=lambda unit: (len(unit), -columns.index(unit[0])), default=[])
    metrics = [name for name in columns if name not in (*plain, *sets) and is_statistic(name)]
    others = {*columns} - {*plain, *sets, *metrics}
    runs = {*best, *(name for name in others if best and _goes_with(frame, name, best[0]))}
    are_most = 2 * len(runs) >= len(columns) and max(len(metrics), 1) < len(runs)
    return {name: (name, VALUE) for name in columns if name in runs} if are_most else {}


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
    kind = _kind(one)
    is_near = one.min() <= _ALIKE * np.abs(other).max() and other.min() <= _ALIKE * np.abs(one).max()
    return kind == _kind(other) and (kind == "rate" or bool(is_near))


def _kind(values: Floats) -> str:
    is_rate = values.min() >= -1 and values.max() <= 1
    return "rate" if is_rate else "count" if (values % 1 == 0).all() else "amount"


def _goes_with(frame: Frame, name: str, run: str) -> bool:
    """Return whether a column has values in most rows of a run, of about its size, and moves in its direction."""
    known = frame.known(name) & frame.known(run)
    if 2 * known.sum() <= min(frame.known(name).sum(), frame.known(run).sum()):
        return False
    one, other = pair = [frame.numbers(column)[known] for column in (name, run)]
    half = len(one) // 2
    moves = [values[half:].mean() - values[:half].mean() if half else 0.0 for values in pair]
    peaks = [float(np.abs(values).max()) for values in pair]
    return moves[0] * moves[1] > 0 and max(peaks) <= _ALIKE * min(peaks) and _kind(one) == _kind(other)
