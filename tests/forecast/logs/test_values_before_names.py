"""What a column or a line is, where its name says one thing and its values another; the numbers are made up."""

from pathlib import Path

import pytest
from log_texts import STEPS, R, cells
from read_logs import candidates, fault, kinds, read, write

from scalerl.forecast.logs import Series


def points(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.compute.tolist(), series.reward.tolist(), strict=True))


# The axis


@pytest.mark.parametrize("constant", ["steps", "frames", "total_timesteps"])
def test_constant_step_gives_way_to_a_counter_that_rises(tmp_path: Path, constant: str) -> None:
    rows = [(900, episode, reward) for episode, reward in STEPS]
    [series] = read(write(tmp_path / "log.csv", (f"{constant},episode,reward", rows)))
    assert series.x_label == "episode"
    assert points(series) == STEPS


def test_nameless_counter_may_begin_anew(tmp_path: Path) -> None:
    counts = [*range(1, 21), *range(15, 35)]
    rows = list(zip(counts, R, [7, 3] * 20, strict=True))
    [series] = read(write(tmp_path / "log.csv", ("runde,eval_score,plies", rows)))
    assert series.x_label == "runde"
    assert {"step_by_values", "superseded"} <= {*kinds(series)}
    assert points(series) == [*zip(counts[:14], R[:14], strict=True), *zip(counts[20:], R[20:], strict=True)]


def test_numbers_that_jump_are_no_counter(tmp_path: Path) -> None:
    rows = [(3 * step + (step * 7) % 5, reward) for step, reward in STEPS]
    rows[9] = rows[4]
    [series] = read(write(tmp_path / "log.csv", ("plies,reward", rows)))
    assert series.x_label == "step"


# Attempts


def _times(num: int) -> list[str]:
    return [f"2026-03-{1 + hour // 24:02}T{hour % 24:02}:00:00" for hour in range(num)]


def test_attempts_under_a_time_of_day(tmp_path: Path) -> None:
    counts = [*range(1, 17), *range(10, 31), 1, 1]
    rewards = [*R[:16], *R[9:30], 1.0, 1.0]
    rows = list(zip(_times(len(counts)), counts, rewards, [40 + 7 * at % 11 for at in counts], strict=True))
    first, *others = read(write(tmp_path / "log.csv", ("timestamp,global_iter,eval_score,wins", rows)))
    assert first.reward.tolist() == R[:30]
    assert {"superseded", "attempts"} <= {*kinds(first)}
    assert all(len(series.reward) <= 1 for series in others)


def test_attempts_of_a_step_or_two_are_refused(tmp_path: Path) -> None:
    rows = [(step, round(0.3 + at / 50, 3)) for at, step in enumerate([1, 1, 1, 1, 2, 1, 2, 1, 2])]
    said = fault(write(tmp_path / "log.csv", ("step,reward", rows)))
    assert "6 attempts of at most 2 steps" in said


# Labels


def test_numbers_that_go_round_name_no_runs(tmp_path: Path) -> None:
    rows = [(step, 1 + at % 8, reward) for at, (step, reward) in enumerate(STEPS)]
    [series] = read(write(tmp_path / "log.csv", ("episode,trial,reward", rows)))
    assert points(series) == STEPS


def test_trials_that_are_logged_together_are_runs(tmp_path: Path) -> None:
    rows = [(step, trial, round(reward - trial / 50, 4)) for step, reward in STEPS for trial in (1, 2, 3)]
    curves = read(write(tmp_path / "log.csv", ("step,trial,reward", rows)))
    assert [len(series.reward) for series in curves] == [40, 40, 40]


def test_columns_that_differ_at_a_resumed_step_are_no_settings(tmp_path: Path) -> None:
    counts = [*range(1, 31), *range(25, 35)]
    rows = [(count, R[at], (7 * at) % 18) for at, count in enumerate(counts)]
    [series] = read(write(tmp_path / "log.csv", ("step,reward,wins", rows)))
    assert len(series.reward) == 34


def test_facts_name_the_evaluations_only_where_they_are_read(tmp_path: Path) -> None:
    rows = [(step, "train", reward) for step, reward in STEPS] + [(40, "eval", 0.5), (40, "eval", 0.7)]
    [series] = read(write(tmp_path / "log.csv", ("step,phase,reward", rows)))
    assert series.y_label == "reward"
    assert "evaluations_apart" not in kinds(series)


# Rewards


@pytest.mark.parametrize("name", ["AverageTestEpRet", "test/ep_ret", "eval_ep_rew", "TestReturn"])
def test_returns_of_tests_are_evaluations(tmp_path: Path, name: str) -> None:
    rows = [(step, reward - 0.1, reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "log.csv", (f"epoch,AverageEpRet,{name}", rows)))
    assert series.y_label == name
    assert points(series) == STEPS


@pytest.mark.parametrize("name", ["reward/hard_pass_rate", "agent_success_rate", "tool_solve_rate"])
def test_rates_of_something_are_asked_about_beside_a_reward(tmp_path: Path, name: str) -> None:
    rows = [{"step": step, "episode_reward": 90 * rate + step % 3, name: rate, "kl": 0.1} for step, rate in STEPS]
    log = write(tmp_path / "log.jsonl", rows)
    assert [each.name for each in candidates(log)] == [name, "episode_reward"]
    alone = write(tmp_path / "alone.csv", cells(f"step,{name},kl", [(s, r, 0.1) for s, r in STEPS]))
    assert [points(series) for series in read(alone)] == [STEPS]
