"""A study within a lease (benchmarks/lease.py), with a trainer that takes no time."""

import importlib
import json
import shlex
import sys

lease = importlib.import_module("lease")

TRAINER = """
import sys, time
from pathlib import Path
from scalerl.runfolder import store

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


def test_lease_runs_in_order_repeats_a_failure_seals_and_cuts(tmp_path, monkeypatch):
    said: list[str] = []

    def spent(opened) -> float:
        """The time is up when what is to come before has come."""
        return 60.0 if len(opened.sealed) == 2 and any("exit code 0" in line for line in said) else 0.0

    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    monkeypatch.setattr(lease, "SCALERL", (sys.executable, str(trainer)))
    monkeypatch.setattr(lease, "SHARES", {"quarter": 0.25})
    monkeypatch.setattr(lease.Lease, "spent", property(spent))
    monkeypatch.setattr(lease.Lease, "say", lambda opened, text: said.append(text))
    runs = ["dapo-seed0", "cispo-seed1"]
    words = shlex.split(
        "lease.py loss --jobs 2 --seconds 60 --set base=tiny-cpu --set seeds=[0,1] --set budget.steps=40"
    )
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "out"), "--runs", *runs])
    lease.main()
    assert said.pop() == "2 of 2 forecasts sealed, 0 runs not started"
    started = [line for line in said if line.endswith(" started")]
    assert started == [f"{run} started" for run in (*runs, "dapo-seed0")]
    ended = [line.partition(":")[0] for line in said if "ended" in line or "cut" in line]
    assert ended == ["dapo-seed0 ended, exit code 1", "dapo-seed0 ended, exit code 0", "cispo-seed1 cut"]
    sealed = sorted((tmp_path / "out/sealed").glob("*/*.json"))
    assert [file.stem for file in sealed] == ["cispo-seed1-quarter", "dapo-seed0-quarter"]
    assert json.loads(sealed[0].read_text())["options"]["fit_until"] == 10
