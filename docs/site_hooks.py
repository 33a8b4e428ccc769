"""What `make docs` does besides Markdown: generated pages, formulas as MathML, and no request to another host.

    api/*.md        the public API: what `scalerl` and its public modules list in __all__
    commands.md     every command with its options, from the command line itself
    glossary.md     the words that report and board show (src/scalerl/assets/report/words.html)

MathML is drawn by browsers themselves, so formulas need no script and work offline.
"""

import html
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "scalerl",
    "scalerl.forecast.curves",
    "scalerl.forecast.several",
    "scalerl.callbacks",
    "scalerl.recipe",
    "scalerl.errors",
)
"""The modules whose `__all__`, or public classes, are the API; everything else is private."""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
EXTERNAL = re.compile(
    r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="stylesheet"[^>]+href="(?:https?:)?//'
)
DOCTEST = re.compile(r"(?:^[ \t]*>>> .*\n?(?:^[ \t]*\S.*\n?)*)+", flags=re.MULTILINE)


def on_config(config: Any) -> Any:
    reference = next(part["Reference"] for part in config.nav if isinstance(part, dict) and "Reference" in part)
    reference += [{"Commands": "commands.md"}, {"Glossary": "glossary.md"}]
    reference.append({"Python API": [{name: f"api/{name}.md"} for name in PUBLIC]})
    return config


def on_files(files: Files, config: Any) -> Files:
    words = (ROOT / "src/scalerl/assets/report/words.html").read_text(encoding="utf-8")
    pages = {"commands.md": "\n".join(_commands()), "glossary.md": f"# Glossary\n\n{words}"}
    pages |= {f"api/{name}.md": "\n".join(_public(name)) for name in PUBLIC}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def _public(name: str) -> Iterator[str]:
    """Yield the lines of the page on a module; a function that is called as its file would be taken for the file."""
    yield f"# {name}\n\n::: {name}\n"
    module = import_module(name)
    for each in getattr(module, "__all__", ()):
        if (Path(str(module.__file__)).parent / f"{each}.py").exists() and callable(function := getattr(module, each)):
            yield f"::: {function.__module__}.{each}\n"


def _commands() -> Iterator[str]:
    """Yield the lines of the page on commands."""
    import typer

    from scalerl.cli import app

    yield "# Commands\n\nEvery command with all its options, as `scalerl COMMAND --help-all` prints them."
    waiting = [("scalerl", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop(0)
        inner = [(f"{name} {key}", each) for key, each in getattr(command, "commands", {}).items() if not each.hidden]
        waiting = inner + waiting
        if not inner:
            text = re.sub(r"\[/?dim\]", "`", (command.help or "").strip())
            yield f"\n## {name}\n\n{text}\n\n| option | meaning |\n|---|---|"
            for each in command.params:
                words = (getattr(each, "help", None) or "").replace("|", "\\|").replace("<", "&lt;")
                shown = ", ".join(f"`{option}`" for option in each.opts if each.name != "help_all")
                value = (each.metavar or "").replace("|", "\\|")
                if shown and words:
                    yield f"| {shown}{f' {value}' if value and value != shown.strip('`') else ''} | {words} |"


class FencedDoctests(griffe.Extension):
    """Puts the examples of docstrings between fences, so that they are shown as code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            fenced = DOCTEST.sub(lambda match: f"```python\n{match[0].rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = fenced


def on_page_content(content: str, **_: Any) -> str:
    def mathml(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        return convert(html.unescape(match[2].strip()), display=display)

    return FORMULA.sub(mathml, content)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if match := EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {match[0]}")
    return output
