"""The predictive commands as a user types them."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import answer, scalerl

from scalerl import store
from scalerl.cli import main
from scalerl.errors import InputError, LearnerError, RecipeError, StoreError, UsageError


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
    more = ("--at", "20000,40000", "--reach", "0.5,0.9")
    (old, new) = answer("forecast", table, *named, *more)["curves"]
    assert [curve["name"] for curve in (old, new)] == ["old", "new"]
    for curve, truth in ((new, 0.62), (old, 0.54)):
        assert curve["units"] == {"compute": "gpu_hours", "reward": "pass_rate", "reward_scale": "1"}
        assert (curve["form"], curve["num_points"], curve["num_runs"]) == ("sigmoid", 60, 2)
        assert (curve["verdict"], curve["start"]["value"]) == ("known", 0.4)
        assert curve["ceiling"]["low"] < truth < curve["ceiling"]["high"]
    assert [row["compute"] for row in new["at"]] == [20000, 40000]
    reached, never = new["reach"]
    assert reached["compute"]["value"] == pytest.approx(2600, rel=0.2)
    assert (never["compute"], never["notes"][0]["kind"]) == (None, "above_ceiling")


def test_backtest_scores_held_out_rows_and_fractions(table: Path):
    out = answer("backtest", table, *OPTIONS, "--holdout", "part=late", "--fraction", "0.4,0.6")
    for curve in out["curves"]:
        assert (curve["num_points"], curve["holdout"]["num_points"]) == (40, 20)
        assert curve["holdout"]["rmse"] < 0.02
        assert [row["fraction"] for row in curve["fractions"]] == [0.4, 0.6]
    assert out["forms"]["errors"]


def test_compare_adds_pairs_and_a_ranking(table: Path, tmp_path: Path):
    out = answer("compare", table, *OPTIONS, "--at", "20000", "--plot", tmp_path / "a.svg")
    (pair,) = out["pairs"]
    assert (pair["kind"], pair["winner"]) == ("higher_ceiling", "new")
    best = out["rankings"][0]["standings"][0]
    assert best["name"] == "new"
    assert best["p_best"] > 0.99
    assert (tmp_path / "a.svg").stat().st_size > 10_000


@pytest.mark.parametrize(
    "command, first",
    [
        ("fit", r"new +ok +0\.6\d\d \[0\.6\d\d, 0\.6\d\d\] +\+0\.0\d\d \[.*\] +(stop|go on): .*"),
        ("forecast", r"new +reward at 18,000 +0\.6\d\d \[0\..*\]"),
        ("compare", r"Take new: best with probability over 99%\."),
        ("backtest --fraction 0.25 --where recipe=new", r"new +first 25% .*"),
    ],
)
def test_first_answer_is_one_line_per_curve(table: Path, command: str, first: str):
    name, *own = command.split()
    short, whole = (scalerl(name, table, *OPTIONS, *own, *more) for more in ((), ("--explain",)))
    lines = [line.rstrip() for line in short.stdout.splitlines()]
    assert any(re.fullmatch(first, line) for line in lines), short.stdout
    assert "compute: gpu_hours, reward: pass_rate; --explain says more" in lines
    assert "midpoint" not in short.stdout
    assert "The best evaluation" not in short.stdout
    told = [line.strip() for line in whole.stdout.splitlines() if line.strip()]
    assert len(told) == len(set(told))
    assert "midpoint" in whole.stdout
    assert whole.stdout.count("new: 95% of the gain") + whole.stdout.count("new: It levels off") == 1


def test_help_shows_few_options_and_help_all_the_rest():
    few, every = (scalerl("fit", option).stdout for option in ("--help", "--help-all"))
    for option in ("--x", "--y", "--by", "--start", "--gpus", "--at", "--plot", "--json", "--explain"):
        assert option in few
    for option in ("--skip-before", "--run-spread", "--prior", "--method"):
        assert option not in few
        assert option in every
    assert "<" not in few + every  # no types of Python, such as <list[str]>


RECOGNISED = {
    "log.jsonl": "compute: hours (built from the log's times), reward: reward (recognised); name others",
    "log.jsonl --gpus 8 --y reward": "compute: gpu_hours (built from the log's times), reward: reward; name",
    "log.jsonl --x step": "compute: step, reward: reward (recognised); name others",
    "log.csv": "reward: eval/aime/acc (recognised; also there: eval/math500/acc); name others with --x and --y",
    "log.csv --y eval/math500/acc": "reward: eval/math500/acc; name",
}


def test_recognised_columns_are_told_from_those_named(tmp_path: Path):
    rewards = [0.3 + 0.3 / (1 + (10 / step) ** 2) for step in range(1, 41)]
    rows = [{"step": step, "time/step": 90, "reward": reward} for step, reward in enumerate(rewards, start=1)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{step},{0.3 + step / 100},{0.2 + step / 100}\n" for step in range(1, 41)]
    (tmp_path / "log.csv").write_text("step,eval/aime/acc,eval/math500/acc\n" + "".join(lines))
    for words, said in RECOGNISED.items():
        assert said in scalerl("fit", *words.split(), cwd=tmp_path).stdout


def test_a_curve_with_a_fault_does_not_stop_the_others(tmp_path: Path, table: Path):
    text = table.read_text() + "bad,1,early,100,nan\nbad,1,early,200,0.5\nshort,1,early,100,0.5\n"
    path = tmp_path / "runs.csv"
    path.write_text(text)
    curves = {curve["name"]: curve for curve in answer("fit", path, *OPTIONS)["curves"]}
    assert curves["new"]["verdict"] == "known"
    assert curves["short"]["verdict"] == "too_few"
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
    "fit nan.csv --where reward!=nan": ("Too few points: 2 of the 6",),
    "fit good.csv --where compute": ("--where", "COLUMN=VALUE"),
    "fit good.csv --where !=3": ("--where", "COLUMN!=VALUE"),
    "fit good.csv --form sigmod": ("sigmod", "sigmoid"),
    "fit good.csv --level 90": ("--level", "90"),
    "fit good.csv --level nan": ("--level", "nan"),
    "fit good.csv --start frist": ("frist", "first"),
    "fit good.csv --start nan": ("--start", "nan"),
    "fit good.csv --y-scale percent": ("percent", "pm1"),
    "fit good.csv --fit-until inf": ("--fit-until", "inf"),
    "fit good.csv --margin nan": ("--margin", "nan"),
    "fit good.csv --skip-before early": ("--skip-before", "early", "10%"),
    "fit good.csv --skip-before inf": ("--skip-before", "inf"),
    "fit good.csv --skip-before nan%": ("--skip-before", "nan"),
    "fit good.csv --skip-before 9": ("no usable curve", "left out 8"),
    "fit percent.csv --form log-linear --y-scale none": ("log-linear needs rewards with limits",),
    "fit good.csv --method paper --form power": ("--method paper fits the sigmoid",),
    "fit good.csv --method paper --pool": ("no intervals to pool",),
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


@pytest.mark.parametrize("error", [ValueError("shapes differ"), np.linalg.LinAlgError("singular"), RuntimeError("no")])
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
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("scalerl: ")
    assert "Traceback" not in done.stderr


LIGHT = {
    "recipe show mine.toml": "loss average",
    "train scalerl --set loss=cisp": 'did you mean "cispo"?',
    "train tiny-cpu --out there": "already holds a run",
    "train tiny-cpu --out begun --resume": "does not hold a run to resume",
}


def test_what_is_wrong_is_said_before_torch_is_loaded(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('extends = "scalerl"\nweights = "token"\n')
    for name, file in (("there", store.RECIPE), ("begun", store.ENV)):
        store.create_run(tmp_path / name)
        store.write_json(tmp_path / name / file, {})
    code = """import sys
from scalerl import store
from scalerl.cli import main
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
        [sys.executable, "-c", code, *LIGHT], capture_output=True, text=True, cwd=tmp_path, check=True, timeout=60
    )
    assert [said for said in LIGHT.values() if said not in done.stdout + done.stderr] == []
