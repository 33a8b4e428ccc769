"""A study within a lease (benchmarks/lease.py), with a trainer that takes no time."""

import importlib
import json
import shlex
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
lease = importlib.import_module("lease")

TRAINER = """
import sys, time
from pathlib import Path
from scalerl import store

words = sys.argv[1:]
if words[0] != "train":
    from scalerl.cli import main
    main()
folder = Path(words[words.index("--out") + 1])
once = folder.parents[1] / "failed-once"
if "dapo" in folder.name and not once.exists():
    once.touch()
    sys.exit("out of memory")
store.create_run(folder)
for step in range(0, 41):
    row = {"step": step, "attempt": 1, "set": "main", "gpu_hours": 0.0, "flops": float(step), "tokens": 0.0}
    reward = 0.2 + 0.5 * step / (step + 8)
    store.append_row(folder / store.EVALS, row | {"reward": reward, "num_samples": 400})
if folder.name.endswith("seed1"):
    time.sleep(1000)
"""


def test_lease_runs_in_order_repeats_a_failure_seals_and_cuts(tmp_path, monkeypatch, capsys):
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    monkeypatch.setattr(lease, "SCALERL", (sys.executable, str(trainer)))
    monkeypatch.setattr(lease, "SHARES", {"quarter": 0.25})
    runs = ["dapo-seed0", "cispo-seed1"]
    words = shlex.split("lease.py tiny-loss --jobs 2 --seconds 12 --set seeds=[0,1] --set budget.steps=40")
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "out"), "--runs", *runs])
    lease.main()
    said = capsys.readouterr().out
    order = [line.split()[2] for line in said.splitlines() if line.endswith(" started") and "seed" in line]
    assert order == [*runs, "dapo-seed0"]
    assert "dapo-seed0 ended, exit code 1" in said
    assert "dapo-seed0 ended, exit code 0" in said
    assert "cispo-seed1 cut: " in said
    sealed = sorted((tmp_path / "out/sealed").glob("*/*.json"))
    assert [file.stem for file in sealed] == ["cispo-seed1-quarter", "dapo-seed0-quarter"]
    assert json.loads(sealed[0].read_text())["options"]["fit_until"] == 10
