"""Mutation of drawn places of the core, behind scripts/mutate: does a test fail when the code is wrong there?

A place is a comparison, an operation, a number or a condition within a function. The suite runs once, in a copy of the
checkout whose places report that they are reached, and each test is noted with those that it reaches; what runs in
other processes alone is not seen. Each place is then broken in another copy, in which the tests that reach it run, the
quickest first, until one fails.
"""

import argparse
import ast
import builtins
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

CORE = ("graphs", "ir", "lowering", "memory", "models", "plans", "schedules", "search", "timing", "traces", "workflows")
"""Packages whose places are drawn."""

REACHED = "STAGEDB_MUTATED_REACHED"
"""Environment variable of a run of tests: a directory for the tests that reach places, a file a process."""

CASES = 200
"""At most so many tests of a place are run, the quickest ones."""

REPORT = '{indent}getattr(__import__("builtins"), "stagedb_reached", int)({number})\n'
"""The line before a statement that reports a place. Other processes than those of pytest report nothing."""

_COMPARED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}
_COMPUTED: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Add(),
    ast.FloorDiv: ast.Mult(),
    ast.Div: ast.Mult(),
    ast.Mod: ast.FloorDiv(),
}


@dataclass(frozen=True)
class Place:
    """Code to replace: from byte `start` to `end` of `file`, which is relative to the checkout; `line` is its first.

    statement: the first line of the statement that has it.
    """

    file: str
    line: int
    statement: int
    start: int
    end: int
    old: str
    new: str


def places_of(file: Path, root: Path) -> Iterator[Place]:
    """All places of a module that are within functions."""
    text = file.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for statement, node in _expressions(ast.parse(text).body, False):
        changed = _changed(node)
        if changed is None or node.end_lineno is None or node.end_col_offset is None:
            continue
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        old, new = text[start:end].decode(), f"({ast.unparse(changed)})"
        yield Place(file.relative_to(root).as_posix(), node.lineno, statement.lineno, start, end, old, new)


def _expressions(body: Sequence[ast.stmt], inside: bool) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Expressions of functions, each with the innermost statement that has it and that may have a line before it."""
    for statement in body:
        pending: list[ast.AST] = [statement]
        while pending:
            node = pending.pop()
            if inside and isinstance(node, ast.expr):
                yield statement, node
            for name, value in ast.iter_fields(node):
                children = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST)]
                is_elif = isinstance(node, ast.If) and name == "orelse" and len(children) == 1
                within = inside or (isinstance(node, ast.FunctionDef) and name == "body")
                if children and isinstance(children[0], ast.stmt) and not (is_elif and isinstance(children[0], ast.If)):
                    yield from _expressions([one for one in children if isinstance(one, ast.stmt)], within)
                elif not isinstance(node, ast.FunctionDef):
                    pending += children


def _changed(node: ast.expr) -> ast.expr | None:
    """The expression with one thing wrong; None for what is left as it is."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=after):
            return ast.Compare(left, [_COMPARED[type(op)]], after)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _is_text(left, right):
            return ast.BinOp(left, _COMPUTED[type(op)], right)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool() as value):
            return ast.Constant(not value)
        case ast.Constant(value=int() as value):
            return ast.Constant(value + 1)
    return None


