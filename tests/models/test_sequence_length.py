"""The sequence length of plans that name none, and where it comes from."""

from dataclasses import replace
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import SequenceLength, card_names, from_hugging_face, load_card
from tests.models.test_cards import FALCON, GPT2, LLAMA, MISTRAL, MIXTRAL, QWEN

LENGTHS = {
    **dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), 1024),
    **dict.fromkeys(("falcon-40b", "gpt-neox-20b", "palm-540b"), 2048),
    **dict.fromkeys((f"gpt3-{size}" for size in ("125m", "350m", "760m", "1.3b", "2.7b", "5b")), 2048),
    **dict.fromkeys((f"gpt3-{size}" for size in ("6.7b", "13b", "175b")), 2048),
    **dict.fromkeys((f"megatron-{size}b" for size in ("1.7", "3.6", "7.5", "18.4", "22", "39.1")), 2048),
    **dict.fromkeys(("megatron-76.1b", "megatron-145.6b", "megatron-310.1b", "megatron-530b", "megatron-1t"), 2048),
    **dict.fromkeys(("llama2-7b", "llama2-13b", "llama2-34b", "llama2-70b"), 4096),
    **dict.fromkeys(("deepseek-moe-16b", "deepseek-v2-lite-ffn"), 4096),
    **dict.fromkeys((f"qwen2.5-{size}b" for size in ("0.5", "1.5", "3", "7", "14", "32", "72")), 4096),
    **dict.fromkeys(("qwen3-30b-a3b", "qwen3-235b-a22b", "mistral-7b"), 4096),
    **dict.fromkeys(("llama3-8b", "llama3-70b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b"), 8192),
    **dict.fromkeys(("llama3.2-1b", "llama3.2-3b", "llama4-maverick-text"), 8192),
    **dict.fromkeys(("mistral-7b-window", "mistral-7b-v0.3", "mixtral-8x22b"), 8192),
    **dict.fromkeys(("deepseek-v3", "deepseek-v2-lite", "kimi-k2", "gpt-oss-20b", "gpt-oss-120b"), 4096),
    **dict.fromkeys(("phi-4-14b", "olmo-2-7b", "olmoe-1b-7b", "qwen3-8b"), 4096),
    **dict.fromkeys(("gemma-2-9b", "starcoder-15.5b", "grok1-314b"), 8192),
    **dict.fromkeys(("bloom-7b1", "bloom-176b", "opt-6.7b", "mpt-7b"), 2048),
    **dict.fromkeys((f"mpt-{size}" for size in ("125m", "350m", "760m", "1b", "3b", "13b", "30b", "70b")), 2048),
    **dict.fromkeys(("nemotron4-15b", "nemotron4-340b"), 4096),
    **dict.fromkeys(
        (
            "command-r-35b",
            "falcon-h1-7b",
            "llama4-scout-text",
            "longcat-flash",
            "minimax-m2",
            "minimax-text-01",
            "jamba-v0.1",
            "jamba-1.5-large",
            "nemotron-3-nano-30b-a3b",
            "nemotron-3-super-120b-a12b",
            "nemotron-3-ultra-550b-a55b",
            "nemotron-h-56b",
            "nemotron-h-8b",
            "olmo-3-32b",
            "olmo-3-7b",
        ),
        8192,
    ),
    **dict.fromkeys(
        (
            "deepseek-v3.2",
            "glm-4.5-air",
            "glm-4.5",
            "glm-5",
            "granite-3-8b",
            "kimi-linear-48b-a3b",
            "phi-3-mini",
            "phi-3.5-moe",
            "qwen3-0.6b",
            "qwen3-1.7b",
            "qwen3-14b",
            "qwen3-32b",
            "qwen3-4b",
            "qwen3-coder-480b-a35b",
            "qwen3-next-80b-a3b",
            "qwen3.5-122b-a10b",
            "qwen3.5-27b",
            "qwen3.5-35b-a3b",
            "qwen3.5-397b-a17b",
            "starcoder2-15b",
            "starcoder2-3b",
        ),
        4096,
    ),
    **dict.fromkeys(("falcon-7b",), 2048),
    **dict.fromkeys(
        (
            "gemma-3-12b-text",
            "gemma-3-27b-text",
            "gemma-4-26b-a4b-text",
            "gemma-4-31b-text",
            "gemma-4-e2b-text",
            "gemma-4-e4b-text",
            "lfm2-1.2b",
            "mimo-v2-flash",
        ),
        32768,
    ),
    **dict.fromkeys(("mistral-nemo-12b",), 131072),
    "mixtral-8x7b": 32768,
}
"""Tokens of the sequences of most of the pre-training, from the publications that the cards name."""

NEW: dict[str, Any] = {"train_seq_len": 0, "train_seq_len_source": "", "left_out_window": 0}


