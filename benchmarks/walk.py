"""How much of the package a command walks through: functions entered, and returns to a module that was left before.

`python benchmarks/walk.py fit log.csv` runs the command and prints, for each module in the order of entry, how many of
its functions were entered and how often the walk came back to it. Functions count once, where they are first entered.
"""

import inspect
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import scalerl
from scalerl.cli import main

PACKAGE = Path(scalerl.__file__).parent


def walked(arguments: list[str]) -> list[tuple[str, str]]:
    """Return the module and the name of each function that a command enters, in order."""
    entered: dict[Any, tuple[str, str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in entered or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        file = Path(code.co_filename)
        # A comprehension belongs to the function around it.
        if file.is_relative_to(PACKAGE) and not code.co_name.startswith("<"):
            entered[code] = str(file.relative_to(PACKAGE)), code.co_qualname

    sys.argv = ["scalerl", *arguments]
    sys.setprofile(note)
    try:
        main()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    return list(entered.values())


def table(walk: list[tuple[str, str]]) -> list[str]:
    """Return a line for each module, and one for all."""
    entered, returns = Counter[str](), Counter[str]()
    before = ""
    for module, _ in walk:
        if module != before and module in entered:
            returns[module] += 1
        entered[module] += 1
        before = module
    lines = [f"{num:5d} {returns[module]:5d}  {module}" for module, num in entered.items()]
    return ["functions, returns, module", *lines, f"{entered.total():5d} {returns.total():5d}  in all"]


if __name__ == "__main__":
    print("\n".join(table(walked(sys.argv[1:]))), file=sys.stderr)
