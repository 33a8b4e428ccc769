"""The evaluations of a study's runs as one compressed table, and sealed forecasts scored on such tables.

    python benchmarks/study_table.py write TABLE.csv.gz RUN [RUN ...]
    python benchmarks/study_table.py reach TABLE.csv.gz[:ARM,ARM] BASE 0.8     FLOPs to these rewards
    python benchmarks/study_table.py cost TABLE.csv.gz BASE 0.8          the same and GPU-hours, over the base's
    python benchmarks/study_table.py at TABLE.csv.gz 40 80 120           rewards around these steps
    python benchmarks/study_table.py grid TABLE.csv.gz                   best and last reward by lag and another setting
    python benchmarks/study_table.py paired TABLE.csv.gz BASE            what a column of the grid adds to the base's
    python benchmarks/study_table.py gap TABLE.csv.gz                    how far generator and learner differ
    python benchmarks/study_table.py factors TABLE.csv.gz BASE 0.8       effects of a full design, and whether they add
    python benchmarks/study_table.py subsets TABLE.csv.gz BASE 0.8       the ratio of FLOPs by two, three ... seeds
    python benchmarks/study_table.py column TABLE.csv.gz NAME            first, largest and last values, by run
    python benchmarks/study_table.py seals SEALED.jsonl.gz FOLDER TABLE.csv.gz [...]     sealed files as one
    python benchmarks/study_table.py sealed SEALED.json                  forecasts in a sealed file
    python benchmarks/study_table.py transferred FORECAST.json TABLE.csv.gz:ARM
    scalerl compare TABLE.csv.gz --x flops

A row is an evaluation, with the arm and the seed of its run, pass@k where the correct answers of each problem are
known, and a few metrics of the training step at which it was made (of the first step for the evaluation before it).
"""

import csv
import gzip
import io
import itertools
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from scalerl.forecast.curves import Answer, Comparison, Fit, compare
from scalerl.forecast.several.seal import SealScore, opened, score_sealed
from scalerl.runfolder import store
from scalerl.training.loop.evaluate import pass_at

EVALUATION = (
    *("step", "set", "gpu_hours", "flops", "tokens", "reward", "num_samples", "prompts_hash", "truncated_frac"),
    "length_mean",
    "tool_calls_mean",
)
PASS = (2, 4, 8, 16)
TRAINING = (
    "reward/mean",
    "rollout/truncated_frac",
    "rollout/interrupted_frac",
    "rollout/lag_mean",
    "rollout/lag_max",
    "batch/zero_variance_frac",
    "batch/effective",
    "loss/kl",
    "loss/entropy",
    "loss/corrected_frac",
    "loss/reference_kl",
    "batch/replaced_groups",
    "critic/explained",
    "optim/grad_norm",
)
LAG, KL = "training/rollout/lag_mean", "training/loss/kl"
PER_TOKEN = "learner_mflops_per_token"
SPENT = ("completions_per_group", "groups_per_batch")
"""What a step is spent on, of the recipe's pipeline."""
COLUMNS = (
    "arm",
    "seed",
    "varied",
    *SPENT,
    *EVALUATION,
    *(f"pass@{k}" for k in PASS),
    *(f"training/{name}" for name in TRAINING),
    PER_TOKEN,
)


