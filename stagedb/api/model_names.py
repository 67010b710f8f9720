"""The meaning of a word that names a model: a card of the library, a file, or a graph of the store."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagedb.api.plan_texts import describe
from stagedb.api.results import GraphInfo
from stagedb.errors import UsageError
from stagedb.files import is_there, shown
from stagedb.graphs.graph_identity import graph_key, graph_sizes
from stagedb.lazy_names import deferred
from stagedb.mentions import Word, call
from stagedb.models import Card, SequenceLength, card_names, load_card
from stagedb.plans import GraphOptions, Plan, plan_for
from stagedb.plans.context_checks import with_default_kind
from stagedb.plans.serving_checks import DRAFTING
from stagedb.plans.written_words import OPTION_WORDS
from stagedb.workflows import find_workflow

if TYPE_CHECKING:
    from stagedb.api import catalog, lookup
    from stagedb.store import Store
else:
    # The cards of the library need no store.
    catalog, lookup = deferred("stagedb.api.catalog", "stagedb.api.lookup")

FILE_ENDINGS = (".yaml", ".yml", ".json", ".toml")


def find_card(word: str) -> Card | None:
    """The card with a name of the library or at a path; None for other words.

    word: the name or the path. Raises UsageError for a path without a card.
    """
    if word in card_names():
        return load_card(word)
    if word.endswith(FILE_ENDINGS) or "/" in word or is_there(Path(word) / "config.json"):
        return _accepted(load_card(Path(word)))
    return None


def _accepted(card: Card) -> Card:
    """The card, whose own blocks have passed their trial."""
    if card.blocks:
        from stagedb.graphs.block_trial import check_blocks

        check_blocks(card)
    return card


def card(word: str) -> Card:
    """The card that a word names, in the library or as a path. UsageError, with similar names, if there is none."""
    found = find_card(word)
    if found is None:
        raise unknown_model(word)
    return found


def unknown_model(word: str, store: "Store | None" = None) -> UsageError:
    """The error for an unknown word, with similar names."""
    names = [*card_names(), *(graph.name for graph in catalog.graphs(store))] if store else [*card_names()]
    return UsageError(
        f"unknown model {shown(word)}{catalog.near(word, names)}; {call('models')} lists the library, and MODEL may "
        "also be the path of a card or of a Hugging Face config.json"
    )


@dataclass(frozen=True)
class Source:
    """A symbolic graph that may not be built yet: it is in the store, or its card makes it.

    options: of the graph. sizes: the model's symbols. origin: the graph in the store, or the card. card: of the graph;
    None if only the store has the graph.
    """

    options: GraphOptions
    sizes: Mapping[str, int]
    origin: GraphInfo | Card
    card: Card | None

    def plan(self, words: Mapping[str, object]) -> Plan:
        """The plan of these words for this model, checked. Raises UsageError before anything is written."""
        usual = self.usual_length
        default = {} if usual is None or words.get("requests") else {"seq_len": usual.tokens}
        plan = plan_for({**default, **words, **self.options.to_dict()}, self.sizes)
        if self.card is not None:
            self.card.check_tp(plan.tp)
        return plan

    @property
    def usual_length(self) -> SequenceLength | None:
        """The sequence length of plans that name none. A stored graph may have an older one than its card.

        None for a workflow that fixes it.
        """
        workflow = find_workflow(self.options.workflow)
        if workflow.drafts and DRAFTING in self.sizes:
            drafts = self.sizes[DRAFTING]
            return SequenceLength(drafts + 1, f"the last one of each request and a draft of {drafts}")
        if workflow.decodes:
            return None
        if self.card is not None:
            return self.card.usual_length
        tokens = self.sizes.get("S")
        return None if tokens is None else SequenceLength(tokens, f"that of the graph {self.origin.name} in the store")

    def new_plan(self, words: Mapping[str, object]) -> Plan:
        """The plan of these words for an instance that may not exist yet, checked.

        Raises UsageError for words that are no plan of the model, and if the card is wrong for the sequence length.
        """
        plan = self.plan(words)
        if self.card is not None:
            self.card.check_sequence(plan.positions)
            if plan.workflow.caches:
                self.card.check_requests(plan.positions, None if plan.requests else plan.seq_len)
        return plan

    def in_store(self, store: "Store") -> GraphInfo:
        """The graph. It is built now if it is not in the store."""
        if isinstance(self.origin, GraphInfo):
            return self.origin
        from stagedb.graphs.model_graph import build_graph
        from stagedb.store import Input, write_graph

        graph = build_graph(self.origin, self.options)
        made_of = [Input("card", self.origin.digest[:32], self.origin.name)]
        made_of += [Input("block", block.digest[:32], block.name) for block in self.origin.blocks]
        new = write_graph(store, graph, tuple(made_of))
        return dataclasses.replace(lookup.made_graph(store, graph.key), new=new)


def find_source(store: "Store", word: str | Card, words: Mapping[str, Any]) -> Source:
    """The graph for a word and the words of a plan: from a card, else by id, else by name in the store.

    The word may be a card itself. Raises UsageError for an unknown word (with similar names), and for options that a
    stored graph does not have.
    """
    given = {option: value for option, value in words.items() if option in OPTION_WORDS}
    card = word if isinstance(word, Card) else find_card(word)
    if card is not None:
        return _of_card(store, card, _options(words, given))
    word = str(word)
    graph = lookup.find_graph(store, word) or _by_name(store, word, _options(words, given))
    if graph is None:
        raise unknown_model(word, store)
    return stored_source(graph, words)


def stored_source(graph: GraphInfo, words: Mapping[str, Any]) -> Source:
    """A graph of the store.

    words: of the request; options of graphs among them must be the graph's. Raises UsageError for options that it does
    not have.
    """
    given = {option: value for option, value in words.items() if option in OPTION_WORDS}
    options = GraphOptions(**graph.options)
    for option, value in given.items():
        if getattr(options, option) != getattr(GraphOptions(**{**graph.options, option: value}), option):
            raise UsageError(
                f"graph {graph.id[: catalog.SHORT_ID]} has {option} {getattr(options, option)}, not {value}: an "
                f"option of a graph cannot be changed; name the model instead ({Word('model', graph.name)}) with all "
                "options of the plan, or leave the option out"
            )
    return Source(options, graph.sizes, graph, _own_card(graph, options))


def _options(words: Mapping[str, Any], given: Mapping[str, Any]) -> GraphOptions:
    """The options for a graph that is not stored: those that are given, and the framework's defaults."""
    wanted = GraphOptions(**given)
    return wanted if "cp_kind" in given else with_default_kind(wanted, words.get("cp", 1), words.get("ulysses", 1))


