"""What the code may import and call: read from its syntax trees, so that a breach is found without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "stagedb"

LAYERS = (
    *("expressions", "systems", "workflows", "ir", "models", "frameworks", "schedules", "plans", "build", "store"),
    *("instances", "workload", "memory", "timing", "traces", "reports", "api", "validation", "cli"),
)
"""Each package may import those before it."""

FREE = {"atomic_files", "errors", "faults"}
"""Modules that every package may import."""

FILES = sorted(path for path in ROOT.rglob("*.py") if not path.stem.endswith("_pb2"))


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def breaches(layer: str, source: str) -> list[str]:
    """Imports that a file of this layer may not have."""
    found = []
    for line, name in imports(ast.parse(source)):
        parts = name.split(".")
        if parts[0] == "neo4j" and layer != "store":
            found.append(f"{line}: only stagedb.store imports neo4j")
        if parts[0] != "stagedb" or len(parts) < 2 or parts[1] in FREE or parts[1] == layer:
            continue
        if parts[1] in LAYERS and layer in LAYERS and LAYERS.index(parts[1]) > LAYERS.index(layer):
            found.append(f"{line}: {layer} imports {parts[1]}, which stands above it")
    return found


def dangers(source: str) -> list[str]:
    """Calls that could run what a file or a database holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [
                f"{node.lineno}: {name}" for name in names if name.split(".")[0] in ("pickle", "marshal", "shelve")
            ]
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile", "sympify", "parse_expr"):
            found.append(f"{node.lineno}: {node.func.id}")
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if any(key.arg == "allow_pickle" and ast.unparse(key.value) == "False" for key in node.keywords):
                continue
            if (owner, node.func.attr) in {
                ("yaml", "load"),
                ("yaml", "unsafe_load"),
                ("yaml", "full_load"),
                ("sympy", "sympify"),
                ("sympy", "S"),
                ("np", "load"),
            } or node.func.attr == "parse_expr":
                found.append(f"{node.lineno}: {owner}.{node.func.attr}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_stands_below_it(path: Path) -> None:
    assert breaches(layer_of(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_data_is_run_as_code(path: Path) -> None:
    assert dangers(path.read_text(encoding="utf-8")) == []


def test_every_package_has_a_layer_and_says_what_it_is_for() -> None:
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    assert packages == sorted(LAYERS)
    for package in packages:
        text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
        assert text, f"stagedb.{package} has no docstring"


def test_a_breach_is_found() -> None:
    assert breaches("ir", "from stagedb.store import connect\n")
    assert breaches("ir", "def f():\n    import stagedb.cli.application\n")
    assert breaches("cli", "from neo4j import GraphDatabase\n")
    assert not breaches("cli", "from stagedb.api import connect\nimport stagedb.errors\n")
    assert not breaches("store", "import neo4j.exceptions\n")


@pytest.mark.parametrize(
    "line",
    ["eval('1')", "exec('1')", "import pickle", "from marshal import loads", "yaml.load(text)", "sympy.sympify('x')"],
)
def test_a_danger_is_found(line: str) -> None:
    assert dangers(line)
