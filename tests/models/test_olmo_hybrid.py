"""Files of OLMo Hybrid: the types of its layers, its positions, and sizes that follow from others."""

from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face

FILE: dict[str, Any] = {
    "architectures": ["OlmoHybridForCausalLM"],
    "model_type": "olmo_hybrid",
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 30,
    "vocab_size": 100352,
    "max_position_embeddings": 65536,
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
}


def test_a_file_of_few_keys_has_the_sizes_of_its_class() -> None:
    card = from_hugging_face(FILE, name="read")
    assert card.positions == "none"
    assert [number for number, name in enumerate(card.sequence) if name == "layer"] == list(range(3, 32, 4))
    delta, attention = card.kinds["gated_delta"], card.kinds["layer"]
    assert (delta.residual, attention.residual) == ("serial", "post_norm")
    words = ("delta_heads", "delta_key_heads", "delta_key_dim", "delta_value_dim", "delta_negative")
    assert [delta.settings[word] for word in words] == [30, 30, 96, 192, True]
    assert attention.settings["qk_norm"] == "all"


def test_words_of_a_file_are_read() -> None:
    based = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "linear_allow_neg_eigval": False}
    card = from_hugging_face({**FILE, **based}, name="read")
    assert card.positions == "rotary"
    assert card.kinds["gated_delta"].settings["delta_negative"] is False
    few = from_hugging_face({**FILE, "num_hidden_layers": 2}, name="read")
    assert few.sequence == ("gated_delta", "layer")


def test_what_is_not_built_is_refused() -> None:
    for changes, reason in (
        ({"linear_num_key_heads": 7}, "linear_num_key_heads 7 does not divide linear_num_value_heads 30"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types 'sliding_attention' is not supported"),
        ({"hidden_act": "gelu"}, "the kernels of the convolution"),
    ):
        with pytest.raises(UsageError, match=reason):
            from_hugging_face({**FILE, **changes}, name="read")
