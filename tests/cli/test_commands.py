"""The predictive commands as a user types them."""

import csv
import errno
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from commands import answer, scalerl

from scalerl.cli import app, main
from scalerl.errors import InputError, LearnerError, RecipeError, StoreError, UsageError
from scalerl.forecast.logs import Selection, read
from scalerl.forecast.logs.facts import fact
from scalerl.forecast.report.analyse import price_of_compute
from scalerl.runfolder import store


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes, two seeds each, the last third marked as held out."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("logs") / "runs.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["recipe", "seed", "part", "gpu_hours", "pass_rate"])
        for recipe, ceiling in (("old", 0.54), ("new", 0.62)):
            for seed in (1, 2):
                for compute in np.linspace(300, 9000, 30):
                    reward = 0.4 + (ceiling - 0.4) / (1 + (2400 / compute) ** 1.9) + 0.004 * rng.standard_normal()
                    writer.writerow(
                        [recipe, seed, "late" if compute > 6000 else "early", f"{compute:.1f}", f"{reward:.5f}"]
                    )
    return path


OPTIONS = ("--x", "gpu_hours", "--y", "pass_rate", "--by", "recipe", "--seed", "seed", "--start", "0.4")


def test_fit_and_forecast_give_numbers_with_their_intervals(table: Path):
    named = [word for word in OPTIONS if word not in ("--seed", "seed")]
    more = ("--at", "20000", "--at", "30000,40000", "--reach", "0.5", "--reach", "0.9")
    (old, new) = answer("forecast", table, *named, *more)["curves"]
    assert [curve["name"] for curve in (old, new)] == ["old", "new"]
    for curve, truth in ((new, 0.62), (old, 0.54)):
        assert curve["units"] == {"compute": "gpu_hours", "reward": "pass_rate", "reward_scale": "1"}
        assert (curve["form"], curve["num_points"], curve["num_runs"]) == ("sigmoid", 60, 2)
        assert (curve["state"] in ("rising", "levelling off"), curve["start"]["value"]) == (True, 0.4)
        assert curve["ceiling"]["low"] < truth < curve["ceiling"]["high"]
    assert [row["compute"] for row in new["at"]] == [20000, 30000, 40000]
    reached, never = new["reach"]
    assert reached["compute"]["value"] == pytest.approx(2600, rel=0.2)
    assert never["compute"] is None
    assert never["p_never"] > 0.99


def test_backtest_scores_held_out_rows_and_fractions(table: Path):
    out = answer("backtest", table, *OPTIONS, "--holdout", "part=late", "--fraction", "0.4,0.6")
    for curve in out["curves"]:
        assert (curve["num_points"], curve["holdout"]["num_points"]) == (40, 20)
        assert curve["holdout"]["rmse"] < 0.02
        assert [row["fraction"] for row in curve["fractions"]] == [0.4, 0.6]


def test_compare_answers_at_a_budget(table: Path, tmp_path: Path):
    out = answer("compare", table, *OPTIONS, "--at", "20000", "--plot", tmp_path / "a.svg")
    (pair,), (ranking,) = out["pairs"], out["rankings"]
    assert (pair["answer"], pair["winner"]) == ("take", "new")
    assert (ranking["answer"], ranking["winner"], ranking["at"]) == ("take", "new", 20000)
    best, other = ranking["standings"]
    assert best["name"] == "new"
    assert best["p_best"] > 0.99
    assert best["loss"] < out["worth"] < other["loss"]
    assert answer("compare", table, *OPTIONS)["rankings"][0]["at"] == pytest.approx(4 * 9000)
    assert (tmp_path / "a.svg").stat().st_size > 10_000


def test_large_worth_makes_either_will_do(table: Path):
    out = answer("compare", table, *OPTIONS, "--worth", "0.2")
    (ranking,) = out["rankings"]
    assert (ranking["answer"], ranking["winner"], set(ranking["chosen"])) == ("either", None, {"old", "new"})


def test_level_changes_intervals_and_no_decision(table: Path):
    decided = ("state", "action", "p_worth", "p_nearly_all", "worth")
    wide, narrow = (answer("fit", table, *OPTIONS, "--level", level)["curves"] for level in ("0.95", "0.5"))
    for one, other in zip(wide, narrow, strict=True):
        assert [one[name] for name in decided] == [other[name] for name in decided]
        assert one["ceiling"]["high"] - one["ceiling"]["low"] > other["ceiling"]["high"] - other["ceiling"]["low"]


