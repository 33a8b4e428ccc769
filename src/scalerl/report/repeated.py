"""Work that a run did twice because it was interrupted between two checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from scalerl import store


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Work of earlier attempts that a resumed run did again."""

    num_steps: int
    gpu_hours: float
    flops: float


def repeated_work(folder: str | Path) -> Repeated | None:
    """Return the steps that a later attempt of a run took again, and what they cost; None if there are none."""
    path = Path(folder) / store.METRICS
    counted = {(row["step"], row.get("attempt", 0)) for row in store.read_metrics(folder)}
    steps, spent = 0, {"gpu_hours": 0.0, "flops": 0.0}
    before: store.Row = {}
    for _, row in store.parse_lines(path.read_text(encoding="utf-8"), path) if path.is_file() else ():
        if (row["step"], row.get("attempt", 0)) not in counted:
            steps += 1
            for key in spent:
                spent[key] += max(float(row.get(key, 0.0)) - float(before.get(key, 0.0)), 0.0)
        before = row
    return Repeated(num_steps=steps, **spent) if steps else None
