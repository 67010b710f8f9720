"""The bytes of a rank are what the protobuf library writes for the nodes that a plain encoder makes one by one."""

import dataclasses

import numpy as np
import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import StagedbError
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, DATA, EVERY, FIRST, LAST, LIMIT, PROGRAM, RECV, SEND, Workload
from stagedb.lowering.issue_order import sequence
from stagedb.plans import GraphOptions, Plan
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import protobuf_columns as wire
from stagedb.traces.encoded_class import rank_files
from stagedb.traces.encoding import RankFields, encode, rank_bytes
from tests.sampling import examples
from tests.traces.plain import parse, plain_dependencies, plain_nodes, serialize
from tests.traces.synthetic import FORWARD, INPUT_GRADIENT, STEP, WEIGHT_GRADIENT, Op, columns, stage_tasks, workload

numbers = st.one_of(
    st.integers(0, 300), st.integers(0, 2**62 - 1), st.sampled_from([127, 128, 2**14 - 1, 2**14, 2**32])
)


@given(st.lists(numbers))
def test_varints_are_those_of_the_library(values: list[int]) -> None:
    rows = wire.varints(np.array(values, np.int64))
    assert [rows.row(i) for i in range(len(values))] == [_VarintBytes(value) for value in values]
    assert wire.varint_sizes(np.array(values, np.int64)).tolist() == [wire.varint_size(value) for value in values]


@given(st.lists(numbers, min_size=1), st.integers(9, 10))
def test_padded_varints_read_the_same(values: list[int], width: int) -> None:
    for value, row in zip(values, wire.padded(np.array(values, np.int64), width), strict=True):
        message = pb.AttributeProto.FromString(wire.tag(9, wire.VARINT) + row.tobytes())
        assert message.int64_val == value


@given(st.lists(st.tuples(st.text(), st.text(), st.booleans())))
def test_columns_are_joined_row_by_row(rows: list[tuple[str, str, bool]]) -> None:
    first, second = (wire.texts([row[i] for row in rows]) for i in (0, 1))  # type: ignore[misc]
    keep = np.array([row[2] for row in rows], bool)
    if not rows:
        return
    joined, begins = wire.join(first, second.where(keep))
    for i, (a, b, kept) in enumerate(rows):
        assert joined.row(i) == (a + (b if kept else "")).encode()
        assert begins[1][i] - begins[0][i] == len(a.encode())
    backwards = np.arange(len(rows))[::-1]
    assert joined.take(backwards).row(0) == joined.row(len(rows) - 1)


def file_of(made: Workload, rank: int, granularity: str = "op") -> bytes:
    """The bytes of a rank's file."""
    fields = RankFields.of(made)
    each = next(each for each in made.classes if each.number == made.ranks.number[rank])
    encoded = encode(each, sequence(each, granularity), fields, {"model": made.model, "world": len(made.ranks)})
    ((number, buffer),) = rank_files(encoded, rank_bytes(made, fields, np.array([rank])))
    assert (number, len(buffer)) == (rank, encoded.size)
    return buffer.tobytes()


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.sampled_from(["op", "block"]))
def test_a_rank_is_what_the_plain_encoder_writes(data: st.DataObject, granularity: str) -> None:
    words = {
        "tp": data.draw(st.sampled_from([1, 2, 4])),
        "dp": data.draw(st.sampled_from([1, 2, 3])),
        "pp": data.draw(st.integers(1, 4)),
        "microbatches": data.draw(st.integers(1, 9)),
        "layers": data.draw(st.integers(1, 3)),
    }
    made = workload(**words, schedule=data.draw(st.sampled_from(["gpipe", "1f1b"])))
    rank = data.draw(st.integers(0, len(made.ranks) - 1))
    raw = file_of(made, rank, granularity)
    metadata, nodes = parse(raw)
    assert metadata.version == "0.0.4"
    assert {each.name: each.int32_val for each in metadata.attr}["rank"] == rank
    expected = plain_nodes(made, rank, granularity)
    for ours, plain in zip(nodes, expected, strict=True):
        assert ours == plain
    again = serialize(metadata, expected)
    if len(nodes) < 128:  # every id takes one byte: nothing is padded
        assert raw == again
    else:
        assert len(raw) > len(again)


