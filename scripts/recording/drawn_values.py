"""Values of parameters, tokens and labels that two programs draw alike: by name and shape, from numpy's generator."""

from typing import Any
from zlib import crc32

import numpy as np


def drawn(name: str, shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The values of a parameter: normal, of a size at which each formula of a model shows in its loss.

    What only chooses experts is 0, as experts are dealt in turn.
    """
    if name.endswith(("e_score_correction_bias", "mlp.expert_bias")):
        return np.zeros(shape)
    return np.random.default_rng(crc32(name.encode())).normal(size=shape) * 0.3


def probe(name: str, shape: tuple[int, ...], turn: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """A tensor whose product with the gradient of a parameter is recorded. turn: which of them."""
    return np.random.default_rng([crc32(name.encode()), turn]).normal(size=shape)


def drawn_table(vocabulary: int, choices: int, experts: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """A table that chooses experts by tokens: (vocabulary, choices). Those of a token differ."""
    return (3 * np.arange(vocabulary)[:, None] + np.arange(choices)) % experts


def drawn_tokens(vocabulary: int, batch: int, seq: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Tokens and labels: (2, batch, seq)."""
    return np.random.default_rng(0).integers(0, vocabulary, (2, batch, seq))
