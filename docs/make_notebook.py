"""Execute the notebook of the examples and keep what its cells show: python docs/make_notebook.py

It does what Jupyter does with a cell that ends in an expression, and needs no Jupyter: the value's text, and its HTML
or picture where it has one.
"""

import ast
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "examples" / "from_a_log_to_a_decision.ipynb"


def shown(value: Any) -> dict[str, Any]:
    """Return how a notebook shows a value, by type."""
    data: dict[str, Any] = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_()
    if hasattr(value, "savefig"):
        picture = io.BytesIO()
        # Without the version that wrote it: the same picture is the same file.
        value.savefig(picture, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        data = {"text/plain": "<Figure>", "image/png": base64.b64encode(picture.getvalue()).decode()}
    return data


def values(cells: list[dict[str, Any]]) -> Iterator[Any]:
    """Run the cells of code, all in one namespace; yield the value of the last expression of each."""
    names: dict[str, Any] = {}
    for cell in cells:
        *before, last = ast.parse("".join(cell["source"])).body
        assert isinstance(last, ast.Expr), "a cell ends with what it shows"
        exec(compile(ast.Module(before, []), NOTEBOOK.name, "exec"), names)
        yield eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with the outputs of its cells."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, value) in enumerate(zip(code, values(code), strict=True), start=1):
        data = {kind: content.splitlines(keepends=True) for kind, content in shown(value).items()}
        output = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
        cell |= {"execution_count": number, "outputs": [output]}
    return notebook


def main() -> None:
    notebook = executed(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{NOTEBOOK.name}: {NOTEBOOK.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
