"""The predictive half can be imported where POSIX is missing: no `fcntl`, no `os.fork`, no `signal.SIGKILL`."""

import subprocess
import sys
from pathlib import Path

from without_posix import HIDE_POSIX

SOURCE = Path(__file__).parents[1] / "src" / "scalerl"
ROOMS = ("config", "curves", "logs", "report", "study", "cli")

# Run in a fresh process. Only imports made by scalerl are restricted: the standard library adapts itself.
CHECK = (
    HIDE_POSIX
    + """
import importlib

failed = []
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except Exception as error:
        failed.append(f"{module}: {type(error).__name__}: {error}")
print("\\n".join(failed))
"""
)


def check(*modules: str, path: Path | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CHECK, *modules], capture_output=True, text=True, cwd=path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_predictive_half_imports_without_posix():
    paths = [*SOURCE.glob("*.py"), *(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))]
    names = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in paths]
    modules = sorted(name.removesuffix(".__init__") for name in names if not name.endswith("__main__"))
    assert "scalerl.curves.fit" in modules
    assert check(*modules) == []


def test_the_check_sees_what_only_posix_has(tmp_path: Path):
    """A package of the same name with one offender of each kind."""
    (tmp_path / "scalerl").mkdir()
    (tmp_path / "scalerl" / "__init__.py").write_text("")
    offenders = {
        "module": "import fcntl",
        "name": "from signal import SIGKILL",
        "attribute": "import os\nfork = os.fork",
        "fine": "import os, signal\nwhere = os.getcwd()\ndef stop():\n    return signal.SIGKILL",
    }
    for name, text in offenders.items():
        (tmp_path / "scalerl" / f"{name}.py").write_text(text)
    found = check(*(f"scalerl.{name}" for name in offenders), path=tmp_path)
    assert [line.split(":")[0] for line in found] == ["scalerl.module", "scalerl.name", "scalerl.attribute"]
