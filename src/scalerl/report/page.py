"""The report as one HTML file: opens from disk, asks nothing of the network, draws from the JSON it holds."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from scalerl import __version__
from scalerl.curves import FORMS
from scalerl.report.numbers import duration, short_compute_text
from scalerl.report.runs import PARTS
from scalerl.report.together import DECISION_HEADS, POOLED_HEADS, decision_cells, pooled_cells

SCRIPTS = ("curves.js", "charts.js", "page.js")
POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""What the page may do: run the one script that it was written with, and ask nothing of the network."""
PART_WORDS = {part: part.replace("_", "-") for part in PARTS}


def page(content: Mapping[str, Any]) -> str:
    """Return the whole file, from the report's JSON alone."""
    folder = files("scalerl") / "assets" / "report"
    text = lambda name: (folder / name).read_text(encoding="utf-8")  # noqa: E731
    counted = lambda num, word: f"{num} {word}{'' if num == 1 else 's'}"  # noqa: E731
    facts = [counted(len(content["sets"][0]["curves"]), "curve"), f"{content['form']} fits"]
    facts[1:1] = [counted(len(content["runs"]), "run")] if content["runs"] else []
    script = "\n".join(map(text, SCRIPTS))
    return Template(text("page.html")).substitute(
        policy=POLICY.format(script=b64encode(sha256(f"\n{script}\n".encode()).digest()).decode()),
        title=escape(content["title"]),
        style=text("report.css"),
        meta=" &middot; ".join([escape(content["description"])] * bool(content["description"]) + facts),
        summary=escape(" ".join(content["summary"][content["sets"][0]["name"]])),
        warnings=_warnings(content["warnings"]),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in content["notes"]),
        level=f"{content['level']:.0%}",
        formula=f"{escape(FORMS[content['form']].formula)}.",
        no_signals="" if content["signals"] else " hidden",
        runs=_pooled(content["pooled"])
        + _decisions(content["decisions"])
        + _differences(content["differences"])
        + _cost(content["runs"], content["hours"])
        + _environment(content["environment"]),
        version=escape(__version__),
        # A name that holds "</script>" must not end the script.
        data=json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        script=script,
    )


def _warnings(items: Sequence[str]) -> str:
    if not items:
        return ""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<div class="warnings" role="note"><h3>Before you read on</h3><ul>{rows}</ul></div>'


# Runs


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Return an HTML table. Cells are HTML already; the last `numbers` columns are set flush right."""
    kind = lambda at: ' class="n"' if at >= len(heads) - numbers else ""  # noqa: E731
    head = "".join(f"<th{kind(at)} scope='col'>{text}</th>" for at, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(f'<td{kind(at)}>{cell}</td>' for at, cell in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _pooled(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of pooled results next to the result of each arm alone."""
    if not rows:
        return ""
    cells = [tuple(map(escape, pooled_cells(row))) for row in rows]
    words = "Each arm again, with what the other arms of the study say of gain, exponent and midpoint."
    return f"<section><h2>Pooled over arms</h2><p>{words}</p>{_table(POOLED_HEADS, cells, numbers=4)}</section>"


def _decisions(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the timeline of a policy: which arm got which part of its budget, and why."""
    if not rows:
        return ""
    cells = [tuple(map(escape, decision_cells(row))) for row in rows]
    return f"<section><h2>Decisions</h2>{_timeline(rows)}{_table(DECISION_HEADS, cells, numbers=1)}</section>"


def _timeline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a drawing with one bar per arm, divided where it was paused; parts show the numbers of decisions."""
    arms = list(dict.fromkeys(row["arm"] for row in rows if row["arm"]))
    reached, parts = dict.fromkeys(arms, 0.0), []
    for row in rows:
        if row["arm"]:
            left, y = 140 + 520 * reached[row["arm"]], 22 * arms.index(row["arm"])
            width = 520 * (row["until"] - reached[row["arm"]])
            reached[row["arm"]] = row["until"]
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{width - 1:.1f}" height="18" fill="var(--c0)" opacity="0.35"/>'
                f'<text x="{left + 3:.1f}" y="{y + 13}" font-size="10">{row["decision"]}</text>'
            )
    names = [f'<text x="0" y="{22 * at + 13}" font-size="12">{escape(arm)}</text>' for at, arm in enumerate(arms)]
    size = f'width="670" height="{22 * len(arms)}"'
    return f'<svg {size} role="img" aria-label="which arm got which part">{"".join(names + parts)}</svg>'


def _differences(content: Mapping[str, Any]) -> str:
    if not content["rows"]:
        return ""
    code = lambda value: "&ndash;" if value is None else f"<code>{escape(json.dumps(value))}</code>"  # noqa: E731
    rows, shown = [], None
    for row in content["rows"]:
        name = "" if row["arm"] == shown else f"<b>{escape(row['arm'])}</b>"
        shown = row["arm"]
        rows.append((name, f"<code>{escape(row['key'])}</code>", code(row["base"]), code(row["value"])))
    base = escape(str(content["base"]))
    return f"<section><h2>What differs</h2>{_table(('arm', 'setting', base, 'this arm'), rows)}</section>"


def _cost(runs: Sequence[Mapping[str, Any]], hours: str) -> str:
    if not runs:
        return ""
    rows = [
        (
            f"<b>{escape(run['name'])}</b>",
            escape(run["status"]) + (f"<br><small>{escape(run['reason'])}</small>" if run["reason"] else ""),
            _where_time_went(run["seconds"]),
            f"{run['num_steps']:,}",
            *(_amount(run["cost"].get(key)) for key in ("gpu_hours", "flops", "tokens")),
            duration(sum(run["seconds"].values())) if run["seconds"] else "&ndash;",
        )
        for run in runs
    ]
    totals = [sum(run["cost"].get(key, 0.0) for run in runs) for key in ("gpu_hours", "flops", "tokens")]
    seconds = sum(sum(run["seconds"].values()) for run in runs)
    if len(runs) > 1:
        rows.append(("<b>together</b>", "", "", "", *map(_amount, totals), duration(seconds)))
    heads = ("run", "status", "wall time by part", "steps", hours, "FLOPs", "tokens", "wall time")
    return f"<section><h2>Runs and cost</h2>{_table(heads, rows, numbers=5)}</section>"


def _amount(value: float | None) -> str:
    return "&ndash;" if value is None else short_compute_text(value)


def _where_time_went(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    if total <= 0:
        return "&ndash;"
    bars = "".join(
        f'<i style="width:{100 * spent / total:.1f}%;background:var(--c{at})" title="{PART_WORDS[part]}"></i>'
        for at, (part, spent) in enumerate(seconds.items())
    )
    words = ", ".join(
        f"{PART_WORDS[part]} {spent / total:.0%}" for part, spent in seconds.items() if spent / total >= 0.005
    )
    return f'<div class="stack" aria-hidden="true">{bars}</div><small>{words}</small>'


def _environment(content: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    if not content:
        return ""
    rows = []
    for key, values in content.items():
        shown = [f"<code>{escape(value)}</code>" for value in values]
        if len(values) > 1:
            of = [f" <small>{escape(', '.join(runs))}</small>" for runs in values.values()]
            shown = [value + runs for value, runs in zip(shown, of, strict=True)]
        rows.append((escape(key), "<br>".join(shown)))
    return f"<section><h2>Environment</h2>{_table(('', 'value'), rows)}</section>"