def write(target: str, *folders: str) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS)
    table.writeheader()
    runs = sorted(map(Path, folders))
    spent, rest = zip(*map(settings_of, runs), strict=True)
    for folder, own, others in zip(runs, spent, rest, strict=True):
        alike = {tuple(each.values()) for each, beside in zip(spent, rest, strict=True) if beside == others}
        labels = own | {"varied": "spending" if len(alike) > 1 else ""}
        table.writerows(labels | row for row in rows_of(folder))
    # Without the time, so that the same runs give the same file.
    Path(target).write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def settings_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a step of a run is spent on, and the settings that say how it learns otherwise."""
    recipe = dict(store.read_recipe(folder) or {})
    pipeline = dict(recipe["pipeline"])
    spent = {key: pipeline.pop(key) for key in SPENT}
    left_out = ("description", "seed", "rollout", "evaluation", "pipeline")
    return spent, {key: value for key, value in recipe.items() if key not in left_out} | {"pipeline": pipeline}


def rows_of(folder: Path) -> Iterator[dict[str, object]]:
    named = re.fullmatch(r"(.+)-seed(\d+)", folder.name)
    arm, seed = named.groups() if named else (folder.name, "0")
    steps = {row["step"]: row for row in store.read_metrics(folder)}
    for row in store.read_evals(folder):
        values: dict[str, object] = {"arm": arm, "seed": seed} | {key: row[key] for key in EVALUATION if key in row}
        if correct := row.get("num_correct"):
            num = row["num_samples"] // len(correct)
            values |= {f"pass@{k}": short(pass_at(correct, num, k)) for k in PASS if k <= num}
        step = steps.get(row["step"] or 1, {})
        if step.get("batch/trained_tokens"):
            values[PER_TOKEN] = short(step["batch/flops"] / step["batch/trained_tokens"] / 1e6)
        yield values | {f"training/{name}": short(step[name]) for name in TRAINING if name in step}


def short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def runs_of(path: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of every run, as its folder was called; of a study with several sets, of every set.

    TABLE:ARM,ARM has these arms alone.
    """
    path, _, arms = path.partition(":")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not arms or row["arm"] in arms.split(",")]
    several = len({row["set"] for row in rows}) > 1
    runs: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        runs[f"{row['arm']}-seed{row['seed']}" + (f"/{row['set']}" if several else "")].append(row)
    return runs


def by_arm(path: str) -> dict[str, list[list[dict[str, str]]]]:
    """Return the rows of every run by its arm, and by set where there are several."""
    arms: dict[str, list[list[dict[str, str]]]] = defaultdict(list)
    for name, rows in sorted(runs_of(path).items()):
        arms[re.sub(r"-seed\d+", "", name)].append(rows)
    return arms


def reach(path: str, base: str, *targets: str) -> None:
    """Print the FLOPs at which the mean of three evaluations of a run reaches a reward, over those of the base."""

    def flops(rows: list[dict[str, str]], target: str) -> float:
        places = (place for place, mean in enumerate(thirds(rows)) if mean >= float(target))
        return next((float(rows[place + 1]["flops"]) for place in places), math.inf)

    found = by_arm(path)
    of_base = [rows for runs in found.values() for rows in runs if rows[0]["arm"] == base]
    needed = {target: statistics.mean(flops(rows, target) for rows in of_base) for target in targets}
    cells: dict[str, Callable[[list[dict[str, str]]], str]] = {
        "steps": lambda rows: rows[-1]["step"],
        "FLOPs": lambda rows: f"{float(rows[-1]['flops']):.2g}",
    }
    for target, own in needed.items():
        cells[f"to {target}, over {own:.3g}"] = lambda rows, target=target, own=own: (
            f"{flops(rows, target) / own:.2f}".replace("inf", "-")
        )
    cells |= {"best": lambda rows: f"{max(thirds(rows)):.3f}", "end": lambda rows: f"{thirds(rows)[-1]:.3f}"}
    if all(rows[0]["pass@16"] for runs in found.values() for rows in runs):
        cells["pass@16 at the start"] = lambda rows: f"{float(rows[0]['pass@16']):.3f}"
        cells["at the end"] = lambda rows: f"{thirds(rows, 'pass@16')[-1]:.3f}"
    print("| arm |", " | ".join(cells), "|\n|---" + "|---" * len(cells) + "|")
    for name, runs in sorted(
        found.items(), key=lambda item: statistics.mean(flops(rows, targets[0]) for rows in item[1])
    ):
        print(f"| {name} |", " | ".join(", ".join(map(cell, runs)) for cell in cells.values()), "|")


