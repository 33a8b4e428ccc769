"""Several rows of one run at the same compute: rows that were written twice, and evaluations that were made twice."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from scalerl.logs.facts import Fact
from scalerl.logs.points import Point

# Share of the rows that repeat another one, from which it is taken for more than chance.
_MANY = 1 / 3


def drop_repeated(points: Sequence[Point]) -> tuple[list[Point], tuple[Fact, ...]]:
    """Drop the rows that a log holds twice; return the rest and what was done, or what may be several runs in one.

    Rewards with few different values, such as 0 and 1 of single answers, are equal without being the same row.
    """
    computes = {(point.run, point.x) for point in points}
    if len(computes) == len(points) or 2 * len({str(point.y) for point in points}) < len(computes):
        return list(points), ()
    same = ("run", "x", "y", "num_samples", "labels", "is_held_out")
    once = {tuple(str(getattr(point, name)) for name in same): point for point in points}
    facts: tuple[Fact, ...] = ()
    if len(points) - len(once) > _MANY * len(points):
        facts = (Fact(kind="repeated_rows", values={"num": len(points) - len(once), "num_rows": len(points)}),)
        points = list(once.values())
    counts = Counter((point.run, point.x) for point in points if not point.is_held_out)
    num = median(counts.values()) if counts else 0
    # Words and evaluation sets that differ have notes of their own.
    if num >= 2 and len({point.labels for point in points}) == 1:
        facts += (Fact(kind="several_per_compute", values={"x": points[0].x_label, "num": num}),)
    return list(points), facts