@st.composite
def templates(draw: st.DrawFn) -> list[Op]:
    """Any ops with any edges that agree with the issue order, of any reason; some run for one microbatch only."""
    shapes = st.sampled_from([COMPUTE, COMPUTE, COLLECTIVE, SEND, RECV])
    ops: list[Op] = []
    for template in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, STEP):
        for index in range(draw(st.integers(0, 4))):
            type_ = draw(shapes)
            axis = draw(st.sampled_from(["pp", "cp"])) if type_ in (SEND, RECV) else "tp" if type_ == COLLECTIVE else ""
            onward = 1 if (template in (FORWARD, STEP)) == (type_ == SEND) else -1
            after = draw(st.sets(st.sampled_from([op.name for op in ops]), max_size=3)) if ops else set()
            op = Op(
                f"{template}, {index} = é",
                template,
                type_,
                "matmul" if type_ == COMPUTE else "all_reduce" if type_ == COLLECTIVE else "message",
                draw(st.sampled_from([EVERY, EVERY, FIRST, LAST])),
                axis=axis,
                size=0 if type_ == COMPUTE else draw(st.integers(1, 2**40)),
                peer={"pp": onward, "cp": draw(st.sampled_from([2, -2]))}.get(axis, 0),
                flops=draw(st.integers(0, 2**55)),
                bytes=draw(st.integers(0, 2**55)),
                after=tuple(sorted(after)),
                reason=draw(st.sampled_from([DATA, DATA, LIMIT, PROGRAM])),
            )
            ops.append(op)
    return ops or [Op("alone", FORWARD)]


@settings(max_examples=examples(150), deadline=None)
@given(templates(), st.integers(1, 5), st.integers(1, 3), st.sampled_from(["gpipe", "1f1b"]), st.data())
def test_any_templates_are_laid_out_as_the_plain_encoder_does(
    ops: list[Op], microbatches: int, stages: int, schedule: str, data: st.DataObject
) -> None:
    plan = Plan(GraphOptions(), pp=stages, tp=2, global_batch_size=microbatches, schedule=schedule)
    tasks = stage_tasks(plan, data.draw(st.integers(0, stages - 1)))
    base = workload(tp=2, dp=1, pp=stages, cp=4, distance=2)
    each = columns(ops, tasks)
    made = dataclasses.replace(
        base, classes=(each,), ranks=dataclasses.replace(base.ranks, number=base.ranks.number * 0)
    )
    rank = data.draw(st.integers(0, len(made.ranks) - 1))
    if not sequence(each).nodes:
        return
    granularity = data.draw(st.sampled_from(["op", "block"]))
    _, nodes = parse(file_of(made, rank, granularity))
    assert nodes == plain_nodes(made, rank, granularity)
    for node in nodes:
        deps = [*node.ctrl_deps, *node.data_deps]
        assert len(set(deps)) == len(deps)
        assert all(0 < dep < node.id for dep in deps)


def test_rings_are_inside_their_group_of_ranks() -> None:
    """Neighbours two apart on cp, around its ends; those of the pipeline are as they were."""
    ranks = workload(tp=2, dp=2, pp=2, cp=4, distance=2).ranks
    at = np.arange(32)
    cp, outside = at // 2 % 4, at % 2 + at // 8 * 8
    np.testing.assert_array_equal(ranks.ring_next, outside + (cp + 2) % 4 * 2)
    np.testing.assert_array_equal(ranks.ring_previous, outside + (cp - 2) % 4 * 2)
    near = workload(tp=2, dp=1, pp=1, cp=3).ranks
    assert near.ring_next.tolist() == [2, 3, 4, 5, 0, 1]
    assert near.ring_previous.tolist() == [4, 5, 0, 1, 2, 3]
    np.testing.assert_array_equal(ranks.next, (at + 16) % 32)


