"""Programs that run as another user of this machine, as an attacker would."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

_NOBODY = 65534
needs_another_user = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def run_as_another(
    program: str, *arguments: object, imports: str = "os", variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a program, with `imports` loaded, as the user nobody, who need not be able to read this interpreter."""
    become = f"os.setgroups([]); os.setgid({_NOBODY}); os.setuid({_NOBODY}); os.chdir('/')"
    code = f"import os, sys, {imports}\n{become}\n{program}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, env=dict(variables or {}), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )
