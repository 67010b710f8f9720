"""What the rank classes of a plan run, made in memory: for tests that are not about the store.

It is what the store's copy of the same request is (`tests/instances/test_in_memory.py` compares them), some 40 times
faster. Only this file knows how it is made.
"""

import functools
from pathlib import Path
from typing import Any

from stagedb.api.model_names import card_source
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering import IndexedGraph, Program, lower
from stagedb.lowering.columns import Workload
from stagedb.lowering.program import CopiedRows, copy_rows
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions, Plan, typed_words
from stagedb.traces.trace_reading import TraceColumns
from stagedb.validation.rank_counts import trace_of
from tests.traces.written import export_workload


def program(model: str | Card, /, **words: Any) -> Program:
    """A model under a plan of these words, as `Stagedb.instantiate` has it. UsageError for what that refuses."""
    card = model if isinstance(model, Card) else load_card(model)
    plan = plan_of(card, **words)
    return lower(_graph(card, plan.options), plan)


def workload(model: str | Card, /, **words: Any) -> Workload:
    """The columns of a plan."""
    return program(model, **words).workload


def copied_rows(model: str | Card, /, **words: Any) -> CopiedRows:
    """The rows of a plan that the store's statements copy: more properties of ops than the columns have."""
    card = model if isinstance(model, Card) else load_card(model)
    plan = plan_of(card, **words)
    return copy_rows(_graph(card, plan.options), plan)


def trace(model: str | Card, rank: int, /, **words: Any) -> TraceColumns:
    """The trace of a rank, as an export writes it."""
    return trace_of(program(model, **words), rank)


def export(made: Workload, out: Path, **words: Any) -> Path:
    """The traces of a workload, all ranks of it. They are not replayed. words: of `export_workload`."""
    export_workload(made, out, **{"replay": False, **words})
    return out


def plan_of(card: Card, /, **words: Any) -> Plan:
    """The plan of these words for a model, with the defaults that a request gets."""
    typed = typed_words(words)
    return card_source(card, typed).new_plan(typed)


@functools.lru_cache(8)
def _graph(card: Card, options: GraphOptions) -> IndexedGraph:
    return IndexedGraph.of(build_graph(card, options))
