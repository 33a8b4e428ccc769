"""Grade texts with one grader, in order."""

import math
from collections.abc import Hashable, Sequence

from scalerl.training.graders.pool import Graded, GraderPool, GraderSpec


def grade_all(pool: GraderPool, spec: GraderSpec, pairs: Sequence[tuple[str, str]]) -> list[Graded]:
    """Grade texts with their references; return the results in order. Nothing else may be pending."""
    assert not pool.num_pending
    for number, (text, answer) in enumerate(pairs):
        pool.submit(number, spec, text, answer)
    graded: dict[Hashable, Graded] = {}
    while len(graded) < len(pairs):
        graded |= {result.key: result for result in pool.poll(math.inf)}
    return [graded[number] for number in range(len(pairs))]
