import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_fit_a_csv_runs_and_ends_with_a_forecast():
    done = subprocess.run([sys.executable, EXAMPLES / "fit_a_csv.py"], capture_output=True, text=True, check=True)
    assert "improved has the higher ceiling" in done.stdout
    assert "within 0.01 of the ceiling" in done.stdout


def test_the_one_page_loop_is_one_page_and_trains():
    path = EXAMPLES / "one_page_loop.py"
    assert path.read_text().count("\n") < 150
    done = subprocess.run([sys.executable, path, "2"], capture_output=True, text=True, check=True)
    assert "step 2: correct" in done.stdout
    assert "evaluation:" in done.stdout
