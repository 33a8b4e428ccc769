"""The grader for data sets of reasoning-gym: it scores an answer with the data set's own scorer.

Some scorers pass an answer to `eval`, or to sympy's `parse_expr`, which does the same. The model writes the answer, so
in a grader process both read only plain expressions: no attributes, and no calls except of mathematical functions.
"""

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from scalerl.errors import TaskError
from scalerl.runfolder.json_text import parse_json
from scalerl.training.graders.answer import reads_answer
from scalerl.training.graders.limit import limits_answer
from scalerl.training.graders.sandbox.values import decode

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_LIMIT_S = 0.9
"""CPU time for scoring an answer, which takes milliseconds."""
_SIZE = 10**9
"""Size of a data set in reasoning-gym: it limits the index, and entries are generated on demand."""

_FUNCTIONS = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt abs Abs factorial Rational".split()  # noqa: SIM905
# Numbers, names, texts without brackets, and signs. A point outside numbers would be an attribute, and so are brackets
# after a closing bracket, or after a name that is not a function's, a call.
_PLAIN = re.compile(
    rf"""(?: \d[\da-fA-FxX]*+ (?:\.\d*+)?+ | \.\d++
         | \b(?:{"|".join(_FUNCTIONS)})\b
         | (?!\d)\w++ (?! \s*+ [("'] )
         | (?<!\w) (?: "[\w\s,.+-]*+" | '[\w\s,.+-]*+' )
         | [)\]}}] (?! \s*+ \( )
         | [\s(\[{{,:+*/%^&|~<>=-] )*+""",
    re.VERBOSE,
)

# A value that is no number is not far from any: some scorers take it for right. They may ignore spaces.
_NO_NUMBER = re.compile(r"(?<![a-z])nan[ij]?(?![a-z])", re.IGNORECASE)


def make_source(dataset: str, difficulty: Mapping[str, Any], *, seed: int) -> "ProceduralDataset":
    """Return a data set of reasoning-gym; TaskError if it rejects the settings."""
    from reasoning_gym.factory import create_dataset

    try:
        return create_dataset(dataset, seed=seed, size=_SIZE, **difficulty)
    # It checks settings with assertions, and wrong types may raise any error.
    except Exception as error:
        raise TaskError(f'"{dataset}" rejects these settings: {error or type(error).__name__}') from error


@reads_answer
def gym(given: str | None, answer: str) -> bool | None:
    """Return whether the data set's score of the answer, without <answer> tags, reaches the threshold."""
    try:
        reference = decode(parse_json(answer), {}.__getitem__)
        threshold = reference["threshold"]
        entry = reference["entry"]
        source = _scorer(reference["dataset"], json.dumps(reference["difficulty"]))
    except (ValueError, KeyError, TypeError):
        return None
    if given is None:
        return False
    _, tag, tagged = given.rpartition("<answer>")
    read = tagged.partition("</answer>")[0].strip() if tag else given
    if _has_no_number(read) and not _has_no_number(str(entry.get("answer"))):
        return False
    try:
        with limits_answer(_LIMIT_S):
            score = source.score_answer(read, entry)
    # Some scorers raise an error for an answer that they cannot parse; such an answer is wrong.
    except Exception:
        return False
    return bool(score >= threshold)


def _has_no_number(text: str) -> bool:
    return any(_NO_NUMBER.search(each) for each in (text, "".join(text.split())))


def prepare(**_: object) -> None:
    """Load the packages of the scorers, so that no worker spends the limits of its first answer on that."""
    import reasoning_gym  # noqa: F401


@functools.lru_cache(maxsize=8)
def _scorer(dataset: str, difficulty: str) -> "ProceduralDataset":
    source = make_source(dataset, json.loads(difficulty), seed=0)
    _read_plain_expressions_only()
    return source


@functools.cache
def _read_plain_expressions_only() -> None:
    """Replace the functions with which scorers evaluate text, in all modules of reasoning-gym and in sympy."""
    import sympy

    plain = plainly(sympy.parse_expr)
    sympy.parse_expr = plain
    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym"):
            names = vars(module)
            names["eval"] = plainly(eval)
            if names.get("parse_expr") is plain.__wrapped__:
                names["parse_expr"] = plain


def plainly(evaluate: Callable[..., Any]) -> Any:
    """Return a function like `eval` that raises ValueError for a text that is not a plain expression."""

    @functools.wraps(evaluate)
    def evaluate_plain(text: Any, *given: Any, **settings: Any) -> Any:
        if not isinstance(text, str) or not _PLAIN.fullmatch(text):
            raise ValueError("only plain expressions are evaluated")
        return evaluate(text, *given, **settings)

    return evaluate_plain
