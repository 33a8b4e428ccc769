"""The evaluations of a study's runs as one compressed table, and sealed forecasts scored on such tables.

    python benchmarks/study_table.py write TABLE.csv.gz RUN [RUN ...]
    python benchmarks/study_table.py reach TABLE.csv.gz BASE 0.8 0.9     FLOPs to these rewards, by run
    python benchmarks/study_table.py arms TABLE.csv.gz BASE              the table of arms, as Markdown
    python benchmarks/study_table.py grid TABLE.csv.gz                   best and last reward by lag and learning rate
    python benchmarks/study_table.py column TABLE.csv.gz NAME            first, largest and last values, by run
    python benchmarks/study_table.py seals SEALED.jsonl.gz FOLDER TABLE.csv.gz [...]     sealed files as one
    python benchmarks/study_table.py score SEALED.jsonl.gz TABLE.csv.gz [...]
    scalerl compare TABLE.csv.gz --x flops

A row is an evaluation, with the arm and the seed of its run, pass@k where the correct answers of each problem are
known, and a few metrics of the training step at which it was made.
"""

import csv
import gzip
import io
import json
import math
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalerl import store
from scalerl.joint.seal import SealScore, opened, score_sealed
from scalerl.loop.evaluate import pass_at

EVALUATION = (
    *("step", "set", "gpu_hours", "flops", "tokens", "reward", "num_samples", "prompts_hash", "truncated_frac"),
    "length_mean",
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
)
LAG = "training/rollout/lag_mean"
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
        step = steps.get(row["step"], {})
        yield values | {f"training/{name}": short(step[name]) for name in TRAINING if name in step}


