"""Read the configuration file of another framework, detect the framework, and check the settings."""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from scalerl.config.peers import prime_rl, trl, verl
from scalerl.config.peers.values import Checked, Framework, Reader
from scalerl.errors import UsageError

FRAMEWORKS: dict[Framework, ModuleType] = {"trl": trl, "verl": verl, "prime-rl": prime_rl}


def check_recipe(path: Path, framework: Framework | None = None) -> Checked:
    """Return how a configuration translates to our recipe, and where it differs from ScaleRL."""
    settings = read_settings(path)
    chosen = framework or _recognised(settings, path)
    module = FRAMEWORKS[chosen]
    reader = Reader(settings, module.DEFAULTS)
    module.check(reader)
    return Checked(
        framework=chosen,
        translations=tuple(reader.translations),
        differences=tuple(reader.differences),
        not_read=reader.not_read(),
    )


def _recognised(settings: Mapping[str, Any], path: Path) -> Framework:
    counts: dict[Framework, int] = {
        name: sum(any(key == known or key.startswith(f"{known}.") for known in module.NAMES) for key in settings)
        for name, module in FRAMEWORKS.items()
    }
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        raise UsageError(
            f"{path} has no setting that verl, TRL or prime-rl is known by: say which it is with --framework"
        )
    return best


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a file by dotted key: YAML, TOML, JSON, Python with GRPOConfig(...), or arguments."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as fault:
        raise UsageError(f"cannot read {path}: {fault.strerror or fault}") from None
    except UnicodeDecodeError as fault:
        raise UsageError(f"{path} is not UTF-8 text (byte {fault.start})") from None
    match path.suffix.lower():
        case ".toml":
            content = _parsed(path, tomllib.loads, text)
        case ".json":
            content = _parsed(path, json.loads, text)
        case ".yaml" | ".yml":
            content = _parsed(path, _yaml(), text)
        case ".py":
            content = _python(path, text)
        case _:
            content = _arguments(path, text)
    if not isinstance(content, Mapping):
        raise UsageError(f"{path} does not hold a table of settings")
    return flat(content)


def _parsed(path: Path, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except (ValueError, RecursionError) as fault:
        raise UsageError(f"{path} cannot be parsed: {' '.join(str(fault).split())}") from None


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise UsageError("a YAML file needs PyYAML: pip install pyyaml") from None

    def load(text: str) -> Any:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as fault:
            raise ValueError(str(fault)) from None

    return load


def _python(path: Path, text: str) -> dict[str, Any]:
    """Return the keyword arguments of GRPOConfig(...) that are constants; the file is not run."""
    try:
        tree = ast.parse(text)
    except SyntaxError as fault:
        raise UsageError(f"{path}, line {fault.lineno}: not Python ({fault.msg})") from None
    for node in ast.walk(tree):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name.endswith("GRPOConfig"):
            return {
                word.arg: ast.literal_eval(word.value)
                for word in node.keywords
                if word.arg is not None and _is_literal(word.value)
            }
    raise UsageError(f"{path} has no GRPOConfig(...): give a file that makes one, or the arguments as YAML")


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _arguments(path: Path, text: str) -> dict[str, Any]:
    """Return key=value overrides (Hydra) and --key value arguments of a command or script."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as fault:
        raise UsageError(f"{path} cannot be read as a command: {fault}") from None
    settings: dict[str, Any] = {}
    for at, word in enumerate(words):
        if match := re.fullmatch(r"(?:--|\+{1,2})?([A-Za-z_][\w./-]*)=(.*)", word, re.DOTALL):
            settings[match[1].replace("-", "_")] = _value(match[2])
        elif word.startswith("--") and len(word) > 2:
            after = words[at + 1] if at + 1 < len(words) else "--"
            settings[word[2:].replace("-", "_")] = True if after.startswith("--") else _value(after)
    return settings


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None, "none": None}.get(text.lower(), text)


def flat(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys; a list of tables by number."""
    settings: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                settings |= flat(item, f"{name}.{number}.")
        elif isinstance(value, Mapping):
            settings |= flat(value, f"{name}.")
        else:
            settings[name] = value
    return settings
