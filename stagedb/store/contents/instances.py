"""Instances: a stored graph copied inside the store under a plan.

Only the store is read, so a graph that another program wrote needs no model code here. Python evaluates each distinct
expression once and decides the differences between stages. The copy itself is Cypher (`cypher/instantiate`).

Concrete tensors are columns of their ops (`bytes_read`, `bytes_written`), not nodes. Measured on 8,373 ops with 20,743
edges: tensors as nodes with their edges add 0.6 s (embedded) to 0.9 s (Neo4j) to a copy of 1.2 s. They hold no more
information than the columns of the op and the tensors of its symbolic op (`COPY_OF`, `READS`, `WRITES`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stagedb.errors import StagedbError
from stagedb.files import check_unicode
from stagedb.files.stored_values import json_mapping
from stagedb.graphs.graph_rows import blocks_of
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
from stagedb.lowering.preparing import classes_of, prepare, with_all_words
from stagedb.lowering.rank_classes import RankClass
from stagedb.mentions import Word
from stagedb.plans import AxisGroups, Plan
from stagedb.schedules import splits
from stagedb.store import Input, Lease, Store, ask_again, building, read_whole
from stagedb.store.contents.graphs import check_form
from stagedb.store.contents.instance_digests import (
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
    (row,) = store.read("build/graph", id=graph)
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
        rows = class_rows(self.classes, self.plan, counts)
        self._make("RankClass", [(self._class(row), self.instance, row) for row in rows])

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
        tasks = task_rows(self.instance, self.classes)
        self._make("Task", [(row["id"], self._class(row), row) for row in tasks])
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
        self.lease.set_properties(properties)

    def _make_digests(self) -> None:
        self.lease.renew()
        write_class_digests(self.store, self.instance)

    def _batches(self, places: list[Row]) -> Iterator[list[Row]]:
        """Places in batches whose ops and edges one transaction can hold."""
        ops = Counter(op["block"] for op in self.graph.ops)
        step = max(1, OPS_AT_ONCE // max(ops.values(), default=1))
        return (places[start : start + step] for start in range(0, len(places), step))

    def _class(self, row: Row) -> str:
        """The id of the rank class that a row is about."""
        return f"{self.instance}/{row['class']}"

    def _make(self, label: str, rows: Iterable[tuple[str, str, Row]]) -> None:
        """Write nodes of a label. rows: the id of each, the id of the node that it belongs to, and its properties."""
        self.lease.renew()
        made = [
            {"id": id, "parent": parent, "values": {**values, "instance": self.instance}} for id, parent, values in rows
        ]
        self.store.write_rows(f"dump/make_{label.lower()}", made)

    def _rows(self, name: str, rows: list[Row], **params: Any) -> None:
        self.lease.renew()
        self.store.write_rows(f"instantiate/{name}", rows, **params)
