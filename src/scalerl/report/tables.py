"""`Table`: cells of text that the terminal, Markdown and the page show alike; and the tables of a report."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.report.columns import number
from scalerl.report.numbers import duration, short_compute_text

NARROWEST = 14  # letters that a column of names keeps on a narrow terminal
NAMES = ("curve", "a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Cells: texts, or rich's styled ones."""
    left: Collection[str] = ()
    """The heads of columns of words; the others hold numbers, and are aligned to the right."""
    title: str = ""
    key: str = ""

    def rich(self, lines: Sequence[str] = ()) -> Any:
        """Return the table for the terminal, with lines below it."""
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=self.title or None, title_justify="left", title_style="bold", header_style="bold", pad_edge=False,
            box=None,
        )  # fmt: skip
        for place, head in enumerate(self.heads):
            is_left = head in self.left
            longest = max((len(str(row[place])) for row in self.rows), default=0)
            table.add_column(
                head,
                justify="left" if is_left else "right",
                overflow="fold",
                no_wrap=not is_left,
                min_width=min(NARROWEST, longest) if head in NAMES else None,
            )
        for row in self.rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
        return Group(table, Text(), *map(Text, lines)) if lines else table

    def markdown(self) -> str:
        line = lambda cells: f"| {' | '.join(map(shielded, cells))} |"  # noqa: E731
        return "\n".join([line(self.heads), f"|{'---|' * len(self.heads)}", *map(line, self.rows)])

    def as_json(self) -> dict[str, Any]:
        """Return the table for the page, whose columns of numbers are the last ones."""
        words = max((place for place, head in enumerate(self.heads, start=1) if head in self.left), default=0)
        return {
            "key": self.key,
            "title": self.title,
            "heads": list(self.heads),
            "rows": [list(row) for row in self.rows],
            "numbers": len(self.heads) - words,
        }


def shielded(text: object) -> str:
    """Return a text that Markdown shows as it is: no HTML, no link, no end of a table's cell."""
    return str(text).replace("<", "&lt;").replace("](", "]\\(").replace("|", "\\|")


# Of a report, from its JSON

DECISIONS = {
    "first_stage": "first stage of every arm",
    "round": "a round of successive halving",
    "continue": "the largest expected gain per compute",
    "finish": "the choice is made, and it is trained to the end",
    "decided": "the choice is made",
    "not_separable": "no arm is worth more compute, and none is clearly the best",
    "budget_spent": "the share of the budget is spent",
}


def report_tables(content: Mapping[str, Any]) -> list[Table]:
    """Return the tables that have rows."""
    makers = (_decisions, _differences, _signals, _cost, _environment)
    return [table for table in (make(content) for make in makers) if table.rows]


def _until(share: Any) -> str:
    """Say how far an arm is trained, where a decision says so: others may have written the file."""
    return "" if math.isnan(number(share)) else f" to {number(share):.0%} of its budget"


def _decisions(content: Mapping[str, Any]) -> Table:
    rows = [
        (
            str(row["decision"]),
            str(row["time"]),
            "end" if row["arm"] is None else f"{row['arm']}{_until(row['until'])}",
            DECISIONS.get(row["kind"], str(row["kind"])),
            row["favourite"] or "",
            "" if math.isnan(number(row["regret"])) else f"{number(row['regret']):.4f}",
        )
        for row in content["decisions"]
    ]
    words = ("decision", "time", "compute goes to", "because of", "favourite then")
    return Table(key="decisions", title="Decisions", heads=(*words, "expected loss"), rows=rows, left=words)


def _differences(content: Mapping[str, Any]) -> Table:
    text = lambda value: "-" if value is None else json.dumps(value)  # noqa: E731
    rows = [(row["arm"], row["key"], text(row["base"]), text(row["value"])) for row in content["differences"]["rows"]]
    heads = ("arm", "setting", str(content["differences"]["base"]), "this arm")
    return Table(key="differences", title="What differs", heads=heads, rows=rows, left=heads)


def _signals(content: Mapping[str, Any]) -> Table:
    lines = {run["name"]: {line["key"]: line for line in run["signals"]["lines"]} for run in content["runs"]}
    labels = {key: line["label"] for own in lines.values() for key, line in own.items()}
    text = lambda line: "-" if line is None or line["last"] is None else f"{line['last']:.3g}"  # noqa: E731
    rows = [(run, *(text(own.get(key)) for key in labels)) for run, own in lines.items() if own]
    heads = ("run", *labels.values())
    return Table(key="stability", title="Stability over the last steps", heads=heads, rows=rows, left=("run",))


def _cost(content: Mapping[str, Any]) -> Table:
    keys, runs = ("gpu_hours", "flops", "tokens"), content["runs"]
    rows = []
    for run in runs:
        total = sum(run["seconds"].values())
        parts = [f"{part.replace('_', '-')} {spent / total:.0%}" for part, spent in run["seconds"].items()
                 if total > 0 and spent / total >= 0.005]  # fmt: skip
        ending = f"{run['status']}: {run['reason']}" if run["reason"] else run["status"]
        spent = [_amount(run["cost"].get(key)) for key in keys]
        rows.append((run["name"], ending, ", ".join(parts) or "-", f"{run['num_steps']:,}", *spent,
                     duration(total) if total else "-"))  # fmt: skip
    if len(runs) > 1:
        seconds = sum(sum(run["seconds"].values()) for run in runs)
        spent = [_amount(sum(run["cost"].get(key, 0.0) for run in runs)) for key in keys]
        rows.append(("together", "", "", "", *spent, duration(seconds)))
    words = ("run", "status", "where the time went")
    heads = (*words, "steps", content["hours"], "FLOPs", "tokens", "wall time")
    return Table(key="cost", title="Runs and cost", heads=heads, rows=rows, left=words)


def _amount(value: float | None) -> str:
    return "-" if value is None else short_compute_text(value)


def _environment(content: Mapping[str, Any]) -> Table:
    rows = []
    for key, values in content["environment"].items():
        of = [f"{value} ({', '.join(runs)})" if len(values) > 1 else value for value, runs in values.items()]
        rows.append((key, "; ".join(of)))
    return Table(key="environment", title="Environment", heads=("", "value"), rows=rows, left=("", "value"))
