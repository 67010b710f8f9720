"""Prose of the project: banned words, which `scripts/style` finds, and parameters that docstrings leave out."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from scripts._style import EVERYWHERE, PATTERNS, ROOT, Use, uses, uses_in


def words(path: str, text: str) -> list[tuple[int, str]]:
    return [(use.line, use.word) for use in uses_in(path, text)]


def test_the_project_has_no_banned_words() -> None:
    found = uses(EVERYWHERE)
    assert not found, "\n".join(map(str, found))


def test_a_use_has_its_place_and_its_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one.py").write_text('"""Fine."""\n\nx = 1  # it tells what x is\n', encoding="utf-8")
    (tmp_path / "folder" / "data.json").write_text('"say"', encoding="utf-8")
    assert uses(["folder"], tmp_path) == [Use("folder/one.py", 3, "tell", "x = 1  # it tells what x is")]
    assert str(uses(["folder"], tmp_path)[0]) == "folder/one.py:3: tell: x = 1  # it tells what x is"


def test_a_path_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="no_such_folder"):
        uses(["no_such_folder"])


def test_identifiers_count_and_parts_of_other_words_do_not() -> None:
    assert words("a.py", "said = was_told(standing)\n") == [(1, "say"), (1, "tell"), (1, "stand")]
    assert words("a.py", "stand_alone = 1  # outstanding, understand, a stand-in, stand-alone, besides, believe\n") == [
        (1, "stand")
    ]


def test_a_phrase_may_go_on_in_the_next_line() -> None:
    assert words("a.py", "# This is done in\n# vain.\n") == [(1, "in vain")]
    assert words("a.py", 'error("what it is "\n      "of")\n') == [(1, "what it is of")]


def test_inversions_count_in_any_language() -> None:
    assert words("a.cypher", "// Of each rank its operators.\n") == [(1, "of X, Y")]
    assert words("a.md", "Each has a row: of all ranks the sum.\nOf course.\n") == [(1, "of X, Y")]
    assert words("a.md", "The sum of all ranks.\n") == []


def test_code_in_markdown_does_not_count() -> None:
    text = "It `said`.\n\n    $ say\n    told\n\n```\nsay\n```\n- an item\n\n  that stands\n\nIt lies.\n"
    assert words("page.md", text) == [(11, "stand"), (13, "lie")]


def test_the_style_page_lists_every_banned_word() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    style = page.partition("## How we write")[2]
    assert all(f"`{word}`" in style for word in PATTERNS if word not in ("archaic", "what it is of")), style


ELSEWHERE = re.compile(r"\b[Ss]ee `|\b(?:parameters|arguments|rest|else)\b[^.:]* (?:of|in) `")
"""A docstring that leaves the parameters to another one."""

READER = ["config", "name"]
"""The parameters of each reader of a config: `stagedb/models/readers/__init__.py` describes them."""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """The parameters that a caller gives: all but `self`, `cls` and those of an underscore."""
    taken = function.args
    lone = [each for each in (taken.vararg, taken.kwarg) if each is not None]
    given = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *lone]
    return [each for each in given if each.arg not in ("self", "cls") and not each.arg.startswith("_")]


def public_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The public functions of a module and the public methods of its public classes, with their names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def described_types(trees: Iterable[ast.Module]) -> set[str]:
    """The names of classes, and of the types that have a docstring."""
    names = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for tree in trees:
        for node, following in pairwise(tree.body):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(node, ast.Assign) and isinstance(text, ast.Constant) and isinstance(text.value, str):
                names |= {each.id for each in node.targets if isinstance(each, ast.Name) and not each.id.isupper()}
    return names


def undescribed(tree: ast.Module, types: set[str]) -> list[str]:
    """The public functions whose docstring leaves out a parameter that its type does not describe either.

    types: names of classes and types with docstrings; a parameter of one of them, or None, needs no words of its own.
    """
    found = []
    for name, function in public_functions(tree):
        text = ast.get_docstring(function)
        if text is None or ELSEWHERE.search(text) or "option_groups" in map(ast.unparse, function.decorator_list):
            continue  # options of a command have their help
        if [each.arg for each in parameters(function)] == READER:
            continue
        missing = [each.arg for each in parameters(function) if not (in_type(each, types) or in_text(each.arg, text))]
        if missing:
            found.append(f"{name} ({', '.join(missing)})")
    return found


def in_type(parameter: ast.arg, types: set[str]) -> bool:
    """Whether the type of a parameter is a class or a type with a docstring, or None, or has typer's help."""
    written = ast.unparse(parameter.annotation).strip("'\"") if parameter.annotation else ""
    if "typer." in written:
        return True
    parts = [each.strip() for each in written.split("|") if each.strip() != "None"]
    return len(parts) == 1 and parts[0].partition("[")[0].rpartition(".")[2] in types