def test_every_card_has_its_length_and_the_source_of_it() -> None:
    cards = [load_card(name) for name in card_names()]
    assert {card.name: card.usual_length.tokens for card in cards} == LENGTHS
    assert all(card.usual_length == SequenceLength(card.train_seq_len, card.train_seq_len_source) for card in cards)
    assert all(len(card.train_seq_len_source) > 20 for card in cards)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("llama3.1-8b", "5ec334ea183db662"),
        ("mistral-7b", "61edd1066d66a3bb"),
        ("gpt2", "64480a5f516ccf94"),
        ("llama4-maverick-text", "4557dab02652f40a"),
    ],
)
def test_ids_of_stored_graphs_do_not_depend_on_the_length(name: str, digest: str) -> None:
    """A card's digest is in the ids of its graphs. These are from before cards had lengths."""
    card = load_card(name)
    assert card.digest.startswith(digest)
    bare = replace(card, **NEW)
    assert bare.digest == card.digest
    assert not set(NEW) & set(bare.to_dict())


LLAMA_31: dict[str, Any] = {
    **LLAMA,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
}
ORIGINAL = "original_max_position_embeddings of config.json"
LAST = "max_position_embeddings of config.json"


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (LLAMA, SequenceLength(8192, LAST)),
        (LLAMA_31, SequenceLength(8192, ORIGINAL)),
        (
            {**LLAMA_31, "rope_scaling": None, "rope_parameters": LLAMA_31["rope_scaling"]},
            SequenceLength(8192, ORIGINAL),
        ),
        (
            {**LLAMA_31, "rope_scaling": None, "rope_parameters": {"full_attention": LLAMA_31["rope_scaling"]}},
            SequenceLength(8192, ORIGINAL),
        ),
        # The length before the extension is the trained one, also where it is long.
        ({**QWEN, "rope_scaling": {"original_max_position_embeddings": 32768}}, SequenceLength(32768, ORIGINAL)),
        ({**LLAMA_31, "original_max_position_embeddings": 4096}, SequenceLength(4096, ORIGINAL)),
        ({**LLAMA_31, "max_position_embeddings": 2048}, SequenceLength(2048, ORIGINAL)),
        ({**LLAMA, "rope_scaling": {"factor": 2.0, "type": "linear"}}, SequenceLength(8192, LAST)),
        ({**LLAMA, "max_position_embeddings": 8193}, SequenceLength(8192, f"at most 8,192 of 8,193: {LAST}")),
        (MISTRAL, SequenceLength(8192, f"at most 8,192 of 32,768: {LAST}")),
        (MIXTRAL, SequenceLength(8192, f"at most 8,192 of 32,768: {LAST}")),
        (GPT2, SequenceLength(1024, "n_positions of config.json")),
        (
            {key: value for key, value in FALCON.items() if key != "max_position_embeddings"},
            SequenceLength(2048, "the usual positions"),
        ),
    ],
)
def test_lengths_of_configs(config: dict[str, Any], length: SequenceLength) -> None:
    card = from_hugging_face(config, name="read")
    assert card.usual_length == length
    assert card.max_positions == config.get("max_position_embeddings", card.max_positions)


@pytest.mark.parametrize("value", ["8192", 0, -1, 8192.5, True, [8192]])
def test_an_original_length_that_is_no_number_of_tokens_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="original_max_position_embeddings must be a whole number from 1, not"):
        from_hugging_face({**LLAMA_31, "rope_scaling": {"original_max_position_embeddings": value}}, name="read")


def test_a_users_card_without_the_word_has_at_most_8192() -> None:
    card = replace(load_card("llama3.1-8b"), **NEW)
    assert card.usual_length == SequenceLength(8192, "at most 8,192 of 131,072: max_positions of its card")
    short = replace(card, max_positions=512)
    assert short.usual_length == SequenceLength(512, "max_positions of its card")
    assert replace(card, train_seq_len=65536).usual_length == SequenceLength(65536, "train_seq_len of its card")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"train_seq_len": 8193}, "train_seq_len=8193 is above max_positions=8192"),
        ({"train_seq_len": -1}, "train_seq_len must be positive, not -1"),
        ({"train_seq_len": "8192"}, "train_seq_len must be an integer"),
        ({"train_seq_len": 0}, "train_seq_len_source has no train_seq_len: set both, or neither"),
    ],
)
def test_lengths_that_a_card_cannot_have_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(load_card("llama3-8b"), **words)


@pytest.mark.parametrize(("name", "most"), [("mistral-7b", 4096), ("llama4-maverick-text", 8192)])
def test_a_card_without_the_models_window_is_for_sequences_up_to_it(name: str, most: int) -> None:
    card = load_card(name)
    card.check_sequence(most)
    with pytest.raises(UsageError, match=rf"{name} attends to .* --seq-len takes at most {most}; .*mistral-7b-window"):
        card.check_sequence(most + 1)
    assert [name for name in card_names() if load_card(name).left_out_window] == ["llama4-maverick-text", "mistral-7b"]
