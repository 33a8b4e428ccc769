"""Logs that were once read as a wrong curve without a word, each in several variants; the numbers are made up."""

import contextlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from log_texts import STEPS, cells, lines, printed
from read_logs import candidates, fault, kinds, names, read, runs, write

from scalerl.errors import InputError
from scalerl.forecast.logs import Series

NOISE = random.Random(7)
Rows = list[tuple[Any, ...]]


def lift(by: float) -> list[tuple[int, float]]:
    """Return the curve of STEPS, lifted, with noise of its own."""
    return [(step, round(reward + by + NOISE.uniform(-0.01, 0.01), 4)) for step, reward in STEPS]


LOW, HIGH = lift(-0.1), lift(0.1)
WIDE: Rows = [(step, low, high) for (step, low), (_, high) in zip(LOW, HIGH, strict=True)]


def points(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.compute.tolist(), series.reward.tolist(), strict=True))


def with_columns(*columns: Sequence[Any]) -> Rows:
    """Return WIDE with more columns."""
    return [(*row, *more) for row, *more in zip(WIDE, *columns, strict=True)]


TURNS = [round(3 + step / 20, 2) for step, _ in STEPS]
LENGTHS = [400 + 10 * step for step, _ in STEPS]
KL = [round(step / 4000, 5) for step, _ in STEPS]
LOSS = [round(0.7 - step / 100, 4) for step, _ in STEPS]


# One column per run


def columns_of_runs(header: str, num: int = 2) -> str:
    """Return the first columns behind the step, as --y takes them."""
    return ",".join(header.split(",")[1 : num + 1])


@pytest.mark.parametrize(
    "header",
    [
        "step,reward_a,reward_b",
        "step,acc_grpo,acc_ppo",
        "step,grpo_acc,ppo_acc",
        "step,reward (grpo),reward (ppo)",
        "step,grpo/reward,dapo/reward",
        "step,eval/acc/small,eval/acc/large",
        "step,pass@1 base,pass@1 long",
        "step,lr=1e-6,lr=3e-6",
        "step,reward (A),reward (B)",
        "step,accuracy (T),accuracy (M)",
        "step,baseline,ours",
        "step,baseline,no_kl",
        "step,baseline,with length penalty",
        "tokens,baseline,ours",
        "step,val_acc (baseline),val_acc (length)",
        "step,reward (tokens),reward (cost)",
        "step,acc [no penalty],acc [length penalty]",
        "step,acc (low lr),acc (high lr)",
    ],
)
def test_columns_of_runs_are_read_where_they_are_named(tmp_path: Path, header: str) -> None:
    log = write(tmp_path / "wide.csv", (header, WIDE))
    with contextlib.suppress(InputError):  # nothing is read without a word
        assert "reward_by_values" in kinds(read(log)[0])
    curves = read(log, y=columns_of_runs(header))
    assert names(curves) == header.split(",")[1:]
    assert [points(series) for series in curves] == [LOW, HIGH]
    assert "one_column_per_run" in kinds(curves[0])


@pytest.mark.parametrize(
    "header",
    ["step,seed 0,seed 1", "step,seed_0,seed_1", "step,reward_seed0,reward_seed1",
     "step,reward (seed 1),reward (seed 2)", "step,seed1/acc,seed2/acc"],
)  # fmt: skip
def test_columns_of_seeds_are_one_curve(tmp_path: Path, header: str) -> None:
    [series] = read(write(tmp_path / "wide.csv", (header, WIDE)), y=columns_of_runs(header))
    assert (len(runs(series)), len(series.compute)) == (2, 80)
    assert sorted(points(series)) == sorted(LOW + HIGH)


@pytest.mark.parametrize("header", ["step,seed0_acc,seed1_acc,acc_mean", "step,acc_seed0,acc_seed1,acc_mean,acc_std"])
def test_mean_beside_its_seeds_is_the_reward(tmp_path: Path, header: str) -> None:
    rows = [(s, a, b, round((a + b) / 2, 4), 0.01 + s / 9999)[: header.count(",") + 1] for s, a, b in WIDE]
    [series] = read(write(tmp_path / "wide.csv", (header, rows)))
    assert (series.y_label, len(series.compute)) == ("acc_mean", 40)


