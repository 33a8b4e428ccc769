"""The evaluations of a study's runs as one compressed table, and sealed forecasts scored on such tables.

    python benchmarks/study_table.py write TABLE.csv.gz RUN [RUN ...]
    python benchmarks/study_table.py cost TABLE.csv.gz[:ARM,ARM] BASE 0.8    compute to a reward, over the base's
    python benchmarks/study_table.py at TABLE.csv.gz[:ARM,ARM] 40 80 120     rewards around these steps, best and last
    python benchmarks/study_table.py seals SEALED.jsonl.gz FOLDER TABLE.csv.gz [...]     sealed files as one
    python benchmarks/study_table.py sealed SEALED.json                      forecasts in a sealed file
    scalerl compare TABLE.csv.gz --x flops

A row is an evaluation, with the arm and the seed of its run, pass@k where the correct answers of each problem are
known, and a few metrics of the training step at which it was made (of the first step for the evaluation before it).
"""

import csv
import gzip
import io
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

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


def at(path: str, *steps: str) -> None:
    """Print means of three evaluations by run: around each of these steps ("-" past its end), the best and the last."""
    titles = [*(f"step {step}" for step in steps), "best", "end", "last step"]
    print("| arm |", " | ".join(titles), "|")
    print("|---|" + "---|" * len(titles))
    for arm, runs in by_arm(path).items():
        means = [thirds(rows) for rows in runs]
        cells = [[around(rows, float(step)) for rows in runs] for step in steps]
        cells.append([f"{max(each):.3f}" for each in means])
        cells.append([f"{each[-1]:.3f}" for each in means])
        cells.append([rows[-1]["step"] for rows in runs])
        print(f"| {arm} | {' | '.join(map(', '.join, cells))} |")


def around(rows: list[dict[str, str]], step: float) -> str:
    """Return the mean of the three evaluations around a step."""
    if step > float(rows[-1]["step"]):
        return "-"
    means = zip(rows[1:], thirds(rows), strict=False)
    return f"{min(means, key=lambda each: abs(float(each[0]['step']) - step))[1]:.3f}"


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


def crossing(rows: list[dict[str, str]], target: float, axis: str = "flops") -> float:
    """Return the compute at which the mean of three evaluations crosses a reward, between two of them."""
    means, spent = thirds(rows), [math.log(float(row[axis])) for row in rows[1:] if float(row[axis])]
    place = next((place for place, mean in enumerate(means) if mean >= target), None)
    if place is None:
        return math.inf
    share = 1.0 if place == 0 else (target - means[place - 1]) / (means[place] - means[place - 1])
    return math.exp(spent[place] if place == 0 else spent[place - 1] + share * (spent[place] - spent[place - 1]))


def interval(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("inf", "")


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


def run(name: str, *words: str) -> None:
    COMMANDS[name](*words)


COMMANDS = {each.__name__: each for each in (write, cost, at, seals, sealed)}

if __name__ == "__main__":
    run(*sys.argv[1:])
