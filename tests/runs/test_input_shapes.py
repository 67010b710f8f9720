"""Shapes of operators' inputs: each op has those of the operator that launched it."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.api.client import Stagedb
from stagedb.runs import file_digest, measured_run, read_kineto, run_rows
from stagedb.runs.rank_trace import NONE, RankTrace, input_shapes
from stagedb.store import Store
from tests.runs.recordings import Recording


def launched(found: Recording, at: int, *around: tuple[str, Any]) -> None:
    """A kernel 100 ns after its launch, inside operators with these names and shapes, the outermost one first."""
    for depth, (name, shapes) in enumerate(around):
        more = {} if shapes is None else {"Input Dims": shapes, "Input type": ["c10::BFloat16"] * len(shapes)}
        found.span("cpu_op", name, at - 10 + depth, 40 - 2 * depth, **more)
    found.number += 1
    found.span("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=found.number)
    found.span("kernel", "ampere_sgemm", at + 100, 50, (0, 7), stream=7, device=0, correlation=found.number)


def recorded() -> Recording:
    found = Recording()
    launched(found, 1_000, ("aten::linear", [[5, 768], [96, 768], [96]]), ("aten::mm", [[5, 768], [768, 96]]))
    launched(found, 2_000, ("autograd::engine::evaluate_function: X", None), ("aten::cat", [[[8, 2], [9, 2]], []]))
    # What has no shapes of its own is part of what has some.
    launched(found, 3_000, ("aten::mul_", [[4], []]), ("torch_compiled", None), ("empty", []))
    launched(found, 4_000, ("no shapes at all", None))
    # Those of many tensors are too long, and no others are theirs.
    launched(found, 5_000, ("outer", [[1]]), ("aten::_foreach_add_", [[[1024, 1024]] * 100, []]))
    launched(found, 6_000, ("aten::fill_", [[], []]))
    found.kernel("ampere_sgemm", 9_000, 50, launched=7_500)
    return found


WANTED = ["[[5,768],[768,96]]", "[[[8,2],[9,2]],[]]", "[[4],[]]", None, None, "[[],[]]", None]


def trace_of(directory: Path) -> RankTrace:
    path = recorded().write(directory)
    return read_kineto(path, file_digest(path))


def test_an_op_has_the_shapes_of_the_innermost_operator_with_some(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    found = [trace.shapes[place] if place != NONE else None for place in trace.ops.shapes.tolist()]
    assert found == [*WANTED[:4], "", *WANTED[5:]]
    rows = [values for _, values in run_rows(measured_run([trace]), {}).nodes["RunOp"]]
    assert [row.get("shapes") for row in rows] == WANTED


def test_shapes_are_in_the_store(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    db.import_run(recorded().write(tmp_path), name="shaped")
    assert [row["shapes"] for row in db.run_ops("shaped")] == WANTED
    query = "MATCH (o:RunOp {shapes: '[[5,768],[768,96]]'}) RETURN o.launcher AS launcher"
    assert [row["launcher"] for row in db.query(query)] == ["aten::mm"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"[[16,  3],\n [ ], [[2], []]]", "[[16,3],[],[[2],[]]]"),
        (b"[[[[1],[1]]], []]", "[[[[1],[1]]],[]]"),
        (b"[]", None),
        (b"", None),
        (b"null", None),
        (b'"[[1]]"', None),
        (b"[1, 2]", None),
        (b'[["1"]]', None),
        (b"[[1.5]]", None),
        (b"[[true]]", None),
        (b"[[1]", None),
        (b"\xff", None),
        (b"[[" + b"1," * 244 + b"12345678]]", "[[" + "1," * 244 + "12345678]]"),
        (b"[[" + b"1," * 244 + b"123456789]]", ""),
    ],
)
def test_shapes_are_lists_of_integers(written: bytes, text: str | None) -> None:
    assert input_shapes(written) == text
