"""The instance of a request: one of the store, one under a changed plan, or a model's. Missing ones are made."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stagedb.api import catalog, lookup, model_names
from stagedb.api.results import GraphInfo, InstanceInfo, ProfileInfo
from stagedb.errors import UsageError
from stagedb.frameworks import find_framework
from stagedb.mentions import Word, call
from stagedb.models import Card, SequenceLength, card_names
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.schedule_checks import follows_from_chunks
from stagedb.plans.written_words import DTYPE_WORDS
from stagedb.store import Store, current_user, read_graph
from stagedb.store.naming import set_name, wanted_name

if TYPE_CHECKING:
    from stagedb.ir.symbolic_graph import SymGraph
    from stagedb.lowering import Program

DEFAULT_MODEL = "llama3-70b"
DEFAULT_WORDS: Mapping[str, object] = {"tp": 8, "pp": 16}
"""The model of an export from an empty store, if the request names none."""


class StageClock:
    """A clock of a verb's work: the seconds of each of its stages, such as `build` or `instantiate`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        """End the present stage. stage: its name."""
        now = time.perf_counter()
        self.seconds[stage] = now - self._since
        self._since = now


@dataclass(frozen=True)
class Wanted:
    """An instance that a request asks for, checked, and which may not exist yet. Nothing has been written.

    source: its model or graph. plan: with all words. name: to set; None: none. there: the instance, if it was found in
    the store. usual_length: the sequence length that it has because the request named none. padding: see
    `vocabulary_padding`.
    """

    source: model_names.Source
    plan: Plan
    name: str | None
    there: InstanceInfo | None = None
    usual_length: SequenceLength | None = None
    padding: str = ""

    @property
    def model(self) -> str:
        """The name of the instance's model."""
        return self.source.origin.name

    @property
    def label(self) -> str:
        """The name of the instance, if it has one; else that of its model."""
        return self.name or (self.there.name if self.there is not None else None) or self.model

    def make(self, store: Store, clock: StageClock, *, asks: bool = True) -> InstanceInfo:
        """The instance. It and its graph are written to the store if they are not there.

        asks: one that is there becomes the newest of this user. Without it nothing is written for one that is there.
        """
        if self.there is not None:
            return dataclasses.replace(self.there, usual_length=self.usual_length)
        from stagedb.lowering.preparing import instance_id
        from stagedb.store.contents.instances import instantiate

        name = None if self.name is None else wanted_name(store, self.name)
        graph = self.source.in_store(store)
        clock.lap("build")
        id = instance_id(graph.id, graph.sizes, self.plan)
        found = lookup.instance_of_id(store, id)
        new = found is None
        if new or asks:
            instantiate(store, graph.id, self.plan, name=None if name is None else name.name)
        if name is not None:
            set_name(store, "Instance", id, name)
        if found is None or asks or name is not None:
            found = lookup.made_instance(store, id)
        clock.lap("instantiate")
        return dataclasses.replace(found, new=new, usual_length=self.usual_length, padding=self.padding)


def of_model(store: Store, target: str | Card, words: Mapping[str, Any], name: str | None = None) -> Wanted:
    """A model, or a graph of the store, under the plan of the words.

    target: a model's name, its card, or a graph's id. name: for the instance; None: the model's.
    """
    source = model_names.find_source(store, target, words)
    plan, named = source.new_plan(words), "seq_len" in words or bool(words.get("requests"))
    usual = None if named else source.usual_length
    return Wanted(source, plan, name, usual_length=usual, padding=vocabulary_padding(source, plan.tp))


