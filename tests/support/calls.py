"""Calls for worker processes, which import this module as the tests do."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from scalerl.forecast.curves import Fit, fit


def fitted(seed: int) -> Fit:
    noise = np.random.default_rng(seed)
    compute = np.linspace(0.3, 4.0, 40)
    return fit(compute, 0.3 + 0.3 / (1 + compute**-2.0) + 0.005 * noise.normal(size=40), start=0.3)


def is_loaded(name: str) -> bool:
    return name in sys.modules


def ends_unless(here: int) -> int:
    """Ends the process it runs in, but for one."""
    if os.getpid() != here:
        os._exit(1)
    return here


def fails(text: str) -> None:
    raise ValueError(text)


def meet(folder: str, num: int) -> int:
    """Return once so many workers are in this call."""
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < num:
        time.sleep(0.01)
    return os.getpid()