def in_text(name: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


@functools.cache
def package_trees() -> dict[str, ast.Module]:
    """The modules of the package, by their path in it."""
    package = ROOT / "stagedb"
    paths = sorted(path for path in package.rglob("*.py") if not path.stem.endswith("_pb2"))
    return {path.relative_to(package).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@pytest.fixture(scope="module", autouse=True)
def _no_trees_left() -> Iterator[None]:
    yield
    package_trees.cache_clear()


def test_a_docstring_names_each_parameter() -> None:
    types = described_types(package_trees().values())
    found = [f"stagedb/{path}: {each}" for path, tree in package_trees().items() for each in undescribed(tree, types)]
    assert not found, f"{len(found)} public docstrings leave out a parameter:\n" + "\n".join(found)


def classes_of(trees: Iterable[ast.Module]) -> dict[str, ast.ClassDef]:
    """The classes of modules, by name."""
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def inherits(classes: Mapping[str, ast.ClassDef], owner: str, method: str) -> bool:
    """Whether a class of this name gets a method from a base class, which describes it, or is a protocol."""
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in classes[owner].bases]
    return any(
        base == "Protocol"
        or (base in classes and (method in _described(classes[base]) or inherits(classes, base, method)))
        for base in bases
    )


def _described(owner: ast.ClassDef) -> set[str]:
    return {node.name for node in owner.body if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)}


def undocumented(tree: ast.Module, classes: Mapping[str, ast.ClassDef]) -> list[str]:
    """The public functions that take something and have no docstring, neither their own nor one of a base class."""
    found = []
    for name, function in public_functions(tree):
        owner, _, method = name.rpartition(".")
        by_typer = any("typer." in ast.unparse(default) for default in function.args.defaults)
        if ast.get_docstring(function) is None and parameters(function) and not by_typer:
            found += [] if owner and inherits(classes, owner, method) else [name]
    return found


def test_a_public_function_with_parameters_has_a_docstring() -> None:
    trees = package_trees()
    classes = classes_of(trees.values())
    found = [f"stagedb/{path}: {name}" for path, tree in trees.items() for name in undocumented(tree, classes)]
    assert not found, f"{len(found)} public functions have no docstring:\n" + "\n".join(found)


def test_a_method_needs_no_docstring_where_its_base_class_has_one() -> None:
    source = (
        'class Base:\n    def run(self, x: int) -> int:\n        """Run."""\n    def end(self, x: int) -> int: ...\n\n'
        "class Own(Base):\n    def run(self, x: int) -> int: ...\n    def end(self, x: int) -> int: ...\n\n"
        "class Known(Protocol):\n    def run(self, x: int) -> int: ...\n\n"
        "def walk(x: int) -> int: ...\n\ndef rest() -> int: ...\n"
    )
    tree = ast.parse(source)
    assert undocumented(tree, classes_of([tree])) == ["Base.end", "Own.end", "walk"]


def test_a_parameter_is_described_by_its_docstring_or_its_type() -> None:
    source = (
        'class Plan: "A plan."\n\n\nNames = tuple\n"""Names of axes."""\n\n'
        'def run(plan: Plan, names: Names | None, size: int, _own: int) -> int:\n    """Run."""\n\n'
        'def walk(size: int) -> int:\n    """Walk. size: in bytes."""\n\n'
        'def _own(size: int) -> int:\n    """A private one."""\n\n'
        'class Store:\n    def read(self, key: str) -> str:\n        """Read."""\n'
    )
    tree = ast.parse(source)
    assert undescribed(tree, described_types([tree])) == ["run (size)", "Store.read (key)"]
