"""Instances: a stored graph copied inside the store under a plan, and read back as columns.

Only the store is read, so a graph that another program wrote needs no model code here. Python evaluates each distinct
expression once and decides the differences between stages. The copy itself is Cypher (`cypher/instantiate`).

Concrete tensors are columns of their ops (`bytes_read`, `bytes_written`), not nodes. Measured on 8,373 ops with 20,743
edges: tensors as nodes with their edges add 0.6 s (embedded) to 0.9 s (Neo4j) to a copy of 1.2 s. They hold no more
information than the columns of the op and the tensors of its symbolic op (`COPY_OF`, `READS`, `WRITES`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.files import check_unicode, shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.graphs.graph_rows import blocks_of
from stagedb.ir.facts import OpFacts
from stagedb.lowering.columns import (
    NO_EDGES,
    ClassColumns,
    Groups,
    RankTable,
    Workload,
    class_of,
    group_table,
    ints,
    op_order,
    placed,
    rank_table,
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
    task_feed_rows,
    task_order_rows,
    task_rows,
    with_copies,
)
from stagedb.lowering.graph_values import Evaluated, GraphRows, evaluate_graph
from stagedb.lowering.overlapped_pairs import joined_tasks
from stagedb.lowering.preparing import classes_of, prepare, with_all_words
from stagedb.lowering.program import BucketWeights, Program
from stagedb.lowering.rank_classes import RankClass
from stagedb.mentions import Word, call
from stagedb.plans import AxisGroups, Plan
from stagedb.schedules import splits
from stagedb.store import Input, Lease, Store, ask_again, building, layout_of, read_graph, read_whole, reading
from stagedb.store.contents.graphs import check_form
from stagedb.store.contents.instance_digests import (
    check_digests,
    check_layout,
    check_unchanged,
    groups_digest,
    layout_digest,
    ranks_digest,
    write_class_digests,
)
from stagedb.store.typed_properties import plan_properties

Progress = Callable[[str], None]
"""Called with the current stage of the work, in a few words."""


OPS_AT_ONCE = 5000
"""Ops that one transaction creates, approximately. The edges of a place are about three times as many."""


def read_graph_rows(store: Store, graph: str) -> GraphRows:
    """Read the rows of a graph that instantiation needs. UsageError if the store has no complete graph with this id."""
    return read_whole(store, "Graph", graph, partial(_read_graph, store, graph))


def _read_graph(store: Store, graph: str) -> GraphRows:
    (row,) = store.read("instantiate/graph", graph=graph)
    check_form(graph, row["format"])
    ops, weights = (store.read(f"instantiate/{what}", graph=graph) for what in ("ops", "weights"))
    return GraphRows(
        id=graph,
        name=row["name"],
        options=json_mapping(row["options"], "options"),
        sizes=json_mapping(row["sizes"], "sizes"),
        blocks=blocks_of(row["blocks"]),
        ops=tuple(ops),
        weights=tuple(weights),
        edge_conditions=tuple(row["present"] for row in store.read("instantiate/edge_conditions", graph=graph)),
    )


def instantiate(
    store: Store, graph: str, plan: Plan, *, name: str | None = None, progress: Progress = lambda doing: None
) -> str:
    """Copy a graph to an instance of a plan and return the instance's id. Equal requests give one instance.

    name: what it is called where nobody names it, by default as the model (`stagedb.store.naming` sets names). Asking
    for an existing instance makes it the newest of this user. progress: called with each stage of the copying, if there
    is something to copy. Raises UsageError if the store has no such graph, or if the plan does not suit it.
    """
    check_unicode(name or "", str(Word("name")))
    stored = read_graph_rows(store, graph)
    made = prepare(stored, plan)
    full = with_all_words(plan, stored.sizes)
    properties = {
        **plan_properties(full.to_dict()),
        "name": name or stored.name,
        "graph": graph,
        "plan": plan.to_json(),
        "world": plan.world,
        "microbatches": plan.microbatches,
    }
    inputs = (Input("graph", graph, stored.name), Input.of("plan", plan.to_json()))
    with building(store, "Instance", made.id, properties, inputs) as lease:
        if lease is not None:
            _Copy(store, lease, stored, plan, made.id, made.evaluated, made.classes, made.groups, progress).run()
    if lease is None:
        ask_again(store, "Instance", made.id)
    else:
        store.write("search/join_candidates", instance=made.id)
    return made.id


def rank_classes(store: Store, graph: str, plan: Plan) -> tuple[RankClass, ...]:
    """The rank classes of a graph under a plan, as its instance has them."""
    stored = read_graph_rows(store, graph)
    return classes_of(stored, plan, evaluate_graph(stored, plan))[1]


@dataclass(frozen=True)
class _Copy:
    """The statements of one instantiation, in the order of their dependencies."""

    store: Store
    lease: Lease
    graph: GraphRows
    plan: Plan
    instance: str
    evaluated: Evaluated
    classes: tuple[RankClass, ...]
    groups: tuple[AxisGroups, ...]
    progress: Progress

    def run(self) -> None:
        places = place_rows(self.instance, self.classes, self.evaluated.width)
        buckets = bucket_rows(self.instance, self.graph.id, self.classes)
        copies = with_copies(self.graph, self.evaluated, self.classes, places, buckets)
        counts = count_ops(*copies)
        steps: tuple[tuple[str, Callable[[], None]], ...] = (
            ("classes", partial(self._make_classes, counts)),
            ("ops", partial(self._copy_ops, *copies)),
            ("edges", partial(self._copy_edges, places)),
            ("tasks", self._make_tasks),
            ("ranks", self._make_ranks),
            ("digests", self._make_digests),
        )
        for stage, work in steps:
            self.progress(stage)
            work()

    def _make_classes(self, counts: Mapping[int, int]) -> None:
        self._rows("classes", class_rows(self.classes, self.plan, counts), instance=self.instance)

    def _copy_ops(self, places: list[Row], buckets: list[Row]) -> None:
        common = {"graph": self.graph.id, "instance": self.instance, "dtypes": self.plan.dtypes.names()}
        pairs = zip(self.evaluated.values, self.evaluated.temporaries, strict=True)
        values = [{**known, **held} for known, held in pairs]
        for batch in self._batches(places):
            self._rows("copy_ops", batch, **common, values=values, ragged=self.evaluated.ragged)
        self._rows("copy_buckets", buckets, **common)
        self.store.write("instantiate/carried", instance=self.instance)
        for row in self.store.read("instantiate/copied", instance=self.instance):
            if row["ops"] != row["copied"]:
                raise StagedbError(
                    f"class {row['class']} of instance {self.instance} has {row['copied']} of its {row['ops']} ops: "
                    f"graph {self.graph.id} was changed meanwhile; run the command again"
                )

    def _copy_edges(self, places: list[Row]) -> None:
        for batch in self._batches(places):
            self._rows("copy_edges", batch, graph=self.graph.id, values=list(self.evaluated.values))
        edges, readers = bucket_links(self.instance, self.classes)
        self._rows("links", edges)
        kinds = self.plan.workflow.running(any(splits(each.work.tasks) for each in self.classes))
        once = [template.name for kind in kinds for template in kind.templates if kind.once]
        self._rows("bucket_readers", readers, once=once)
        tasks = {template.name: number for number, kind in enumerate(kinds) for template in kind.templates}
        self.store.write("instantiate/chains", instance=self.instance, tasks=tasks, once=once)

    def _make_tasks(self) -> None:
        self._rows("tasks", list(task_rows(self.instance, self.classes)), instance=self.instance)
        self._rows("task_order", task_order_rows(self.instance, self.classes))
        self._rows("task_feeds", task_feed_rows(self.instance, self.classes, self.plan.placement))

    def _make_ranks(self) -> None:
        """Only their layout: nodes of ranks and groups are written when a query asks for them."""
        layout = rank_layout(self.classes, self.plan, self.groups)
        properties = {
            **layout.properties(),
            "ranks_digest": ranks_digest(layout.rank_columns()),
            "groups_digest": groups_digest(layout.group_columns()),
            "layout_digest": layout_digest(layout),
            "ranks_written": 0,
            "groups_written": 0,
        }
        self.store.write("instantiate/layout", instance=self.instance, owner=self.lease.owner, properties=properties)

    def _make_digests(self) -> None:
        self.lease.renew()
        write_class_digests(self.store, self.instance)

    def _batches(self, places: list[Row]) -> Iterator[list[Row]]:
        """Places in batches whose ops and edges one transaction can hold."""
        ops = Counter(op["block"] for op in self.graph.ops)
        step = max(1, OPS_AT_ONCE // max(ops.values(), default=1))
        return (places[start : start + step] for start in range(0, len(places), step))

    def _rows(self, name: str, rows: list[Row], **params: Any) -> None:
        self.lease.renew()
        self.store.write_rows(f"instantiate/{name}", rows, **params)


# An instance read from the store as columns: a few statements a class, each of which gives one row of lists.

READERS = 4
"""How many statements of an instance run at the same time."""


def find(store: Store, instance: str) -> Mapping[str, Any]:
    """The row of an instance. Raises UsageError if the store has none with this id."""
    rows = store.read("workload/instance", instance=instance)
    if not rows:
        raise UsageError(f"no instance {shown(instance)} in the store; {call('ls')} lists them")
    return rows[0]


def read_workload(store: Store, instance: str) -> Workload:
    """The columns of an instance that an export or a timeline needs. Raises UsageError if the store has none."""
    return read_whole(store, "Instance", instance, partial(_read, store, instance))


def read_program(store: Store, instance: str) -> Program:
    """The program of an instance: equal to that of `lower` for its graph and its plan. UsageError if there is none."""

    def read() -> Program:
        row = find(store, instance)
        with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
            plan = Plan.from_mapping(json_mapping(row["plan"], "plan"))
            classes = store.read("workload/classes", instance=instance)
            carried = {int(each["number"]): read_carried(store, each["id"]) for each in classes}
            return Program(read_graph(store, row["graph"]), plan, _workload(store, instance, row), carried)

    return read_whole(store, "Instance", instance, read)


def read_carried(store: Store, rank_class: str) -> BucketWeights:
    """The weights that the buckets of a class carry. rank_class: its id."""
    rows = store.read("workload/buckets", **{"class": rank_class})
    return {int(row["op"]): tuple(zip(row["position"], row["weight"], row["chunk"], strict=True)) for row in rows}


def _read(store: Store, instance: str) -> Workload:
    row = find(store, instance)
    with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
        return _workload(store, instance, row)


def _workload(store: Store, instance: str, row: Mapping[str, Any]) -> Workload:
    plan = json_mapping(row["plan"], "plan")
    layout = layout_of(row)
    if layout is not None:
        check_layout(row, layout)
    facts = read_facts(store, instance)
    # The store answers one statement while the answer to another is decoded.
    with ThreadPoolExecutor(READERS) as pool:
        # A thread would keep the memory that it used: a hundred megabytes for a job of a million ranks.
        ranks: Callable[[], RankTable] = (
            pool.submit(_ranks, store, instance, row, int(plan.get("ulysses", 1))).result
            if layout is None
            else partial(rank_table, layout)
        )
        groups: Callable[[], Groups] = (
            pool.submit(_groups, store, instance, row).result if layout is None else partial(group_table, layout.groups)
        )
        classes = tuple(pool.map(partial(read_class, store, facts), store.read("workload/classes", instance=instance)))
    group_columns = groups()
    return Workload(
        instance=instance,
        name=row["name"],
        graph=row["graph"],
        model=row["model"],
        plan=plan,
        degrees=tuple(int(plan[axis]) for axis in plan["rank_order"]),
        classes=with_calls([joined_tasks(placed(each, plan), plan) for each in classes], group_columns),
        ranks=ranks(),
        groups=group_columns,
    )


def read_class(store: Store, facts: Mapping[str, OpFacts], row: Mapping[str, Any], edges: bool = True) -> ClassColumns:
    """The columns of one rank class. facts: of the instance's graph (`read_facts`). row: its row of `workload/classes`.

    edges: whether they are wanted. Raises DamagedError if the class was changed after it was made, and where the graph
    lacks operators.
    """
    where = {"class": row["id"]}
    ops, tasks = store.read("workload/ops", **where)[0], store.read("workload/tasks", **where)[0]
    links = store.read("workload/edges", **where)[0] if edges else None
    missing = {sym.partition("/")[2] for sym in ops["sym"]} - facts.keys()
    if missing:
        raise DamagedError(f"its graph lacks {len(missing)} of its operators, such as {shown(min(missing))}")
    op_order(row, ops)
    check_digests(row, ops, links, tasks)
    return class_of(row, ops, NO_EDGES if links is None else links, tasks, facts)


def read_facts(store: Store, instance: str) -> dict[str, OpFacts]:
    """What the operators of an instance's graph are, by name: once for all of its classes."""
    rows = store.read("workload/facts", instance=instance)
    if not rows:
        return {}  # of a graph without operators
    (row,) = rows
    check_form(row["graph"], row["format"])
    names = [field.name for field in fields(OpFacts)]
    values = zip(*(row[name] for name in names), strict=True)
    made = (OpFacts.of(dict(zip(names, each, strict=True))) for each in values)
    return dict(zip(row["name"], made, strict=True))


