"""The programs of what is checked: lowered in memory, or copied in a store and read from it, which gives the same."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stagedb.api import Stagedb
from stagedb.api.model_names import card_source
from stagedb.api.wanted_instances import graph_of
from stagedb.lowering import IndexedGraph, Program, lower
from stagedb.models import Card
from stagedb.plans import typed_words
from stagedb.store.contents.instances import read_program

ProgramOf = Callable[[Card, Mapping[str, Any]], Program]
"""The program of a model under a plan of these words. UsageError where the plan does not suit it."""


def lowered(card: Card, words: Mapping[str, Any]) -> Program:
    """The program of a model under a plan, without a store. words: of the plan."""
    typed = typed_words(words)
    source = card_source(card, typed)
    plan = source.new_plan(typed)
    return lower(IndexedGraph.of(graph_of(source, plan.options, None)), plan)


@contextmanager
def stored(db: Stagedb) -> Iterator[ProgramOf]:
    """A function that makes a model's program under a plan through a store, from which all is removed at the end."""
    known = {graph.id for graph in db.graphs()}
    made: set[str] = set()

    def program(card: Card, words: Mapping[str, Any]) -> Program:
        instance = db.instantiate(card, **words)
        made.add(instance.graph)
        try:
            return read_program(db.store, instance.id)
        finally:
            if instance.new:
                db.rm(instance.id)

    try:
        yield program
    finally:
        for graph in made - known:
            db.rm(graph)
