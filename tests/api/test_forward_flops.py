"""FLOPs of a forward, with and without the pairs of queries and keys that a mask leaves out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb import api
from stagedb.api.forward_flops import forward_flops
from stagedb.errors import UsageError
from stagedb.ir.operators import ScoredPairs
from stagedb.models import load_card


@given(positions=st.integers(1, 60), window=st.none() | st.integers(1, 80), chunk_tokens=st.none() | st.integers(1, 80))
def test_pairs_that_no_mask_leaves_out_are_those_of_the_mask(
    positions: int, window: int | None, chunk_tokens: int | None
) -> None:
    places = np.arange(positions)
    rule = ScoredPairs(window=window, chunk_tokens=chunk_tokens)
    assert rule.pairs_seen(positions) == rule.seen(places, places).sum()


def test_a_causal_mask_leaves_out_almost_half_of_attention() -> None:
    card, tokens = load_card("llama3-8b"), 8192
    found = forward_flops(card, tokens)
    a_pair = 4 * card.heads * card.head_dim * card.layers
    assert found.attention == a_pair * tokens**2
    assert found.seen == a_pair * tokens * (tokens + 1) // 2
    matmuls = 2 * tokens * (card.count_parameters() - card.vocab * card.hidden - (2 * card.layers + 1) * card.hidden)
    assert found.counted - found.attention == matmuls
    assert found.without_masked == matmuls + found.seen


def test_a_window_is_left_out_in_both() -> None:
    card, tokens, window = load_card("gpt-oss-120b"), 4096, 128
    found = forward_flops(card, tokens)
    a_pair = 4 * card.heads * card.head_dim * card.layers // 2
    assert found.attention == a_pair * (tokens**2 + tokens * window)
    whole, part = tokens * (tokens + 1) // 2, window * (window + 1) // 2 + (tokens - window) * window
    assert found.seen == a_pair * (whole + part)


def test_an_indexer_scores_what_attention_leaves_out() -> None:
    card, tokens = load_card("deepseek-v3.2"), 8192
    found = forward_flops(card, tokens)
    kind = next(each for each in card.kinds.values() if each.settings.get("index_heads"))
    words = kind.settings
    heads, size, top = (int(words[word]) for word in ("index_heads", "index_dim", "index_top"))
    index = 2 * heads * (size + 1) * card.layers
    sizes = int(words["nope_dim"]) + int(words["rope_dim"]) + int(words["value_dim"])
    each = 2 * card.heads * sizes * card.layers
    assert found.attention == each * tokens * top + index * tokens**2
    few = top * (top + 1) // 2 + (tokens - top) * top
    assert found.seen == each * few + index * tokens * (tokens + 1) // 2


def test_a_model_has_both() -> None:
    shown = api.model_flops("gpt2", 512)
    found = forward_flops(load_card("gpt2"), 512)
    assert (shown["seq_len"], shown["forward_flops"]) == (512, found.counted)
    assert shown["forward_flops_without_masked"] == found.without_masked < found.counted
    assert api.model_flops("gpt2")["seq_len"] == 1024
    assert "forward_flops" not in api.model("gpt2"), "a card can be read again"


@pytest.mark.parametrize(("tokens", "error"), [(0, "at least 1"), (1025, "1,025 tokens is too long for gpt2")])
def test_sequences_that_a_model_cannot_read_are_refused(tokens: int, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        api.model_flops("gpt2", tokens)