def at(path: str, *steps: str) -> None:
    """Print the mean of three evaluations around each of these steps, by run; "-" where a run ended before."""
    print("| arm |", " | ".join(f"step {step}" for step in steps), "| last |\n|---" + "|---" * (len(steps) + 1) + "|")

    def around(rows: list[dict[str, str]], step: float) -> str:
        if step > float(rows[-1]["step"]):
            return "-"
        means = zip(rows[1:], thirds(rows), strict=False)
        return f"{min(means, key=lambda each: abs(float(each[0]['step']) - step))[1]:.3f}"

    for arm, runs in by_arm(path).items():
        cells = [[around(rows, float(step)) for rows in runs] for step in steps]
        print(f"| {arm} |", " | ".join(", ".join(cell) for cell in (*cells, [rows[-1]["step"] for rows in runs])), "|")


def cost(path: str, base: str, *targets: str) -> None:
    """Print what every arm multiplies the base's GPU-hours and FLOPs to a reward by, cheapest first.

    90 % intervals, from the spread of the seeds of all arms together; none where every arm has one seed. "-" where a
    run does not get there.
    """
    found = by_arm(path)
    columns = [(axis, target) for target in targets for axis in AXES]
    cells = {column: ratios(found, base, float(column[1]), column[0]) for column in columns}
    print("| arm | seeds |", " | ".join(f"{AXES[axis]} to {target}" for axis, target in columns), "| end |")
    print("|---|---|" + "---|" * (len(columns) + 1))
    nowhere = math.inf, math.inf, math.inf
    for arm in sorted(found, key=lambda arm: cells[columns[0]].get(arm, nowhere)[0]):
        name = f"**{arm}**" if arm == base else arm
        ends = ", ".join(f"{thirds(rows)[-1]:.3f}" for rows in found[arm])
        texts = [as_ratio(cells[column].get(arm), arm == base) for column in columns]
        print(f"| {name} | {len(found[arm])} |", " | ".join([*texts, ends]), "|")


AXES = {"gpu_hours": "GPU-hours", "flops": "FLOPs"}
Ratio = tuple[float, float, float]
"""What an arm multiplies the base's compute by, and its 90 % interval: NaN where no arm has two seeds."""


def ratios(found: Mapping[str, list[list[dict[str, str]]]], base: str, target: float, axis: str) -> dict[str, Ratio]:
    """Return the ratio of every arm whose runs all cross a reward."""
    logs = {arm: [math.log(crossing(rows, target, axis)) for rows in runs] for arm, runs in found.items()}
    whole = {arm: each for arm, each in logs.items() if all(map(math.isfinite, each))}
    spread, freedom = within_arms(whole)
    quantile = float(scipy.stats.t.ppf(0.95, freedom)) if freedom else math.nan
    of_base = whole[base]
    result: dict[str, Ratio] = {}
    for arm, each in whole.items():
        ratio = statistics.mean(each) - statistics.mean(of_base)
        error = quantile * spread * math.sqrt(1 / len(each) + 1 / len(of_base))
        result[arm] = (math.exp(ratio), math.exp(ratio - error), math.exp(ratio + error))
    return result


def as_ratio(ratio: Ratio | None, is_base: bool = False) -> str:
    if ratio is None:
        return "-"
    if is_base:
        return "1"
    return f"{ratio[0]:.2f}" if math.isnan(ratio[1]) else interval(*ratio)


def within_arms(logs: Mapping[Any, list[float]]) -> tuple[float, int]:
    """Return the standard deviation between seeds of one arm, from all arms, and its degrees of freedom.

    It is NaN where every arm has one seed.
    """
    freedom = sum(len(each) - 1 for each in logs.values())
    squares = sum(statistics.variance(each) * (len(each) - 1) for each in logs.values() if len(each) > 1)
    return math.sqrt(squares / freedom) if freedom else math.nan, freedom