def _ranks(store: Store, instance: str, row: Mapping[str, Any], distance: int) -> RankTable:
    found, world = store.read("workload/ranks", instance=instance)[0], int(row["world"])
    numbers = ints(found["number"])
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(world)):
        raise DamagedError(f"it has {len(numbers)} of its {world} ranks")
    check_unchanged("ranks", row["ranks_digest"], ranks_digest(found))
    coordinates = {axis: ints(found[axis])[order] for axis in ("tp", "cp", "dp", "pp")}
    return RankTable.of(coordinates, ints(found["class"])[order], distance)


def class_of_rank(store: Store, instance: str, rank: int) -> int:
    """The rank class of one rank of an instance."""
    row = find(store, instance)
    with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
        layout = layout_of(row)
        if layout is not None:
            return layout.class_of(rank)
        return int(store.read("reference/class_of", instance=instance, rank=rank)[0]["class"])


def _groups(store: Store, instance: str, row: Mapping[str, Any]) -> Groups:
    found = store.read("workload/groups", instance=instance)[0]
    check_unchanged("groups", row["groups_digest"], groups_digest(found))
    order = np.argsort(ints(found["gid"]))
    members = [found["members"][at] for at in order]
    return Groups(
        gid=ints(found["gid"])[order],
        axis=tuple(found["axis"][at] for at in order),
        sizes=np.fromiter(map(len, members), np.int64, len(members)),
        ranks=np.fromiter(chain.from_iterable(members), np.int64),
    )
