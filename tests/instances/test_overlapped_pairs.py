"""Forwards and backwards that run together: the order of their operators, what waits for what, and nothing lost."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import StagedbError
from stagedb.lowering import program_of
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, ONCE, RECV, SEND, TASK_KINDS, ClassColumns, Workload
from stagedb.lowering.issue_order import DATA_DEPS, NodeLayout, sequence
from stagedb.plans import Plan
from stagedb.systems import load_system
from stagedb.timing import profile_job
from tests.ir.tiny import card
from tests.sampling import examples
from tests.traces.simulated import workload_of

Words = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Ran:
    """A node in issue order: its op, and the kind, micro-batch and chunk of its task. waits: ids, data and control."""

    op: int
    task: int
    kind: str
    microbatch: int
    chunk: int
    data: frozenset[int]
    control: frozenset[int]


@cache
def workload(style: str, layers: int, words: Words) -> Workload:
    plan = Plan.from_mapping({"seq_len": 8, **dict(words)})
    return program_of(card(style, layers=layers), plan).workload


def nodes_of(columns: ClassColumns) -> list[Ran]:
    """All nodes of a class, from its layouts."""
    nodes, tasks = sequence(columns), columns.tasks
    waits = [_by_row(each) for each in nodes.layouts]
    found = []
    for row, task in enumerate(nodes.task.tolist()):
        number = int(nodes.layout[row])
        begins = [int(nodes.base[each]) if each >= 0 else 0 for each in nodes.sources[row].tolist()]
        where = (TASK_KINDS[tasks.kind[task]], int(tasks.microbatch[task]), int(tasks.chunk[task]))
        for at, op in enumerate(nodes.layouts[number].ops.tolist()):
            ends = [
                frozenset(begins[ref] + offset for ref, offset in waits[number][field].get(at, ())) for field in (1, 0)
            ]
            found.append(Ran(op, task, *where, *ends))
    return found


def _by_row(layout: NodeLayout) -> list[dict[int, list[tuple[int, int]]]]:
    """What each node of a layout waits for, control and data: references and offsets."""
    found: list[dict[int, list[tuple[int, int]]]] = [{}, {}]
    columns = (layout.row.tolist(), layout.field.tolist(), layout.ref.tolist(), layout.offset.tolist())
    for row, field, ref, offset in zip(*columns, strict=True):
        found[field == DATA_DEPS].setdefault(row, []).append((ref, offset))
    return found


def both(style: str, layers: int, **words: Any) -> tuple[Workload, Workload]:
    """The same plan without pairs and with them."""
    plain = tuple(sorted(words.items()))
    return workload(style, layers, plain), workload(style, layers, (*plain, ("overlap_experts", True)))


MEGATRON = {"recipe": "megatron", "dp": 4, "ep": 2, "zero": 1}


def test_a_pair_runs_in_the_published_order() -> None:
    """Layer by layer as in Megatron-Core's `TransformerLayerSchedulePlan.run`, for a dense layer and two of experts."""
    _, made = both("deepseek", 3, **MEGATRON, global_batch_size=8)
    (columns,) = made.classes
    (begin, end) = columns.pairs[0]
    parts: list[tuple[str, list[str]]] = []
    for node in nodes_of(columns):
        if begin <= node.task < end:
            if not parts or parts[-1][0] != node.kind:
                parts.append((node.kind, []))
            parts[-1][1].append(columns.ops.name[node.op])
    back = "layer.{}.ffn.experts.w13.input_gradient.all_reduce.tp.all_to_all.ep"
    ends = [(kind, names[0], names[-1]) for kind, names in parts]
    layer = [
        ("backward", "layer.1.ffn.experts.w2.input_gradient", "layer.1.ffn.experts.w13.weight_gradient"),
        ("forward", "layer.1.ffn.dispatch.all_to_all.ep", "layer.1.ffn.dispatch.all_to_all.ep"),
        ("backward", back.format(1), back.format(1)),
        ("forward", "layer.1.ffn.experts.w13", "layer.1.ffn.experts.w2.all_reduce.tp.all_to_all.ep"),
        ("backward", "layer.1.ffn.dispatch.input_gradient", "layer.1.input.gradient_sum.0"),
    ]
    assert ends == [
        ("forward", "embedding.word", "embedding.word"),
        ("backward", "head.loss.input_gradient", "layer.2.ffn.combine.input_gradient.all_to_all.ep"),
        ("forward", "dense.0.attn_norm", "dense.0.attn.add"),
        ("backward", "layer.2.ffn.experts.w2.input_gradient", back.format(2)),
        ("forward", "dense.0.ffn_norm", "dense.0.ffn.add"),
        ("backward", "layer.2.ffn.dispatch.input_gradient", "layer.1.ffn.combine.input_gradient.all_to_all.ep"),
        ("forward", "layer.1.attn_norm", "layer.1.ffn.dispatch"),
        *layer,
        ("forward", "layer.1.ffn.combine", "layer.2.ffn.dispatch"),
        ("backward", "dense.0.ffn.w2.input_gradient", "dense.0.ffn_norm.input_gradient"),
        ("forward", "layer.2.ffn.dispatch.all_to_all.ep", "layer.2.ffn.experts.w2.all_reduce.tp.all_to_all.ep"),
        ("backward", "dense.0.attn.add.gradient_sum.0", "dense.0.input.gradient_sum.0"),
        ("forward", "layer.2.ffn.combine", "head.loss"),
        ("backward", "embedding.word.weight_gradient", "embedding.word.weight_gradient"),
    ]


