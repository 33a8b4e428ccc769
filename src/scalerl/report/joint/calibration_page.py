"""The calibration page of a folder of sealed forecasts: one HTML file that works offline."""

import html
from collections.abc import Sequence
from pathlib import Path

from scalerl.atomic_files import new_file
from scalerl.errors import InputError, StoreError
from scalerl.report.joint.seals import FOLDER_HEADS, FileScore, calibration, calibration_lines, folder_cells

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Calibration of sealed forecasts</title>
<style>:root{{color-scheme:light dark;--ink:#222;--soft:#666;--line:#ddd;--paper:#fff;--dot:#0072B2}}
@media (prefers-color-scheme:dark){{:root{{--ink:#e6e6e6;--soft:#a6a6a6;--line:#3a3a3a;--paper:#16181b;--dot:#56B4E9}}}}
body{{font:15px system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}}
body{{color:var(--ink);background:var(--paper)}}
h1{{font-size:1.6em}}p{{color:var(--soft);max-width:75ch}}.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;white-space:nowrap;font-size:14px}}
td,th{{padding:.25em .7em;border-bottom:1px solid var(--line);text-align:left}}
td:nth-child(n+4),th:nth-child(n+4){{text-align:right}}
svg text{{fill:var(--soft);font-size:12px}}svg .dot{{fill:var(--dot)}}svg .axis{{fill:none;stroke:var(--soft)}}
svg .ideal{{stroke:var(--soft);stroke-dasharray:4 4}}</style></head>
<body><h1>Calibration of sealed forecasts</h1><p>{words}</p>
{picture}<div class="scroll"><table><tr>{head}</tr>{rows}</table></div></body></html>
"""
_SIZE, _LEFT, _BOTTOM = 260, 60, 44


def write_page(results: Sequence[FileScore], path: Path) -> None:
    """Write the calibration page to `path`."""
    head = "".join(f"<th>{text}</th>" for text in FOLDER_HEADS)
    cells = ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in folder_cells(results)]
    words = " ".join(html.escape(line) for line in calibration_lines(results))
    text = PAGE.format(
        words=words, picture=_picture(results), head=head, rows="".join(f"<tr>{row}</tr>" for row in cells)
    )
    try:
        with new_file(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except (StoreError, OSError) as error:
        raise InputError(f"cannot write {path}: {error}") from None


def _picture(results: Sequence[FileScore]) -> str:
    """Return an SVG of covered shares against levels; empty if nothing was scored."""
    points = [(level, share) for level, (share, num) in calibration(results).items() if num]
    if not points:
        return ""
    dots = "".join(
        f'<circle class="dot" cx="{_x(level):.0f}" cy="{_y(share):.0f}" r="5"/>'
        f'<text x="{_x(level) - 8:.0f}" y="{_y(share) - 8:.0f}" text-anchor="end">{level:.0%}: {share:.0%}</text>'
        for level, share in points
    )
    ticks = "".join(
        f'<text x="{_x(at):.0f}" y="{_SIZE + 26}" text-anchor="middle">{at:.0%}</text>'
        f'<text x="{_LEFT - 6}" y="{_y(at) + 4:.0f}" text-anchor="end">{at:.0%}</text>'
        for at in (0.0, 0.5, 1.0)
    )
    frame = (
        f'<rect class="axis" x="{_LEFT}" y="10" width="{_SIZE}" height="{_SIZE}"/>'
        f'<path class="ideal" d="M{_LEFT} {_SIZE + 10}L{_LEFT + _SIZE} 10"/>{ticks}'
        f'<text x="{_LEFT + _SIZE / 2}" y="{_SIZE + _BOTTOM}" text-anchor="middle">interval</text>'
        f'<text x="14" y="{10 + _SIZE / 2}" text-anchor="middle" transform="rotate(-90 14 {10 + _SIZE / 2})">'
        "evaluations inside</text>"
    )
    width, height = _LEFT + _SIZE + 22, _SIZE + _BOTTOM + 10
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="share of evaluations inside each interval">'
        f"{frame}{dots}</svg><p>Dashed: an interval of 90% that holds 90% of the evaluations, and so on.</p>"
    )


def _x(share: float) -> float:
    return _LEFT + _SIZE * share


def _y(share: float) -> float:
    return 10 + _SIZE * (1 - share)