def card_source(card: Card, words: Mapping[str, Any]) -> Source:
    """The graph of a card with the options among a plan's words, whether a store has it or not."""
    options = _options(words, {option: value for option, value in words.items() if option in OPTION_WORDS})
    return Source(options, graph_sizes(card, options), card, card)


def _of_card(store: "Store", card: Card, options: GraphOptions) -> Source:
    key = graph_key(card, options)
    known = lookup.find_graph(store, key)
    if known is not None:
        return Source(options, known.sizes, known, card)
    return Source(options, graph_sizes(card, options), card, card)


def _own_card(graph: GraphInfo, options: GraphOptions) -> Card | None:
    """The card of the library that makes a graph of the store."""
    card = load_card(graph.name) if graph.name in card_names() else None
    return card if card is not None and graph_key(card, options) == graph.id else None


def _by_name(store: "Store", word: str, options: GraphOptions) -> GraphInfo | None:
    named = lookup.graphs_of_model(store, word)
    found = next((graph for graph in named if graph.options == options.to_dict()), None)
    if named and found is None:
        held = "; ".join(f"{graph.id[: catalog.SHORT_ID]} ({describe(graph.options)})" for graph in named)
        raise UsageError(
            f"{word} has no model card here, and none of its graphs in the store has these options. "
            f"The store has {held}: give one of these ids, or its options"
        )
    return found
