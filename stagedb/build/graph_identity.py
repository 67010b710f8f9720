"""The properties of a graph that are known without building it: its identity, and the model's sizes.

They are separate from `build`, because these alone find a graph in a store, in a fifth of the time.
"""

import hashlib
import json

from stagedb.frameworks import Framework
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.models.card import Card
from stagedb.models.kinds import PARTS
from stagedb.models.kinds.head_sizes import own_symbols
from stagedb.plans.graph_options import RINGS, GraphOptions
from stagedb.plans.strategies import crossed

UNITS, VIEWS = 2, 2
"""Count changes of graphs: of when sharded units are gathered and reduced, of
copies that are views, and of gathers that several operators share."""

STRATEGIES, CROSSED = 2, 3
"""Count changes in the meaning of users' strategies: graphs that older rules gave are different graphs. The second is
for those whose weights take another way to their operators."""

NORMS = 2
"""Counts changes in how the norms of gradients are reduced."""

REDUCTIONS = 2
"""Counts changes in what a backward reduces: graphs in which it reduced again what its forward has are different."""

LATENTS = 2
"""Counts changes in what a framework keeps, gathers and reduces of the latents of latent attention."""

STREAMS = 2
"""Counts changes in how gradients are added where parts of a layer read the stream itself."""

FURTHER = 2
"""Counts changes in layers for further tokens: of their units, their projections and the order of the losses."""

SINKS, SHARES, EXPERT_BIASES = 2, 2, 2
"""Count changes of backwards: what is kept of sinks, which also come first in their layer's weights now; what is kept
of scores divided by their sum; the order of the gradients of experts with biases."""

STOPS = 2
"""Counts changes in how far a part is recomputed: what comes before its last needed operator runs, too."""

ROUTED = 2
"""Counts changes in which tokens the ranks of tp route to experts that they hold parts of."""

LOOK_UPS = 2
"""Counts changes in the bytes of look-ups. Graphs in which one read its whole table are different graphs."""


_NORMED_AFTER = ("post_norm", "sandwich", "sandwich_scaled", "sandwich_of_stream")
"""Residuals that normalise the results of parts."""


def graph_key(card: Card, options: GraphOptions) -> str:
    """The graph's identity, known without building it: a digest of the card, the options, the recipe, the format."""
    content: dict[str, object] = {"card": card.digest, "options": options.to_dict(), "format": FORMAT}
    content["look_ups"] = LOOK_UPS
    # Graphs of these that were stored before share and reduce experts among other ranks: they are different graphs.
    if card.routes and (options.experts_over_tp or not options.cp_grad_sync):
        content["experts"] = 2
    if card.routes and options.routes_whole:
        content["routed"] = ROUTED
    if options.zero >= 2:
        content["units"] = UNITS
    if not options.shared_input or options.cp_kind in (*RINGS, "allgather-kv"):
        content["views"] = VIEWS
    if options.clip_norm:
        content["norms"] = NORMS
    if options.framework.regather and _normalises_sums(card):
        content["reductions"] = REDUCTIONS
    if _has(card, "mixer", "latent_attention"):
        content["latents"] = LATENTS
    if card.further_tokens and options.framework.logits_first:
        content["further"] = FURTHER
    if _has(card, "residual", "post_norm", "after_sum"):
        content["streams"] = STREAMS
    if _sets(card, "sinks"):
        content["sinks"] = SINKS
    if _sets(card, "expert_bias"):
        content["expert_biases"] = EXPERT_BIASES
    if _divides_scores(card):
        content["shares"] = SHARES
    early_stop = options.framework.early_stop if options.early_stop is None else options.early_stop
    if early_stop and options.recompute == "full" and _runs_ahead(card):
        content["stops"] = STOPS
    if options.strategy:
        content["strategies"] = CROSSED if crossed(options) else STRATEGIES
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _has(card: Card, word: str, *names: str) -> bool:
    """Whether some layers of a model have such a part."""
    return any(getattr(kind, word) in names for kind in card.kinds.values())


def _sets(card: Card, word: str) -> bool:
    """Whether some layers of a model have a word."""
    return any(kind.settings.get(word) for kind in card.kinds.values())


def _divides_scores(card: Card) -> bool:
    """Whether a router divides the scores of a token's experts by their sum."""
    settings = [kind.settings for kind in card.kinds.values()]
    return any(each.get("scores") in ("softmax", "sigmoid") and each.get("normalised") for each in settings)


def _runs_ahead(card: Card) -> bool:
    """Whether a part of a layer is over, and not read by a backward, before the last one that is."""
    return _has(card, "residual", "parallel", "parallel_two_norms") or card.shared_ffn > 0


def _normalises_sums(card: Card) -> bool:
    """Whether norms read sums that ranks of tp share: results of parts, or the embedding."""
    after = any(kind.residual in _NORMED_AFTER for kind in card.kinds.values())
    return after or card.embedding_norm or card.further_tokens > 0


def model_sizes(card: Card, framework: Framework) -> dict[str, int]:
    """The model's symbols. A framework that pads the vocabulary itself starts from the published one.

    `S` is the sequence length of plans that name none. `P` is the number of rows of the table of learned positions,
    where there is one, `FD` the width of a feed-forward in parallel with experts. The parts of layers add their symbols
    (`stagedb.models.kinds`).
    """
    vocabulary = card.padded_vocab if framework.vocabulary_multiple is None else card.vocab
    learned = {"P": card.position_rows} if card.positions == "learned" else {}
    narrow = {"HE": card.embedding_width} if card.embedding_width else {}
    several = {"NS": card.streams} if card.streams else {}
    parts = {name: each.size(card) for part in PARTS for name, each in part.symbols.items()}
    return {
        **learned,
        **narrow,
        **several,
        "L": card.layers,
        "H": card.hidden,
        "V": vocabulary,
        "S": card.usual_length.tokens,
        **{name: size for name, size in parts.items() if size},
        **own_symbols(card, card.kinds),
        **({"FD": card.ffn} if _has(card, "channel_mixer", "dense_and_experts") else {}),
    }
