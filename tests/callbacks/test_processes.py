"""Several processes stop at the same step: what the first one decides reaches the others."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch.distributed as dist
from types import SimpleNamespace
from scalerl.callbacks import ForecastCallback

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
callback = ForecastCallback(stop=lambda forecast: True, give_up_after=12, quiet=True)
args = SimpleNamespace(world_size=2)
state = SimpleNamespace(is_world_process_zero=rank == 0, global_step=0, log_history=[], max_steps=100)
control = SimpleNamespace(should_training_stop=False)
for step in range(1, 4):
    state.global_step = step
    if rank == 0 and step == 2:
        callback.stop_reason = "the first process says so"
    callback.on_step_end(args, state, control)
    assert not control.should_training_stop or step == 3, "no process may stop between two logs"
    callback.on_log(args, state, control, logs={"loss": 1.0})
    if control.should_training_stop:
        break
print(step, callback.stop_reason)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_all_processes_stop_at_the_same_step(tmp_path: Path):
    running = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=600)[0].strip() for process in running]
    assert printed == ["2 the first process says so"] * 2