def test_each_half_computes_during_the_exchanges_of_the_other() -> None:
    """An exchange of a pair waits for its own half's operators and for other communication, not for the other half."""
    _, made = both("moe", 4, **MEGATRON, global_batch_size=16)
    (columns,) = made.classes
    nodes = nodes_of(columns)
    ops, hidden = columns.ops, 0
    for begin, end in columns.pairs:
        inside = [at for at, node in enumerate(nodes) if begin <= node.task < end]
        for at in inside:
            node = nodes[at]
            if ops.axis[node.op] != "ep" or ops.type[node.op] != COLLECTIVE:
                continue
            waits = [nodes[each - 1] for each in node.data | node.control]
            assert all(each.task == node.task for each in waits if ops.type[each.op] == COMPUTE)
            other = next(nodes[each] for each in inside if each > at and nodes[each].op != node.op)
            hidden += other.task != node.task
    assert hidden >= 4 * len(columns.pairs) * 2


@st.composite
def plans(draw: st.DrawFn) -> tuple[str, int, dict[str, Any]]:
    """A small model and a plan with pairs."""
    style, ep = draw(st.sampled_from(["moe", "deepseek"])), draw(st.sampled_from([2, 4]))
    shape = draw(st.sampled_from(["alone", "interleaved", "dualpipev"]))
    tp = draw(st.sampled_from([1, 2]))
    words: dict[str, Any] = {"dp": 4, "ep": ep, "tp": tp, "sp": tp > 1 and draw(st.booleans())}
    words |= {"recipe": draw(st.sampled_from(["torch", "megatron"])), "zero": draw(st.integers(0, 2))}
    if words["recipe"] == "megatron" or shape == "alone":
        words["zero"] = min(words["zero"], 1)
    pp = 1 if shape == "alone" else draw(st.sampled_from([2, 4] if shape == "interleaved" else [2]))
    chunks = 1 if shape == "alone" else 2
    number = {"alone": draw(st.integers(2, 4)), "interleaved": pp * draw(st.integers(1, 3)), "dualpipev": 2 * pp}[shape]
    words |= {"pp": pp, "virtual_stages": chunks, "global_batch_size": 4 * (number + (shape == "dualpipev"))}
    words |= {"schedule": "dualpipev"} if shape == "dualpipev" else {}
    # torch cannot split a backward that recomputes.
    recompute = ["none", "full", "pointwise"] if shape != "dualpipev" else ["none"]
    words |= {"recompute": draw(st.sampled_from(recompute))}
    words |= {"cp": 2} if draw(st.booleans()) else {}
    uneven = draw(st.booleans()) and not words["sp"] and "cp" not in words
    words |= {"expert_load": (3, 1, 2, 2)} if uneven else {}
    return style, max(pp * chunks, 2) * draw(st.integers(1, 2)), words


