"""Instantiation: a stored graph copied, inside the store, to the subgraphs of a plan's rank classes.

Only the store is read, so a graph that another program wrote needs no model code here. Python evaluates each distinct
expression once and decides the differences between stages. The copy itself is Cypher (`cypher/instantiate`).

Concrete tensors are columns of their ops (`bytes_read`, `bytes_written`), not nodes. Measured on 8,373 ops with 20,743
edges: tensors as nodes with their edges add 0.6 s (embedded) to 0.9 s (Neo4j) to a copy of 1.2 s. They hold no more
information than the columns of the op and the tensors of its symbolic op (`COPY_OF`, `READS`, `WRITES`).
"""

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.fault_injection import fault_point
from stagedb.inputs import check_unicode, shown
from stagedb.instances.bucket_members import fill
from stagedb.instances.class_digests import ChunkWork, Member, RankClass, StageWork, classify
from stagedb.instances.copies import Row, bucket_rows, count_ops, place_rows, with_copies
from stagedb.instances.graph_reading import Evaluated, StoredGraph, evaluate_graph, of_experts, read_graph
from stagedb.instances.stage_blocks import lay_out
from stagedb.instances.statement_rows import (
    bucket_links,
    class_rows,
    rank_layout,
    task_feed_rows,
    task_order_rows,
    task_rows,
)
from stagedb.instances.stored_digests import groups_digest, ranks_digest, write_class_digests
from stagedb.plans import AxisGroups, Plan, groups, option
from stagedb.plans.expert_checks import uneven
from stagedb.plans.graph_options import OMITTED_DEFAULTS
from stagedb.plans.layer_split import spelled_out
from stagedb.schedules import splits
from stagedb.store import Input, Lease, Store, ask_again, building
from stagedb.store.typed_properties import plan_properties

FORMAT = 5
"""Version of the contents of an instance; part of its id."""

Progress = Callable[[str], None]
"""Called with the current stage of the work, in a few words."""


OPS_AT_ONCE = 5000
"""Ops that one transaction creates, approximately. The edges of a place are about three times as many."""


