"""Kinds of collectives: the objects' figures against numpy, and that no other file knows a kind by its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stagedb.collectives import KINDS, CollectiveKind, HeldAs, kind_between
from stagedb.systems.algorithms import COLLECTIVES
from stagedb.traces import chakra_pb2 as pb

ROOT = Path(__file__).parents[2] / "stagedb"
FILES = sorted(
    path for path in ROOT.rglob("*.py") if not path.stem.endswith("_pb2") and path != ROOT / "collectives.py"
)
NAME = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(KINDS)})(?![A-Za-z0-9_])")
TYPE = re.compile("|".join(each.comm_type for each in KINDS.values()))


def literals(source: str) -> Iterator[str]:
    """Texts of code that name a kind, and members of Chakra's schema that do. Docstrings and comments may."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if NAME.search(node.value):
                yield f"{node.lineno}: {node.value}"
        elif isinstance(node, ast.Attribute) and TYPE.fullmatch(node.attr):
            yield f"{node.lineno}: {node.attr}"


def test_no_other_file_has_the_name_of_a_kind() -> None:
    found = [f"{path.relative_to(ROOT)}:{each}" for path in FILES for each in literals(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize("line", ['op.kind == "all_reduce"', 'name.endswith(".all_to_all.tp")', "pb.ALL_GATHER"])
def test_a_name_of_a_kind_is_found(line: str) -> None:
    assert [*literals(line)]


@pytest.mark.parametrize("line", ['"""An all_reduce."""', "# all_reduce", '"limit_all_gathers"', "ALL_REDUCE.name"])
def test_what_decides_nothing_is_left_alone(line: str) -> None:
    assert [*literals(line)] == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_sizes_are_those_of_arrays(kind: CollectiveKind) -> None:
    """A tensor in the hands of four members: what they pass in, what comes of it, and what each of them gets."""
    members, tensor = 4, np.arange(32.0).reshape(8, 4)
    cut = np.split(tensor, members)
    shares = [np.full_like(tensor, rank) for rank in range(members - 1)]
    summands = [*shares, tensor - sum(shares)]
    given = {HeldAs.PART: cut, HeldAs.SHARE: summands}[kind.before]
    assert np.array_equal(kind.combine(given, None if kind.reduces else 0), tensor)
    gets = cut[0] if kind.after is HeldAs.PART else tensor
    passed, got = int(given[0].nbytes), int(gets.nbytes)
    assert kind.resizes == (passed != got)
    assert kind.whole(passed, members) == max(passed, got)
    if kind.resizes:
        assert kind.sizes(cut[0].nbytes, tensor.nbytes) == (passed, got)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_its_place_everywhere(kind: CollectiveKind) -> None:
    assert kind_between(kind.before, kind.after) is kind
    assert kind.name in COLLECTIVES, "an algorithm runs it"
    assert kind.comm_type in dict(pb.CollectiveCommType.items())
    assert [kind.gathers, kind.scatters, kind.exchanges].count(True) <= 1


def test_an_unknown_change_is_no_collective() -> None:
    with pytest.raises(LookupError, match="no collective makes a share of a whole"):
        kind_between(HeldAs.WHOLE, HeldAs.SHARE)
