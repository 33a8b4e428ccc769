"""Pages of docs/results say what the commands on them print, where these take seconds."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
sys.path.append(str(ROOT / "benchmarks"))
FORWARD = (RESULTS / "forward.md").read_text()
study_table = importlib.import_module("study_table")


def test_compute_to_a_reward_is_that_of_the_table(capsys):
    study_table.reach(str(RESULTS / "forward/runs.csv.gz"), "scalerl", "0.8", "0.9", "0.94")
    printed = {row.split()[0]: row.split()[3:] for row in capsys.readouterr().out.splitlines()[1:-1]}
    rows = {
        "256 completions a step": "bs256-seed1",
        "4 generations per prompt": "gen4-seed1",
        "PipelineRL-1": "pipelinerl-1-seed1",
        "PPO-off-policy-8": "ppo-off-policy-8-seed1",
        "DAPO": "dapo-seed1",
        "1,024 completions a step": "bs1024-seed1",
        "Magistral": "magistral-seed1",
        "GRPO": "grpo-seed1",
    }
    for title, run in rows.items():
        (cells,) = re.findall(rf"^\| {re.escape(title)} \| (.*) \|$", FORWARD, flags=re.MULTILINE)
        assert cells.split(" | ") == printed[run], title


@pytest.mark.parametrize("share", ["tenth", "quarter"])
def test_sealed_forecasts_held_what_the_page_says(share, capsys):
    study_table.score(str(RESULTS / "forward/sealed" / share), str(RESULTS / "forward/runs.csv.gz"))
    held = re.findall(r"held (\d+)% of (\d+)", capsys.readouterr().out)
    (cells,) = re.findall(rf"^\| a {share} \| 13 \| (\d+) \| (\d+) % \| (\d+) % \| (\d+) % \|", FORWARD, re.MULTILINE)
    assert [(cells[3], cells[0]), (cells[2], cells[0]), (cells[1], cells[0])] == held
