"""Read and write tensors in a folder of safetensors files, whole or divided by rows among ranks.

    tensors.<kind>.safetensors                 every tensor of a kind, whole
    tensors.<kind>.<rank>-of-<num>.safetensors the rows of one rank; the file's metadata says which

Files are divided as their writers were; a reader takes rows from whichever files have them. Tensors are read only when
they are accessed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.errors import CheckpointError
from scalerl.runfolder.json_text import parse_json

_FILE = re.compile(r"tensors\.(?P<kind>\w+)(\.(?P<rank>\d+)-of-(?P<num>\d+))?\.safetensors")
_ROWS = "rows"


def file_name(kind: str, rank: int | None = None, num: int = 1) -> str:
    """Return the name of the file for a kind of tensors; with a rank, for that rank's rows."""
    return f"tensors.{kind}.safetensors" if rank is None else f"tensors.{kind}.{rank:05d}-of-{num:05d}.safetensors"


def write_rows(path: Path, parts: Mapping[str, Tensor], rows: Mapping[str, tuple[int, int]]) -> None:
    """Write some rows of tensors; `rows` has each part's first row and the whole tensor's number of rows.

    Tensors that are not in `rows` are whole.
    """
    from safetensors.torch import save_file

    contiguous = {name: part.contiguous() for name, part in parts.items()}
    save_file(
        contiguous, path, metadata={_ROWS: json.dumps({name: list(rows[name]) for name in parts if name in rows})}
    )


class SavedKind(Mapping[str, Tensor]):
    """The tensors of one kind, by name."""

    def __init__(self, files: list[Path]) -> None:
        from safetensors import safe_open

        self._parts: dict[str, dict[int, tuple[int, Any]]] = {}
        """Number of rows and file of each part, by name and first row; a whole tensor may be in several files."""
        totals: dict[str, int] = {}
        for path in sorted(files):
            opened = safe_open(path, framework="pt")
            rows = parse_json((opened.metadata() or {}).get(_ROWS, "{}"))
            for name in opened.keys():  # noqa: SIM118 -- not a mapping
                num = (opened.get_slice(name).get_shape() or [1])[0]
                first, totals[name] = rows.get(name, (0, num))
                self._parts.setdefault(name, {})[first] = num, opened
        for name, parts in self._parts.items():
            if sum(num for num, _ in parts.values()) != totals[name]:
                raise CheckpointError(f"{files[0].parent} does not have all rows of {name}: a rank's file is missing")

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, name: str) -> Tensor:
        parts = [file.get_tensor(name) for _, (_, file) in sorted(self._parts[name].items())]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def rows(self, name: str, start: int, num: int) -> Tensor:
        """Return some rows of a tensor, reading only those."""
        end, pieces = start + num, []
        for first, (count, file) in sorted(self._parts[name].items()):
            low, high = max(start, first), min(end, first + count)
            if low < high:
                pieces.append(file.get_slice(name)[low - first : high - first])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class SavedTensors(Mapping[str, SavedKind]):
    """All tensors in a folder, by kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[Path]] = {}
        for path in folder.iterdir():
            if match := _FILE.fullmatch(path.name):
                self._files.setdefault(match["kind"], []).append(path)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, kind: str) -> SavedKind:
        return SavedKind(self._files[kind])