def kinds(out: dict) -> set[str]:
    return {block["kind"] for section in out["sections"] for block in section["blocks"] if block["type"] == "say"}


def test_price_gives_costs_in_money(table: Path):
    without, out = (answer("fit", table, *OPTIONS, "--where", "recipe=new", *more) for more in ((), ("--price", "2.5")))
    says = [block for section in out["sections"] for block in section["blocks"] if block.get("kind") == "doubling"]
    assert [block["values"]["price"] for block in says] == [2.5 * 9000]
    assert "$22,500" in says[0]["text"]
    assert "$" not in json.dumps(without["sections"])


def test_hours_of_cpus_have_no_price_of_gpus(table: Path):
    (series,) = read([table], Selection(x="gpu_hours", y="pass_rate", by=("recipe",), where=(("recipe", "new"),)))
    on_cpu = replace(series, facts=(*series.facts, fact("cpu_time")))
    assert [price_of_compute(data, 2.5) for data in (series, on_cpu)] == [2.5, None]


def test_forecast_far_beyond_the_data_is_noted(table: Path):
    assert "far" not in kinds(answer("forecast", table, *OPTIONS, "--at", "20000"))
    assert "far" in kinds(answer("forecast", table, *OPTIONS, "--at", "800k"))


def arms_with_costs(path: Path) -> Path:
    """Two arms: `quick` learns more per step, and a step of it takes four times as many tokens."""
    rng = np.random.default_rng(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "step", "tokens", "pass_rate"])
        for arm, middle, tokens in (("quick", 20, 4e6), ("cheap", 40, 1e6)):
            for step in range(4, 164, 4):
                reward = 0.2 + 0.4 / (1 + (middle / step) ** 1.6) + 0.004 * rng.standard_normal()
                writer.writerow([arm, step, step * tokens, f"{reward:.5f}"])
    return path


def test_compare_of_one_curve_and_a_log_without_one_says_why(tmp_path: Path):
    (losses := tmp_path / "losses.csv").write_text("step,loss\n1,0.9\n2,0.8\n3,0.7\n")
    (alone := tmp_path / "alone.csv").write_text(
        "step,reward\n" + "".join(f"{step},{0.6 * step / (step + 9):.4f}\n" for step in range(1, 30))
    )
    assert {"nothing_to_compare", "problem"} <= kinds(answer("compare", losses, alone))


def test_compare_leaves_out_an_axis_that_stands_still(tmp_path: Path):
    rows = ["run,step,gpu_hours,reward"]
    for step in range(1, 25):
        reward = 0.1 + 0.6 / (1 + (8 / step) ** 1.2) + 0.01 * (step % 3)
        rows += [f"a,{step},1.0,{reward:.4f}", f"b,{step},{step / 10},{0.9 * reward:.4f}"]
    (log := tmp_path / "log.csv").write_text("\n".join(rows))
    out = answer("compare", log)
    assert [row["axis"] for row in out["axes"]] == ["step"]


def test_compare_answers_on_each_axis_and_says_when_they_disagree(tmp_path: Path):
    log = arms_with_costs(tmp_path / "log.csv")
    options = ("--y", "pass_rate", "--start", "0.2", "--at")
    out = answer("compare", log, "--x", "step", *options, "60")
    assert {row["axis"]: row["winner"] for row in out["axes"]} == {"step": "quick", "tokens": "cheap"}
    assert {"axes_disagree", "uneven_steps"} <= kinds(out)
    by_tokens = answer("compare", log, "--x", "tokens", *options, "6e7")
    assert by_tokens["rankings"][0]["winner"] == "cheap"


def test_curves_of_one_task_inform_each_other_unless_alone(tmp_path: Path):
    rng, path = np.random.default_rng(2), tmp_path / "log.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "gpu_hours", "pass_rate"])
        for arm, ceiling in {"a": 0.60, "b": 0.62, "c": 0.58, "d": 0.61}.items():
            for compute in np.linspace(100, 3000, 20):
                reward = 0.4 + (ceiling - 0.4) / (1 + (900 / compute) ** 1.8) + 0.004 * rng.standard_normal()
                writer.writerow([arm, compute, f"{reward:.5f}"])
    words = ("fit", path, "--start", "0.4")
    together, alone = answer(*words), answer(*words, "--alone")
    assert all(len(curve["pooled_with"]) == 3 for curve in together["curves"])
    assert all(curve["pooled_with"] == [] for curve in alone["curves"])
    assert [curve["alone"]["ceiling"] for curve in together["curves"]] == [
        curve["ceiling"] for curve in alone["curves"]
    ]
    assert "pooled" in kinds(together) - kinds(alone)


