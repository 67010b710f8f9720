"""The indexer of attention that sees blocks of keys (MiniMax-M3), with a head for each K/V head.

Ranks of tp have its heads with their K/V heads, and its keys whole. `stagedb.ir.operators.key_blocks` has
what it chooses; its own code gives it no gradient, so that a step does not train it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.head_sizes import head_sizes
from stagedb.models.kinds.part import Architecture, KindWord, SizeSymbol, Values, norm_values
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

WORDS: Mapping[str, KindWord] = {
    "index_block": KindWord(
        "the keys of a block, of which an indexer chooses some (0: all are seen)", 0, most=MOST_TOKENS
    ),
    "index_blocks": KindWord("the number of blocks that a query sees", 0, most=MOST_TOKENS),
    "index_local": KindWord("the blocks up to a query's own that are always among them", 1, most=MOST_TOKENS),
    "block_index_dim": KindWord("the size of a head of that indexer", 0),
}

SYMBOLS: Mapping[str, SizeSymbol] = {
    "BI": SizeSymbol("index_blocks", "blocks of keys that a query sees", lambda card: card.word("index_blocks")),
    "BD": SizeSymbol(
        "block_index_dim", "size of a head of the indexer of blocks", lambda card: card.word("block_index_dim")
    ),
}
AXES: Mapping[str, str] = {"index_blocks": "BI", "block_index_dim": "BD"}

QUERY, KEY = ("batch", "seq", "kv_heads", "block_index_dim"), ("batch", "seq", "block_index_dim")
CHOSEN = ("batch", "seq", "kv_heads", "index_blocks")


def chosen_blocks(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> "Tensor":
    """The numbers of each query's blocks, for each K/V head. x: the part's input."""
    t.enter("index")
    made = []
    for word, axes in (("q", QUERY), ("k", KEY)):
        y = shared.linear(t, f"attn.index.w{word}", x, (*axes[2:], "hidden"), axes, form=style.linear)
        y = shared.norm(t, card, style, f"attn.index.{word}_norm", y)
        turned = t.activation(f"attn.index.rotary_{word}", axes)
        t.emit(f"attn.index.rotary_{word}", ops.Rotary(size=_turned(card, values)), (y,), turned)
        made.append(turned)
    chosen = t.activation("attn.index.chosen", CHOSEN, "int64")
    numbers = (int(values[word]) for word in ("index_block", "index_blocks", "index_local"))
    t.emit("attn.index", ops.key_blocks.KeyBlockIndex(*numbers), tuple(made), chosen)
    return chosen


def _turned(card: Architecture, values: Values) -> int:
    """The dimensions of a head that positions turn, which are those of the layer's queries."""
    return int(values["rotary_dim"]) or head_sizes(card, values).head_dim


def parameters(card: Architecture, values: Values) -> int:
    """The parameters of the indexer of a layer."""
    if not values.get("index_block"):
        return 0
    size = int(values["block_index_dim"])
    return card.hidden * size * (head_sizes(card, values).kv_heads + 1) + 2 * size * norm_values(card)


def check(card: Architecture, values: Values) -> None:
    """Raise UsageError for words of the indexer that do not go together."""
    given = [word for word in ("index_block", "index_blocks", "block_index_dim") if values.get(word)]
    if not given:
        if values.get("index_local", 1) != 1:
            raise UsageError(f"{card.name}: index_local is for layers with index_block: leave it out")
        return
    if len(given) < 3 or not values["index_local"]:
        raise UsageError(
            f"{card.name}: an indexer of blocks needs index_block, index_blocks, index_local and block_index_dim"
        )
    if int(values["index_local"]) > int(values["index_blocks"]):
        raise UsageError(f"{card.name}: index_local={values['index_local']} is above index_blocks")
    others = [word for word in ("sinks", "softcap", "window", "chunk", "gated") if values.get(word)]
    others += ["keys"] if values.get("keys") == "earlier" else []
    if others or card.positions != "rotary" or not values["rotary"]:
        what = others[0] if others else "layers without rotary positions"
        raise UsageError(f"{card.name}: an indexer of blocks is not built with {what}: leave one of them out")
    if _turned(card, values) > int(values["block_index_dim"]):
        raise UsageError(
            f"{card.name}: block_index_dim={values['block_index_dim']} is below the {_turned(card, values)} dimensions "
            "of a head that positions turn"
        )
