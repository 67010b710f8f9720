"""A graph under a plan, lowered to the columns of what each rank class runs. No store is needed for it.

The copies of ops and edges, and the chains of communication, are made here as rows in memory, in the form that the
statements of `cypher/instantiate` have them in a store.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from stagedb.graphs.graph_rows import graph_rows
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.facts import OpFacts
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.columns import (
    ClassColumns,
    Program,
    Workload,
    class_of,
    group_table,
    placed,
    rank_table,
    tasks_of_rows,
    with_calls,
)
from stagedb.lowering.copied_rows import (
    Row,
    bucket_links,
    bucket_rows,
    class_rows,
    count_ops,
    place_rows,
    rank_layout,
    task_rows,
    with_copies,
)
from stagedb.lowering.graph_values import OP_COLUMNS, WEIGHT_COLUMNS, GraphRows
from stagedb.lowering.overlapped_pairs import joined_tasks
from stagedb.lowering.preparing import Prepared, prepare
from stagedb.lowering.rank_classes import RankClass, operators_digest
from stagedb.lowering.stage_blocks import BUCKET
from stagedb.models import Card
from stagedb.plans import GraphOptions, Plan
from stagedb.schedules import splits

Edge = tuple[str, str, str]
"""Ids of source and target, and the kind."""


@dataclass(frozen=True)
class IndexedGraph:
    """A graph, and its rows as the store would return them.

    stored: the rows that decide the shape of instances. ops: the properties of each op by name. edges: by block, the
    edges that lead to its ops, with both ends.
    """

    graph: SymGraph
    stored: GraphRows
    ops: Mapping[str, Row]
    edges: Mapping[str, tuple[Row, ...]]

    @classmethod
    def of(cls, graph: SymGraph) -> "IndexedGraph":
        """The graph with the rows of its operators and edges."""
        rows = graph_rows(graph)
        ops = _rows(OP_COLUMNS, rows["ops"])
        weights = _rows(WEIGHT_COLUMNS, [row for row in rows["tensors"] if row["role"] == "weight"])
        stored = GraphRows(
            id=graph.key,
            name=graph.name,
            options=json.loads(graph.options),
            sizes=graph.sizes,
            blocks=graph.blocks,
            ops=tuple(ops),
            weights=tuple(weights),
            edge_conditions=tuple(sorted({edge.present for edge in graph.edges if edge.present is not None})),
        )
        by_name = {row["name"]: {**dict.fromkeys(_NULLS), **row} for row in rows["ops"]}
        edges_of = defaultdict[str, list[Row]](list)
        for edge in graph.edges:
            source, target = by_name[edge.source], by_name[edge.target]
            row = {"x": source, "y": target, "hop": str(edge.hop), "kind": str(edge.kind), "present": edge.present}
            edges_of[target["block"]].append(row)
        return cls(graph, stored, by_name, {block: tuple(edges) for block, edges in edges_of.items()})


@dataclass(frozen=True)
class CopiedRows:
    """The rows of an instance, as the store would return them after the copy in Cypher.

    made: the instance before its copy. classes: a row of each rank class. ops, edges, tasks: by number of the class.
    buckets: rows that the statement `copy_buckets` takes.
    """

    made: Prepared
    classes: Sequence[Row]
    ops: Mapping[int, Mapping[str, Row]]
    edges: Mapping[int, Mapping[Edge, None]]
    tasks: Mapping[int, Sequence[Row]]
    buckets: Sequence[Row]


def program_of(card: Card, plan: Plan) -> Program:
    """The program of a model under a plan: all passes from its card to the columns of its rank classes.

    Raises UsageError if the plan does not suit the model.
    """
    return lower(_indexed(card, plan.options), plan)


@lru_cache(maxsize=16)
def _indexed(card: Card, options: GraphOptions) -> IndexedGraph:
    """The graph of a model with its rows, which plans that differ in numbers alone share."""
    return IndexedGraph.of(build_graph(card, options))  # layers traced, backward, layouts, collectives, the optimizer


def lower(graph: IndexedGraph, plan: Plan, first_of_cp: bool = False) -> Program:
    """The program of a graph under a plan. Raises UsageError if the plan does not suit the graph.

    first_of_cp: whether all ranks of cp are taken to run what the first one does. In a ring of 256 each rank has
    another program with 256 turns, of which bounds need one.

    The instance of a store has the same (`stagedb.store.contents.stored_programs.read_program`).
    """
    words: dict[str, Any] = json.loads(plan.to_json())
    # Checked, its expressions evaluated, stages dealt to classes, and groups.
    made = prepare(graph.stored, plan, first_of_cp)
    like = _alike(made.classes)
    rows = rows_of(graph, plan, made, [one for one in made.classes if like[one.number] == one.number])
    classes: Sequence[ClassColumns] = _columns(graph.graph, plan, rows, like)
    classes = [placed(columns, words) for columns in classes]  # where its messages lead
    classes = [joined_tasks(columns, words) for columns in classes]  # tasks that run operator by operator together
    group_columns = group_table(made.groups)
    classes = with_calls(classes, group_columns)  # calls of ranks with unequal loads
    workload = Workload(
        instance=made.id,
        name=graph.stored.name,
        graph=graph.stored.id,
        model=graph.stored.name,
        plan=words,
        degrees=tuple(int(words[axis]) for axis in words["rank_order"]),
        classes=tuple(classes),
        ranks=rank_table(rank_layout(made.classes, plan, made.groups)),
        groups=group_columns,
    )
    carried = _carried(rows)
    return Program(graph.graph, plan, workload, {number: carried[of] for number, of in like.items()})


def _alike(classes: Sequence[RankClass]) -> dict[int, int]:
    """For each class the first one with the same operators: it differs in the order of its tasks alone."""
    first: dict[str, int] = {}
    return {one.number: first.setdefault(operators_digest(one.work), one.number) for one in classes}


def _columns(graph: SymGraph, plan: Plan, rows: CopiedRows, like: Mapping[int, int]) -> list[ClassColumns]:
    """The columns of all classes. rows: those of the classes that others are alike."""
    made, facts = rows.made, {op.name: op.facts for op in graph.ops}
    columns = {row["class"]: _class(row, rows, facts) for row in rows.classes}
    counts = {number: len(columns[of].ops) for number, of in like.items()}
    tasks = rows_by_class(task_rows(made.id, made.classes))
    class_facts = class_rows(made.classes, plan, counts)
    return [_with_tasks(columns[like[row["class"]]], row, tasks[row["class"]], made.id) for row in class_facts]


def _carried(rows: CopiedRows) -> dict[int, dict[int, tuple[tuple[int, str, int], ...]]]:
    """By class, the weights of its buckets."""
    carried: dict[int, dict[int, tuple[tuple[int, str, int], ...]]] = {row["class"]: {} for row in rows.classes}
    for row in rows.buckets:
        members = tuple(
            (member["position"], member["weight"].partition("/")[2], member["chunk"]) for member in row["members"]
        )
        carried[row["class"]][row["copy"]["index"]] = members
    return carried


def _class(row: Row, rows: CopiedRows, facts: Mapping[str, OpFacts]) -> ClassColumns:
    """The columns of a class, from rows in the form of the statements of `cypher/workload`."""
    ops, tasks = rows.ops[row["class"]], rows.tasks[row["class"]]
    ends = [(ops[source]["index"], ops[target]["index"], kind) for source, target, kind in rows.edges[row["class"]]]
    return class_of(
        {**row, "number": row["class"]},
        {name: [op[name] for op in ops.values()] for name in next(iter(ops.values()))},
        {name: [end[at] for end in ends] for at, name in enumerate(("source", "target", "kind"))},
        {name: [task[name] for task in tasks] for name in tasks[0]},
        facts,
    )


def _with_tasks(columns: ClassColumns, row: Row, tasks: Sequence[Row], instance: str) -> ClassColumns:
    """A class with the operators of another one, which differs in its tasks. row: of `class_rows`."""
    number = row["class"]
    if columns.number == number:
        return columns
    beginning = len(f"{instance}/{columns.number}")
    origins = replace(
        columns.origins,
        id=tuple(f"{instance}/{number}{id[beginning:]}" for id in columns.origins.id),
        tasks=tuple(task["id"] for task in tasks),
        first_layers=tuple(row["first_layers"]),
        member=(row["cp"], row["ep"], row["dp"]),
    )
    task_columns = tasks_of_rows({name: [task[name] for task in tasks] for name in tasks[0]})
    return replace(
        columns, number=number, digest=row["digest"], stages=tuple(row["stages"]), tasks=task_columns, origins=origins
    )


def copy_rows(graph: IndexedGraph, plan: Plan) -> CopiedRows:
    """The rows of the instance of a graph under a plan. Raises UsageError if the plan does not suit the graph."""
    made = prepare(graph.stored, plan)
    return rows_of(graph, plan, made, made.classes)


def rows_of(graph: IndexedGraph, plan: Plan, made: Prepared, chosen: Sequence[RankClass]) -> CopiedRows:
    """The rows of some classes of an instance."""
    places = place_rows(made.id, chosen, made.evaluated.width)
    buckets = bucket_rows(made.id, graph.stored.id, chosen)
    places, buckets = with_copies(graph.stored, made.evaluated, chosen, places, buckets)
    ops = _ops(graph, plan, made, places, buckets)
    edges = _edges(graph, plan, made, chosen, places, ops)
    tasks = rows_by_class(task_rows(made.id, chosen))
    counts = count_ops(places, buckets)
    classes = [row for row in class_rows(made.classes, plan, Counter(counts)) if row["class"] in counts]
    return CopiedRows(made, classes, ops, edges, tasks, buckets)


def rows_by_class(rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    """Rows grouped by their key `class`, a number. rows: with any other keys."""
    by_class = defaultdict[int, list[Row]](list)
    for row in rows:
        by_class[row["class"]].append(row)
    return by_class


def _rows(columns: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Rows with these columns, None where they have no value, by name."""
    return sorted(({name: row.get(name) for name in columns} for row in rows), key=lambda row: str(row["name"]))