def test_a_share_may_be_typed_as_per_cent(table: Path):
    """On the command line as in Python: both check options by the same rules."""
    typed = [scalerl("fit", table, *OPTIONS, "--level", level, "--json") for level in ("0.8", "80%")]
    assert typed[0].stdout == typed[1].stdout
    assert typed[0].returncode == 0


@pytest.mark.parametrize("command", ["fit", "forecast", "compare", "backtest --fraction 0.25"])
def test_explain_adds_to_the_answer(table: Path, command: str):
    name, *own = command.split()
    short, whole = (scalerl(name, table, *OPTIONS, *own, *more) for more in ((), ("--explain",)))
    assert "midpoint" not in short.stdout
    assert "midpoint" in whole.stdout
    told = [line.strip() for line in whole.stdout.splitlines() if line.strip()]
    assert len(told) == len(set(told))


def test_help_shows_few_options_and_help_all_the_rest():
    few, every = (scalerl("fit", option).stdout for option in ("--help", "--help-all"))
    for option in ("--x", "--y", "--by", "--start", "--gpus", "--at", "--plot", "--json", "--explain"):
        assert option in few
    for option in ("--skip-before", "--run-spread", "--method"):
        assert option not in few
        assert option in every
    assert "<" not in few + every  # no types of Python, such as <list[str]>


RECOGNISED = {
    "log.jsonl": "Compute: hours (built from the log's times). Reward: reward. Both detected",
    "log.jsonl --gpus 8 --y reward": "Compute: gpu_hours (built from the log's times). Reward: reward. Compute was",
    "log.jsonl --x step": "Compute: step. Reward: reward. The reward was",
    "log.csv --y eval/math500/acc": "Reward: eval/math500/acc.",
    "rows.csv": "Compute: step (the number of the row; name a column with --x). Reward: reward. The reward was",
}