def test_columns_per_arm_and_seed(tmp_path: Path) -> None:
    rows = [(step, low, low, high, high) for step, low, high in WIDE]
    header = "step,grpo_seed0,grpo_seed1,ppo_seed0,ppo_seed1"
    curves = read(write(tmp_path / "wide.csv", (header, rows)), y=columns_of_runs(header, 4))
    assert [(series.name, len(runs(series)), len(series.compute)) for series in curves] == [
        ("grpo", 2, 80),
        ("ppo", 2, 80),
    ]


@pytest.mark.parametrize(
    "header, columns",
    [
        ("step,grpo_mean,ppo_mean,grpo_std,ppo_std", (KL, KL)),
        ("step,reward_a,reward_b,loss_a,loss_b", (LOSS, LOSS)),
        ("step,a/acc,b/acc,a/kl,b/kl", (KL, KL)),
        ("step,reward_a_mean,reward_b_mean,reward_a_std,reward_b_std", (KL, LOSS)),
        ("step,reward_a,reward_b,Unnamed: 0", (range(40),)),
        ("step,baseline,ours,", (range(1, 41),)),
        ("step,reward_a,reward_b,lr", ([1e-6] * 40,)),
        ("step,reward_a,reward_b,tokens", (LENGTHS,)),
        ("step,baseline,ours,avg_turns", (TURNS,)),
        ("step,baseline,ours,cost_usd,avg_turns", (TURNS, TURNS)),
        ("step,baseline,ours,response_len", (LENGTHS,)),
        ("step,baseline,ours,num_calls", (LENGTHS,)),
        ("step,baseline,ours,kl", (KL,)),
        ("step,baseline,ours,policy_loss", (LOSS,)),
    ],
)
def test_other_columns_beside_those_of_runs(tmp_path: Path, header: str, columns: Sequence[Sequence[Any]]) -> None:
    log = write(tmp_path / "wide.csv", (header, with_columns(*columns)))
    assert [each.name for each in candidates(log)][:2] == header.split(",")[1:3]
    curves = read(log, x="step", y=columns_of_runs(header))
    assert [points(series) for series in curves] == [LOW, HIGH]


def test_runs_in_per_cent_beside_turns_are_asked_about(tmp_path: Path) -> None:
    rows = [
        (s, round(100 * a, 2), round(100 * b, 2), t, n) for (s, a, b), t, n in zip(WIDE, TURNS, LENGTHS, strict=True)
    ]
    log = write(tmp_path / "wide.csv", ("step,baseline,ours,turns,chars", rows))
    assert [each.name for each in candidates(log)] == ["baseline", "ours", "turns"]


def test_share_of_a_run_that_is_done_is_no_reward(tmp_path: Path) -> None:
    rows = [(step, round(step / 200, 3), round(2 / (1 + step), 4)) for step in range(1, 201)]
    with pytest.raises(InputError, match="no column recognised as reward"):
        read(write(tmp_path / "log.csv", ("step,progress,nll", rows)))


def test_counter_in_an_export_is_no_reward(tmp_path: Path) -> None:
    header = '"evaluations","algo: A - _step","algo: A - generation","algo: B - _step","algo: B - generation"'
    rows = [(60 * row, row, row + 1, row, row + 1) for row in range(40)]
    with pytest.raises(InputError, match="no column recognised as reward"):
        read(write(tmp_path / "log.csv", (header, rows)))