def factors(path: str, base: str, target: str) -> None:
    """Print what each factor of a full design multiplies the FLOPs to a reward by, and each pair and triple of them.

    Arms are named LEVEL-LEVEL-LEVEL, and every factor has two levels. 90 % intervals, from seeds of the same arm.
    """
    runs = {tuple(arm.split("-")): runs for arm, runs in by_arm(path).items()}
    logs = {arm: [math.log(crossing(rows, float(target))) for rows in seeds] for arm, seeds in runs.items()}
    own = base.split("-")
    levels = [(level, next(arm[place] for arm in logs if arm[place] != level)) for place, level in enumerate(own)]
    num, (spread, freedom) = sum(map(len, logs.values())), within_arms(logs)
    error = float(scipy.stats.t.ppf(0.95, freedom)) * 2 * spread / math.sqrt(num)
    print(f"| what | FLOPs to {target}, ratio |\n|---|---|")
    for size in range(1, len(levels) + 1):
        for chosen in itertools.combinations(range(len(levels)), size):
            signs = {arm: math.prod(-1 if arm[place] == levels[place][0] else 1 for place in chosen) for arm in logs}
            effect = 2 * sum(signs[arm] * value for arm, each in logs.items() for value in each) / num
            names = [f"{levels[place][1]} for {levels[place][0]}" for place in chosen]
            cell = interval(*map(math.exp, (effect, effect - error, effect + error)))
            print(f"| {names[0] if size == 1 else 'beyond their product: ' + ', '.join(names)} | {cell} |")
    print(f"| a seed, one standard deviation | {math.exp(spread):.2f} |")


def crossing(rows: list[dict[str, str]], target: float, axis: str = "flops") -> float:
    """Return the compute at which the mean of three evaluations crosses a reward, between two of them."""
    means, spent = thirds(rows), [math.log(float(row[axis])) for row in rows[1:] if float(row[axis])]
    place = next((place for place, mean in enumerate(means) if mean >= target), None)
    if place is None:
        return math.inf
    share = 1.0 if place == 0 else (target - means[place - 1]) / (means[place] - means[place - 1])
    return math.exp(spent[place] if place == 0 else spent[place - 1] + share * (spent[place] - spent[place - 1]))


def subsets(path: str, base: str, target: str) -> None:
    """Print the ratio of FLOPs to a reward by all choices of as many seeds of each arm, and how often it is decided.

    Decided is a 90 % interval, from these seeds alone, without 1.
    """
    found = {arm: [math.log(crossing(rows, float(target))) for rows in runs] for arm, runs in by_arm(path).items()}
    print(
        f"| arm | seeds of each | choices | FLOPs to {target}: least, median, most | decided |\n|---|---|---|---|---|"
    )
    for arm, mine in found.items():
        for size in range(2, len(mine) + 1) if arm != base else ():
            ratios, num_decided = [], 0
            for chosen, theirs in itertools.product(
                itertools.combinations(mine, size), itertools.combinations(found[base], size)
            ):
                spread, freedom = within_arms({"arm": list(chosen), "base": list(theirs)})
                ratio = statistics.mean(chosen) - statistics.mean(theirs)
                error = float(scipy.stats.t.ppf(0.95, freedom)) * spread * math.sqrt(2 / size)
                ratios.append(math.exp(ratio))
                num_decided += abs(ratio) > error
            cells = ", ".join(f"{each:.2f}" for each in (min(ratios), statistics.median(ratios), max(ratios)))
            print(f"| {arm} | {size} | {len(ratios)} | {cells} | {num_decided / len(ratios):.0%} |")


def decided(arm: Fit, base: Fit) -> str:
    return answer(compare({"arm": arm, "base": base}))


def answer(comparison: Comparison) -> str:
    pair = comparison.pairs[0]
    return f"take {pair.winner}" if pair.answer == Answer.TAKE else str(pair.answer)


def needed(comparison: Comparison) -> tuple[float, str]:
    """Return the compute that the first of two needs to a reward over the second's, and the same with its interval."""
    target = comparison.pairs[0].target
    if target is None or math.isnan(target.ratio.value):
        return math.inf, ""
    ratio = target.ratio
    return ratio.value, f"{interval(ratio.value, ratio.low, ratio.high)} to {target.reward:.2f}"


