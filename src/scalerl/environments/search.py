"""Search a folder of texts for the paragraphs that best match the words of a query, by BM25."""

import functools
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from scalerl.errors import RecipeError

_WORD = re.compile(r"\w+")
_ENDINGS = (".txt", ".md", ".rst")
_LONGEST = 600
"""Number of characters shown of a paragraph."""
_MOST_BYTES = 200_000_000
_K1, _B = 1.5, 0.75  # BM25's usual constants


@dataclass(frozen=True, slots=True)
class _Paragraph:
    place: str
    text: str
    words: Counter[str]


@dataclass(frozen=True, slots=True)
class Index:
    """The paragraphs of a folder."""

    paragraphs: tuple[_Paragraph, ...]
    num_with: Counter[str]
    mean_length: float

    def best(self, query: str, num: int) -> list[_Paragraph]:
        """Return up to `num` paragraphs that share a word with the query, the best first."""
        wanted = set(_words(query))
        scored = [(self._score(each, wanted), number) for number, each in enumerate(self.paragraphs)]
        best = sorted((-score, number) for score, number in scored if score > 0)[:num]
        return [self.paragraphs[number] for _, number in best]

    def _score(self, paragraph: _Paragraph, wanted: set[str]) -> float:
        length = _K1 * (1 - _B + _B * sum(paragraph.words.values()) / self.mean_length)
        return sum(
            math.log(1 + (len(self.paragraphs) - num + 0.5) / (num + 0.5)) * times * (_K1 + 1) / (times + length)
            for word in wanted
            if (times := paragraph.words.get(word, 0)) and (num := self.num_with[word])
        )


@functools.lru_cache(maxsize=4)
def index_folder(folder: str) -> Index:
    """Read the texts in a folder; RecipeError if there are none."""
    root = Path(folder).expanduser()
    files = sorted(path for path in root.rglob("*") if path.suffix in _ENDINGS and path.is_file())
    if not files:
        raise RecipeError(f'environment.folder "{folder}" contains no texts to search ({", ".join(_ENDINGS)})')
    if (size := sum(path.stat().st_size for path in files)) > _MOST_BYTES:
        raise RecipeError(f'environment.folder "{folder}" has {size / 1e6:,.0f} MB of text; the limit is 200 MB')
    paragraphs = tuple(
        _Paragraph(path.relative_to(root).as_posix(), text.strip(), Counter(_words(text)))
        for path in files
        for text in re.split(r"\n\s*\n", path.read_text(errors="replace"))
        if text.strip()
    )
    num_with = Counter(word for each in paragraphs for word in each.words)
    mean_length = sum(sum(each.words.values()) for each in paragraphs) / max(len(paragraphs), 1)
    return Index(paragraphs, num_with, max(mean_length, 1.0))


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
