"""The program of a request: read from the store if that has the instance, else lowered in memory. Writes nothing."""

import dataclasses
import time
from typing import TYPE_CHECKING

from stagedb.api import catalog
from stagedb.api.results import GraphInfo, InstanceInfo
from stagedb.api.wanted_instances import Wanted, stored_instance
from stagedb.store import Store, current_user, read_graph

if TYPE_CHECKING:
    from stagedb.ir.symbolic_graph import SymGraph
    from stagedb.lowering import Program


def program_of(store: Store, wanted: Wanted) -> "tuple[InstanceInfo, Program]":
    """What an instance runs, and its description (`kept` is False if the store does not have it)."""
    from stagedb.lowering import IndexedGraph, lower
    from stagedb.store.contents.instance_reading import read_program

    there = stored_instance(store, wanted)
    if there is not None:
        found, program = there, read_program(store, there.id)
    else:
        graph = _graph_of(store, wanted)
        program = lower(IndexedGraph.of(graph), wanted.plan)
        found = InstanceInfo(
            id=program.workload.instance,
            name=wanted.name or wanted.model,
            graph=graph.key,
            model=wanted.model,
            recipe=graph.recipe,
            plan=wanted.plan.to_dict(),
            ranks=wanted.plan.world,
            classes=len(program.workload.classes),
            created=catalog.time_of(time.time_ns() // 1_000_000),
            made_by=current_user(),
            kept=False,
        )
    return dataclasses.replace(found, usual_length=wanted.usual_length, padding=wanted.padding), program


def _graph_of(store: Store, wanted: Wanted) -> "SymGraph":
    """The graph of a model: built from its card, or read from the store."""
    origin = wanted.source.origin
    if isinstance(origin, GraphInfo):
        return read_graph(store, origin.id)
    from stagedb.build.model_graph import build_graph

    return build_graph(origin, wanted.source.options)
