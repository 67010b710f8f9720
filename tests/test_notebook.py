"""The notebook of the documentation: its cells run in order, and the file has no outputs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stagedb.store import embedded

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first-steps.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]

SHOW = """
def show(value):
    render = getattr(value, "_repr_html_", None)
    print("html" if render is not None and render().startswith(("<table", "<p", "<div")) else type(value).__name__)
"""


def script(cells: list[str]) -> str:
    """The cells as a program that shows the value of each last expression, as a notebook does."""
    parts = [SHOW]
    for cell in cells:
        tree = ast.parse(cell)
        if isinstance(tree.body[-1], ast.Expr):
            last = tree.body[-1]
            last.value = ast.Call(ast.Name("show", ast.Load()), [last.value], [])
        parts.append(ast.unparse(ast.fix_missing_locations(tree)))
    return "\n".join(parts)


def test_the_notebook_has_no_outputs() -> None:
    cells = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    assert {cell["execution_count"] for cell in cells} == {None}


def test_the_notebook_runs_and_shows_tables(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}
    environment = {**kept, "STAGEDB_HOME": str(tmp_path / "home"), "STAGEDB_CONFIG": os.devnull}
    environment["PYTHONPATH"] = str(NOTEBOOK.parents[1])
    try:
        ran = subprocess.run(
            [sys.executable, "-c", script(CODE)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        embedded.stop(tmp_path / "home")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["html"] * 5 + ["PosixPath", "NoneType"]
    assert (tmp_path / "traces" / "llama3-8b.0.et").is_file()


def test_a_value_without_html_is_seen() -> None:
    ran = subprocess.run([sys.executable, "-c", script(["1 + 1"])], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["int"]


@pytest.mark.parametrize("cell", CODE)
def test_cells_are_short(cell: str) -> None:
    assert max(map(len, cell.splitlines())) <= 120