def short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def runs_of(path: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of every run, as its folder was called; of a study with several sets, of every set."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    several = len({row["set"] for row in rows}) > 1
    runs: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        runs[f"{row['arm']}-seed{row['seed']}" + (f"/{row['set']}" if several else "")].append(row)
    return runs


def reach(path: str, base: str, *targets: str) -> None:
    """Print the FLOPs at which the mean of three evaluations of a run reaches a reward, over those of the base."""
    runs = runs_of(path)

    def flops(rows: list[dict[str, str]], target: float) -> float:
        places = (place for place, mean in enumerate(thirds(rows)) if mean >= target)
        return float(rows[next(places) + 1]["flops"]) if max(thirds(rows)) >= target else math.nan

    of_base = [rows for rows in runs.values() if rows[0]["arm"] == base]
    needed = {target: statistics.mean(flops(rows, float(target)) for rows in of_base) for target in targets}
    has_wide = all(rows[0]["pass@16"] for rows in runs.values())
    heads = ["run", "steps", "FLOPs", *(f"to {target}" for target in targets), "best", "end"]
    heads += ["pass@16 at the start", "end"] if has_wide else []
    print("|", " | ".join(heads), "|\n" + "|---" * len(heads) + "|")
    for name, rows in sorted(runs.items(), key=lambda item: flops(item[1], float(targets[0]))):
        ratios = (flops(rows, float(target)) / needed[target] for target in targets)
        values = [max(thirds(rows)), thirds(rows)[-1]]
        values += [float(rows[0]["pass@16"]), thirds(rows, "pass@16")[-1]] if has_wide else []
        cells = [name, rows[-1]["step"], f"{float(rows[-1]['flops']):.2e}"]
        cells += ["" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios]
        print("|", " | ".join([*cells, *(f"{value:.3f}" for value in values)]), "|")
    print(f"\n{base}:", ", ".join(f"{value:.3g} FLOPs to {target}" for target, value in needed.items()))


def arms(path: str, base: str) -> None:
    """Print what `scalerl compare` says of every arm against the base, in FLOPs and in steps, as a Markdown table."""
    ends: dict[str, list[dict[str, str]]] = defaultdict(list)
    for name, rows in runs_of(path).items():
        ends[re.sub(r"-seed\d+", "", name)].append(rows[-1])
    asked: dict[str, tuple[str, ...]] = {"flops": ("--x", "flops"), "step": ("--x", "step")}
    if any(row["pass@16"] for rows in ends.values() for row in rows):
        asked["pass@16"] = ("--x", "flops", "--y", "pass@16")
    several = any("/" in name for name in ends)
    by = ("--by", "arm,set" if several else "arm")
    answers = {name: compared(path, *words, *by) for name, words in asked.items()}
    flops = answers["flops"]
    heads = ["arm", "to", "A", "B at a shared A", "FLOPs to a reward, ratio", "steps to it, ratio"]
    heads += ["verdict in FLOPs", "in steps", *(["A of pass@16"] if "pass@16" in answers else [])]
    print("|", " | ".join(heads), "|\n" + "|---" * len(heads) + "|")
    exponents = {name: value for one in flops["rankings"] for name, value in one["shared_exponents"].items()}
    bases = {name: base + name.partition("/")[1] + name.partition("/")[2] for name in ends}
    order = {name: against(flops, name, bases[name])[0] for name in ends}
    for curve in sorted(flops["curves"], key=lambda curve: order[curve["name"]]):
        name = curve["name"]
        unknown = "" if curve["verdict"] == "known" else f" ({curve['verdict'].replace('_', ' ')})"
        cells = [
            f"**{name}**" if name == bases[name] else name,
            ", ".join(f"{float(row['flops']) / 1e15:.2f}" for row in ends[name]),
            interval(curve["ceiling"]) + unknown,
            interval(exponents.get(name)),
            *(against(answers[axis], name, bases[name])[1] for axis in ("flops", "step")),
            *(against(answers[axis], name, bases[name])[2] for axis in ("flops", "step")),
        ]
        if "pass@16" in answers:
            cells.append(next(interval(one["ceiling"]) for one in answers["pass@16"]["curves"] if one["name"] == name))
        print("|", " | ".join(cells), "|")
    print(
        "\nShared A:", ", ".join(f"{one['shared_ceiling']:.3f}" for one in flops["rankings"] if one["shared_ceiling"])
    )


def compared(path: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "scalerl", "compare", path, *words, "--json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Curves are named arm=10m where an arm's name might be a number.
    return json.loads(printed.replace('"arm=', '"'))


def against(answer: dict[str, Any], name: str, base: str) -> tuple[float, str, str]:
    """Return the compute that an arm needs to a reward over the base's, the same with its interval, and the verdict."""
    if name == base:
        return 1.0, "1", ""
    pair = next(pair for pair in answer["pairs"] if {pair["a"], pair["b"]} == {name, base})
    verdict = pair["kind"].replace("_", " ") + (f": {pair['winner']}" if pair["winner"] else "")
    if pair["target"] is None or not (ratio := pair["target"]["compute_ratio"])["value"]:
        return math.inf, "", verdict
    values: list[Any] = [ratio["value"], ratio["low"], ratio["high"]]
    if pair["a"] == base:
        values = [1 / value if value else None for value in (values[0], values[2], values[1])]
    value, low, high = values
    ends = ", ".join("" if end is None else f"{end:.2f}" for end in (low, high))
    return value, f"{value:.2f} [{ends}] to {pair['target']['reward']:.2f}", verdict


def interval(value: dict[str, float] | None) -> str:
    if value is None or None in (numbers := [value["value"], value["low"], value["high"]]):
        return ""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*numbers)


def column(path: str, name: str) -> None:
    """Print a column of every run: the means of its first three, its largest three in a row and its last three."""
    print(f"| run | {name}: first | largest | last |\n|---|---|---|---|")
    for run, rows in sorted(runs_of(path).items()):
        means = thirds([row for row in rows if row[name]], name)
        print(f"| {run} |", " | ".join(f"{mean:.3f}" for mean in (means[0], max(means), means[-1])), "|")


def seals(target: str, folder: str, *tables: str) -> None:
    """Write the sealed files in the folders of a folder as one file, each line with the name of its folder."""
    names = {name for path in tables for name in runs_of(path)}
    found = [(file.parent.name, json.loads(file.read_text())) for file in sorted(Path(folder).glob("*/*.json"))]
    lines = [
        json.dumps({"from": share, "sealed": content}, separators=(",", ":"))
        for share, content in found
        if "curves" in content and all(curve["name"] in names for curve in content["curves"])
    ]
    Path(target).write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def grid(path: str) -> None:
    """Print the best mean of three evaluations of each run, its last one and its mean lag; arms are named lagK-RATE."""
    rows: dict[tuple[float, str], list[list[dict[str, str]]]] = defaultdict(list)
    for run in runs_of(path).values():
        lag, _, rate = run[0]["arm"].removeprefix("lag").partition("-")
        rows[float(lag), rate].append(run)
    rates = sorted({rate for _, rate in rows}, key=float)
    print("| max_lag | mean lag |", " | ".join(rates), "|\n|---|---|" + "---|" * len(rates))
    for lag in sorted({lag for lag, _ in rows}):
        lags = [float(row[LAG]) for rate in rates for run in rows[lag, rate] for row in run if row[LAG]]
        cells = [
            ", ".join(f"{max(means):.2f} to {means[-1]:.2f}" for means in map(thirds, rows[lag, rate]))
            for rate in rates
        ]
        print(f"| {lag:g} | {statistics.mean(lags):.1f} |", " | ".join(cells), "|")


def thirds(rows: list[dict[str, str]], column: str = "reward") -> list[float]:
    """Return the means of three evaluations in a row."""
    values = [float(row[column]) for row in rows]
    return [statistics.mean(three) for three in zip(values, values[1:], values[2:], strict=False)]


def score(sealed: str, *tables: str) -> None:
    """Print how each sealed forecast did on the evaluations after it, and the coverage of all, as Markdown."""
    runs: dict[str, list[Any]] = defaultdict(list)
    for path in tables:
        for name, rows in runs_of(path).items():
            # Rewards at compute 0 have no logarithm, and are fitted as the start.
            points = [(float(row["flops"]), float(row["reward"])) for row in rows if float(row["flops"]) > 0]
            runs[name].append(np.array(points).T)
    every: dict[str, list[tuple[SealScore, float]]] = defaultdict(list)
    print("| sealed from | run | later | RMSE | bias | in 90 % | width |\n|---|---|---|---|---|---|---|")
    for line in gzip.decompress(Path(sealed).read_bytes()).decode().splitlines():
        row = json.loads(line)
        for curve in opened(json.dumps(row["sealed"]), sealed)["curves"]:
            scores = [score_sealed(curve, *points) for points in runs[curve["name"]]]
            # Two runs may have one name: the forecast is of the one that has the evaluations it was made from.
            scored = next(scored for scored in scores if not scored.data_changed)
            if scored.num_new - scored.beyond <= 0:
                continue
            ends = curve["path"]["intervals"]["0.9"]
            width = statistics.median(high - low for low, high in zip(ends["low"], ends["high"], strict=True))
            every[row["from"]].append((scored, width))
            print(f"| {row['from']} | {curve['name']} | {scored.num_new - scored.beyond} | {scored.rmse:.3f} |", end="")
            print(f" {scored.bias:+.3f} | {scored.coverage[0.9]:.0%} | {width:.3f} |")
    print("\n| sealed from | forecasts | later | in 90 % | in 80 % | in 50 % | median width of 90 % | median bias |")
    print("|---|---|---|---|---|---|---|---|")
    for share, found in every.items():
        nums = [scored.num_new - scored.beyond for scored, _ in found]
        held = [np.average([scored.coverage[level] for scored, _ in found], weights=nums) for level in (0.9, 0.8, 0.5)]
        cells = [*(f"{value:.0%}" for value in held), f"{statistics.median(width for _, width in found):.3f}"]
        bias = statistics.median(scored.bias for scored, _ in found)
        print("|", " | ".join([share, str(len(found)), str(sum(nums)), *cells, f"{bias:+.3f}"]), "|")


if __name__ == "__main__":
    {"write": write, "reach": reach, "arms": arms, "grid": grid, "column": column, "seals": seals, "score": score}[
        sys.argv[1]
    ](*sys.argv[2:])