_NULLS = ("axis", "comm_bytes", "comm_out_bytes", "peer", "present", "times", "loop", "dtype")
"""Properties that some ops do not have."""


def _ops(
    graph: IndexedGraph, plan: Plan, made: Prepared, places: Sequence[Row], buckets: Sequence[Row]
) -> dict[int, dict[str, Row]]:
    """The ops of each class by id, as `workload/ops` has them (`copy_ops`, `copy_buckets`)."""
    pairs = zip(made.evaluated.values, made.evaluated.temporaries, strict=True)
    values, formats = [{**known, **held} for known, held in pairs], plan.dtypes.names()
    found = defaultdict[int, dict[str, Row]](dict)
    for row in places:
        v, here, mark, layer = values[row["variant"]], row["here"], row["mark"], row["layer"]
        for name, copy in row["copies"].items():
            s, id = graph.ops[name], f"{here}{name}{mark}"
            peer = 0
            if s["type"] in ("send", "recv"):
                peer = v[s["peer"]] if row["peer"] is None else row["peer"]
            found[row["class"]][id] = {
                **_common(s, row, copy, formats),
                "id": id,
                "name": _name(name, row["block"], layer) + mark,
                "layer": -1 if layer is None else layer,
                "flops": v[s["flops"]],
                "bytes": v[s["bytes_read"]] + v[s["bytes_written"]],
                "bytes_read": v[s["bytes_read"]],
                "dims": [v[each] for each in s["dims"] or ()],
                "temporary": v[s["temporary"]],
                "size": 0 if s["comm_bytes"] is None else v[s["comm_bytes"]],
                "result": 0 if s["comm_out_bytes"] is None else v[s["comm_out_bytes"]],
                "peer": peer,
            }
    for row in buckets:
        found[row["class"]][row["id"]] = {
            **_common(graph.ops[row["op"]], row, row["copy"], formats),
            **dict.fromkeys(("flops", "bytes", "bytes_read", "temporary", "peer"), 0),
            "id": row["id"],
            "name": row["name"],
            "dims": [],
            "layer": -1,
            "size": row["bytes_in"],
            "result": row["bytes_out"],
        }
    return found


