"""What the rank classes of a plan run, made in memory: for tests that are not about the store.

It is what the store's copy of the same request is (`tests/instances/test_in_memory.py` compares them), some 40 times
faster. Only this file knows how it is made.
"""

import functools
from pathlib import Path
from typing import Any

from stagedb.api import model_names
from stagedb.build.graph_identity import model_sizes
from stagedb.build.model_graph import build_graph
from stagedb.lowering import IndexedGraph, Program, lower
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions, Plan, typed_words
from stagedb.plans.context_checks import with_default_kind
from stagedb.plans.written_words import OPTION_WORDS
from stagedb.workload.instance_columns import Workload
from tests.traces.written import export_workload


def program(model: str | Card, /, **words: Any) -> Program:
    """A model under a plan of these words, as `Stagedb.instantiate` has it. UsageError for what that refuses."""
    card = model if isinstance(model, Card) else load_card(model)
    plan = plan_of(card, **words)
    return lower(_graph(card, plan.options), plan)


def workload(model: str | Card, /, **words: Any) -> Workload:
    """The columns of a plan."""
    return program(model, **words).workload


def export(made: Workload, out: Path) -> Path:
    """The traces of a workload, all ranks of it."""
    export_workload(made, out)
    return out


def plan_of(card: Card, /, **words: Any) -> Plan:
    """The plan of these words for a model, with the defaults that a request gets."""
    typed = typed_words(words)
    options = GraphOptions(**{option: value for option, value in typed.items() if option in OPTION_WORDS})
    if "cp_kind" not in typed:
        options = with_default_kind(options, typed.get("cp", 1), typed.get("ulysses", 1))
    return model_names.Source(options, model_sizes(card, options.framework), card, card).new_plan(typed)


@functools.lru_cache(8)
def _graph(card: Card, options: GraphOptions) -> IndexedGraph:
    return IndexedGraph.of(build_graph(card, options))
