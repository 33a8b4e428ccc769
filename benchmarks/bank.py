"""The bank: every public curve that may be passed on, in one schema, with a sheet of all of them and their fits.

    python benchmarks/bank.py build RAW      rebuild docs/results/bank from the folder of raw logs and our own results
    python benchmarks/bank.py sheet PICTURE  draw every curve with its fit
    python benchmarks/bank.py table          what there is, by source and task
    python benchmarks/bank.py example        write src/scalerl/assets/example_runs.csv: what `scalerl example` shows

`curves.csv` has a row per curve, SOURCE.csv.gz its points as `curve, compute, reward, num_samples`. Two sets of curves
that no page shows and no constant was chosen on are in `reserved.csv.gz` (benchmarks/release.py scores them, once per
release). Nothing in the bank chooses anything in the model.
"""

import csv
import gzip
import hashlib
import io
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.forecast.curves import Fit, State, decide, fit
from scalerl.forecast.curves.data import block_means
from scalerl.forecast.curves.decide import LIKELIER
from scalerl.forecast.logs import Selection, Series, read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
BANK = RESULTS / "bank"
EXAMPLE_RUNS = ROOT / "src" / "scalerl" / "assets" / "example_runs.csv"
SEED = "scalerl-bank-1"
NUM_RESERVED = {"agentgym": 3, "scalerl": 16}
"""Curves kept apart: of other people's runs and of our own."""
TOLD = ("agentgym/alfworld/grpo", "agentgym/textcraft/main-fixed-gp1-cons")
"""Curves whose end the notes on the data give away."""
SEEN = (
    *("first-curves", "model-size", "loo", "loss", "precision", "math-code", "truncated"),
    *("interactions", "algorithms", "distillation", "critic", "seeds", "batch-rate", "batch-rate-tiny", "reuse"),
    *("reuse-tiny", "mismatch", "smollm2-tools"),
)
"""Our studies of which no curve can be reserved: those that the gate reads, and those that came after the drawing."""
LEAST = 12
"""Evaluations that a curve needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run: where it comes from, what it is, and its points."""

    curve: str
    kind: str
    """agent (many turns), math (one answer to a problem), small (our models of up to 135M parameters), or other."""
    source: str
    licence: str
    model: str
    """Empty where the log does not say."""
    task: str
    algorithm: str
    axis: str
    """What compute is counted in."""
    measured: str
    """The column of the reward, and whether it is of training or of evaluations."""
    low: float | None
    high: float | None
    """The least and the largest reward there is; None: no limits."""
    start: float | None
    """Reward before training, where it was measured ..."""
    start_sd: float | None
    """... and its noise."""
    reserved: bool = False
    compute: tuple[float, ...] = ()
    reward: tuple[float, ...] = ()
    num_samples: tuple[int, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def family(self) -> str:
        return self.curve.split("/")[0]

    def fitted(self, until: float | None = None) -> Fit:
        return fit(
            self.compute,
            self.reward,
            start=self.start,
            start_sd=self.start_sd,
            num_samples=self.num_samples or None,
            bounds=self.bounds,
            fit_until=until,
        )


# From raw logs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Logs of one repository."""

    family: str
    pattern: str
    """Of files in the folder of raw logs."""
    source: str
    licence: str
    kind: str
    task: str
    model: str = ""
    algorithm: str = "GRPO"
    is_training: bool = True
    by: tuple[str, ...] = ()


ORIGINS = (
    Origin(family="agentgym", pattern="agentgym/*.csv", source="github.com/HappynessI/verl-for-AgentGym",
           licence="Apache-2.0", kind="agent", task=""),
    Origin(family="deep-grpo", pattern="foreign_logs/wandb_deep_grpo_*.csv", source="github.com/befocuss/Deep-GRPO",
           licence="Apache-2.0", kind="math", task="GSM8K", model="Qwen2.5-0.5B-Instruct", is_training=False),
    Origin(family="qwen2.5-base", pattern="tan2025_qwen_base.csv", source="arXiv 2509.25300 (its repository)",
           licence="Apache-2.0", kind="math", task="mathematics, held out", is_training=False, by=("size",)),
    Origin(family="tinker-cookbook", pattern="foreign_logs/tinker_cookbook_*.jsonl",
           source="github.com/thinking-machines-lab/tinker-cookbook", licence="Apache-2.0", kind="other", task="",
           algorithm="importance sampling"),
    Origin(family="tinker-rl-lab", pattern="foreign_logs/tinker_arithmetic_metrics.jsonl",
           source="github.com/arvindcr4/tinker-rl-lab", licence="Apache-2.0", kind="math", task="arithmetic"),
    Origin(family="tinker-rl-lab", pattern="foreign_logs/tinker_gsm8k_*.log",
           source="github.com/arvindcr4/tinker-rl-lab", licence="Apache-2.0", kind="math", task="GSM8K",
           model="Qwen3-8B"),
    Origin(family="trl", pattern="foreign_logs/trl_unsloth_trainer_state.json",
           source="github.com/IMJONEZZ/UnslothGRPO", licence="MIT", kind="math", task="GSM8K"),
    Origin(family="trl", pattern="foreign_logs/trl_gemma3_trainer_state.json",
           source="github.com/abdo-ashraf/Gemma-3-RL-Finetuning", licence="MIT", kind="math", task="GSM8K",
           model="Gemma 3"),
    Origin(family="trl", pattern="foreign_logs/trl_text2sql_trainer_state.json",
           source="github.com/HaoranLuo/text2sql-grpo", licence="MIT", kind="other", task="text to SQL"),
    Origin(family="fair-rlvr", pattern="foreign_logs/fair_rlvr_step_logs.json",
           source="github.com/Dawn-Of-Justice/Fair-RLVR", licence="MIT", kind="other", task=""),
    Origin(family="e3", pattern="foreign_logs/verl_attempts/*.csv", source="github.com/cfw20/cs224r-project-e3",
           licence="MIT", kind="math", task="GSM8K"),
)  # fmt: skip
"""Not here, since no licence allows to pass them on: the figures of arXiv 2510.13786, the dashboard of MiMo-V2.6."""
SHORTER = {
    "wandb_deep_grpo_collapse": "TreeRL",
    "sp-p1-b8-gamma2.0-lam1.0-01161659": "lam1.0",
    "clean__go4zdpgb": "gsm8k",
    "fair_rlvr_step_logs": "fairness",
}

OWN = {  # study: (pattern, model, task); an empty model is the name of the arm
    "first-curves": ("first_curves/runs/*", "10M", "sums"),
    "model-size": ("principles/model-size.csv.gz", "", "sums and products"),
    "loo": ("principles/loo.csv.gz", "10M", "sums and products"),
    "loss": ("principles/loss.csv.gz", "10M", "sums and products"),
    "precision": ("principles/precision.csv.gz", "10M", "sums and products"),
    "math-code": ("principles/math-code.csv.gz", "10M", "sums and programs"),
    "truncated": ("principles/truncated.csv.gz", "135M", "sums and products"),
    "forward": ("forward/runs.csv.gz", "10M", "sums and products of large numbers"),
    "sizes": ("forward/sizes.csv.gz", "", "sums and products of large numbers"),
    "tools": ("tools/runs.csv.gz", "0.9M", "products, with a calculator or none"),
    "smollm2": ("smollm2/runs.csv.gz", "SmolLM2-135M-Instruct", "word problems"),
    "smollm2-long": ("smollm2/first.csv.gz", "SmolLM2-135M-Instruct", "word problems"),
    "lag-rate": ("lag-rate/runs.csv.gz", "0.86M", "sums"),
    "interactions": ("interactions/runs.csv.gz", "10M", "sums and products of large numbers"),
    "algorithms": ("algorithms/runs.csv.gz", "10M", "sums and products of large numbers"),
    "distillation": ("distillation/runs.csv.gz", "10M", "sums and products of large numbers"),
    "critic": ("critic/runs.csv.gz", "10M", "sums and products of large numbers"),
    "batch-rate": ("batch-rate/10m.csv.gz", "10M", "sums and products of large numbers"),
    "batch-rate-tiny": ("batch-rate/runs.csv.gz", "0.86M", "sums"),
    "reuse": ("reuse/10m.csv.gz", "10M", "sums and products of large numbers"),
    "reuse-tiny": ("reuse/runs.csv.gz", "0.86M", "sums"),
    "seeds": ("seeds/runs.csv.gz", "0.86M", "sums"),
    "mismatch": ("mismatch/runs.csv.gz", "0.86M", "sums"),
    "smollm2-tools": ("tools/smollm2.csv.gz", "SmolLM2-135M-Instruct", "sums and products, with a calculator or none"),
}


def others(raw: Path) -> Iterator[Curve]:
    """Yield the curves of other people's logs, read as `scalerl fit` reads them."""
    for origin in ORIGINS:
        paths = sorted(raw.glob(origin.pattern))
        if not paths:
            raise SystemExit(f"{raw} has no {origin.pattern}: give the folder of the raw logs")
        # Logs of one task are read together, so that they have one axis and one scale.
        for group in (list(held) for _, held in groupby(paths, key=lambda path: path.name.split("__")[0])):
            labels = tuple(path.stem for path in group) if origin.family == "agentgym" else ()
            held = read(group, Selection(by=origin.by, labels=labels))
            if any(series.bounds is None for series in held):
                held = [replace(series, y_scale="none") for series in held]
            yield from (of_series(series, origin) for series in held)


def of_series(series: Series, origin: Origin) -> Curve:
    name, task, model, algorithm = series.name, origin.task, origin.model, origin.algorithm
    if origin.family == "agentgym":
        task, algorithm, *_ = name.split("__")
        name, task = f"{task}/{algorithm}", {"alfworld": "ALFWorld", "babyai": "BabyAI", "textcraft": "TextCraft"}[task]
    elif origin.family == "deep-grpo":
        algorithm = name = SHORTER.get(name, name)
    elif origin.family == "qwen2.5-base":
        name = name.removeprefix("size=")
        model = f"Qwen2.5-{name}"
    else:
        name = re.sub("^(tinker_cookbook|tinker|trl)_|_(trainer_state|metrics|step_logs)$", "", SHORTER.get(name, name))
    return curve_of(
        series,
        curve=f"{origin.family}/{name.replace('_', '-')}",
        kind=origin.kind,
        source=origin.source,
        licence=origin.licence,
        model=model,
        task=task,
        algorithm=algorithm,
        measured=f"{series.y_label}, {'training' if origin.is_training else 'evaluation'}",
    )


def own() -> Iterator[Curve]:
    """Yield our own runs, over FLOPs."""
    for study, (pattern, model, task) in OWN.items():
        by = () if pattern.endswith("*") else ("arm", "seed", *(("set",) if study == "math-code" else ()))
        for path in sorted(RESULTS.glob(pattern)):
            for series in read([path], Selection(x="flops", y="reward", by=by)):
                key = dict(series.key)
                # A run folder is named ARM-seedN.
                arm, seed = (key["arm"], key["seed"]) if by else path.name.rsplit("-seed", 1)
                domain = f"-{key['set']}" if "set" in key else ""
                yield curve_of(
                    series,
                    curve=f"scalerl/{study}/{arm}{domain}-seed{seed}",
                    kind="small",
                    source=f"docs/results/{pattern.split('/')[0]}",
                    licence="Apache-2.0",
                    model=model or arm.upper(),
                    task=task,
                    algorithm="ScaleRL" if not model or arm == "scalerl" else arm,
                    measured="reward, evaluation",
                )


def curve_of(series: Series, **described: Any) -> Curve:
    low, high = series.bounds or (None, None)
    counts = () if series.num_samples is None else tuple(int(num) for num in series.num_samples)
    axis = {"Step": "step", "compute_flops": "flops", "num_tokens": "tokens"}.get(series.x_label, series.x_label)
    return Curve(
        **described,
        axis=axis,
        low=low,
        high=high,
        start=None if series.start is None else float(f"{series.start:.5g}"),
        start_sd=None if series.start_sd is None else float(f"{series.start_sd:.3g}"),
        compute=tuple(float(f"{value:.6g}") for value in series.compute),
        reward=tuple(float(f"{value:.5g}") for value in series.reward),
        num_samples=counts,
    )


def all_curves(raw: Path) -> list[Curve]:
    """Return the curves that are long enough, each run once, with those that are reserved marked."""
    kept: dict[tuple[float, ...], Curve] = {}
    for curve in (*others(raw), *own()):
        if len(curve.reward) >= LEAST:
            kept.setdefault(curve.reward[:30], curve)
    curves = [*kept.values()]
    chosen = {name for family, num in NUM_RESERVED.items() for name in drawn(curves, family, num)}
    return [replace(curve, reserved=curve.curve in chosen) for curve in curves]


def drawn(curves: Sequence[Curve], family: str, num: int) -> list[str]:
    """Return the names of curves drawn by the seed, of those that nothing was chosen on."""
    mine = [each.curve for each in curves if each.family == family]
    unseen = [name for name in mine if name.split("/")[1] not in SEEN and name not in TOLD]
    return sorted(unseen, key=lambda name: hashlib.sha256(f"{SEED}/{name}".encode()).hexdigest())[:num]


# On disk --------------------------------------------------------------------------------------------------------------

POINTS = ("compute", "reward", "num_samples")
DESCRIBED = tuple(each.name for each in fields(Curve) if each.name not in POINTS)


def write(curves: Sequence[Curve]) -> None:
    BANK.mkdir(exist_ok=True)
    with (BANK / "curves.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*DESCRIBED, "points"])
        for each in curves:
            values = [getattr(each, name) for name in DESCRIBED]
            table.writerow(["" if value is None else value for value in values] + [len(each.reward)])
    files: dict[str, list[Curve]] = defaultdict(list)
    for each in curves:
        files["reserved" if each.reserved else each.family].append(each)
    for name, held in files.items():
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["curve", *POINTS])
        for each in held:
            counts = each.num_samples or ("",) * len(each.reward)
            table.writerows(
                [each.curve, f"{compute:g}" if compute < 1e6 else f"{compute:.6g}", reward, num]
                for compute, reward, num in zip(each.compute, each.reward, counts, strict=True)
            )
        # Without a time and a name in the header, the same points are the same file.
        (BANK / f"{name}.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


@cache
def load(reserved: bool = False) -> tuple[Curve, ...]:
    """Return the curves of the bank; with `reserved` those kept apart, and only these."""
    points: dict[str, list[list[str]]] = defaultdict(list)
    for path in sorted(BANK.glob("*.csv.gz")):
        if (path.name == "reserved.csv.gz") == reserved:
            with gzip.open(path, "rt", newline="") as file:
                for name, *row in list(csv.reader(file))[1:]:
                    points[name].append(row)
    curves = []
    with (BANK / "curves.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["curve"] in points:
                compute, reward, counts = zip(*points[row["curve"]], strict=True)
                number = lambda name, row=row: float(row[name]) if row[name] else None  # noqa: E731
                texts = {name: row[name] for name in DESCRIBED[:9]}
                curves.append(
                    Curve(
                        **texts,
                        low=number("low"),
                        high=number("high"),
                        start=number("start"),
                        start_sd=number("start_sd"),
                        reserved=reserved,
                        compute=tuple(map(float, compute)),
                        reward=tuple(map(float, reward)),
                        num_samples=tuple(map(int, counts)) if counts[0] else (),
                    )
                )
    return tuple(curves)


# Fits -----------------------------------------------------------------------------------------------------------------


def has_risen(curve: Fit) -> bool:
    return curve.posterior is not None and float(np.mean(curve.posterior.draws.seen)) >= LIKELIER


COLUMNS = 10
COLOURS = {"agent": "#0072B2", "math": "#D55E00", "other": "#009E73", "small": "#555555"}
HEADS = {
    "agent": "Agents, many turns (training scores, over hours)",
    "math": "Mathematics (training rewards and evaluations)",
    "other": "Other tasks (training rewards)",
    "small": "Our own runs (evaluations, over FLOPs)",
}


def sheet(path: Path) -> None:
    """Draw every curve with its fit, one panel each: the reward over the share of the run, on a logarithmic axis."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    by_kind = {kind: [curve for curve in load() if curve.kind == kind] for kind in HEADS}
    rows = sum(1 + -(-len(held) // COLUMNS) for held in by_kind.values())
    with matplotlib.rc_context({"font.size": 6.5, "axes.linewidth": 0.5, "text.parse_math": False}):
        heights = [h for held in by_kind.values() for h in (0.22, *(1.0,) * -(-len(held) // COLUMNS))]
        layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, hspace=0.03, wspace=0.03)
        figure = Figure(figsize=(1.55 * COLUMNS, 1.34 * sum(heights)), dpi=120, layout=layout)
        grid = figure.add_gridspec(rows, COLUMNS, height_ratios=heights)
        row = 0
        for kind, held in by_kind.items():
            head = figure.add_subplot(grid[row, :])
            head.axis("off")
            head.text(0, 0.3, f"{HEADS[kind]}: {len(held)}", fontsize=11, fontweight="bold", color=COLOURS[kind])
            for place, curve in enumerate(held):
                panel(figure.add_subplot(grid[row + 1 + place // COLUMNS, place % COLUMNS]), curve)
            row += 1 + -(-len(held) // COLUMNS)
        figure.savefig(path, facecolor="white")


def panel(axes: Any, curve: Curve) -> None:
    fitted = curve.fitted()
    decision = decide(fitted)
    assert decision is not None
    end, colour = fitted.scale, COLOURS[curve.kind]
    compute, reward = np.array(curve.compute), np.array(curve.reward)
    if len(reward) > 60:
        compute, reward, *_ = block_means(compute, reward)
    places = np.geomspace(compute.min(), 4.0 * end, 80)
    low, high = fitted.curve_interval(places)
    axes.fill_between(places / end, low, high, color=colour, alpha=0.18, linewidth=0)
    for part, style in ((places <= end, "-"), (places >= end, ":")):
        axes.plot(places[part] / end, fitted.predict(places[part]), style, color=colour, linewidth=1.0)
    axes.plot(compute / end, reward, ".", color="black", markersize=2.2, markeredgewidth=0)
    axes.set_xscale("log")
    axes.set_xlim(max(compute.min() / end / 1.2, 3e-3), 4.0)
    bottom, top = reward.min(), max(reward.max(), float(np.median(low[-1:])), float(fitted.predict(places[-1:])[0]))
    pad = 0.08 * max(top - bottom, 1e-3)
    axes.set_ylim(bottom - pad, top + pad)
    axes.set_xticks([1.0], [""])
    axes.xaxis.set_ticks([], minor=True)
    axes.grid(axis="x", color="#BBBBBB", linewidth=0.5)
    axes.set_yticks([bottom, top], [f"{bottom:.2f}", f"{top:.2f}"])
    axes.tick_params(length=1.5, width=0.4, pad=1, labelsize=5.5)
    axes.spines[["top", "right"]].set_visible(False)
    name = curve.curve.split("/", 1)[1].replace("-seed", " s")
    axes.set_title(name if len(name) < 34 else name[:14] + ".." + name[-17:], fontsize=5.8, pad=2, loc="left")
    ceiling = "" if decision.state in (State.FLAT, State.TOO_EARLY) else f" {fitted.params['ceiling']:.2f}"
    axes.text(
        0.98, 0.04, f"{decision.state}{ceiling}", transform=axes.transAxes, ha="right", fontsize=5.3, color=colour
    )


def table() -> Iterator[str]:
    """Yield the page's table: a row per source and task."""
    groups: dict[tuple[str, ...], list[Curve]] = defaultdict(list)
    for curve in load():
        groups[curve.kind, curve.source, curve.licence, curve.task, curve.axis].append(curve)
    yield "| kind | source | licence | task | compute in | curves | points | gain, median | exponent, median | states |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (kind, source, licence, task, axis), held in groups.items():
        fits = [curve.fitted() for curve in held]
        states = Counter(str(decision.state) for each in fits if (decision := decide(each)) is not None)
        rising = [each for each in fits if has_risen(each)]
        middle = lambda values: f"{np.median(values):.2f}" if values else ""  # noqa: E731
        gains = middle([each.gain for each in rising if each.bounds is not None])
        exponents = middle([each.params["exponent"] for each in rising])
        said = ", ".join(f"{num} {state}" for state, num in states.most_common())
        points = sum(len(curve.reward) for curve in held)
        cells = (kind, source, licence, task, axis, len(held), f"{points:,}", gains, exponents, said)
        yield f"| {' | '.join(map(str, cells))} |"


EXAMPLE = {"joint": "agentgym/textcraft/main-joint-gp1", "fixed": "agentgym/textcraft/main-fixed-gp1-cons"}
STEPS = 20
"""Steps whose mean is a row of the example."""


def example() -> Iterator[str]:
    """Yield the rows of the example: two arms of which the one that is ahead at first levels off lower."""
    yield "recipe,step,hours,score"
    curves = {curve.curve: curve for curve in load()}
    for recipe, name in EXAMPLE.items():
        compute, reward = curves[name].compute, curves[name].reward
        for end in range(STEPS, len(reward) + 1, STEPS):
            yield f"{recipe},{end},{compute[end - 1]:.3f},{np.mean(reward[end - STEPS : end]):.4f}"


def run(*words: str) -> None:
    match words:
        case ("build", raw):
            write(all_curves(Path(raw)))
        case ("sheet", path):
            sheet(Path(path))
        case ("table",):
            print(*table(), sep="\n")
        case ("example",):
            EXAMPLE_RUNS.write_text("\n".join(example()) + "\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    run(*sys.argv[1:])