def with_all_words(plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """The plan with all defaults and derived values written out: plans of equal meaning for a model become equal."""
    split = spelled_out(plan, plan.chunk_layers(sizes["L"]))
    load = () if plan.routing else uneven(plan, sizes)
    return dataclasses.replace(plan.canonical, **split, expert_load=load)


def instance_id(graph: str, sizes: Mapping[str, int], plan: Plan) -> str:
    """The id of a graph's instance under a plan. graph: its id. sizes: those of its model.

    It is the digest of graph and plan. Two plans of equal meaning in different words have one id."""
    return _id_of(_content(graph, sizes, plan))


def earlier_ids(graph: str, sizes: Mapping[str, int], plan: Plan) -> frozenset[str]:
    """The ids that this instance had in earlier forms, whose content differs."""
    content = _content(graph, sizes, plan)
    choices: dict[str, list[str | None]] = {
        "format": [str(each) for each in range(1, FORMAT + 1)],
        "ragged": [None, *(str(each) for each in range(1, int(content.get("ragged", 0)) + 1))],
        "first_backward": [None, content.get("first_backward")],
    }
    found = set()
    for values in itertools.product(*choices.values()):
        replaced = {**content, **dict(zip(choices, values, strict=True))}
        found.add(_id_of({name: value for name, value in replaced.items() if value is not None}))
    return frozenset(found - {_id_of(content)})


def _content(graph: str, sizes: Mapping[str, int], plan: Plan) -> dict[str, str]:
    """What an id is the digest of. A changed formula of what an instance has changes it."""
    complete = with_all_words(plan, sizes)
    content = {"format": str(FORMAT), "graph": graph, "plan": complete.to_json()}
    if complete.expert_load:
        # Instances of these that were stored before have dimensions of matmuls that do not match their FLOPs, or the
        # fullest rank's messages on all ranks, or no sizes of the fullest experts.
        content["ragged"] = "3"
    if plan.tasks() != plan.orders():
        # Instances of these that were stored before run the halves of the first backward apart.
        content["first_backward"] = "whole"
    return content


def _id_of(content: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def instantiate(
    store: Store, graph: str, plan: Plan, *, name: str | None = None, progress: Progress = lambda doing: None
) -> str:
    """Copy a graph to an instance of a plan and return the instance's id. Equal requests give one instance.

    name: what it is called where nobody names it, by default as the model (`stagedb.store.naming` sets names). Asking
    for an existing instance makes it the newest of this user. progress: called with each stage of the copying, if there
    is something to copy. Raises UsageError if the store has no such graph, or if the plan does not suit it.
    """
    check_unicode(name or "", "--name")
    stored = read_graph(store, graph)
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
    return made.id


@dataclass(frozen=True)
class Prepared:
    """An instance before its copy: its id, the graph's values under the plan, the rank classes and the groups."""

    id: str
    evaluated: Evaluated
    classes: tuple[RankClass, ...]
    groups: tuple[AxisGroups, ...]


def prepare(stored: StoredGraph, plan: Plan) -> Prepared:
    """Evaluate a graph under a plan. Raises UsageError if the plan does not suit it."""
    _check_options(stored, plan)
    plan.check(stored.sizes)
    _check_copies(stored, plan)
    _check_fused(stored, plan)
    _check_ends(stored, plan)
    evaluated = evaluate_graph(stored, plan)
    return Prepared(
        instance_id(stored.id, stored.sizes, plan),
        evaluated,
        _classes(stored, plan, evaluated),
        _groups(stored, plan, evaluated),
    )


def _check_options(stored: StoredGraph, plan: Plan) -> None:
    chosen = {**OMITTED_DEFAULTS, **plan.options.to_dict()}
    for word, value in {**OMITTED_DEFAULTS, **stored.options}.items():
        if word in chosen and chosen[word] != value:
            raise UsageError(
                f"graph {stored.id} was built with {word} {shown(value)}, the plan has {shown(chosen[word])} "
                f"({option(word)}): "
                "build the graph that the plan means, or leave the word out"
            )


def _check_fused(stored: StoredGraph, plan: Plan) -> None:
    """Raise UsageError if one matmul makes q, k and v, and ranks of tp would have to repeat a key/value head of it."""
    kv_heads = stored.sizes["KV"]
    if plan.tp > kv_heads and any(row["joined"] for row in stored.weights):
        raise UsageError(
            f"tp {plan.tp} is more than the {kv_heads} key/value heads of {stored.name}, whose one projection of "
            f"queries, keys and values cannot repeat a head: take --tp {kv_heads}, or a card with `qkv: apart`"
        )


def _check_copies(stored: StoredGraph, plan: Plan) -> None:
    """Raise UsageError if copies of experts have no reduction in a graph that an older version built."""
    divided = plan.ep * (plan.tp if plan.options.experts_over_tp else 1) > 1
    if plan.hsdp == 1 or not divided or "E" not in stored.sizes:
        return
    apart = of_experts(stored)
    if not any(op["axis"] == "dp_replicate" and op["name"] in apart for op in stored.ops):
        raise UsageError(
            f"graph {stored.id} was built by a version of stagedb that had no --hsdp {plan.hsdp} with divided experts: "
            f"remove it with `stagedb rm {stored.id}` and build it again, or leave --hsdp out"
        )


def _check_ends(stored: StoredGraph, plan: Plan) -> None:
    """Raise UsageError if the two copies of a tied weight are not on the first and the last stage, which add them."""
    last = plan.pp * plan.virtual_stages - 1
    ends = tuple(plan.placement.stage(number, plan.pp) for number in (0, last))
    if plan.pp > 1 and ends != (0, plan.pp - 1) and any(op["axis"] == "embedding" for op in stored.ops):
        raise UsageError(
            f"the embedding and the head of graph {stored.id} are one weight, and this plan has them in chunks of "
            f"stages {ends[0]} and {ends[1]}: tied weights need the first and the last stage, so take a schedule with "
            "its chunks in loops (--schedule interleaved-zb) or leave --chunk-placement out"
        )


def rank_classes(store: Store, graph: str, plan: Plan) -> tuple[RankClass, ...]:
    """The rank classes of a graph under a plan, as its instance has them."""
    stored = read_graph(store, graph)
    return _classes(stored, plan, evaluate_graph(stored, plan))


def _groups(stored: StoredGraph, plan: Plan, evaluated: Evaluated) -> tuple[AxisGroups, ...]:
    made = groups(plan, stored.sizes["KV"], evaluated.axes)
    for axis in evaluated.axes.keys() - {each.axis for each in made}:
        raise StagedbError(
            f"{evaluated.axes[axis]} of graph {stored.id} is a collective on axis {shown(axis)}, along which no two "
            "ranks communicate under this plan: the graph's condition for it is wrong"
        )
    return made


def _classes(stored: StoredGraph, plan: Plan, evaluated: Evaluated) -> tuple[RankClass, ...]:
    orders, placement, last = plan.tasks(), plan.placement, plan.pp * plan.virtual_stages - 1
    works = []
    room = 1 + evaluated.turns * evaluated.width
    for member in sorted({member for _, member, _ in evaluated.variants}):

        def variants(layer: int, member: Member = member) -> tuple[int, ...]:
            again = plan.recomputes(layer)
            return tuple(evaluated.variants[again, member, step] for step in range(max(evaluated.turns, 1)))

        layers = plan.chunk_layers(stored.sizes["L"])
        chunks = []
        for number in lay_out(evaluated.blocks, layers, variants, evaluated.loops, plan.virtual_stages, placement):
            # torch's and Megatron's wrappers treat each chunk as a model of its own: no bucket holds weights of two
            # chunks.
            again = [each.position for each in number.places if each.layer is not None and plan.recomputes(each.layer)]
            buckets, order = fill(
                number,
                evaluated.weights,
                evaluated.buckets,
                evaluated.orders,
                evaluated.last,
                room,
                evaluated.parts,
                evaluated.experts,
                again,
            )
            ways = (
                placement.route(number.index, towards, plan.pp) if 0 <= number.index + towards <= last else None
                for towards in (-1, 1)
            )
            chunks.append(ChunkWork(number, order, buckets, *ways))
        for stage in range(plan.pp):
            numbers = placement.chunks_of(stage, plan.pp, plan.virtual_stages)
            works.append(StageWork(stage, tuple(chunks[number] for number in numbers), orders[stage], member))
    common = {"format": FORMAT, "graph": stored.id, "values": evaluated.values, "dtypes": plan.dtypes.names()}
    return classify(works, common)


@dataclass(frozen=True)
class _Copy:
    """The statements of one instantiation, in the order of their dependencies."""

    store: Store
    lease: Lease
    graph: StoredGraph
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
            fault_point(f"instantiate.{stage}")

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