@settings(max_examples=examples(25), deadline=None)
@given(plans())
def test_any_plan_runs_the_same_operators_after_what_they_read(plan: tuple[str, int, dict[str, Any]]) -> None:
    style, layers, words = plan
    plain, made = both(style, layers, **words)
    assert any(each.pairs for each in made.classes)
    assert not any(each.pairs for each in plain.classes)
    for before, columns in zip(plain.classes, made.classes, strict=True):
        runs = nodes_of(columns)
        assert _amounts(before, nodes_of(before)) == _amounts(columns, runs)
        _check_reads(columns, runs)
        _check_halves(columns, runs)
    _check_groups(made)
    system = load_system("h100")
    found = profile_job(made, system)
    assert found.step >= max(lane.busy for lane in found.times.lanes)
    busy = [[lane.busy for lane in profile_job(each, system).times.lanes] for each in (plain, made)]
    assert busy[0] == busy[1]


def _amounts(columns: ClassColumns, runs: list[Ran]) -> Counter[tuple[Any, ...]]:
    """How often each operator runs for each micro-batch, with all that it computes and sends."""
    ops = columns.ops
    numbers = [getattr(ops, name).tolist() for name in ("flops", "bytes", "size", "operand", "result", "peer")]
    return Counter(
        (ops.name[each.op], each.kind, each.microbatch, each.chunk, *(column[each.op] for column in numbers))
        for each in runs
    )


def _check_reads(columns: ClassColumns, runs: list[Ran]) -> None:
    """Every edge of the class holds in every task: the source came before, and the node waits for it."""
    ops = columns.ops
    latest: dict[int, int] = {}
    of: dict[tuple[int, int], int] = {}
    into: dict[int, list[int]] = {}
    for source, target in zip(columns.edges.source.tolist(), columns.edges.target.tolist(), strict=True):
        into.setdefault(target, []).append(source)
    same = {(each.op, each.microbatch) for each in runs}
    for number, node in enumerate(runs, 1):
        for source in into.get(node.op, ()):
            both_talk = {int(ops.type[source]), int(ops.type[node.op])} <= {COLLECTIVE, SEND}
            once = node.kind == "step" or ONCE[ops.template[source]]
            if not once and (source, node.microbatch) in same:
                wanted = of[source, node.microbatch]  # it came before, or this raises
            elif source in latest:
                wanted = latest[source]
            else:
                continue
            assert both_talk or wanted in node.data | node.control
        latest[node.op] = of[node.op, node.microbatch] = number


def _check_halves(columns: ClassColumns, runs: list[Ran]) -> None:
    """Each task's operators are in the order in which it runs them alone."""
    alone: dict[int, list[int]] = {}
    for node in nodes_of(replace(columns, pairs=())):
        alone.setdefault(node.task, []).append(node.op)
    found: dict[int, list[int]] = {}
    for node in runs:
        found.setdefault(node.task, []).append(node.op)
    assert found == alone


def _check_groups(made: Workload) -> None:
    """All ranks of a group issue the same collectives for the same micro-batches in the same order."""
    runs = {each.number: (each, nodes_of(each)) for each in made.classes}

    def calls(rank: int, axis: str) -> list[tuple[str, int, int]]:
        columns, nodes = runs[int(made.ranks.number[rank])]
        chosen = (n for n in nodes if columns.ops.axis[n.op] == axis and columns.ops.type[n.op] == COLLECTIVE)
        return [(columns.ops.kind[n.op], n.microbatch, n.chunk) for n in chosen]

    for axis, members in _members(made):
        assert len({tuple(calls(rank, axis)) for rank in members}) == 1


