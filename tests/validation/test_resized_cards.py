"""Models of tables of steps: a card, or a card with other sizes."""

import pytest

from stagedb.errors import UsageError
from stagedb.models import load_card
from stagedb.validation.step_rows import named_card


def test_a_name_is_a_card() -> None:
    assert named_card("llama3-8b") == load_card("llama3-8b")
    assert named_card("bloom") == load_card("bloom-176b")


@pytest.mark.parametrize(
    ("word", "hidden", "layers", "heads", "billions"),
    [
        # The models that BigScience compared before it trained BLOOM, as its chronicles print their sizes:
        # train/tr11-176B-ml/chronicles-prequel.md of bigscience-workshop/bigscience.
        ("bloom h14336 l72 heads64", 14336, 72, 64, 181),
        ("bloom h14336 l72 heads128", 14336, 72, 128, 181),
        ("bloom h13312 l84 heads64", 13312, 84, 64, 182),
        ("bloom h14336 l70 heads112", 14336, 70, 112, 176),
        ("bloom h12288 l106 heads96", 12288, 106, 96, 195),
        ("bloom l70", 14336, 70, 112, 176),
        ("bloom heads64", 14336, 70, 64, 176),
    ],
)
def test_sizes_are_in_place_of_the_own_ones(word: str, hidden: int, layers: int, heads: int, billions: int) -> None:
    card = named_card(word)
    assert (card.hidden, card.layers, card.heads, card.kv_heads) == (hidden, layers, heads, heads)
    assert (card.heads * card.head_dim, card.ffn) == (hidden, 4 * hidden)
    assert round(card.count_parameters() / 1e9) == billions


def test_layers_alone_change_no_width() -> None:
    card = named_card("llama3-70b 12 layers")
    assert (card.layers, card.kv_heads, card.ffn) == (12, 8, 28672)
    assert card.count_parameters() < load_card("llama3-70b").count_parameters() / 5
    assert named_card("llama3-70b l12").layers == 12


def test_one_head_of_keys_remains_one() -> None:
    card = named_card("starcoder-15.5b h4096 heads32")
    assert (card.hidden, card.head_dim, card.kv_heads, card.ffn) == (4096, 128, 1, 16384)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("gpt9 h8", "model is 'gpt9', and the library has no such card"),
        ("bloom wide", "sizes after a name are `N layers`, or `hH lL headsN`"),
        ("bloom heads64 h14336", "sizes after a name are"),
        ("bloom h14336 heads60", "60 heads do not share a width of 14336 evenly"),
        ("bloom heads0", "0 heads do not share a width"),
        ("bloom h99999999 l2", "sizes after a name are"),
        ("bloom 0 layers", "layers must be positive"),
        ("gemma-2-9b h4096", "the layers of gemma-2-9b are of several kinds"),
        ("llama3-8b h8192 heads64", "llama3-8b has sizes that its width and its heads do not give"),
        ("mixtral-8x7b heads16", "mixtral-8x7b has sizes that its width and its heads do not give"),
    ],
)
def test_sizes_that_make_no_model_are_refused(word: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason.replace("(", r"\(")):
        named_card(word)
