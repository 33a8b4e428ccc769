"""The files that a bare Python interpreter needs: itself, the standard library and the shared libraries of both."""

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass

from scalerl.errors import SandboxError

# Modules of the standard library that bring shared libraries with them.
_MODULES = ["zlib", "bz2", "lzma", "ctypes", "hashlib", "ssl", "sqlite3", "decimal", "uuid", "pyexpat", "_elementtree"]

_PROBE = f"""
import ctypes, importlib, json, os, sys, sysconfig
for name in {_MODULES!r}:
    try: importlib.import_module(name)
    except ImportError: pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_size_t), ("name", ctypes.c_char_p)]
libraries = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    name = os.fsdecode(info.contents.name or b"")
    if name.startswith("/"): libraries.append(name)
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
print(json.dumps({{
    "libraries": libraries,
    "folders": sorted({{sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}}),
    "executable": os.path.realpath(sys.executable),
}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter and what it needs to run, by absolute path."""

    executable: str
    folders: tuple[str, ...]
    """The standard library."""
    packages: tuple[str, ...]
    """Folders within these that hold installed packages, which are not to be seen."""
    libraries: tuple[str, ...]
    """Shared libraries outside these folders, the loader among them, by the names under which they are looked up."""


@functools.cache
def interpreter() -> Interpreter:
    """Return the interpreter that runs this process, without its virtual environment."""
    executable = os.path.realpath(sys.executable)
    try:
        answer = subprocess.run(
            [executable, "-I", "-S", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=True,
        )
        values = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"{executable} cannot be asked which files it needs: {error}") from error
    folders = tuple(values["folders"])
    packages = [os.path.join(folder, name) for folder in folders for name in ("site-packages", "dist-packages")]
    return Interpreter(
        executable=values["executable"],
        folders=folders,
        packages=tuple(path for path in packages if os.path.isdir(path)),
        libraries=tuple(path for path in values["libraries"] if not path.startswith(folders)),
    )
