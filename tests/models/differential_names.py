"""Weights of differential attention of a model's own code as those of a graph, where heads of a pair are neighbours."""

from collections.abc import Iterator, Mapping

from stagedb.ir.operators import Array
from tests.semantics.stage import Key

WORDS = {"q_proj": "attn.wq", "k_proj": "attn.wk", "v_proj": "attn.wv", "o_proj": "attn.wo"}


def differential_weights(
    part: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], key: Key
) -> Iterator[tuple[str, Array]]:
    """The weight of a block that a parameter is; none if its layer has no differential attention."""
    block, place = key
    if not part.startswith("self_attn.") or (f"{block}.attn.lambda_q1", place) not in shapes:
        return
    word, _, ending = part.removeprefix("self_attn.").partition(".")
    if word.startswith("lambda"):
        yield f"attn.{word}", value
        return
    if word != "o_proj":
        # The first heads of all pairs, then the second ones.
        pairs = shapes[f"{block}.attn.wk.weight", place][0] // 2
        value = value.reshape(2, pairs, -1).swapaxes(0, 1).reshape(value.shape)
    yield f"{WORDS[word]}.{ending}", value
