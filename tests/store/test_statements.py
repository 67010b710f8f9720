"""Statements and their headers; the lint that every file under `cypher/` must pass."""

import pytest

from scripts._lint_cypher import faults, lint
from stagedb.errors import StagedbError
from stagedb.store import Field, Store, load, names
from stagedb.store.statements import HeaderError, parse

WHOLE = """// Ops of a class,
// by order.
//
// mode: reads
// param instance: string — the instance's id
// param dims: integer[]? — sizes
// column flops: integer [flop] — of one rank
MATCH (o:Op {instance: $instance})
WHERE o.dims = $dims
RETURN o.flops AS flops
"""


def test_a_header_is_read() -> None:
    statement = parse("analyze/x", WHOLE)
    assert statement.description == "Ops of a class, by order."
    assert statement.mode == "reads"
    assert statement.params == (
        Field("instance", "string", None, "the instance's id"),
        Field("dims", "integer[]?", None, "sizes"),
    )
    assert statement.columns == (Field("flops", "integer", "flop", "of one rank"),)
    assert statement.text.startswith("MATCH (o:Op")
    assert list(faults(statement)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault_text"),
    [
        ("// mode: reads\n", "", "after|mode"),
        ("mode: reads", "mode: read", "mode: reads"),
        ("// Ops of a class,\n// by order.\n", "", "description"),
        ("instance: string —", "instance: text —", "line 5"),
        ("instance: string —", "instance: string -", "line 5"),
        ("param dims", "param instance", "declared twice"),
        ("param dims: integer[]? — sizes", "note: this", "line 6"),
        (WHOLE[WHOLE.index("MATCH") :], "", "no Cypher"),
    ],
)
def test_a_bad_header_is_refused_with_its_place(old: str, new: str, fault_text: str) -> None:
    assert old in WHOLE
    with pytest.raises(HeaderError, match=fault_text):
        parse("analyze/x", WHOLE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "fault_text"),
    [
        ("$dims", "$sizes", "parameter sizes is used and not declared"),
        ("$dims", "[1]", "parameter dims is declared and not used"),
        ("AS flops", "AS work", "returns work, and declares flops"),
        ("o.flops AS flops", "o.flops", "without a name"),
        ("o.flops AS flops", "o.flops AS flops, o.id AS id", "returns flops, id"),
        ("RETURN", "SET o.x = 1 RETURN", "its mode is `reads`"),
        ("mode: reads", "mode: writes", "no clause writes"),
        ("(o:Op {", "(o {", "without a label"),
        ("(o:Op", "(o:Oq", "no label Oq"),
        ("RETURN", "MATCH (o)-[:DEPS]->(p:Op) RETURN", "no relationship DEPS"),
        ("(o:Op {instance: $instance})", "(o:Op {instance: $instance}), (p)", "without a label"),
        ("o.flops AS flops", "o.flops AS o", "name of a node variable"),
    ],
)
def test_the_lint_finds(old: str, new: str, fault_text: str) -> None:
    assert old in WHOLE
    found = list(faults(parse("analyze/x", WHOLE.replace(old, new))))
    assert any(fault_text in fault for fault in found), found


def test_every_statement_passes_the_lint() -> None:
    found = {name: lint(name) for name in names()}
    assert {name: each for name, each in found.items() if each} == {}


def test_parameters_must_be_those_of_the_header(embedded_store: Store) -> None:
    with pytest.raises(StagedbError, match=r"missing: id; unknown: graph\. It takes id \(string\)"):
        embedded_store.read("build/graph", graph="x")


def test_a_statement_is_called_as_what_it_is(embedded_store: Store) -> None:
    with pytest.raises(StagedbError, match="schema/store reads"):
        embedded_store.write("schema/store")
    with pytest.raises(StagedbError, match="schema/mark writes"):
        embedded_store.read("schema/mark", version=1, now=1)


@pytest.mark.parametrize("name", ["store/nothing", "../pyproject", "/etc/passwd", "store", ""])
def test_a_name_without_a_file_is_refused(name: str) -> None:
    with pytest.raises(StagedbError, match="unknown Cypher statement"):
        load(name)
