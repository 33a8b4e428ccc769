"""Train as `scalerl train` does and keep what the model wrote at every evaluation; say what kind of answers these are.

    python benchmarks/answers.py RECIPE --out RUN            RUN/answers.jsonl.gz beside the run's own files
    python benchmarks/study_table.py kept ANSWERS.jsonl.gz 0,50,200 RUN [RUN ...]     of these steps, as one file
    python benchmarks/study_table.py kinds ANSWERS.jsonl.gz
    python benchmarks/study_table.py measured ROWS.jsonl     rows of `scalerl eval --json`, with "model" and "problems"

`benchmarks/lease.py --keep-answers` trains with it. The grader is `numeric`: the last number counts. Whether a model
got better at arithmetic, or at ending with its result, is read off the answers: is the right number anywhere in them,
and would it be by chance (answers dealt to other problems); are the equations true that they write down?
"""

import argparse
import gzip
import json
import re
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from scalerl.training.graders.rules import numeric

FILE = "answers.jsonl.gz"
KEPT = 512
"""Answers kept of an evaluation in a repository's file."""
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")
_TERM = r"\$?(\d+(?:\.\d+)?)(?: [a-z]+)?"
_EQUATION = re.compile(rf"{_TERM} ?([-+*/x\u00d7\u00f7]) ?{_TERM} ?= ?\$?(-?\d+(?:\.\d+)?)")


class Keeper:
    """Grades answers, and writes those of an evaluation when it is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._graded: deque[tuple[str, str]] = deque(maxlen=100_000)

    def grade(self, text: str, answer: str, /, *, thinking_start: str, thinking_end: str) -> bool | None:
        self._graded.append((text, answer))
        return numeric(text, answer, thinking_start=thinking_start, thinking_end=thinking_end)

    def evaluated(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Training is paused while answers are evaluated, so theirs are the last."""
        (row,) = rows
        answers = list(self._graded)[-row["num_samples"] :]
        self._graded.clear()
        with gzip.open(self._folder / FILE, "at", encoding="utf-8") as file:
            file.write(json.dumps({"step": row["step"], "answers": answers}) + "\n")
        print(f"step {row['step']}: {row['reward']:.3f}, {row['gpu_hours'] * 3600:.0f} s of training", flush=True)


def train(recipe: str, folder: Path) -> None:
    from scalerl import train
    from scalerl.training.run.observer import RunObserver

    keeper = Keeper(folder)
    observer = type("Observer", (RunObserver,), {"evaluated": keeper.evaluated})()
    train(recipe, folder, grader=keeper.grade, observer=observer)


def kept(target: str, steps: str, *folders: str) -> None:
    """Write some answers of these steps, of several runs, as one file."""
    lines = []
    for folder in sorted(map(Path, folders)):
        found = {each["step"]: each["answers"] for each in _rows(folder / FILE)}
        for step in (max(found) if word == "end" else int(word) for word in steps.split(",")):
            # Every so-many-th, since those that end early are graded first.
            answers = found[step][:: max(len(found[step]) // KEPT, 1)][:KEPT]
            lines.append(json.dumps({"run": folder.name, "step": step, "answers": answers}))
    Path(target).write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def kinds(path: str) -> None:
    """Print what kind of answers runs gave, by arm and step; seeds together."""
    rows = list(_rows(Path(path)))
    last = {row["run"]: row["step"] for row in rows}
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        step = "end" if row["step"] == last[row["run"]] else row["step"]
        found[row["run"].partition("-seed")[0], step] += row["answers"]
    print(
        "| arm | step | words | last number right | right number anywhere | another problem's | of equations true |",
        end="",
    )
    print(" answers with true equations alone | of these right | of the others right |\n|" + "---|" * 10)
    for (arm, step), answers in found.items():
        right = [bool(numeric(text, answer)) for text, answer in answers]
        numbers = [_numbers(text) for text, _ in answers]
        counts = Counter(Fraction(answer) for _, answer in answers)
        equations = [list(_equations(text)) for text, _ in answers]
        sound = [bool(of_answer) and all(of_answer) for of_answer in equations]
        shares = [
            right,
            [Fraction(answer) in own for (_, answer), own in zip(answers, numbers, strict=True)],
            [_of_others(own, Fraction(answer), counts) for (_, answer), own in zip(answers, numbers, strict=True)],
            [held for of_answer in equations for held in of_answer],
            sound,
            [held for held, true in zip(right, sound, strict=True) if true],
            [held for held, true in zip(right, sound, strict=True) if not true],
        ]
        words = f"{statistics.mean(len(text.split()) for text, _ in answers):.0f}"
        print("|", " | ".join([arm, str(step), words, *(f"{statistics.mean(each):.3f}" for each in shares)]), "|")


def _of_others(numbers: set[Fraction], own: Fraction, answers: Counter[Fraction]) -> float:
    """Return the share of the other problems whose answer is among these numbers, which is chance."""
    others = {number: count for number, count in answers.items() if number != own}
    return sum(count for number, count in others.items() if number in numbers) / max(sum(others.values()), 1)


def measured(path: str) -> None:
    """Print what models reach on problems that they did not train on."""
    print("| problems | model | reward [90 %] | pass@4 | cut off | tokens |\n|---|---|---|---|---|---|")
    for row in map(json.loads, Path(path).read_text().splitlines()):
        low, high = row["interval"]
        cells = [f"{row['reward']:.3f} [{low:.3f}, {high:.3f}]", f"{row['pass_at']['4']:.3f}"]
        cells += [f"{row['truncated_frac']:.2f}", f"{row['length_mean']:.0f}"]
        print("|", " | ".join([row["problems"], row["model"], *cells]), "|")


def _rows(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _numbers(text: str) -> set[Fraction]:
    return {Fraction(number.replace(",", "").rstrip(".")) for number in _NUMBER.findall(text)}


def _equations(text: str) -> Iterator[bool]:
    """Yield whether each "a + b = c" of a text is true."""
    for left, sign, right, result in _EQUATION.findall(text):
        a, b = Fraction(left), Fraction(right)
        if sign in "/\u00f7" and not b:
            yield False
            continue
        value = a + b if sign == "+" else a - b if sign == "-" else a / b if sign in "/\u00f7" else a * b
        yield value == Fraction(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    train(arguments.recipe, arguments.out)