def vocabulary_padding(source: model_names.Source, tp: int | None = None) -> str:
    """A sentence on the rows that a framework, or a card for it, adds to the vocabulary; empty for none.

    tp: that of a plan; None: of a graph, which has it as a symbol. The parameters of a card are without these rows.
    """
    multiple = find_framework(source.options.recipe).vocabulary_multiple
    card, there = source.card, source.sizes["V"]
    published = there if card is None else card.vocab
    if multiple is None:
        padded, why = there, "" if card is None else f"a multiple of {card.vocab_multiple}, as its card has it"
    elif tp is None:
        return (
            f"the vocabulary of {published:,} is padded to a multiple of {multiple} x tp in an instance "
            f"({source.options.recipe})"
        )
    else:
        unit = multiple * tp
        padded, why = (
            -(-published // unit) * unit,
            f"a multiple of {multiple} x tp {tp}, as {source.options.recipe} has it",
        )
    if padded == published:
        return ""
    width = source.sizes.get("HE", source.sizes["H"])
    rows = padded - published
    tables = "" if card is None else f", {rows * width * (1 if card.tied else 2):,} parameters more than its card has"
    return f"the vocabulary of {published:,} is padded to {padded:,} ({why}): {rows:,} rows{tables}"


def find_wanted(store: Store, target: str | None, model: str | Card | None, words: Mapping[str, Any]) -> Wanted:
    """The instance of a request that names an instance, or a model, or neither.

    Neither means the newest instance, or in an empty store `DEFAULT_MODEL`. Words change the plan of an instance.
    target: id or name of an instance. model: a model's name, or its card. words: of the plan. Raises UsageError if both
    are given, or if a name is unknown.
    """
    if target is not None and model is not None:
        raise UsageError(f"an instance ({target}) and {Word('model')} cannot both be given: leave one out")
    if model is not None:
        return of_model(store, model, words)
    known = catalog.instances(store) if target is None else []
    if target is None and not known:
        return of_model(store, DEFAULT_MODEL, {**DEFAULT_WORDS, **words})
    instance, graph = _with_graph(store, known[0].id if target is None else target)
    source = model_names.stored_source(graph, words)
    if not words:
        return Wanted(source, source.plan(instance.plan), None, instance)
    return Wanted(source, source.new_plan(_changed(instance.plan, words)), None)


def _with_graph(store: Store, word: str) -> tuple[InstanceInfo, GraphInfo]:
    """The instance with an id or name, and its graph. Raises UsageError if there is none."""
    found = lookup.find_with_graph(store, word)
    if found is None and word in card_names():
        raise UsageError(
            f"{word} is a model, and the store has no instance of it: use {Word('model', word)} with the options of a "
            "plan to make one"
        )
    if found is None:
        raise lookup.unknown_instance(store, word)
    return found


def find_timed(
    store: Store, profile: str, target: str | None, model: str | Card | None, words: Mapping[str, Any]
) -> tuple[ProfileInfo, Wanted]:
    """A profile by id or name, and its instance.

    target, model and words have the meaning that they have in `find_wanted`; words alone change the plan of the
    profile's instance. UsageError if they lead to another instance than the profile's.
    """
    wanted = None if target is None and model is None else find_wanted(store, target, model, words)
    there = None if wanted is None else stored_instance(store, wanted)
    # If several profiles have the name, the one of the instance is meant.
    mine = None if there is None else lookup.find_profile(store, profile, there.id)
    found = mine or lookup.the_profile(store, profile)
    if wanted is None:
        wanted = find_wanted(store, found.instance, None, words)
        there = stored_instance(store, wanted)
    if there is None or there.id != found.instance:
        asked = "another one, which is not in the store" if there is None else f"{_named(there.id, there.name)}"
        raise UsageError(
            f"profile {found.id[: catalog.SHORT_ID]} is of instance {_named(found.instance, found.instance_name)}, "
            f"but the other arguments choose {asked}: leave out INSTANCE, {Word('model')} and the options of the "
            f"plan, or profile that instance ({call('profile')} takes the same arguments) and name its profile"
        )
    return found, dataclasses.replace(wanted, there=there)


def stored_instance(store: Store, wanted: Wanted) -> InstanceInfo | None:
    """The wanted instance, if the store has it."""
    from stagedb.lowering.preparing import instance_id

    if wanted.there is not None or not isinstance(wanted.source.origin, GraphInfo):
        return wanted.there
    return lookup.instance_of_id(store, instance_id(wanted.source.origin.id, wanted.source.sizes, wanted.plan))


def _named(id: str, name: str) -> str:
    return f"{id[: catalog.SHORT_ID]} ({name})"


def _changed(plan: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's words with others on top. A new number of ranks changes dp, a new dtype the words that follow it."""
    merged = {**plan, **words}
    if "ranks" in words and "dp" not in words:
        merged["dp"] = None
    if "schedule" in words:
        merged |= {word: words.get(word) for word in ("virtual_stages", "task_order")}
    elif "virtual_stages" in words and follows_from_chunks(plan.get("schedule")):
        merged["schedule"] = None  # the schedule follows from the number of chunks
    if "dtype" in words:
        merged |= {word: words.get(word) for word in DTYPE_WORDS if word != "dtype"}
    elif "param_dtype" in words:
        merged |= {word: words.get(word) for word in ("grad_dtype", "reduce_dtype", "opt_dtype", "master_dtype")}
    return merged


# The program of a request: read from the store if that has the instance, else lowered in memory. Writes nothing.


def program_of(store: Store, wanted: Wanted) -> "tuple[InstanceInfo, Program]":
    """What an instance runs, and its description (`kept` is False if the store does not have it)."""
    from stagedb.lowering import IndexedGraph, lower
    from stagedb.store.contents.stored_programs import read_program

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