def _is_text(*operands: ast.expr) -> bool:
    return any(
        isinstance(one, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in operands
    )


def drawn(root: Path, seed: int, count: int) -> list[Place]:
    """So many places of the core of a checkout. Lines are equally likely, and no line has two places."""
    lines: defaultdict[tuple[str, int], list[Place]] = defaultdict(list)
    for package in CORE:
        for file in sorted((root / "stagedb" / package).rglob("*.py")):
            for place in dict.fromkeys(places_of(file, root)):
                lines[place.file, place.line].append(place)
    chance = random.Random(seed)
    return [chance.choice(lines[line]) for line in chance.sample(sorted(lines), count)]


class Reached:
    """A pytest plugin that notes which places each test reaches, by number, and how long it takes."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.rows: list[tuple[str, float, list[int]]] = []
        vars(builtins)["stagedb_reached"] = lambda number: self.seen.add(number)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.seen.clear()
        begun = time.perf_counter()
        yield
        if self.seen:
            self.rows.append((item.nodeid, time.perf_counter() - begun, sorted(self.seen)))

    def pytest_sessionfinish(self) -> None:
        Path(os.environ[REACHED], f"{os.getpid()}.json").write_text(json.dumps(self.rows), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, which runs with this module as a plugin."""
    config.pluginmanager.register(Reached())


def tests_of(places: Sequence[Place], copy: Path, run: Sequence[str]) -> list[list[str]]:
    """Run the suite once in a copy: for each place the tests that reach it, the quickest ones first."""
    for number, place in sorted(enumerate(places), key=lambda one: -one[1].statement):
        file = copy / place.file
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        line = lines[place.statement - 1]
        indent = line[: len(line) - len(line.lstrip())]
        lines.insert(place.statement - 1, REPORT.format(indent=indent, number=number))
        file.write_text("".join(lines), encoding="utf-8")
    (reached := copy / "reached").mkdir()
    environment = {**_environment(copy), REACHED: str(reached)}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "scripts._mutate", *run], cwd=copy, env=environment, check=False
    )
    tests: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
    for file in reached.iterdir():
        for test, took, seen in json.loads(file.read_text(encoding="utf-8")):
            for number in seen:
                tests[number].append((took, test))
    return [[test for _, test in sorted(tests[number])[:CASES]] for number in range(len(places))]


def _environment(copy: Path) -> dict[str, str]:
    """That of tests in a copy: as many of the slow ones as `.ci/run` tries."""
    return {**os.environ, "PYTHONPATH": str(copy), "STAGEDB_TEST_MORE": "1"}


def outcome(place: Place, tests: Sequence[str], copy: Path, timeout: float) -> str:
    """Break the place in the copy, run the tests there, and mend it again."""
    file = copy / place.file
    text = file.read_bytes()
    file.write_bytes(text[: place.start] + place.new.encode() + text[place.end :])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        ended = subprocess.run(
            command,
            cwd=copy,
            env=_environment(copy),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "caught: it does not end"
    finally:
        file.write_bytes(text)
    if ended.returncode == 0:
        return "SURVIVED"
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"caught: {failed[0][:160]}" if failed else f"caught: exit status {ended.returncode}"


def main() -> int:
    """Draw, run the suite, break each place, and print a line for each. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=38, help="draws the places (38)")
    parser.add_argument("--places", type=int, default=30, help="so many (30)")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for the tests of one place (400)")
    parser.add_argument("--reached", type=Path, help="a file that keeps which tests reach a place, for the next time")
    parser.add_argument("tests", nargs="*", help="tests to choose from (all)")
    options = parser.parse_args()
    places = drawn(ROOT, options.seed, options.places)
    with tempfile.TemporaryDirectory(prefix="stagedb-mutate-") as name:
        if options.reached is not None and options.reached.exists():
            known = json.loads(options.reached.read_text(encoding="utf-8"))
        else:
            whole = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
            known = tests_of(places, _copied(Path(name) / "reporting"), options.tests or whole)
            if options.reached is not None:
                options.reached.write_text(json.dumps(known), encoding="utf-8")
        copy = _copied(Path(name) / "broken")
        caught = 0
        for place, tests in zip(places, known, strict=True):
            result = outcome(place, tests, copy, options.timeout) if tests else "SURVIVED: no test reaches it"
            caught += result.startswith("caught")
            print(f"{place.file}:{place.line}: {place.old} -> {place.new}: {result}", flush=True)
    print(f"{caught} of {len(places)} caught")
    return 0


def _copied(copy: Path) -> Path:
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", ".mypy_cache"))
    return copy


if __name__ == "__main__":
    sys.exit(main())