def interval(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("inf", "")


def column(path: str, name: str) -> None:
    """Print a column of every run: the means of its first three, its largest three in a row and its last three."""
    print(f"| arm | {name}, means of three: first | largest | last |\n|---|---|---|---|")
    for arm, runs in by_arm(path).items():
        means = [thirds([row for row in rows if row[name]], name) for rows in runs]
        if not all(means):
            continue
        cells = ([each[0] for each in means], [max(each) for each in means], [each[-1] for each in means])
        print(f"| {arm} |", " | ".join(", ".join(f"{mean:.3f}" for mean in cell) for cell in cells), "|")


def seals(target: str, folder: str, *tables: str) -> None:
    """Write the sealed files in the folders of a folder as one file, each line with the name of its folder."""
    runs = [rows for path in tables for rows in runs_of(path).values()]
    found = [(file.parent.name, json.loads(file.read_text())) for file in sorted(Path(folder).glob("*/*.json"))]
    lines = [
        json.dumps({"from": share, "sealed": content}, separators=(",", ":"))
        for share, content in found
        if len(list(scores_of(content, runs))) == len(content["curves"])
    ]
    Path(target).write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def scores_of(sealed: dict[str, Any], runs: list[list[dict[str, str]]]) -> Iterator[tuple[dict[str, Any], SealScore]]:
    """Yield each sealed curve with its score, on the run that has the evaluations it was made from."""
    axis = sealed["selection"]["x"]
    # Rewards at compute 0 have no logarithm, and are fitted as the start.
    points = [
        np.array([(float(row[axis]), float(row["reward"])) for row in rows if float(row[axis]) > 0]).T for rows in runs
    ]
    for curve in sealed["curves"]:
        scores = (score_sealed(curve, *each) for each in points)
        if scored := next((scored for scored in scores if not scored.data_changed), None):
            yield curve, scored


def grid(path: str) -> None:
    """Print the best mean of three evaluations of each run, its last one and its mean lag; for arms see `placed`."""
    runs = placed(path)
    kinds, lags, columns = levels(runs)
    print("|" + " generator |" * (len(kinds) > 1), "max_lag | mean lag |", " | ".join(columns), "|")
    print("|---" * (len(kinds) > 1) + "|---|---|" + "---|" * len(columns))
    for kind, lag in itertools.product(kinds, lags):
        cells = [
            ", ".join(f"{max(means):.2f} to {means[-1]:.2f}" for means in map(thirds, runs[kind, lag, column]))
            for column in columns
        ]
        steps = [float(row[LAG]) for column in columns for run in runs[kind, lag, column] for row in run if row[LAG]]
        print(
            f"| {kind} |" * (len(kinds) > 1) or "|", f"{lag} | {statistics.mean(steps):.1f} |", " | ".join(cells), "|"
        )


Placed = dict[tuple[str, int, str], list[list[dict[str, str]]]]
"""The runs of a grid by generator, lag and column."""


def placed(path: str) -> Placed:
    """Return the runs of arms named lagK-COLUMN or GENERATOR-lagK-COLUMN by generator, lag and column, in order."""
    runs: Placed = {}
    for arm, seeds in by_arm(path).items():
        match = re.fullmatch(r"(?:(.+)-)?lag(\d+)-(.+)", arm)
        assert match, f"{arm} is not named lagK-COLUMN or GENERATOR-lagK-COLUMN"
        generator, lag, column = match.groups("")
        runs[generator, int(lag), column] = seeds
    return dict(sorted(runs.items(), key=lambda each: (ORDER.index(each[0][0]), each[0][1], order(each[0][2]))))


def levels(runs: Placed) -> tuple[list[str], list[int], list[str]]:
    """Return the generators, lags and columns of a grid, in order."""
    generators, lags, columns = zip(*runs, strict=True)
    return [*dict.fromkeys(generators)], [*dict.fromkeys(lags)], [*dict.fromkeys(columns)]


ORDER = ("", "exact", "fp8", "int4", "none", "band", "sequence-truncate", "sequence-mask")


def order(column: str) -> float:
    return ORDER.index(column) if column in ORDER else float(column)


def paired(path: str, base: str) -> None:
    """Print what other columns of the grid, or other generators, add to the base's best and last reward, by lag.

    A pair has everything else in common, the seed too; 90 % intervals from the pairs. Fallen are runs that end lower
    than they began.
    """
    runs = placed(path)
    axis = 2 if any(place[2] == base for place in runs) else 0
    print(f"| max_lag | {'generator' if axis == 0 else 'correction'} | pairs | best | end | fallen |")
    print("|---|---|---|---|---|---|")
    for lag, level in itertools.product(levels(runs)[1], levels(runs)[axis]):
        pairs: list[tuple[list[dict[str, str]], list[dict[str, str]]]] = []
        for place, mine in runs.items():
            if (place[1], place[axis]) == (lag, level):
                pairs += zip(mine, runs[(base, *place[1:]) if axis == 0 else (*place[:2], base)], strict=True)
        cells = []
        for last in (False, True):
            own, other = (
                [thirds(run)[-1] if last else max(thirds(run)) for run in each] for each in zip(*pairs, strict=True)
            )
            gains = [mine - theirs for mine, theirs in zip(own, other, strict=True)]
            mean, num = statistics.mean(gains), len(gains)
            error = float(scipy.stats.t.ppf(0.95, num - 1)) * statistics.stdev(gains) / math.sqrt(num)
            gain = f"{mean:+.2f} [{mean - error:+.2f}, {mean + error:+.2f}]"
            cells.append(f"{statistics.mean(own):.2f}" if level == base else gain)
        fallen = sum(thirds(run)[-1] < float(run[0]["reward"]) for run, _ in pairs)
        print(f"| {lag} | {level} | {len(pairs)} |", " | ".join(cells), f"| {fallen} |")


def gap(path: str) -> None:
    """Print how far generator and learner differ: loss/kl of the first step and later, and what corrections change.

    Medians over all runs and evaluations of a generator and a lag.
    """
    runs = placed(path)
    generators, lags, columns = levels(runs)

    def values(name: str, generator: str, lag: int, *of: str) -> list[float]:
        rows = (row for column in of for run in runs[generator, lag, column] for row in run[1:])
        return [float(row[name]) for row in rows if row[name]]

    print("| generator | max_lag | KL, first step | KL, later |", end="")
    print("".join(f" tokens changed: {column} |" for column in columns if column != "none"))
    print("|---" * (len(columns) + 3) + "|")
    for generator, lag in itertools.product(generators, lags):
        first = [float(run[0][KL]) for column in columns for run in runs[generator, lag, column]]
        later = statistics.median(values(KL, generator, lag, *columns))
        changed = [
            f"{statistics.median(values('training/loss/corrected_frac', generator, lag, column)):.1%}"
            for column in columns
            if column != "none"
        ]
        print(f"| {generator} | {lag} | {statistics.median(first):.1e} | {later:.3f} |", " | ".join(changed), "|")


def lag_picture(path: str, target: str) -> None:
    """Draw the rewards of every run over steps: panels by column of the grid, colours by lag.

    With several generators a row of panels has one lag, and colours are generators.
    """
    import matplotlib
    from matplotlib.figure import Figure

    runs = placed(path)
    generators, lags, columns = levels(runs)
    several = len(generators) > 1
    colours = ("#0072B2", "#009E73", "#E69F00", "#D55E00") if not several else ("#0072B2", "#E69F00", "#D55E00")
    with matplotlib.rc_context({"font.size": 8}):
        rows = lags if several else lags[:1]
        figure = Figure(figsize=(9.5, 0.8 + 2.2 * len(rows)), dpi=140, layout="constrained")
        panels = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
        for (kind, lag, column), seeds in runs.items():
            axes = panels[rows.index(lag) if several else 0][columns.index(column)]
            for run in seeds:
                steps, rewards = ([float(row[name]) for row in run] for name in ("step", "reward"))
                colour = colours[generators.index(kind) if several else lags.index(lag)]
                label = (kind if several else f"lag {lag}") if run is seeds[0] else None
                axes.plot(steps, rewards, color=colour, linewidth=1.2, label=label)
        for place, column in enumerate(columns):
            title = column if several else f"learning rate {column}"
            panels[0][place].set_title(title, loc="left", fontsize=8)
            panels[-1][place].set_xlabel("step")
        for lag, line in zip(rows, panels, strict=True):
            line[0].set_ylabel(f"reward, lag up to {lag}" if several else "reward")
            for axes in line:
                axes.spines[["top", "right"]].set_visible(False)
        panels[0][0].legend(frameon=False, fontsize=7)
        figure.savefig(target, facecolor="white")


def thirds(rows: list[dict[str, str]], column: str = "reward") -> list[float]:
    """Return the means of three evaluations in a row."""
    values = [float(row[column]) for row in rows]
    return [statistics.mean(three) for three in zip(values, values[1:], values[2:], strict=False)]


def num_scored(scored: SealScore) -> int:
    return scored.num_new - scored.beyond


def sealed_scores(sealed: str, *tables: str) -> dict[str, list[tuple[str, SealScore, float]]]:
    """Return name, score and median width of every sealed forecast, by the share of the run that it was made from."""
    runs = [rows for path in tables for rows in runs_of(path).values()]
    every: dict[str, list[tuple[str, SealScore, float]]] = defaultdict(list)
    for line in gzip.decompress(Path(sealed).read_bytes()).decode().splitlines():
        row = json.loads(line)
        for curve, scored in scores_of(opened(json.dumps(row["sealed"]), sealed), runs):
            if num_scored(scored) > 0:
                ends = curve["path"]["intervals"]["0.9"]
                width = statistics.median(high - low for low, high in zip(ends["low"], ends["high"], strict=True))
                every[row["from"]].append((curve["name"], scored, width))
    return every


def sealed(path: str) -> None:
    """Print the forecasts of a sealed file."""
    curves = json.loads(Path(path).read_text())["curves"]
    print("| curve |", " | ".join(f"at {each['compute']:g}" for each in curves[0]["at"]), "|")
    print("|---" + "|---" * len(curves[0]["at"]) + "|")
    for curve in curves:
        rewards = [each["reward"] for each in curve["at"]]
        cells = [f"{each['value']:.1f} [{each['low']:.1f}, {each['high']:.1f}]" for each in rewards]
        print(f"| {curve['name']} |", " | ".join(cells), "|")


def transferred(forecast: str, table: str) -> None:
    """Print what `scalerl more transfer --json` said of a run, and the mean of the three evaluations nearest to it."""
    (rows,) = runs_of(table).values()
    print("| FLOPs | forecast | measured | in 90 % |\n|---|---|---|---|")
    for at in json.loads(Path(forecast).read_text())["answer"]["at"]:
        nearest = sorted(rows, key=lambda row: abs(float(row["flops"]) - at["compute"]))[:3]
        measured, ends = statistics.mean(float(row["reward"]) for row in nearest), at["reward"]
        held = "yes" if ends["low"] <= measured <= ends["high"] else "no"
        cell = interval(ends["value"], ends["low"], ends["high"])
        print(f"| {at['compute']:.2g} | {cell} | {measured:.2f} | {held} |")


def run(name: str, *words: str) -> None:
    COMMANDS[name](*words)


COMMANDS = {
    each.__name__: each
    for each in (
        write,
        reach,
        at,
        cost,
        factors,
        subsets,
        grid,
        paired,
        gap,
        column,
        seals,
        sealed,
        transferred,
        lag_picture,
    )
}

if __name__ == "__main__":
    run(*sys.argv[1:])
