"""The rules for every statement, under `cypher/` or by label, checked from its tokens.

The servers check the rest (EXPLAIN, in a test).

The header is complete and matches the text: its parameters, its columns, whether it writes. Patterns begin at a label,
because a search without one reads the whole store. Labels and relationships are in the schema.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

from stagedb.errors import UsageError
from stagedb.store import LABELS, RELATIONSHIPS, Statement, load, names
from stagedb.store.free_queries import CLOSING, OPENING, WRITES, Token, check, returned, tokens
from stagedb.store.statements import HeaderError, source

WIDTH = 120
UNLABELLED = {"schema/is_empty", "catalog/node_count", "catalog/edge_count"}
"""Statements that may read nodes of any label: they stop at the first node, or only count."""

CLAUSES = {
    "MATCH",
    "OPTIONAL",
    "WHERE",
    "WITH",
    "RETURN",
    "UNWIND",
    "CALL",
    "CREATE",
    "MERGE",
    "SET",
    "REMOVE",
    "DELETE",
}
CLAUSES |= {"DETACH", "FOREACH", "UNION"}
KNOWN_LABELS = {name for label in LABELS for name in (label.name, *label.also)}
KNOWN_TYPES = {edge.type for edge in RELATIONSHIPS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/lint_cypher", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--show", metavar="NAME", help="print a statement, such as lifecycle/claim_graph, instead")
    shown = parser.parse_args().show
    if shown is not None:
        print(source(shown), end="")
        return 0
    faults = [fault for name in names() for fault in lint(name)]
    for fault in faults:
        print(fault)
    print(f"{len(names())} statements, {len(faults)} faults")
    return 1 if faults else 0


def lint(name: str) -> list[str]:
    """Faults of the statement of this name, each with its file."""
    try:
        statement = load(name)
    except HeaderError as error:
        return [str(error)]
    lines = source(name).splitlines()
    found = [f"line {number} is longer than {WIDTH}" for number, line in enumerate(lines, 1) if _too_long(line)]
    return [f"cypher/{name}.cypher: {fault}" for fault in (*found, *faults(statement))]


def _too_long(line: str) -> bool:
    """A field of the header is one line of any length."""
    return len(line) > WIDTH and not line.startswith("//")


def faults(statement: Statement) -> Iterator[str]:
    """The faults of a parsed statement."""
    text = list(tokens(statement.text))
    yield from _parameters(statement, text)
    yield from _mode(statement, text)
    yield from _columns(statement, text)
    yield from _names(text)
    if statement.name not in UNLABELLED:
        yield from _unlabelled(text)


def _parameters(statement: Statement, text: Sequence[Token]) -> Iterator[str]:
    used = {token.text[1:].strip().strip("`") for token in text if token.kind == "parameter"}
    declared = {field.name for field in statement.params}
    yield from (f"parameter {name} is used and not declared" for name in sorted(used - declared))
    yield from (f"parameter {name} is declared and not used" for name in sorted(declared - used))


def _mode(statement: Statement, text: Sequence[Token]) -> Iterator[str]:
    if statement.mode == "reads":
        try:
            check(statement.text)
        except UsageError as error:
            yield f"its mode is `reads`: {error}"
    elif not any(token.kind == "word" and token.text.upper() in WRITES for token in text):
        yield "its mode is `writes`, and no clause writes"


def _columns(statement: Statement, text: Sequence[Token]) -> Iterator[str]:
    declared = [field.name for field in statement.columns]
    returns = list(returned(text))
    if not returns and declared:
        yield "it declares columns and returns none"
    for items in returns:
        columns = []
        for item in items:
            last = item[-1].text.strip("`")
            if len(item) > 1 and item[-2].text.upper() != "AS":
                yield f"a column without a name: end {' '.join(token.text for token in item)!r} with AS"
            columns.append(last)
            expression = [token.text for token in item[:-2]]
            if len(item) > 1 and expression != [item[-1].text] and last in _node_variables(text):
                yield f"column {last} has the name of a node variable, which one engine does not allow"
        if columns != declared:
            yield f"it returns {', '.join(columns)}, and declares {', '.join(declared) or 'nothing'}"


def _names(text: Sequence[Token]) -> Iterator[str]:
    inside: list[str] = []
    for before, token in pairwise([Token("symbol", "", 0), *text]):
        if token.kind == "symbol" and token.text in OPENING:
            inside.append(token.text)
        elif token.kind == "symbol" and token.text in CLOSING and inside:
            inside.pop()
        if before.text == ":" and token.kind == "word" and inside:
            if inside[-1] == "(" and token.text not in KNOWN_LABELS:
                yield f"line {token.line} of its text: no label {token.text} in the schema"
            if inside[-1] == "[" and token.text not in KNOWN_TYPES:
                yield f"line {token.line} of its text: no relationship {token.text} in the schema"


def _unlabelled(text: Sequence[Token]) -> Iterator[str]:
    """Paths of MATCH and MERGE without a node that has a label or is known already."""
    for place, token in enumerate(text):
        if token.kind == "word" and token.text.upper() in ("MATCH", "MERGE"):
            known = {earlier.text for earlier in text[:place] if earlier.kind in ("word", "name")}
            for path in _paths(text[place + 1 :]):
                nodes = list(_nodes(path))
                if nodes and not any(":" in node or (node and node[0] in known) for node in nodes):
                    yield f"line {token.line} of its text: a pattern without a label, which reads the whole store"
                known |= {node[0] for node in nodes if node}


def _paths(text: Sequence[Token]) -> Iterator[list[Token]]:
    """The paths of a clause, separated by commas, up to the next clause."""
    depth, path = 0, list[Token]()
    for token in text:
        if depth == 0 and token.kind == "word" and token.text.upper() in CLAUSES | {"ON", "ORDER"}:
            break
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == "symbol" else 0
        if depth < 0:
            break
        if depth == 0 and token.text == ",":
            yield path
            path = []
        else:
            path.append(token)
    yield path


def _nodes(path: Sequence[Token]) -> Iterator[list[str]]:
    """The words inside each node pattern, up to its properties."""
    depth, node = 0, None
    for token in path:
        if token.kind == "symbol" and token.text in OPENING:
            depth += 1
            if token.text == "(" and depth == 1:
                node = list[str]()
                continue
        elif token.kind == "symbol" and token.text in CLOSING:
            depth -= 1
            if depth == 0 and token.text == ")" and node is not None:
                yield node
                node = None
        if node is not None and depth == 1:
            node.append(token.text)


def _node_variables(text: Sequence[Token]) -> set[str]:
    paths = (
        path
        for place, token in enumerate(text)
        if token.kind == "word" and token.text.upper() in ("MATCH", "MERGE", "CREATE")
        for path in _paths(text[place + 1 :])
    )
    return {node[0] for path in paths for node in _nodes(path) if node and re.match(r"\w", node[0])}


if __name__ == "__main__":
    sys.exit(main())
