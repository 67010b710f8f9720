"""What a graph, an instance, a profile or a search must have, by what it is made from.

A graph is made again from its nodes, and has a digest of its content. An instance is copied again in memory from its
graph and its plan: every op, edge, task, rank and group follows from these. A profile has a digest of its content, too,
and a search one of its candidates. So changed numbers are found, and relationships that are missing or there twice. The
same rules hold for a store and for a dump.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from stagedb.errors import StagedbError
from stagedb.files import shown
from stagedb.files.stored_values import json_mapping
from stagedb.graphs.graph_rows import graph_digest, graph_of, graph_rows
from stagedb.ir.symbolic_graph import FORMAT, SymGraph
from stagedb.lowering.copied_rows import rank_layout, task_feed_rows, task_order_rows
from stagedb.lowering.preparing import with_all_words
from stagedb.lowering.program import CopiedRows, IndexedGraph, copy_rows
from stagedb.plans import Plan
from stagedb.plans.mesh import RankLayout
from stagedb.store.contents.instance_digests import (
    edges_digest,
    groups_digest,
    layout_digest,
    ops_digest,
    ranks_digest,
    tasks_digest,
)
from stagedb.store.contents.proofs import Row, differences, memory_problems, profile_problems, without_none, wrong_edges
from stagedb.store.contents.runs import run_problems
from stagedb.store.contents.searches import search_problems
from stagedb.store.dump_contents import End, ThingContent
from stagedb.store.typed_properties import graph_properties, plan_properties


class ContentProof:
    """Finds what is wrong with a graph, an instance, a profile or a search. Keeps the graph of the last one."""

    def __init__(self) -> None:
        self._graph: tuple[ThingContent, IndexedGraph] | None = None

    def __call__(self, sections: Sequence[ThingContent]) -> str | None:
        """What is wrong with the last section; None if nothing is. Those before it are what it is made from."""
        try:
            return next(self._problems(sections), None)
        except (StagedbError, ValueError, KeyError, TypeError, IndexError, ArithmeticError, AttributeError) as error:
            # Some property cannot be parsed as its type in the schema.
            return f"its content cannot be read ({type(error).__name__}: {shown(str(error))})"

    def _problems(self, sections: Sequence[ThingContent]) -> Iterator[str]:
        match sections:
            case [search] if search.kind == "Search":
                yield from search_problems(search.own, search.values("Candidate"))
            case [run] if run.kind == "Run":
                yield from run_problems(run)
            case [graph]:
                yield from _graph_problems(graph, _graph_of(graph))
            case [graph, instance]:
                yield from _instance_problems(instance, self._in_memory(graph))
            case [_, instance, profile]:
                yield from profile_problems(profile, instance)

    def _in_memory(self, section: ThingContent) -> IndexedGraph:
        if self._graph is None or self._graph[0] is not section:
            self._graph = section, IndexedGraph.of(_graph_of(section))
        return self._graph[1]


def _graph_of(section: ThingContent) -> SymGraph:
    own = section.own
    if own["format"] != FORMAT:
        raise StagedbError(f"it has format {own['format']}, and this stagedb reads {FORMAT}")
    names = {values["id"]: values["name"] for label in ("SymOp", "SymTensor") for values in section.values(label)}
    edges = sorted(_edges(section, "DEP", "SymOp", "SymOp"), key=lambda edge: int(edge[2]["number"]))
    rows = [
        {**values, "source": names[source], "target": names[target], "present": values.get("present")}
        for source, target, values in edges
    ]
    ends = {}
    for type_ in ("READS", "WRITES"):
        found = defaultdict[str, list[str]](list)
        for op, tensor, _ in sorted(_edges(section, type_, "SymOp", "SymTensor"), key=lambda edge: edge[2]["slot"]):
            found[names[op]].append(names[tensor])
        ends[type_] = {op: tuple(tensors) for op, tensors in found.items()}
    tensors, ops = (sorted(section.values(each), key=lambda row: row["number"]) for each in ("SymTensor", "SymOp"))
    return graph_of(own, tensors, ops, rows, ends["READS"], ends["WRITES"])


def _graph_problems(section: ThingContent, graph: SymGraph) -> Iterator[str]:
    own = section.own
    rows = graph_rows(graph)
    expected = {**graph_properties(graph.options, graph.sizes), "recipe": graph.recipe}
    yield from differences("Graph", {section.id: own}, {section.id: without_none(expected)})
    for label, name in (("SymTensor", "tensors"), ("SymOp", "ops")):
        yield from differences(label, _by_id(section.values(label)), _by_id(rows[name]))
    for type_, name in (("READS", "reads"), ("WRITES", "writes")):
        ends = [(row["op"], row["tensor"], {"slot": row["slot"]}) for row in rows[name]]
        yield from wrong_edges(type_, _edges(section, type_, "SymOp", "SymTensor"), ends)
    gradients = {(row["gradient"], row["weight"]) for row in rows["gradients"]}
    found = _edges(section, "GRADIENT_OF", "SymTensor", "SymTensor")
    yield from wrong_edges("GRADIENT_OF", found, ((*pair, {}) for pair in gradients))
    steps = [
        (row["source"], row["target"], {name: row[name] for name in ("number", "kind", "hop", "present")})
        for row in rows["edges"]
    ]
    yield from wrong_edges("DEP", _edges(section, "DEP", "SymOp", "SymOp"), steps)
    if own.get("content") not in (None, graph_digest(graph)):
        yield "its content does not match its digest"


def _instance_problems(section: ThingContent, graph: IndexedGraph) -> Iterator[str]:
    own = section.own
    plan = Plan.from_mapping(json_mapping(own["plan"], "plan"))
    rows = copy_rows(graph, plan)
    if rows.made.id != section.id:
        yield f"its graph and its plan give the id {rows.made.id}"
    words = plan_properties(with_all_words(plan, graph.stored.sizes).to_dict())
    expected = {**words, "plan": plan.to_json(), "world": plan.world, "microbatches": plan.microbatches}
    yield from differences("Instance", {section.id: own}, {section.id: without_none(expected)})
    yield from _class_problems(section, rows)
    yield from _op_problems(section, graph, rows)
    yield from _task_problems(section, plan, rows)
    yield from _rank_problems(section, plan, rows)
    yield from _digest_problems(section, rank_layout(rows.made.classes, plan, rows.made.groups))
    yield from memory_problems(section)


def _class_problems(section: ThingContent, rows: CopiedRows) -> Iterator[str]:
    expected = {f"{section.id}/{row['class']}": row for row in rows.classes}
    yield from differences("RankClass", _by_id(section.values("RankClass")), expected)


def _op_problems(section: ThingContent, graph: IndexedGraph, rows: CopiedRows) -> Iterator[str]:
    key = graph.stored.id
    expected = {
        id: {**op, "sym": f"{key}{op['sym']}", "parent": f"{section.id}/{number}", "class": number}
        for number, ops in rows.ops.items()
        for id, op in ops.items()
    }
    found = {
        id: {**_op_row(values), "parent": parent} for id, (_, parent, values) in section.nodes.get("Op", {}).items()
    }
    yield from differences("Op", found, expected)
    copies: list[End] = [(id, op["sym"], {}) for id, op in expected.items()]
    yield from wrong_edges("COPY_OF", _edges(section, "COPY_OF", "Op", "SymOp"), copies)
    yield from wrong_edges(
        "CARRIES", _edges(section, "CARRIES", "Op", "SymTensor"), _carried(graph, rows, expected.items())
    )
    steps = ((source, target, {"kind": kind}) for source, target, kind in chain.from_iterable(rows.edges.values()))
    yield from wrong_edges("DEP", _edges(section, "DEP", "Op", "Op"), steps)


def _carried(graph: IndexedGraph, rows: CopiedRows, ops: Iterable[tuple[str, Row]]) -> Iterator[End]:
    """The weights whose gradients a collective reduces: those of a bucket, or the one that it reads itself."""
    for row in rows.buckets:
        for member in row["members"]:
            yield row["id"], member["weight"], {name: member[name] for name in ("number", "position", "chunk", "layer")}
    buckets, symbolic = {row["id"] for row in rows.buckets}, graph_rows(graph.graph)
    weights = {row["gradient"]: row["weight"] for row in symbolic["gradients"]}
    read = defaultdict[str, set[str]](set)
    for row in symbolic["reads"]:
        if row["tensor"] in weights:
            read[row["op"]].add(weights[row["tensor"]])
    for id, op in ops:
        if op["type"] == "collective" and id not in buckets:
            layer = None if op["layer"] < 0 else op["layer"]
            for weight in read[op["sym"]]:
                yield id, weight, {"number": 0, "position": op["position"], "chunk": op["chunk"], "layer": layer}


def _op_row(values: Row) -> Row:
    """An op in the form of `workload/ops`, where what an op does not have is 0, -1 or empty."""
    return {
        **values,
        "layer": values.get("layer", -1),
        "axis": values.get("axis", ""),
        "dtype": values.get("dtype", ""),
        "dims": values.get("dims", values.get("fullest", [])),
        "bytes": values["bytes_read"] + values["bytes_written"],
        "size": values.get("comm_bytes", 0),
        "result": values.get("comm_out_bytes", 0),
        "peer": values.get("peer", 0),
    }


def _task_problems(section: ThingContent, plan: Plan, rows: CopiedRows) -> Iterator[str]:
    expected = {
        row["id"]: {**without_none(row), "parent": f"{section.id}/{row['class']}"}
        for row in chain.from_iterable(rows.tasks.values())
    }
    found = {id: {**values, "parent": parent} for id, (_, parent, values) in section.nodes.get("Task", {}).items()}
    yield from differences("Task", found, expected)
    order = task_order_rows(section.id, rows.made.classes)
    following: list[End] = [(row["source"], row["target"], {}) for row in order]
    yield from wrong_edges("NEXT", _edges(section, "NEXT", "Task", "Task"), following)
    feeds = {
        (row["source"], row["target"], row["hop"])
        for row in task_feed_rows(section.id, rows.made.classes, plan.placement)
    }
    sent = ((source, target, {"axis": "pp", "hop": hop}) for source, target, hop in feeds)
    yield from wrong_edges("FEEDS", _edges(section, "FEEDS", "Task", "Task"), sent)


def _rank_problems(section: ThingContent, plan: Plan, rows: CopiedRows) -> Iterator[str]:
    layout, own = rank_layout(rows.made.classes, plan, rows.made.groups), section.own
    if own.get("class_table") is not None:
        yield from differences("Instance", {section.id: own}, {section.id: without_none(layout.properties())})
        return
    # An older stagedb wrote a node for each rank and group.
    found = {label: _by_id(section.values(label)) for label in ("Rank", "Group")}
    yield from rank_node_problems(section.id, layout, found, (plan.world, layout.group_count))


def rank_node_problems(
    instance: str, layout: RankLayout, found: Mapping[str, Mapping[str, Row]], written: tuple[int, int]
) -> Iterator[str]:
    """What is wrong with the nodes of ranks and groups, by what follows from the plan.

    found: by label, then by id. written: how many of the ranks and of the groups have nodes, the first ones. instance:
    its id.
    """
    columns, plan = layout.group_columns(), layout.plan
    groups = {
        f"{instance}/{gid}": {"gid": gid, "axis": axis, "ranks": members}
        for gid, axis, members in zip(columns["gid"], columns["axis"], columns["members"], strict=True)
    }
    yield from differences("Group", found["Group"], dict(islice(groups.items(), written[1])))
    ranks, at = np.arange(plan.world), layout.coordinates()
    made = {"rank": ranks, "class": layout.numbers(), **at}
    for axis, each in layout.group_axes().items():
        gid = each["first"] + ranks // each["span"] * each["stride"] + ranks % each["stride"]
        ends = (at["pp"] == 0) | (at["pp"] == plan.pp - 1)
        made[f"group_{axis}"] = np.where(ends, gid, -1) if axis == "embedding" else gid
    lists = {name: column.tolist() for name, column in made.items()}
    expected = {
        f"{instance}/{number}": {name: None if column[number] < 0 else column[number] for name, column in lists.items()}
        for number in range(written[0])
    }
    yield from differences("Rank", found["Rank"], expected)


def _digest_problems(section: ThingContent, layout: RankLayout) -> Iterator[str]:
    """Digests that do not match, though the content does: exports would refuse it."""
    own = section.own
    found = {
        "ranks_digest": ranks_digest(layout.rank_columns()),
        "groups_digest": groups_digest(layout.group_columns()),
        "layout_digest": layout_digest(layout),
    }
    for name, digest in found.items():
        if own.get(name) not in (None, digest):
            yield f"its {name} does not match its content"
    ops, tasks, edges = _of_classes(section)
    for row in section.values("RankClass"):
        of_class = [_op_row(values) for values in ops[row["class"]]]
        names = tuple(name for name in next(iter(of_class), {}) if name not in ("instance", "class"))
        ends = edges[row["class"]]
        common = set(_OP_COLUMNS) & set(names)
        digests = {
            "ops_digest": ops_digest(_columns(of_class, {}, sorted(common))) if of_class else None,
            "tasks_digest": tasks_digest(
                _columns([{"microbatch": 0, **task} for task in tasks[row["class"]]], {}, _TASK)
            ),
            "edges_digest": edges_digest(
                {name: [end[at] for end in ends] for at, name in enumerate(("source", "target", "kind"))}
            ),
        }
        for name, made in digests.items():
            if made is not None and row.get(name) not in (None, made):
                yield f"{name} of RankClass {shown(row['id'])} does not match its content"


_TASK = ("index", "id", "kind", "microbatch", "chunk", "first", "last")
_OP_COLUMNS = (
    *("index", "id", "sym", "name", "block", "position", "layer", "chunk", "template", "order", "type", "when", "kind"),
    *("phase", "axis", "dtype", "flops", "bytes", "temporary", "size", "result", "peer"),
)


def _of_classes(
    section: ThingContent,
) -> tuple[Mapping[int, list[Row]], Mapping[int, list[Row]], Mapping[int, list[Any]]]:
    """By class: its ops, its tasks, and its edges with the places of their ends."""
    ops, tasks = defaultdict[int, list[Row]](list), defaultdict[int, list[Row]](list)
    for label, found in (("Op", ops), ("Task", tasks)):
        for values in section.values(label):
            found[values["class"]].append(values)
    place = {values["id"]: (values["class"], values["index"]) for values in section.values("Op")}
    edges = defaultdict[int, list[Any]](list)
    for source, target, values in _edges(section, "DEP", "Op", "Op"):
        edges[place[source][0]].append((place[source][1], place[target][1], values["kind"]))
    return ops, tasks, edges


def _edges(section: ThingContent, type_: str, source: str, target: str) -> Sequence[End]:
    return section.edges.get((type_, source, target), ())


def _by_id(rows: Any) -> dict[str, Row]:
    return {row["id"]: row for row in rows}


def _columns(rows: Sequence[Row], renamed: Mapping[str, str], names: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    pairs = {**{name: name for name in names}, **renamed}
    return {name: [row[source] for row in rows] for name, source in pairs.items()}