def test_a_step_of_many_microbatches_is_few_layouts() -> None:
    """The middle of 1F1B repeats itself: what is encoded does not grow with the microbatches."""
    few, many = (sequence(workload(pp=4, microbatches=count).classes[1]) for count in (12, 200))
    assert len(few.layouts) == len(many.layouts) <= 12
    assert many.nodes > 10 * few.nodes


def test_dependencies_of_one_forward_one_backward() -> None:
    """Stage 0 of 2, two microbatches, one layer: the order of 1F1B is in the dependencies."""
    made = workload(tp=1, dp=1, pp=2, microbatches=2, layers=1)
    names = made.classes[0].ops.name
    nodes = [(names[op], ident, ctrl, data) for op, ident, _, ctrl, data in plain_dependencies(made.classes[0])]
    assert nodes == [
        ("embedding", 1, [], []),
        ("layer.0.mm", 2, [], [1]),
        ("cut.send_forward", 3, [], [2]),
        ("embedding", 4, [2], []),
        ("layer.0.mm", 5, [], [4]),
        ("cut.send_forward", 6, [3], [5]),
        ("cut.recv_backward", 7, [], []),
        ("layer.0.mm.grad_w", 8, [5], [2, 7]),
        ("layer.0.mm.grad_x", 9, [5], [2, 7]),
        ("embedding.grad", 10, [], [9]),
        ("cut.recv_backward", 11, [], []),
        ("layer.0.mm.grad_w", 12, [10], [5, 11]),
        ("layer.0.mm.grad_x", 13, [10], [5, 11]),
        ("embedding.grad", 14, [], [13]),
        ("step.0", 15, [14], [12]),
    ]


def test_an_edge_against_the_issue_order_is_refused() -> None:
    made = workload(layers=1)
    edges = made.classes[0].edges
    turned = dataclasses.replace(
        made.classes[0], edges=dataclasses.replace(edges, source=edges.target, target=edges.source)
    )
    with pytest.raises(StagedbError, match="issued later in the same task"):
        sequence(turned)


def test_dependencies_ascend_also_where_tasks_change_places() -> None:
    """In 1F1B's beginning and end the task that computed last and the one that communicated last change places."""
    ops = [Op("compute", FORWARD), *(backward(f"reduce.{index}") for index in range(3))]
    each = columns(ops, stage_tasks(Plan(GraphOptions(), pp=3, global_batch_size=5), 0))
    base = workload(tp=2, dp=1, pp=3)
    made = dataclasses.replace(
        base, classes=(each,), ranks=dataclasses.replace(base.ranks, number=base.ranks.number * 0)
    )
    _, nodes = parse(file_of(made, 0))
    assert nodes == plain_nodes(made, 0)
    assert all(list(node.ctrl_deps) == sorted(node.ctrl_deps) for node in nodes)


def backward(name: str) -> Op:
    return Op(name, INPUT_GRADIENT, COLLECTIVE, "all_reduce", axis="tp", size=1)


@pytest.mark.parametrize("granularity", ["op", "block"])
@pytest.mark.parametrize("formats", [("bf16",), ("bf16", "fp8_e4m3")])
def test_a_compute_node_has_the_format_of_its_flops(formats: tuple[str, ...], granularity: str) -> None:
    """A block of several kernels has one if all its FLOPs are in it."""
    made = workload(tp=1, dp=2, pp=1, microbatches=1)
    (each,) = made.classes
    computes = each.ops.type == COMPUTE
    numbers = (np.cumsum(computes & (each.ops.flops > 0)) % len(formats)).tolist()
    dtype = tuple(
        (formats[number] if flops else "") if compute else format_
        for number, flops, compute, format_ in zip(
            numbers, each.ops.flops.tolist(), computes.tolist(), each.ops.dtype, strict=True
        )
    )
    ops = dataclasses.replace(each.ops, dtype=dtype)
    made = dataclasses.replace(made, classes=(dataclasses.replace(each, ops=ops),))
    _, nodes = parse(file_of(made, 0, granularity))
    found = {at.string_val for node in nodes if node.type == pb.COMP_NODE for at in node.attr if at.name == "dtype"}
    assert found == {*formats} or granularity == "block"
    assert "bf16" in found or len(formats) > 1
    assert nodes == plain_nodes(made, 0, granularity)