def _common(s: Row, row: Row, copy: Row, formats: Mapping[str, str]) -> Row:
    """The properties that a copy of any op has from its symbolic op and its place."""
    return {
        "index": copy["index"],
        "runs": copy["runs"],
        "order": copy["order"],
        "sym": f"/{s['name']}",
        "chunk": row["chunk"],
        "position": row["position"],
        "axis": s["axis"] or "",
        "dtype": "" if s["dtype"] is None else formats[s["dtype"]],
        **{name: s[name] for name in ("block", "template", "type", "when", "kind", "phase")},
    }


def _name(name: str, block: str, layer: int | None) -> str:
    if layer is None:
        return name
    return f"{block}.{layer}{name[len(block) :]}" if name.startswith(f"{block}.") else f"{block}.{layer}.{name}"


def _edges(
    graph: IndexedGraph,
    plan: Plan,
    made: Prepared,
    chosen: Sequence[RankClass],
    places: Sequence[Row],
    ops: Mapping[int, Mapping[str, Row]],
) -> dict[int, dict[Edge, None]]:
    """The edges of each class, each once."""
    every = {id: row for of_class in ops.values() for id, row in of_class.items()}
    number = {id: class_number for class_number, of_class in ops.items() for id in of_class}
    edges_of: dict[int, dict[Edge, None]] = {class_number: {} for class_number in ops}

    def add(source: str, target: str, kind: str) -> None:
        if source in every and target in every:
            edges_of[number[target]][source, target, kind] = None

    present: dict[tuple[int, str], list[int]] = {}
    for row in places:
        for source, target, kind in _copied_edges(graph, made.evaluated.values, row, present):
            add(source, target, kind)
    links, readers = bucket_links(made.id, chosen)
    for link in links:
        add(link["source"], link["target"], link["kind"])
    reading = defaultdict[str, list[str]](list)
    kinds = plan.workflow.running(any(splits(one.work.tasks) for one in made.classes))
    once = {template.name for kind in kinds for template in kind.templates if kind.once}
    for of_class in edges_of.values():
        for source, target, _ in of_class:
            if every[target]["template"] in once and every[target]["block"] != BUCKET:
                reading[source].append(target)
    for pair in readers:
        for reader in reading[pair["gradient"]]:
            add(pair["bucket"], reader, "data")
    tasks = {template.name: place for place, kind in enumerate(kinds) for template in kind.templates}
    for rows in ops.values():
        for source, target in _chained(rows, tasks, once):
            add(source, target, "program")
    return edges_of


