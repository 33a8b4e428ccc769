"""Search a folder of texts for the paragraphs that best match the words of a query, by BM25."""

import functools
import heapq
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scalerl.errors import RecipeError

_WORD = re.compile(r"\w+")
_ENDINGS = (".txt", ".md", ".rst")
_LONGEST = 600
"""Number of characters shown of a paragraph."""
_MOST_BYTES = 200_000_000
_MOST_WORDS = 100
"""Number of words of a query that are looked for: a model may write a very long one."""
_K1, _B = 1.5, 0.75  # BM25's usual constants


class Paragraph(NamedTuple):
    place: str
    text: str
    num_words: int


@dataclass(frozen=True, slots=True)
class Index:
    """The paragraphs of a folder, and by word those that contain it, with the number of times."""

    paragraphs: Sequence[Paragraph]
    places: Mapping[str, Sequence[tuple[int, int]]]
    mean_length: float
    """Mean number of words in a paragraph."""

    def best(self, query: str, num: int) -> list[Paragraph]:
        """Return up to `num` paragraphs that share a word with the query, the best first."""
        scores: dict[int, float] = {}
        for word in list(dict.fromkeys(_words(query)))[:_MOST_WORDS]:
            places = self.places.get(word, ())
            rarity = math.log(1 + (len(self.paragraphs) - len(places) + 0.5) / (len(places) + 0.5))
            for number, times in places:
                length = _K1 * (1 - _B + _B * self.paragraphs[number].num_words / self.mean_length)
                scores[number] = scores.get(number, 0.0) + rarity * times * (_K1 + 1) / (times + length)
        best = heapq.nsmallest(num, scores, key=lambda number: (-scores[number], number))
        return [self.paragraphs[number] for number in best]


@functools.lru_cache(maxsize=4)
def index_folder(folder: str) -> Index:
    """Read the texts in a folder; RecipeError if there are none."""
    root = Path(folder).expanduser()
    files = sorted(path for path in root.rglob("*") if path.suffix in _ENDINGS and path.is_file())
    if not files:
        raise RecipeError(f'environment.folder "{folder}" contains no texts to search ({", ".join(_ENDINGS)})')
    if (size := sum(path.stat().st_size for path in files)) > _MOST_BYTES:
        raise RecipeError(f'environment.folder "{folder}" has {size / 1e6:,.0f} MB of text; the limit is 200 MB')
    paragraphs: list[Paragraph] = []
    places: dict[str, list[tuple[int, int]]] = {}
    for path in files:
        for text in filter(str.strip, re.split(r"\n\s*\n", path.read_text(errors="replace"))):
            words = Counter(_words(text))
            for word, times in words.items():
                places.setdefault(word, []).append((len(paragraphs), times))
            paragraphs.append(Paragraph(path.relative_to(root).as_posix(), text.strip(), words.total()))
    mean_length = sum(each.num_words for each in paragraphs) / max(len(paragraphs), 1)
    return Index(paragraphs, places, mean_length)


def search_tool(folder: str, num_results: int = 3):
    """Return a tool that searches a folder."""
    index = index_folder(folder)

    def search(query: str) -> str:
        """Search texts for the paragraphs that match a query best.

        Args:
            query: Words to look for.
        """
        found = index.best(query, num_results)
        return "\n\n".join(f"[{each.place}] {each.text[:_LONGEST]}" for each in found) or "nothing was found"

    return search


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
