"""The programs of hostile_programs.txt."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(x86_64, aarch64, *arguments):
    number = aarch64 if os.uname().machine == 'aarch64' else x86_64
    return libc.syscall(number, *arguments) if number >= 0 else -1
def gained(*results):
    return results if max(results) >= 0 else None
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """An attack and how it may end."""

    code: str
    ends: frozenset[str]

    def aimed_at(self, outside: Mapping[str, object]) -> str:
        """Return the program with real targets."""
        code = self.code
        for name, target in outside.items():
            code = re.sub(rf"\b{name.upper()}\b", lambda _, target=target: repr(target), code)
        return _PRELUDE + code


def _section(title: str) -> dict[str, Hostile]:
    text = Path(__file__).with_suffix(".txt").read_text()
    section = text.partition(f"#### {title}\n")[2].partition("\n#### ")[0]
    programs = {}
    for program in section.split("\n## ")[1:]:
        head, _, code = program.partition("\n")
        name, ends, _ = (part.strip() for part in head.split("|"))
        programs[name] = Hostile(code=code, ends=frozenset(ends.split() or ["passed"]))
    return programs


OUTSIDE, EXHAUSTION, CHEATS = map(_section, ("OUTSIDE", "EXHAUSTION", "CHEATS"))
