"""plan, transfer and score as a user types them: documented objects, one sentence for a mistake."""

import csv
from pathlib import Path

import numpy as np
import pytest
from commands import answer, scalerl

COLUMNS = ("--x", "gpu_hours", "--y", "pass_rate", "--start", "0.4")
ARMS = {"a": 0.62, "b": 0.58, "c": 0.60, "d": 0.46}
SIZES = {"0.5B": 0.10, "1.5B": 0.16, "3B": 0.22, "7B": 0.30}


def write(path: Path, rows: list[tuple]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def arm_rows(num: int) -> list[tuple]:
    rows: list[tuple] = [("arm", "gpu_hours", "pass_rate")]
    for seed, (name, ceiling) in enumerate(ARMS.items()):
        noise = np.random.default_rng(seed).normal(0, 0.004, 40)
        for at in range(num):
            compute = 100.0 * (at + 1)
            reward = 0.4 + (ceiling - 0.4) / (1 + (900 / compute) ** 1.8) + noise[at]
            rows.append((name, compute, f"{reward:.5f}"))
    return rows


def ceiling_of(start: float) -> float:
    """Odds grow by the same factor at every size."""
    odds = 2.5 * start / (1 - start)
    return odds / (1 + odds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("joint")
    write(path / "early.csv", arm_rows(16))
    write(path / "late.csv", arm_rows(40))
    rows: list[tuple] = [("size", "flops", "pass_rate")]
    for seed, (size, start) in enumerate(SIZES.items()):
        noise = np.random.default_rng(seed).normal(0, 0.004, 30)
        middle = 1e18 * float(size[:-1])
        for at in range(30):
            compute = middle * (at + 0.02) / 5
            reward = start + (ceiling_of(start) - start) / (1 + (middle / compute) ** 1.5) + noise[at]
            rows.append((size, compute, f"{reward:.5f}"))
    write(path / "sizes.csv", rows)
    write(path / "percent.csv", [rows[0], *((*row, 100 * float(reward)) for *row, reward in rows[1:])])
    for name, column in (("x.csv", "gpu_hours"), ("y.csv", "tokens")):
        write(path / name, [(column, "pass_rate"), *((100.0 * at, 0.4 + at / 100) for at in range(1, 12))])
    return path


PLAN = "plan early.csv --x gpu_hours --y pass_rate --by arm --start 0.4"
TRANSFER = "transfer sizes.csv --x flops --y pass_rate --size size"
REFUSED = {
    f"{PLAN} --target 800": "--target 800 lies below what a has spent already (1600)",
    PLAN: "add --target C",
    "plan x.csv y.csv --target 5000": "one axis of compute",
    "plan x.csv y.csv --x tokens --target 5000": "x cannot be used here: x.csv has no column 'tokens'",
    f"{TRANSFER} --to 3B --start 0.2": "too few siblings: 2 sizes below 3e+09",
    f"{TRANSFER.replace(' --x', ' x.csv --x', 1)} --to 3B --start 0.2": "x.csv has no column 'flops'",
    f"{TRANSFER.replace('sizes', 'percent')} --to 14B --start 138": "--start 138 is outside [0, 100]",
}


@pytest.mark.parametrize("line", REFUSED)
def test_mistake_is_one_sentence(folder: Path, line: str):
    done = scalerl(*line.split(), cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert REFUSED[line] in done.stderr
    assert done.stderr.count("\n") == 1


def test_plan_gives_the_documented_object(folder: Path):
    planned = answer(*PLAN.split(), "--target", "8000", cwd=folder)
    assert [arm["name"] for arm in planned["arms"]] == list(ARMS)
    assert all(arm["reward_at_target"]["low"] < arm["reward_at_target"]["high"] for arm in planned["arms"])
    last = planned["arms"][3]
    assert (last["action"], last["reason"]) in [("stop", "not chosen"), ("stop", "tells little")]
    assert planned["chosen"][0] in ("a", "c")
    assert not planned["is_budget_spent"]


def test_plan_names_a_spent_budget_and_costs_in_money(folder: Path):
    words = (*PLAN.split(), "--target", "8000")
    spent = answer(*words, "--budget", "6400", cwd=folder)
    assert (spent["is_budget_spent"], spent["cost"]) == (True, 0)
    assert {arm["reason"] for arm in spent["arms"]} & {"budget"}
    free = answer(*words, "--price", "3", cwd=folder)
    says = [block for section in free["sections"] for block in section["blocks"] if block["type"] == "say"]
    (going,) = [block["values"] for block in says if block["kind"] == "plan_continue"]
    assert going["money"] == pytest.approx(3 * free["cost"])


def test_collapsed_arm_stops_alone_and_seeds_go_together(tmp_path: Path):
    rows: list[tuple] = [("arm", "seed", "gpu_hours", "pass_rate")]
    for arm, ceiling in {"a": 0.62, "b": 0.62, "fallen": 0.60}.items():
        for seed in (0, 1):
            rng = np.random.default_rng([seed, len(arm), ord(arm[0])])
            for at in range(1, 25):
                reward = 0.4 + (ceiling - 0.4) / (1 + (900 / (100 * at)) ** 1.8) + rng.normal(0, 0.004)
                reward -= 0.02 * max(at - 14, 0) if arm == "fallen" else 0.0
                rows.append((arm, seed, 100.0 * at, f"{reward:.5f}"))
    write(tmp_path / "log.csv", rows)
    words = "plan log.csv --x gpu_hours --y pass_rate --by arm --seed seed --start 0.4 --target 9600 --worth 0.002"
    planned = answer(*words.split(), cwd=tmp_path)
    arms = {arm["name"]: arm for arm in planned["arms"]}
    assert set(arms) == {"a", "b", "fallen"}
    assert (arms["fallen"]["action"], arms["fallen"]["reason"]) == ("stop", "past its peak")
    assert any(arms[name]["action"] == "continue" for name in "ab")
    cost = sum(2 * (arm["until"] - arm["spent"]) for arm in arms.values() if arm["until"] is not None)
    assert planned["cost"] == pytest.approx(cost)


def test_transfer_gives_the_documented_object(folder: Path):
    options = ("--by", "size", "--to", "14B", "--at", "1e19,1e20")
    done = answer(*TRANSFER.split(), *options, "--start", "0.38", cwd=folder)
    assert done["target"] == {"size": 14e9, "start": 0.38}
    assert [row["compute"] for row in done["at"]] == [1e19, 1e20]
    assert done["ceiling"]["low"] <= ceiling_of(0.38) <= done["ceiling"]["high"]
    in_per_cent = answer(*TRANSFER.replace("sizes", "percent").split(), "--to", "14B", "--start", "38", cwd=folder)
    assert in_per_cent["ceiling"] == pytest.approx(done["ceiling"], rel=0.02)


def test_sealed_forecast_is_scored_later(folder: Path):
    sealed = folder / "seals" / "may.json"
    sealed.parent.mkdir()
    forecast = ("forecast", folder / "early.csv", *COLUMNS, "--by", "arm", "--seal", sealed)
    answer(*forecast, "--at", "3000")
    assert str(folder) not in sealed.read_text()
    assert "never written over" in scalerl(*forecast).stderr
    (done,) = answer("score", sealed, folder / "late.csv")["files"]
    assert done["kind"] == "scored"
    assert [(curve["name"], curve["num_scored"], curve["data_changed"]) for curve in done["curves"]] == [
        (arm, 24, False) for arm in ARMS
    ]
    assert all(curve["at"][0]["measured"] is not None for curve in done["curves"])
    every = answer("score", sealed.parent, folder / "late.csv")
    assert every["calibration"]["0.9"]["num"] == 4 * 24
    edited = folder / "edited.json"
    edited.write_text(sealed.read_text().replace('"num_points": 16', '"num_points": 17', 1))
    assert "was changed after it was sealed" in scalerl("score", edited, folder / "late.csv").stderr


def test_each_sealed_file_is_scored_against_its_own_log(folder: Path):
    seals, moved = folder / "by-file", folder / "moved"
    seals.mkdir()
    moved.mkdir()
    for arm in list(ARMS)[:2]:
        early, late = ([row for row in arm_rows(num) if row[0] in ("arm", arm)] for num in (16, 40))
        answer("forecast", write(folder / f"{arm}.csv", early), *COLUMNS, "--seal", seals / f"{arm}.json")
        write(moved / f"{arm}.csv", late)
    done = answer("score", seals, *sorted(moved.iterdir()))
    scores = [curve for file in done["files"] for curve in file["curves"]]
    assert [(curve["num_new"], curve["data_changed"]) for curve in scores] == [(24, False), (24, False)]


def test_backtest_pools_only_what_was_measured_before(folder: Path):
    """What other arms measured later must not reach the forecast of the first one."""
    head, *rows = (row for row in arm_rows(40) if row[0] != "d")
    later = [(arm, c, r if arm == "a" or c <= 1600 else f"{float(r) + 0.05:.5f}") for arm, c, r in rows]
    options = (*COLUMNS, "--by", "arm", "--fraction", "0.4")
    first, second = (
        answer("backtest", write(folder / name, [head, *each]), *options)["curves"][0]
        for name, each in (("three.csv", rows), ("changed.csv", later))
    )
    assert first["fractions"] == second["fractions"]
    assert first["ceiling"] != second["ceiling"]
    assert first["alone"] is not None
