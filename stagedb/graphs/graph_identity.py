"""The properties of a graph that are known without building it: its identity, and the model's sizes.

They are separate from `build_graph`, because these alone find a graph in a store, in a fifth of the time.
"""

import hashlib
import json

from stagedb.errors import UsageError
from stagedb.frameworks import Framework
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.mentions import Word
from stagedb.models.card import Card
from stagedb.models.kinds import PARTS
from stagedb.models.kinds.head_sizes import own_symbols
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.serving_checks import DRAFTING
from stagedb.workflows import find_workflow


def drafting(card: Card, options: GraphOptions) -> int:
    """The number of the model's layers of multi-token prediction that draft tokens in a step; 0 where none does.

    Raises UsageError for a model without such layers, if the options let its own layers draft.
    """
    if not find_workflow(options.workflow).drafts or options.draft == "other":
        return 0
    if options.draft == "own" and not card.multi_token_prediction:
        raise UsageError(
            f"{card.name} has no layers for further tokens, which {Word('draft', 'own')} is for: a card with "
            f"multi_token_prediction: 1 has one, and {Word('draft', 'other')} leaves the draft to another model"
        )
    return card.multi_token_prediction


def graph_key(card: Card, options: GraphOptions) -> str:
    """The graph's identity, known without building it: a digest of the card, the options, the recipe, the format."""
    content = {"card": card.digest, "options": options.chosen, "format": FORMAT}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _has(card: Card, word: str, *names: str) -> bool:
    """Whether some layers of a model have such a part."""
    return any(getattr(kind, word) in names for kind in card.kinds.values())


def _dense_and_experts(card: Card) -> bool:
    """Whether layers have feed-forwards in parallel with experts."""
    return _has(card, "channel_mixer", "dense_and_experts") or _has(card, "mixer", "shortcut_experts")


def graph_sizes(card: Card, options: GraphOptions) -> dict[str, int]:
    """The model's symbols, and that of the layers that draft tokens where a graph has some."""
    drafts = drafting(card, options)
    return model_sizes(card, options.framework) | ({DRAFTING: drafts} if drafts else {})


def model_sizes(card: Card, framework: Framework) -> dict[str, int]:
    """The model's symbols. A framework that pads the vocabulary itself starts from the published one.

    `S` is the sequence length of plans that name none. `P` is the number of rows of the table of learned positions,
    where there is one, `FD` the width of a feed-forward in parallel with experts. `LS` is the number of layers where
    some read more than the stream: all of them are one block, so that `L` is 1; `HL` and `VL` are the width of the rows
    that a token has for each layer, and their number. The parts of layers add their symbols (`stagedb.models.kinds`).
    """
    vocabulary = card.padded_vocab if framework.vocabulary_multiple is None else card.vocab
    learned = {"P": card.position_rows} if card.positions == "learned" else {}
    narrow = {"HE": card.embedding_width} if card.embedding_width else {}
    several = {"NS": card.hyper_connections} if card.hyper_connections else {}
    multiple = card.vocab_multiple if framework.vocabulary_multiple is None else 1
    padded = -(-card.layer_input_vocab // multiple) * multiple
    rows = {"HL": card.layer_input, "VL": padded} if card.layer_input else {}
    parts = {name: each.size(card) for part in PARTS for name, each in part.symbols.items()}
    return {
        **learned,
        **narrow,
        **several,
        "L": 1 if card.stacked else card.layers,
        **({"LS": card.layers} if card.stacked else {}),
        **rows,
        "H": card.hidden,
        "V": vocabulary,
        "S": card.usual_length.tokens,
        **{name: size for name, size in parts.items() if size},
        **own_symbols(card, card.kinds),
        **({"FD": card.ffn} if _dense_and_experts(card) else {}),
    }
