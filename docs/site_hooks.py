"""What `make docs` does besides Markdown: the API reference, formulas as MathML, and no request to another host.

MathML is drawn by browsers themselves, so formulas need no script and work offline.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[1] / "src" / "scalerl"
NOT_CODE = {"recipes", "studies", "assets", "cli"}
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
EXTERNAL = re.compile(
    r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="stylesheet"[^>]+href="(?:https?:)?//'
)


def rooms() -> list[str]:
    names = [path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__"]
    return sorted(
        names + [path.parent.name for path in SOURCE.glob("*/__init__.py") if path.parent.name not in NOT_CODE]
    )


def on_config(config: Any) -> Any:
    config.nav.append({"API reference": [{room: f"api/{room}.md"} for room in rooms()]})
    return config


def on_files(files: Files, config: Any) -> Files:
    for room in rooms():
        files.append(File.generated(config, f"api/{room}.md", content=f"# {room}\n\n::: scalerl.{room}\n"))
    return files


def on_page_content(content: str, **_: Any) -> str:
    def mathml(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        return convert(html.unescape(match[2].strip()), display=display)

    return FORMULA.sub(mathml, content)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if match := EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {match[0]}")
    return output
