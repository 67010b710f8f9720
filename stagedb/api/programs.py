"""The program of a request: read from the store if that has the instance, else lowered in memory. Writes nothing."""

import dataclasses
import time
from typing import TYPE_CHECKING

from stagedb.api import catalog, model_names
from stagedb.api.results import InstanceInfo
from stagedb.api.wanted_instances import Wanted, stored_instance
from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans import GraphOptions
from stagedb.store import Store, current_user, read_graph

if TYPE_CHECKING:
    from stagedb.ir.symbolic_graph import SymGraph
    from stagedb.lowering import Program


def program_of(store: Store, wanted: Wanted) -> "tuple[InstanceInfo, Program]":
    """What an instance runs, and its description (`kept` is False if the store does not have it)."""
    from stagedb.lowering import IndexedGraph, lower
    from stagedb.store.contents.instances import read_program

    there = stored_instance(store, wanted)
    if there is not None:
        found, program = there, read_program(store, there.id)
    else:
        graph = graph_of(wanted.source, wanted.source.options, store)
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


def graph_of(source: model_names.Source, options: GraphOptions, store: Store | None) -> "SymGraph":
    """The symbolic graph of a model with these options: built from its card, which makes what a store has of it.

    A graph without a card is read from the store. Raises UsageError for options that it does not have.
    """
    if source.card is not None:
        from stagedb.graphs.model_graph import build_graph

        return build_graph(source.card, options)
    if store is None or options != source.options:
        name = source.origin.name
        raise UsageError(f"the card of {name} is not here: name its file with {Word('model')} to try other graphs")
    return read_graph(store, source.in_store(store).id)
