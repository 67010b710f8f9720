"""Sizes of a model: the largest ones, beyond which counts would not fit in 64 bits, and the heads of its kinds."""

from collections.abc import Iterator, Mapping

MOST_LAYERS = 100_000
"""Layers of a model, at most: each has its place in a pattern."""

MOST_STREAMS = 64
"""Residual streams, and rounds that make their mixing even, at most."""

MOST_FURTHER = 64
"""Layers that predict further tokens, at most."""

MOST_EXPERTS = 1 << 20
"""Experts of a layer, at most."""

WIDEST = 1 << 24
"""The size of a stream, a head, a feed-forward or a latent, at most."""

MOST_WORDS = 1 << 27
"""Words of a vocabulary, at most."""

MOST_TOKENS = 1 << 31
"""Positions, and keys of a window, at most."""

MOST_PARAMETERS = 10**16
"""Parameters of a model, at most: their bytes, with the state of an optimizer, fit in 64 bits."""

MOST: Mapping[str, int] = {
    "layers": MOST_LAYERS,
    "dense_layers": MOST_LAYERS,
    "experts": MOST_EXPERTS,
    "top_k": MOST_EXPERTS,
    "multi_token_prediction": MOST_FURTHER,
    "hyper_connections": MOST_STREAMS,
    "hyper_connection_rounds": MOST_STREAMS,
    **dict.fromkeys(
        ("hidden", "ffn", "expert_ffn", "shared_ffn", "head_dim", "embedding_width", "layer_input"), WIDEST
    ),
    **dict.fromkeys(("heads", "kv_heads"), WIDEST),
    **dict.fromkeys(("vocab", "vocab_multiple", "layer_input_vocab"), MOST_WORDS),
    **dict.fromkeys(("max_positions", "position_offset", "train_seq_len", "left_out_window"), MOST_TOKENS),
    "parameters": MOST_PARAMETERS,
}
"""The largest value of each field of a card that is a whole number."""


def numbers_of_heads(sizes: Mapping[str, int]) -> Iterator[tuple[int, int, bool]]:
    """The heads and the key/value heads of each kind of a model of these sizes; and whether the last are its own."""
    yield sizes["A"], sizes["KV"], False
    found = dict.fromkeys(name.partition("_")[2] for name in sizes if name.startswith(("A_", "KV_")))
    for kind in found:
        yield sizes.get(f"A_{kind}", sizes["A"]), sizes.get(f"KV_{kind}", sizes["KV"]), f"KV_{kind}" in sizes