def _copied_edges(
    graph: IndexedGraph, values: Sequence[Mapping[str, int]], row: Row, present: dict[tuple[int, str], list[int]]
) -> Iterator[Edge]:
    """The edges that lead to the ops of a place (`copy_edges`), also those whose ends are not there.

    present: the turns in which an op is there, by turns and its name; what is missing is added.
    """
    known, step, turns = values[row["variant"]], row["step"], row["turns"]

    def there(op: Row) -> list[int]:
        """The turns in which an op of a loop is there."""
        key = (id(turns), op["name"])  # all turns of a place have one list
        if key not in present:
            present[key] = [
                turn["step"] for turn in turns if op["present"] is None or values[turn["variant"]][op["present"]] > 0
            ]
        return present[key]

    places = {"same": row["here"], "turn": row["here"], "previous": row["before"], "next": row["after"]}
    for edge in graph.edges.get(row["block"], ()):
        x, y, hop = edge["x"], edge["y"], edge["hop"]
        if (y["times"] is None) != (step is None) or (edge["present"] and known[edge["present"]] <= 0):
            continue
        together = x["loop"] is not None and x["loop"] == y["loop"] and x["block"] == y["block"]
        together = together and hop in ("same", "turn")
        if step is not None and not together and step != next(iter(there(y)), None):
            continue
        if x["times"] is None:
            turn = ""
        elif hop == "turn":
            turn = row["before_mark"]
        elif together:
            turn = row["mark"]
        else:
            last = there(x)
            turn = f".{last[-1]}" if last else "absent"
        start = places[hop] if hop in places else row["single"].get(x["block"])
        if start is not None:
            yield f"{start}{x['name']}{turn}", f"{row['here']}{y['name']}{row['mark']}", edge["kind"]


def _chained(ops: Mapping[str, Row], tasks: Mapping[str, int], once: set[str]) -> Iterator[tuple[str, str]]:
    """Consecutive collectives and sends of each task in issue order (`chains`)."""
    chains = defaultdict[tuple[int, int], list[Row]](list)
    for row in ops.values():
        if row["type"] in ("collective", "send"):
            chains[0 if row["template"] in once else row["chunk"], tasks[row["template"]]].append(row)
    for chain in chains.values():
        chain.sort(key=lambda row: (row["chunk"], row["order"]))
        yield from ((first["id"], second["id"]) for first, second in pairwise(chain))