def test_recognised_columns_are_told_from_those_named(tmp_path: Path):
    rewards = [0.3 + 0.3 / (1 + (10 / step) ** 2) for step in range(1, 41)]
    rows = [{"step": step, "time/step": 90, "reward": reward} for step, reward in enumerate(rewards, start=1)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{step},{0.3 + step / 100},{0.2 + step / 100}\n" for step in range(1, 41)]
    (tmp_path / "log.csv").write_text("step,eval/aime/acc,eval/math500/acc\n" + "".join(lines))
    (tmp_path / "rows.csv").write_text("reward,loss\n" + "".join(f"{reward},0.1\n" for reward in rewards))
    for words, said in RECOGNISED.items():
        assert said in scalerl("fit", *words.split(), cwd=tmp_path).stdout


def test_a_curve_with_a_fault_does_not_stop_the_others(tmp_path: Path, table: Path):
    text = table.read_text() + "bad,1,early,100,nan\nbad,1,early,200,0.5\nshort,1,early,100,0.5\n"
    path = tmp_path / "runs.csv"
    path.write_text(text)
    curves = {curve["name"]: curve for curve in answer("fit", path, *OPTIONS)["curves"]}
    assert curves["new"]["state"] in ("rising", "levelling off")
    assert (curves["short"]["state"], curves["short"]["missing"]["num"]) == ("too early", 2)
    assert curves["bad"]["num_points"] == 1


@pytest.fixture(scope="module")
def logs(table: Path) -> Path:
    """The folder of the table above, with logs that have faults beside it."""
    folder, header = table.parent, "compute,reward\n"
    for name, text in {
        "empty.csv": "",
        "good.csv": header + "".join(f"{c},{0.4 + 0.01 * c}\n" for c in range(1, 12)),
        "nan.csv": header + "1,0.4\n2,nan\n3,0.5\n",
        "all_nan.csv": header + "1,nan\n2,nan\n",
        "percent.csv": header + "1,40\n2,50\n3,60\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "study" / "runs").mkdir(parents=True)
    (folder / "study" / "study.json").write_text("{}")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 8)
    return folder


FAULTS = {
    "fit god.csv": ("god.csv", "good.csv"),
    "fit empty.csv": ("empty",),
    "fit binary.csv": ("binary",),
    "fit study": ("study", "holds no rows yet"),
    "fit good.csv --y rewrd": ("rewrd", "reward", "compute"),
    "fit all_nan.csv": ("all_nan.csv", "0 have a number for 'reward'", "--y"),
    "fit percent.csv --y-scale 1": ("--y-scale",),
    "fit good.csv --where compute=99": ("compute", "99"),
    "fit nan.csv --where reward!=nan": ("no usable curve", "2 usable points and needs 6"),
    "fit good.csv --where compute": ("--where", "COLUMN=VALUE"),
    "fit good.csv --where !=3": ("--where", "COLUMN!=VALUE"),
    "fit good.csv --form sigmod": ("sigmod", "sigmoid"),
    "fit good.csv --level 90": ("--level", "90"),
    "fit good.csv --level nan": ("--level", "nan"),
    "fit good.csv --start frist": ("frist", "first"),
    "fit good.csv --start nan": ("--start", "nan"),
    "fit good.csv --y-scale percent": ("percent", "pm1"),
    "fit good.csv --fit-until inf": ("--fit-until", "inf"),
    "fit good.csv --worth nan": ("--worth", "nan"),
    "fit good.csv --price -1": ("--price", "-1"),
    "fit good.csv --skip-before early": ("--skip-before", "early", "10%"),
    "fit good.csv --skip-before inf": ("--skip-before", "inf"),
    "fit good.csv --skip-before nan%": ("--skip-before", "nan"),
    "fit good.csv --skip-before 9": ("no usable curve", "8 are left out by --skip-before"),
    "fit percent.csv --form log-linear --y-scale none": ("log-linear needs rewards with limits",),
    "fit good.csv --method paper --form power": ("--method paper fits the sigmoid",),
    "fit good.csv --ceiling 0.7,0.6 --method paper": ("--ceiling takes one number", "the lower one first"),
    "fit good.csv --ceiling 0.6,0.7": ("--ceiling takes one number",),
    "fit good.csv --plot out.pdf": ("out.pdf", ".png", ".svg"),
    "forecast runs.csv --at inf": ("error: --at ",),
    "forecast runs.csv --at 100,nan": ("error: --at ",),
    "forecast runs.csv --at 0": ("error: --at ",),
    "forecast runs.csv --reach nan": ("error: --reach ",),
    "forecast runs.csv --reach 0.5,60": ("error: --reach ",),
    "compare runs.csv --at -1": ("error: --at ",),
    "compare runs.csv --by file": ("--by",),
    "backtest runs.csv --fraction 1.5": ("error: --fraction ",),
    "backtest runs.csv --holdout part=latter": ("latter", "late", "early"),
}


@pytest.mark.parametrize("line", FAULTS)
def test_a_users_mistake_is_one_sentence_and_exit_code_two(line: str, logs: Path):
    done = scalerl(*line.split(), cwd=logs)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert [word for word in FAULTS[line] if word not in done.stderr] == []


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("scalerl.cli.app", fail)


FROM_RANK = LearnerError("rank 1 failed")
FROM_RANK.add_note("Traceback of rank 1\n")


@pytest.mark.parametrize(
    "error, code, said",
    [
        *((error("wrong"), 2, "error: wrong\n") for error in (UsageError, InputError, RecipeError)),
        (RecipeError("wrong", "worse"), 2, "error: wrong\nerror: worse\n"),
        (StoreError("wrong"), 1, "error: wrong\n"),
        (FROM_RANK, 1, "Traceback of rank 1\nerror: rank 1 failed\n"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "error: the output cannot be written: the disk is full\n",
        ),
        (OSError(errno.EACCES, "Permission denied", "runs"), 1, "error: runs: Permission denied\n"),
    ],
)
def test_our_own_errors_are_sentences(
    error: Exception, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    failing(monkeypatch, error)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "error", [ValueError("shapes differ"), np.linalg.LinAlgError("singular"), RuntimeError("no"), OSError(5, "no")]
)
def test_a_fault_in_the_code_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        main()


@pytest.mark.parametrize("words", ["report", "study", "train", "recipe show"])
def test_a_name_too_long_for_a_file_is_a_sentence(words: str):
    done = scalerl(*words.split(), "n" * 300)
    assert done.returncode == 2
    assert re.fullmatch("error: n{300}\\S*: this name is too long for a file or folder\n", done.stderr)


def test_a_plot_without_the_report_extra_is_refused(logs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = scalerl("fit", "good.csv", "--plot", "a.png", cwd=logs)
    assert done.returncode == 2
    assert "scalerl[report]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_closed_pipe_is_not_an_error_message():
    code = "from scalerl.cli import main; main()"
    command = f"{sys.executable} -c '{code}' recipe show scalerl | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=600)
    assert done.stdout.startswith("scalerl: ")
    assert "Traceback" not in done.stderr


LIGHT = {
    "recipe show mine.toml": "loss average",
    "train scalerl --set loss=cisp": 'did you mean "cispo"?',
    "train tiny-cpu --out there": "already contains a run",
    "train tiny-cpu --out begun --resume": "does not contain a run to resume",
}


def test_what_is_wrong_is_said_before_torch_is_loaded(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('extends = "scalerl"\nweights = "token"\n')
    for name, file in (("there", store.RECIPE), ("begun", store.ENV)):
        store.create_run(tmp_path / name)
        store.write_json(tmp_path / name / file, {})
    code = """import sys
from scalerl.runfolder import store
from scalerl.cli import app, main
assert not {'pydantic', 'torch', 'numpy'} & sys.modules.keys()
for line in sys.argv[1:]:
    sys.argv = ['scalerl', *line.split()]
    try:
        main()
    except SystemExit:
        pass
    assert not {'torch', 'numpy'} & sys.modules.keys(), line
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *LIGHT], capture_output=True, text=True, cwd=tmp_path, check=True, timeout=600
    )
    assert [said for said in LIGHT.values() if said not in done.stdout + done.stderr] == []


def test_every_option_with_commas_may_be_repeated():
    def options(command: Any) -> Iterator[Any]:
        yield from command.params
        for each in getattr(command, "commands", {}).values():
            yield from options(each)

    with_commas = [each for each in options(typer.main.get_command(app)) if "[," in (each.metavar or "")]
    assert len(with_commas) > 5
    assert [each.opts for each in with_commas if not each.multiple] == []


def test_a_repeated_by_gives_a_curve_for_each_value_of_both(table: Path):
    curves = answer("fit", table, "--x", "gpu_hours", "--y", "pass_rate", "--by", "recipe", "--by", "part")["curves"]
    assert {curve["name"] for curve in curves} == {"old/early", "old/late", "new/early", "new/late"}


def test_different_rewards_and_axes_are_not_added_up_silently(tmp_path: Path):
    steps, rng = np.arange(1, 21), np.random.default_rng(0)
    for name, axis, y in (("a", "step", "reward"), ("b", "step", "accuracy"), ("c", "gpu_hours", "reward")):
        rewards = 0.2 + 0.5 * steps / (steps + 5) + 0.005 * rng.standard_normal(len(steps))
        lines = [f"{axis},{y}", *(f"{step},{reward:.4f}" for step, reward in zip(steps, rewards, strict=True))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    compared = answer("compare", tmp_path / "a.csv", tmp_path / "b.csv")
    kinds = [block.get("kind") for section in compared["sections"] for block in section["blocks"]]
    assert "unlike_rewards" in kinds
    refused = scalerl("compare", tmp_path / "a.csv", tmp_path / "c.csv")
    assert (refused.returncode, "gpu_hours and step" in refused.stderr) == (2, True)


def test_fit_imports_no_more_than_numpy(tmp_path: Path):
    rows = [f"{step},{0.4 + 0.2 / (1 + 30 / step):.4f}" for step in range(5, 200, 10)]
    (tmp_path / "log.csv").write_text("\n".join(["step,reward", *rows]))
    code = """import sys
from scalerl.cli import main
sys.argv = ['scalerl', 'fit', 'log.csv']
try:
    main()
except SystemExit:
    pass
print(sorted({'numpy', 'scipy', 'pydantic', 'pandas', 'sqlite3', 'torch'} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "['numpy']"