def test_seed_of_its_own_in_each_row_is_no_run(tmp_path: Path) -> None:
    rows = [(1 + row // 4, row, 10_000 + row, 0.3 + 0.002 * row) for row in range(200)]
    [series] = read(write(tmp_path / "log.csv", ("update,episode,seed,return", rows)))
    assert {*series.compute.tolist()} == {*range(1, 51)}


def test_columns_that_move_apart_are_asked_about(tmp_path: Path) -> None:
    rows = [(step, reward, round(1 - reward, 4)) for step, reward in STEPS]
    log = write(tmp_path / "wide.csv", ("step,treffer,verlust", rows))
    assert [each.name for each in candidates(log)] == ["treffer", "verlust"]


@pytest.mark.parametrize(
    "header, columns, y",
    [
        ("step,reward_format,reward_answer,reward", ([r for _, r in STEPS],), "reward"),
        ("step,reward_max,reward_mean,kl", (KL,), "reward_mean"),
        ("step,train_reward,eval_reward", (), "eval_reward"),
        ("step,reward_std,reward", (), "reward"),
        ("step,reward (length),reward (format),reward (total)", ([r for _, r in STEPS],), "reward (total)"),
        ("step,reward (mean),reward (std),reward (max)", (LOSS,), "reward (mean)"),
        ("step,acc (train),acc (test)", (), "acc (test)"),
        ("step,pass@8,pass@1", (), "pass@1"),
        ("step,critic/rewards/max,critic/rewards/mean,actor/entropy", (KL,), "critic/rewards/mean"),
    ],
)
def test_statistics_parts_and_splits_are_not_runs(
    tmp_path: Path, header: str, columns: Sequence[Sequence[Any]], y: str
) -> None:
    [series] = read(write(tmp_path / "log.csv", (header, with_columns(*columns))))
    assert series.y_label == y


def test_siblings_beside_other_metrics_are_asked_about(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", ("step,reward_a,reward_b,kl", with_columns(KL)))
    assert [each.name for each in candidates(log)] == ["reward_a", "reward_b"]
    [series] = read(log, y="reward_b")
    assert points(series) == HIGH


@pytest.mark.parametrize(
    "header",
    ["step,AIME24,AMC23,response_len", "step,AIME24,MATH500,response_length", "step,GSM8K,AIME 2024,avg_turns"],
)
def test_sets_beside_lengths(tmp_path: Path, header: str) -> None:
    curves = read(write(tmp_path / "sets.csv", (header, with_columns(LENGTHS))), y=columns_of_runs(header))
    assert [series.evaluation_set for series in curves] == header.split(",")[1:3]


@pytest.mark.parametrize("axis", ["Relative Time (Process)", "Relative Time (Wall)", "Step"])
@pytest.mark.parametrize("companions", [False, True])
def test_wandb_chart_with_unequal_times(tmp_path: Path, axis: str, companions: bool) -> None:
    rows = [(60.0 * s, a, a, a, "", "", "") for s, a in LOW] + [(67.0 * s, "", "", "", b, b, b) for s, b in HIGH]
    header = [axis, *(f"{run} - eval/acc{end}" for run in ("grpo", "ppo") for end in ("", "__MIN", "__MAX"))]
    kept = [0, *range(1, 7)] if companions else [0, 1, 4]
    table = [tuple(row[at] for at in kept) for row in sorted(rows)]
    curves = read(write(tmp_path / "wandb.csv", (",".join(f'"{header[at]}"' for at in kept), table)))
    assert [(series.name, len(series.compute)) for series in curves] == [("grpo", 40), ("ppo", 40)]


# Long tables

LONG = [("a", 1.5 * s, r) for s, r in LOW] + [("b", 1.7 * s, r) for s, r in HIGH]


def _orders(rows: Rows) -> list[Rows]:
    """Return the rows stacked, sorted by compute, and shuffled."""
    return [rows, sorted(rows, key=lambda row: row[-2]), random.Random(1).sample(rows, len(rows))]


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("column", ["run", "recipe", "experiment", "curve", "setting", "trial_name"])
@pytest.mark.parametrize("axis", ["hours", "step", "tokens"])
def test_groups_do_not_depend_on_the_order_of_rows(tmp_path: Path, order: int, column: str, axis: str) -> None:
    unequal = [(name, round(10 * x) if axis != "hours" else x, r) for name, x, r in LONG]
    curves = read(write(tmp_path / "long.csv", (f"{column},{axis},reward", _orders(unequal)[order])))
    assert sorted((series.name, len(series.compute)) for series in curves) == [("a", 40), ("b", 40)]


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("column", ["method", "run", "curve", "series"])
def test_groups_with_equal_steps_in_any_order(tmp_path: Path, order: int, column: str) -> None:
    rows = [(name, s, r) for name, rewards in (("a", LOW), ("b", LOW), ("c", HIGH)) for s, r in rewards]
    curves = read(write(tmp_path / "long.csv", (f"{column},step,reward", _orders(rows)[order])))
    assert sorted((series.name, len(series.compute)) for series in curves) == [("a", 40), ("b", 40), ("c", 40)]


@pytest.mark.parametrize("order", range(3))
def test_words_that_only_describe_rows_are_not_groups(tmp_path: Path, order: int) -> None:
    rows = [("slow" if s % 3 else "ok", s, r) for s, r in LOW]
    [series] = read(write(tmp_path / "long.csv", ("status,step,reward", _orders(rows)[order])))
    assert points(series) == LOW


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("column", ["lr", "rho", "kl_coef"])
def test_settings_in_any_order(tmp_path: Path, order: int, column: str) -> None:
    rows = [(value, s, r) for value, rewards in ((0.1, LOW), (0.01, HIGH)) for s, r in rewards]
    curves = read(write(tmp_path / "long.csv", (f"{column},step,reward", _orders(rows)[order])))
    assert sorted((series.name, points(series)) for series in curves) == [
        (f"{column}=0.01", HIGH),
        (f"{column}=0.1", LOW),
    ]


@pytest.mark.parametrize("order", range(3))
def test_seeds_in_any_order(tmp_path: Path, order: int) -> None:
    rows = [("a", seed, s + seed, r) for seed in (0, 1) for s, r in LOW]
    [series] = read(write(tmp_path / "long.csv", ("arm,seed,step,reward", _orders(rows)[order])))
    assert (len(runs(series)), len(series.compute)) == (2, 80)


# Single answers

ANSWERS = [(step, f"q{at}", float(at < 16 * reward)) for step, reward in STEPS for at in range(16)]


@pytest.mark.parametrize("column", ["sample_id", "question", "task", "problem"])
@pytest.mark.parametrize("order", range(2))
def test_answers_are_averaged(tmp_path: Path, column: str, order: int) -> None:
    rows = ANSWERS if order == 0 else random.Random(1).sample(ANSWERS, len(ANSWERS))
    [series] = read(write(tmp_path / "dump.csv", (f"step,{column},reward", rows)))
    assert len(series.compute) == 40
    assert series.num_samples is not None
    assert set(series.num_samples.tolist()) == {16}
    assert series.reward[-1] == sum(at < 16 * STEPS[-1][1] for at in range(16)) / 16
    assert "answers_averaged" in kinds(series)


def test_answers_with_graded_rewards_are_averaged(tmp_path: Path) -> None:
    rows = [
        {"step": s, "prompt": f"p{at % 4}", "reward": round(r + at / 100, 4)} for s, r in STEPS for at in range(-8, 9)
    ]
    [series] = read(write(tmp_path / "rollouts.jsonl", rows))
    assert points(series) == [(s, pytest.approx(r)) for s, r in STEPS]
    assert (series.num_samples, "answers_averaged" in kinds(series)) == (None, True)


@pytest.mark.parametrize("column", ["completion", "response", "text"])
def test_answers_with_texts_are_averaged(tmp_path: Path, column: str) -> None:
    rows = [(s, f"p{at}", f"text {s} {at}", round(r + at / 100, 4)) for s, r in STEPS for at in range(-5, 6)]
    [series] = read(write(tmp_path / "dump.csv", (f"step,prompt,{column},reward", rows)))
    assert points(series) == [(s, pytest.approx(r)) for s, r in STEPS]


def test_answers_with_a_number_each_are_averaged(tmp_path: Path) -> None:
    rows = [(s, at, round(r + at / 100, 4)) for s, r in STEPS for at in range(9)]
    [series] = read(write(tmp_path / "dump.csv", ("step,sample,reward", rows)))
    assert (len(series.compute), kinds(series)) == (40, ["answers_averaged"])


def test_answers_with_a_time_each_are_averaged(tmp_path: Path) -> None:
    rows = [(s, 1.7e9 + 60 * s + at, float(at < 8 * r)) for s, r in STEPS for at in range(8)]
    [series] = read(write(tmp_path / "dump.csv", ("step,timestamp,correct", rows)))
    assert (series.x_label, len(series.compute)) == ("hours", 40)


def test_some_evaluations_of_a_step_stay_apart(tmp_path: Path) -> None:
    rows = [(s, round(r + shift, 4)) for s, r in STEPS for shift in (-0.01, 0, 0.01)]
    [series] = read(write(tmp_path / "log.csv", ("step,reward", rows)))
    assert (len(series.compute), "answers_averaged" in kinds(series)) == (120, False)


# Consoles of several runs


@pytest.mark.parametrize(
    "tag", ["[trial {}] ", "[seed {}] ", "[run {}] ", "(trial {}) ", "trial {}: ", "[trial-{}] ", "[trial={}] ",
            "Trial {}/12 ", "[config lr=0.{}] ",
            "[trial #{}] ", "2026-01-01 10:0{minute}:07 INFO [trial {}] "],
)  # fmt: skip
@pytest.mark.parametrize("line", ["step {} reward={}", "step {}: loss 0.1, reward {}", "iter {} | reward: {}"])
@pytest.mark.parametrize("order", ["alternating", "one after the other"])
def test_tags_tell_runs_apart(tmp_path: Path, tag: str, line: str, order: str) -> None:
    said = [(at, s, r) for at, rewards in ((3, LOW), (11, HIGH)) for s, r in rewards]
    said = sorted(said, key=lambda each: each[1]) if order == "alternating" else said
    text = "".join(tag.format(at, minute=s % 10) + line.format(s, r) + "\n" for at, s, r in said)
    curves = read(write(tmp_path / "train.log", text))
    parts = [len(series.compute) // (len(runs(series)) or 1) for series in curves for _ in runs(series) or [""]]
    assert parts == [40, 40]
    assert len(curves) == (1 if "seed" in tag else 2)


def test_two_tags(tmp_path: Path) -> None:
    said = "".join(f"[seed {n}][step {s}] reward={r}\n" for (s, a), (_, b) in zip(LOW, HIGH, strict=True)
                   for n, r in ((1, a), (2, b)))  # fmt: skip
    [series] = read(write(tmp_path / "train.log", said))
    assert runs(series) == ["seed 1", "seed 2"]


def test_numbers_that_move_are_no_tags(tmp_path: Path) -> None:
    text = "".join(f"[worker {s % 2}] [epoch {s // 10}] step {s} reward={r}\n" for s, r in LOW)
    [series] = read(write(tmp_path / "train.log", text))
    assert points(series) == LOW


# Finished runs

SWEEP = [(f"run-{at}", 10 ** -(at % 3 + 4), (at * 7 % 5 + 2) / 2, round(0.3 + at * 7 % 11 / 20, 3)) for at in range(12)]


@pytest.mark.parametrize(
    "header, rows",
    [
        ("Name,lr,hours,reward", SWEEP),
        ("Name,lr,final_reward", [(name, lr, reward) for name, lr, _, reward in SWEEP]),
        ("run,accuracy", [(name, reward) for name, _, _, reward in SWEEP]),
        ("Name,State,_runtime,_step,reward", [(n, "finished", 3600 * h, 200, r) for n, _, h, r in SWEEP]),
        ("Name,State,_step,lr,reward", [(n, "crashed" if h < 2 else "finished", round(90 * h), x, r)
                                        for n, x, h, r in SWEEP]),
        ("model,step,accuracy", [(n, 200, r) for n, _, _, r in SWEEP]),
        ("lr,batch,final_reward,wall_hours", [(x, 64, r, h) for _, x, h, r in SWEEP]),
        ("lr,group_size,final_accuracy,gpu_hours", [(x, 8, r, h) for _, x, h, r in SWEEP]),
        ("arm,seed,final_reward,hours", [("ab"[at % 2], at // 2, r, h) for at, (_, _, h, r) in enumerate(SWEEP)]),
        ("trial,lr,final_reward", [(at, x, r) for at, (_, x, _, r) in enumerate(SWEEP)]),
        ("run,beta,hours,reward", [(at, x, at + h / 9, r) for at, (_, x, h, r) in enumerate(SWEEP, start=1)]),
        ("number,value,begun,ended,params_lr", [(at, r, f"2026-03-01 {at:02}:00:00", f"2026-03-01 {at:02}:50:00", x)
                                                for at, (_, x, _, r) in enumerate(SWEEP)]),
        ("number,value,state,params_group", [(at, r, "DONE", 2 ** (at * 5 % 3)) for at, (*_, r) in enumerate(SWEEP)]),
        ("recipe,gpu_hours,lr,final_reward,best_reward", [(name, 3 * at + 5, x, r, r + 0.1) for at, (name, (_, x, _, r))
                                                          in enumerate(zip("abcdefghijkl", SWEEP, strict=True))]),
        ("setup,gpu_hours,best_acc", [(name, 3 * at + 5, r) for at, (name, (*_, r))
                                      in enumerate(zip(("ppo", "grpo", "dapo", "rloo"), SWEEP, strict=False))]),
        ("trial_id,lr,steps,mean_reward", [(n, x, 500 if h < 2 else 1000, r) for n, x, h, r in SWEEP]),
    ],
)  # fmt: skip
def test_table_of_finished_runs_is_refused(tmp_path: Path, header: str, rows: Rows) -> None:
    assert "one row per run" in fault(write(tmp_path / "sweep.csv", (header, rows)))
    assert "one row per run" in fault(
        write(tmp_path / "sweep.jsonl", [dict(zip(header.split(","), row, strict=True)) for row in rows])
    )


def test_line_for_each_finished_run_is_refused(tmp_path: Path) -> None:
    text = "".join(f"2026-01-01 10:00:00 INFO Run {at + 1:2} - accuracy: {reward:.2%}, steps: {6 + hours}\n"
                   for at, (_, _, hours, reward) in enumerate(SWEEP))  # fmt: skip
    assert "one row per run" in fault(write(tmp_path / "results.log", text))


@pytest.mark.parametrize(
    "header, row",
    [
        ("checkpoint_path,step,accuracy", lambda s, r: (f"/runs/a/{s}", s, r)),
        ("commit,step,reward", lambda s, r: (f"c{97 * s % 101}", s, r)),
        ("model,gpu_hours,reward", lambda s, r: (f"org/base-step{s}", s / 3, r)),
        ("checkpoint_name,gpu_hours,reward", lambda s, r: (f"ckpt-{s}", s / 3, r)),
        ("index,reward", lambda s, r: (s // 5, r)),
        ("step,final_reward,lr", lambda s, r: (s, r, 1e-6 * (40 - s // 10))),
        ("hours,final_answer_reward,phase_lr", lambda s, r: (s / 3, r, 1e-6 * (4 - s // 20))),
    ],
)
def test_rows_in_order_are_a_history(tmp_path: Path, header: str, row: Any) -> None:
    [series] = read(write(tmp_path / "log.csv", (header, [row(s, r) for s, r in LOW])))
    assert series.reward.tolist() == [r for _, r in LOW]


# Lower is better


@pytest.mark.parametrize(
    "name", ["error_rate", "wer", "eval/wer", "eval/error_rate", "regret", "perplexity", "eval/perplexity", "penalty",
             "loss", "val_loss", "eval_loss", "test/cer", "mse", "failure_rate"],
)  # fmt: skip
@pytest.mark.parametrize("more", ["", ",lr"])
def test_lower_is_better_is_refused(tmp_path: Path, name: str, more: str) -> None:
    rows = [(s, round(1 - r, 4), *([1e-6] if more else [])) for s, r in LOW]
    assert "lower is better" in fault(write(tmp_path / "log.csv", (f"step,{name}{more}", rows)))


def test_lower_is_better_on_a_console(tmp_path: Path) -> None:
    path = write(tmp_path / "a.log", printed("step {step} | error_rate: {reward} | grad_norm: 1.0"))
    assert "lower is better" in fault(path)


def test_lower_is_better_is_said_if_asked_for(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "log.csv", ("step,error_rate", LOW)), y="error_rate")
    assert "lower_is_better" in kinds(series)


def test_unnamed_values_that_fall_are_said(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "log.csv", ("step,quality", [(s, round(1 - r, 4)) for s, r in LOW])))
    assert "values_fall" in kinds(series)
    [series] = read(write(tmp_path / "log.csv", ("step,quality", LOW)))
    assert "values_fall" not in kinds(series)


# The order of steps


@pytest.mark.parametrize("scale", [1, 10, 50, 100])
@pytest.mark.parametrize("num", [10, 12, 25, 40])
def test_steps_in_the_order_of_file_names(tmp_path: Path, scale: int, num: int) -> None:
    rows = sorted(((scale * s, r) for s, r in LOW[:num]), key=lambda row: str(row[0]))
    [series] = read(write(tmp_path / "log.csv", ("step,reward", rows)))
    assert points(series) == [(scale * s, r) for s, r in LOW[:num]]
    assert "superseded" not in kinds(series)


def test_checkpoints_in_the_order_of_file_names(tmp_path: Path) -> None:
    rows = sorted([(f"step_{100 * s}", a, b) for s, a, b in WIDE])
    low, high = read(write(tmp_path / "log.csv", ("checkpoint,baseline,ours", rows)), y="baseline,ours")
    assert [series.reward.tolist() for series in (low, high)] == [[r for _, r in LOW], [r for _, r in HIGH]]


def test_later_part_that_comes_first(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "log.csv", ("step,reward", LOW[25:] + LOW[:25])))
    assert points(series) == LOW


def test_amounts_of_each_step_that_come_back_are_no_compute(tmp_path: Path) -> None:
    rows = [(step, 4096 + step % 7, reward) for step, reward in STEPS]
    [series] = read(write(tmp_path / "log.csv", ("step,tokens,reward", rows)))
    assert (series.x_label, points(series)) == ("step", STEPS)


# Tables of trackers


@pytest.mark.parametrize(
    "header, row",
    [
        ("key,step,value", lambda name, s, v: (name, s, v)),
        ("run_id,key,step,value", lambda name, s, v: ("r1", name, s, v)),
        ("attribute,step,value", lambda name, s, v: (name, s, v)),
        ("sys/id,series,step,timestamp,value", lambda name, s, v: ("AB-1", name, s, 1.7e9 + 60 * s, v)),
        ("run.hash,metric.name,context,step,value", lambda name, s, v: ("f3", name, "{}", s, v)),
        ("run_hash,name,epoch,step,value", lambda name, s, v: ("f3", name, 0, s, v)),
        ("experiment,path,step,float_value", lambda name, s, v: ("e", name, s, v)),
    ],
)
def test_one_metric_per_row(tmp_path: Path, header: str, row: Any) -> None:
    content = [row(name, s, v) for name, change in (("reward", 0.0), ("loss", 1.0), ("grad_norm", 2.0))
               for s, v in [(s, round(r + change, 4)) for s, r in LOW]]  # fmt: skip
    for rows in (content, random.Random(3).sample(content, len(content))):
        [series] = read(write(tmp_path / "long.csv", (header, rows)), x="step")
        assert (series.y_label, points(series)) == ("reward", LOW)


def test_one_metric_per_row_of_two_runs(tmp_path: Path) -> None:
    rows = [(run, name, s, r if name == "reward" else 1.0) for run, rewards in (("a", LOW), ("b", HIGH))
            for name in ("reward", "loss") for s, r in rewards]  # fmt: skip
    curves = read(write(tmp_path / "long.csv", ("run_hash,key,step,value", rows)))
    assert [(series.name, points(series)) for series in curves] == [("a", LOW), ("b", HIGH)]


def _markdown(header: str, rows: Rows) -> str:
    return "".join(
        f"| {' | '.join(map(str, row))} |\n" for row in [(*header.split(","),), ["---"] * len(rows[0]), *rows]
    )


@pytest.mark.parametrize(
    "header, rows",
    [
        ("step,baseline,ours", WIDE),
        ("step,reward_a,reward_b", WIDE),
        ("Step,lr=1e-6,lr=1e-5", WIDE),
        ("run,step,reward", [(run, *row) for run, rewards in (("a", LOW), ("b", HIGH)) for row in rewards]),
        ("epoch,small,large", WIDE),
        ("gpu_hours,small,large", WIDE),
    ],
)
def test_markdown_is_read_as_csv_is(tmp_path: Path, header: str, rows: Rows) -> None:
    text = f"# Results\n\nBoth rise.\n\n{_markdown(header, rows)}\nThe end: 3 of 4.\n"
    y = None if "reward" in header.split(",") else columns_of_runs(header)
    assert [points(series) for series in read(write(tmp_path / "a.md", text), y=y)] == [LOW, HIGH]


@pytest.mark.parametrize("mark", [" \u00b1 ", "\u00b1", " (\u00b1", " +/- ", " +- ", " \\pm "])
@pytest.mark.parametrize("form", ["csv", "md"])
def test_values_with_their_errors(tmp_path: Path, mark: str, form: str) -> None:
    rows = [(s, f"{100 * r:.1f}{mark}0.8", f"{100 * q:.1f}{mark}1.2") for s, r, q in WIDE]
    header = "step,accuracy (a),accuracy (b)"
    text = cells(header, rows) if form == "csv" else _markdown(header, rows)
    low, high = read(write(tmp_path / f"a.{form}", text), y=columns_of_runs(header))
    assert low.reward.tolist() == pytest.approx([100 * r for _, r in LOW], abs=0.06)
    assert (high.name, high.y_scale) == ("accuracy (b)", "100")


# Lines that a cloud wrapped

PRINTED = [f"step {s}: loss 0.1, reward {r}" for s, r in LOW]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda said: {"events": [{"timestamp": 1_700_000_000_000, "message": line} for line in said]},
        lambda said: {"events": [{"message": f"{line}\n", "eventId": "7"} for line in said], "searchedLogStreams": []},
        lambda said: {"hits": {"hits": [{"_source": {"message": line}} for line in said]}},
        lambda said: [{"textPayload": line, "insertId": "x"} for line in said],
    ],
)  # fmt: skip
def test_lines_inside_a_document(tmp_path: Path, wrap: Any, indent: int | None) -> None:
    [series] = read(write(tmp_path / "cloud.json", json.dumps(wrap(PRINTED), indent=indent)))
    assert points(series) == LOW


def test_objects_inside_lines_of_a_cloud(tmp_path: Path) -> None:
    said = [json.dumps({"step": s, "reward": r}) for s, r in LOW]
    [series] = read(write(tmp_path / "a.json", json.dumps({"events": [{"message": line} for line in said]})))
    assert points(series) == LOW
    [series] = read(write(tmp_path / "b.jsonl", lines([{"message": line, "time": "10:00"} for line in said])))
    assert points(series) == LOW


# Runs under the keys of a document


@pytest.mark.parametrize("keys", [("grpo", "dapo"), ("grpo", "length_penalty"), ("no_kl", "tokens"), ("base", "time")])
@pytest.mark.parametrize("shape", ["rows", "lists", "by step", "within"])
def test_keys_above_equal_columns_are_runs(tmp_path: Path, keys: tuple[str, str], shape: str) -> None:
    def written(curve: list[tuple[int, float]]) -> Any:
        rows = [{"step": step, "reward": reward, "kl": 0.01} for step, reward in curve]
        lists = {name: [row[name] for row in rows] for name in rows[0]}
        by_step = {str(step): {"reward": reward, "kl": 0.01} for step, reward in curve}
        shapes = {"rows": rows, "lists": lists, "by step": by_step, "within": {"config": {"lr": 1}, "history": rows}}
        return shapes[shape]

    text = json.dumps(dict(zip(keys, map(written, (LOW, HIGH)), strict=True)))
    curves = read(write(tmp_path / "all.json", text))
    assert [(series.name, points(series)) for series in curves] == [(keys[0], LOW), (keys[1], HIGH)]


def test_reward_of_each_step_that_is_always_one(tmp_path: Path) -> None:
    text = "".join(
        f"Interval {at} ({100 * at} steps performed)\n"
        f"40/100 [====>......] - ETA: 3s - reward: 1.0000\r100/100 [===========] - 7s 7ms/step - reward: 1.0000\n"
        f"5 episodes - episode_reward: {100 * reward:.3f} [20.000, 90.000] - loss: 0.4{at % 10} - mae: 20.1\n\n"
        for at, (_, reward) in enumerate(LOW, start=1)
    )
    [series] = read(write(tmp_path / "train.log", text))
    assert (series.y_label, len(series.reward)) == ("episode_reward", 40)
    assert series.reward == pytest.approx([100 * reward for _, reward in LOW], abs=1e-3)


@pytest.mark.parametrize("ends", ["lower,upper", "p05,p95"])
def test_mean_beside_the_ends_of_an_interval_is_asked_about(tmp_path: Path, ends: str) -> None:
    rows = [(reward, round(reward - 0.05, 4), round(reward + 0.05, 4), 500, step) for step, reward in LOW]
    log = write(tmp_path / "evals.csv", (f"mean,{ends},n,gpu_hours", rows))
    assert [each.name for each in candidates(log)] == ["mean", *ends.split(",")]


# Heads of two rows


@pytest.mark.parametrize(
    "head",
    [
        ",grpo,,dapo,\nstep,reward,kl,reward,kl",
        ",grpo,grpo,dapo,dapo\nstep,reward,kl,reward,kl",
        "step,grpo,,dapo,\n,acc,loss,acc,loss",
        "recipe,grpo,,dapo,\nmetric,reward,kl,reward,kl\nstep,,,,",
    ],
)
def test_head_of_two_rows_is_refused(tmp_path: Path, head: str) -> None:
    rows = [(s, a, 0.01 + s / 9000, b, 0.02 + s / 9000) for s, a, b in WIDE]
    assert "has a head of two rows" in fault(write(tmp_path / "two.csv", (head, rows)))


def test_title_above_a_head_names_no_run(tmp_path: Path) -> None:
    [series] = read(write(tmp_path / "one.csv", ("my run,,\nstep,reward,kl", [(s, r, 0.01) for s, r in LOW])))
    assert (series.y_label, points(series)) == ("reward", LOW)


# Tables in a console


@pytest.mark.parametrize("above", ["", "Step {step}\n"])
def test_table_of_answers_is_no_log(tmp_path: Path, above: str) -> None:
    rows = "| prompt | completion | reward |\n|---|---|---|\n| What is 2 + {step}? | it is {step} | {reward} |"
    assert "no line records" in fault(write(tmp_path / "samples.log", printed(above + rows)))