def _members(made: Workload) -> Iterator[tuple[str, list[int]]]:
    ends = np.cumsum(made.groups.sizes)
    for axis, begin, end in zip(made.groups.axis, (ends - made.groups.sizes).tolist(), ends.tolist(), strict=True):
        yield axis, made.groups.ranks[begin:end].tolist()


SHAPES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "one stage": ("qwen3-30b-a3b", 4, {"recipe": "megatron", "dp": 8, "ep": 8, "zero": 1, "global_batch_size": 64}),
    "interleaved": (
        "qwen3-30b-a3b",
        8,
        {"recipe": "megatron", "dp": 8, "ep": 8, "zero": 1, "pp": 2, "virtual_stages": 2, "global_batch_size": 128},
    ),
    "interleaved, tp": (
        "qwen3-30b-a3b",
        8,
        {"recipe": "megatron", "tp": 2, "sp": True, "dp": 8, "ep": 8, "pp": 2, "virtual_stages": 2}
        | {"global_batch_size": 128},
    ),
    "dualpipev": (
        "deepseek-v3",
        8,
        {"dp": 16, "ep": 16, "zero": 1, "pp": 2, "virtual_stages": 2, "schedule": "dualpipev"}
        | {"global_batch_size": 256},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["h100", "b200"])
def test_exchanges_are_hidden_and_the_step_is_shorter(shape: str, name: str) -> None:
    """Less of the exchanges is exposed, nothing else takes longer, and the rest of the step is as long as compute."""
    model, layers, words = SHAPES[shape]
    system, exposed, steps = load_system(name), [], []
    for more in ((), (("overlap_experts", True),)):
        made = workload_of(model, layers, (*words.items(), ("seq_len", 4096), *more))
        job = profile_job(made, system)
        steps.append(job.step)
        lanes = zip(job.times.network.columns, job.times.lanes, strict=True)
        at = [(lane, [op for op, axis in enumerate(each.ops.axis) if axis == "ep"]) for each, lane in lanes]
        exposed.append([int(lane.ops.exposed[ops].sum()) for lane, ops in at])
        taken = [int(lane.ops.time[ops].sum()) for lane, ops in at]
    assert steps[1] < steps[0]
    assert all(after < before for before, after in zip(*exposed, strict=True))
    assert sum(exposed[1]) < 0.75 * sum(exposed[0])
    # No more is saved than was exposed.
    assert steps[0] - steps[1] <= sum(exposed[0]) <= sum(taken)


def test_an_order_against_what_operators_read_is_refused() -> None:
    """An edge from the end of a backward to its beginning cannot hold."""
    _, made = both("moe", 2, **MEGATRON, global_batch_size=8)
    (columns,) = made.classes
    first, last = (
        columns.ops.name.index(name) for name in ("head.loss.input_gradient", "layer.0.input.gradient_sum.0")
    )
    edges = columns.edges
    turned = replace(
        edges,
        source=np.append(edges.source, last),
        target=np.append(edges.target, first),
        kind=np.append(edges.kind, 0),
    )
    with pytest.raises(StagedbError, match=r"head\.loss\.input_gradient waits for layer\.0\.input\.gradient_sum\.0"):
        sequence(replace(columns, edges=turned))


def test_no_message_is_received_before_it_is_sent() -> None:
    """A stage's tags are those of its tasks, in pairs too: as many of each as without."""
    plain, made = both("moe", 8, **MEGATRON, pp=4, virtual_stages=2, global_batch_size=32)

    def messages(workload: Workload) -> list[Counter[tuple[int, int, int]]]:
        found = []
        for each in workload.classes:
            own, tags = each.ops.tags(each.tasks), each.tasks.tags
            ends = (n for n in nodes_of(each) if each.ops.type[n.op] in (SEND, RECV))
            found.append(Counter((int(each.ops.type[n.op]), int(own[n.op] + tags[n.task]), n.microbatch) for n in ends))
        return found

    assert messages(plain) == messages(made)
