"""Cards: their published parameter counts, the files that they are read from, and what is refused."""

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagedb.errors import UsageError
from stagedb.ir.operators.activations import ACTIVATIONS, GATES
from stagedb.models import Card, card_names, from_hugging_face, load_card
from stagedb.models.card import CHOICES
from stagedb.models.kinds.feed_forward import LEARNED

EXACT = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-34b": 33_743_970_304,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-window": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "gpt-neox-20b": 20_554_567_680,
    "falcon-40b": 41_303_293_952,
    "grok1-314b": 315_684_820_992,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-moe-16b": 16_375_728_128,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "kimi-k2": 1_026_408_209_408,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-9b": 9_241_705_984,
    "phi-4-14b": 14_659_507_200,
    "olmo-2-7b": 7_298_617_344,
    "olmoe-1b-7b": 6_919_161_856,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "opt-6.7b": 6_658_473_984,
    "mpt-7b": 6_649_286_656,
    "starcoder-15.5b": 15_517_456_384,
    "qwen3-8b": 8_190_735_360,
    # The column NumParams of llm-foundry's tables (scripts/train/benchmarking), at 2,048 tokens.
    "mpt-125m": 125_311_488,
    "mpt-350m": 355_985_408,
    "mpt-760m": 760_470_528,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-13b": 12_853_954_560,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
    "command-r-35b": 34_980_831_232,
    "deepseek-v3.2": 671_877_929_216,
    "falcon-7b": 6_921_720_704,
    "gemma-3-12b-text": 11_766_034_176,
    "gemma-3-27b-text": 27_009_346_304,
    "glm-4.5-air": 106_852_245_504,
    "glm-4.5": 352_797_814_784,
    "glm-5": 743_911_199_232,
    "granite-3-8b": 8_170_848_256,
    "llama4-scout-text": 107_769_861_120,
    "longcat-flash": 560_664_958_976,
    "minimax-m2": 228_689_748_992,
    "mimo-v2-flash": 308_778_768_832,
    # The checkpoints have 572,792,112 and 575,741,232 more for images, of which 1152 x hidden project into the text.
    "gemma-4-26b-a4b-text": 25_233_141_760,
    "gemma-4-31b-text": 30_697_345_280,
    "gemma-4-e2b-text": 4_628_569_344,
    "gemma-4-e4b-text": 7_463_013_376,
    "mistral-nemo-12b": 12_247_782_400,
    "jamba-v0.1": 51_570_323_328,
    "jamba-1.5-large": 398_555_145_696,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "nemotron-3-super-120b-a12b": 120_668_687_360,
    "nemotron-3-ultra-550b-a55b": 549_308_968_960,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-122b-a10b": 122_111_526_912,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "lfm2-1.2b": 1_170_340_608,
    "kimi-linear-48b-a3b": 49_122_675_072,
    "minimax-text-01": 456_089_655_296,
    "falcon-h1-7b": 7_585_513_568,
    "nemotron4-15b": 15_628_775_424,
    "olmo-3-32b": 32_233_522_176,
    "olmo-3-7b": 7_298_011_136,
    "phi-3-mini": 3_821_079_552,
    "phi-3.5-moe": 41_872_793_600,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "starcoder2-15b": 15_957_889_024,
    "starcoder2-3b": 3_030_371_328,
}
"""Parameters of the published checkpoints, and of models whose tables print all digits."""

PRINTED = {
    # name: (as printed, half a unit of the last printed digit, or what the paper rounded away)
    "gpt3-125m": (125e6, 0.5e6),
    "gpt3-350m": (350e6, 6e6),  # printed to the nearest fifty
    "gpt3-760m": (760e6, 0.5e6),
    "gpt3-1.3b": (1.3e9, 0.05e9),
    "gpt3-2.7b": (2.7e9, 0.05e9),
    "gpt3-5b": (5e9, 0.5e9),
    "gpt3-6.7b": (6.7e9, 0.05e9),
    "gpt3-13b": (13.0e9, 0.15e9),  # the paper's own sizes make no 13.0
    "gpt3-175b": (175.0e9, 0.5e9),
    "megatron-1.7b": (1.7e9, 0.05e9),
    "megatron-3.6b": (3.6e9, 0.05e9),
    "megatron-7.5b": (7.5e9, 0.05e9),
    "megatron-18.4b": (18.4e9, 0.05e9),
    "megatron-39.1b": (39.1e9, 0.05e9),
    "megatron-76.1b": (76.1e9, 0.05e9),
    "megatron-145.6b": (145.6e9, 0.05e9),
    "megatron-310.1b": (310.1e9, 0.05e9),
    "megatron-22b": (22e9, 0.5e9),
    "megatron-530b": (529.6e9, 0.05e9),
    "megatron-1t": (1008.0e9, 0.05e9),
    "deepseek-v2-lite-ffn": (15.7e9, 0.1e9),  # its attention has more parameters than the published one
    "llama4-maverick-text": (400e9, 1e9),
    "nemotron4-340b": (341.0e9, 0.1e9),  # 9.4 of embeddings and 331.6 of layers
    "qwen3-next-80b-a3b": (80e9, 0.5e9),
    "qwen3-coder-480b-a35b": (480e9, 0.5e9),
    "palm-540b": (540.35e9, 0.01e9),  # one norm a layer more than the paper's parallel blocks
}
"""Parameters as papers print them, and how far an exact count may be away."""


def test_every_card_has_a_published_count() -> None:
    assert set(card_names()) == {*EXACT, *PRINTED}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_of_published_checkpoints(name: str) -> None:
    assert load_card(name).count_parameters() == EXACT[name]


@pytest.mark.parametrize("name", PRINTED)
def test_parameters_printed_in_papers(name: str) -> None:
    printed, tolerance = PRINTED[name]
    assert abs(load_card(name).count_parameters() - printed) <= tolerance


def test_grok_has_the_weights_of_its_release() -> None:
    """xai-org/grok-1: the tensors that model.py makes with the sizes of run.py, by their names there."""
    hidden, heads, kv_heads, head = 48 * 128, 48, 8, 128
    wide = 8 * hidden * 2 // 3  # ffn_size of model.py, for widening_factor 8
    layer = {
        "multi_head_attention/query": hidden * heads * head,
        "multi_head_attention/key": hidden * kv_heads * head,
        "multi_head_attention/value": hidden * kv_heads * head,
        "multi_head_attention/linear": heads * head * hidden,
        "router": hidden * 8,
        "moe/linear": 8 * hidden * wide,
        "moe/linear_v": 8 * hidden * wide,
        "moe/linear_1": 8 * wide * hidden,
        **{f"rms_norm_{at}": hidden for at in range(4)},
    }
    in_out_embed, rms_norm = 128 * 1024 * hidden, hidden
    card = load_card("grok1-314b")
    assert card.count_parameters() == in_out_embed + 64 * sum(layer.values()) + rms_norm
    assert card.count_active() == card.count_parameters() - 64 * 6 * 3 * hidden * wide


@pytest.mark.parametrize("name", card_names())
def test_library_cards_are_complete(name: str) -> None:
    card = load_card(name)
    assert card.name == name
    assert card.parameters == card.count_parameters()
    assert card.source
    assert Card(**card.to_dict()) == card


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39.2),
        ("qwen3-30b-a3b", 3.4),
        ("qwen3-235b-a22b", 22.2),
        ("deepseek-moe-16b", 2.8),
        ("llama4-maverick-text", 17.2),
        ("llama3-8b", 8.0),
        ("jamba-v0.1", 12.1),
        ("jamba-1.5-large", 94.1),
    ],
)
def test_parameters_that_a_token_passes(name: str, billions: float) -> None:
    assert round(load_card(name).count_active() / 1e9, 1) == billions


def test_names_are_sorted_by_size() -> None:
    names = card_names()
    assert names.index("llama2-7b") < names.index("llama2-13b") < names.index("llama2-70b")
    assert isinstance(names, tuple)


def test_padding_of_the_vocabulary() -> None:
    assert load_card("gpt2").padded_vocab == 50304
    assert load_card("gpt3-175b").padded_vocab == 50304
    assert load_card("megatron-1t").padded_vocab == 51200
    assert load_card("llama3-8b").padded_vocab == 128256


def small(**changes: Any) -> Card:
    sizes: dict[str, Any] = {
        "name": "small",
        "family": "test",
        "hidden": 8,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 6,
        "ffn": 10,
        "vocab": 100,
        "norm": "rmsnorm",
        "mlp": "gated",
        "activation": "silu",
        "positions": "rotary",
        "max_positions": 16,
        "tied": False,
        "linear_bias": False,
        "qkv_bias": False,
        "source": "made up",
    }
    return Card(**{**sizes, **changes})


def test_each_choice_has_its_parameters() -> None:
    attention, gated, norms = 8 * 24 + 2 * 8 * 12 + 24 * 8, 3 * 8 * 10, 5 * 8
    plain = small().count_parameters()
    assert plain == 2 * 100 * 8 + 2 * (attention + gated) + norms
    assert small(tied=True).count_parameters() == plain - 800
    assert small(norm="layernorm").count_parameters() == plain + norms
    assert small(mlp="plain").count_parameters() == plain - 2 * 80
    assert small(positions="learned").count_parameters() == plain + 16 * 8
    assert small(qkv_bias=True).count_parameters() == plain + 2 * (24 + 24)
    assert small(linear_bias=True).count_parameters() == plain + 2 * (24 + 24 + 8 + 2 * 10 + 8)
    assert small(linear_bias=True, qkv_bias=True) != small(linear_bias=True)
    assert small(vocab_multiple=64).count_parameters() == plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "heads=4 is not divisible by kv_heads=3"),
        ({"head_dim": 5}, "rotary positions want an even head_dim"),
        ({"layers": 0}, "layers must be positive"),
        ({"layers": "2"}, "layers must be an integer, not '2'"),
        ({"layers": True}, "layers must be an integer"),
        ({"tied": 1}, "tied must be true or false"),
        ({"source": 3}, "source must be a text"),
        ({"parameters": -1}, "parameters must be positive"),
        (
            {"norm": "batchnorm"},
            "norm must be one of rmsnorm, layernorm, layernorm_no_bias, layernorm_no_weight, rmsnorm_no_weight, not "
            "'batchnorm'",
        ),
        ({"name": "../evil"}, "name has letters"),
        ({"name": ""}, "name has letters"),
        ({"top_k": 2}, "top_k is for a mixture of experts, and experts is 0"),
        ({"experts": 4, "top_k": 5, "expert_ffn": 8}, "top_k=5 is not from 1 to experts=4"),
        ({"experts": 4, "top_k": 2}, "expert_ffn must be positive"),
        ({"experts": 4, "top_k": 2, "expert_ffn": 8, "dense_layers": 2}, "leaves no layer with experts"),
        ({"experts": 4, "top_k": 2, "expert_ffn": 8, "linear_bias": True}, "experts are without linear_bias"),
        (
            {"experts": 4, "top_k": 2, "expert_ffn": 8, "mlp": "plain", "activation": "xielu"},
            "xielu is for feed-forwards, and the model has experts",
        ),
    ],
)
def test_what_is_no_model_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(**changes)


def test_a_card_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        small().layers = 3  # type: ignore[misc]


def test_the_digest_is_of_what_shapes_the_model() -> None:
    card = small()
    assert card.digest == small().digest
    assert card.digest == replace(card, source="elsewhere", parameters=card.count_parameters()).digest
    changed = [replace(card, layers=3), replace(card, tied=True), replace(card, name="other")]
    assert len({card.digest, *(other.digest for other in changed)}) == 4


def test_an_unknown_name_gets_the_near_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'llama3-8' \(did you mean .*llama3-8b") as caught:
        load_card("llama3-8")
    assert "stagedb models" in str(caught.value)
    with pytest.raises(UsageError, match="unknown model 'xyzzy': `stagedb models`") as caught:
        load_card("xyzzy")
    assert "did you mean" not in str(caught.value)


def test_a_library_name_wins_over_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama3-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_card("llama3-8b").layers == 32


@pytest.mark.parametrize("ending", [".yaml", ".yml", ".json", ".toml"])
def test_a_card_of_ones_own(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine{ending}"
    keys = {key: value for key, value in small(name="mine").to_dict().items() if key not in ("parameters",)}
    text = {
        ".json": json.dumps(keys),
        ".toml": "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()),
    }.get(ending, yaml.safe_dump(keys))
    path.write_text(text)
    assert load_card(path) == small(name="mine")
    assert load_card(str(path)) == small(name="mine")


def _written(tmp_path: Path, text: str, name: str = "card.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_files_that_are_no_cards_are_refused_by_name_and_key(tmp_path: Path) -> None:
    keys: dict[object, object] = dict(small().to_dict().items())

    def refused(content: object, message: str) -> None:
        path = _written(tmp_path, yaml.safe_dump(content))
        with pytest.raises(UsageError, match=message) as caught:
            load_card(path)
        assert str(path) in str(caught.value)

    refused({**keys, "hiden": 3}, r"unknown key 'hiden' \(did you mean hidden\?\)")
    refused({**keys, 3: 3}, "unknown key '3'")
    refused({key: value for key, value in keys.items() if key not in ("ffn", "tied")}, "missing ffn, tied")
    refused({**keys, "layers": "many"}, "layers must be an integer, not 'many'")
    refused({**keys, "layers": None}, "layers must be an integer")
    refused({**keys, "parameters": 7}, r"parameters is 7, but these sizes make \d+")
    refused(["hidden"], "no model card")
    refused(None, "no model card")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("card.yaml", "a: ["),
        ("card.yaml", "!!python/object/apply:os.system ['true']"),
        ("card.yaml", "a: \x01"),
        ("card.yaml", "[" * 20_000),
        ("card.json", "{"),
        ("card.json", "[" * 200_000),
        ("card.toml", "a ="),
        ("card.yaml", "a" * (1 << 21)),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str, text: str) -> None:
    path = _written(tmp_path, text, name)
    with pytest.raises(UsageError, match="model card") as caught:
        load_card(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not UTF-8 text: byte"):
        load_card(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no model card at .*absent\.yaml"):
        load_card(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match=r"no model card at some/where"):
        load_card("some/where")


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 32768,
    "model_type": "qwen2",
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK = {
    "architectures": ["DeepseekForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "max_position_embeddings": 4096,
    "model_type": "deepseek",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "tie_word_embeddings": False,
    "vocab_size": 102400,
}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"],
    "attention_bias": True,
    "hidden_act": "gelu",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "vocab_size": 50432,
}
FALCON = {
    "activation": "gelu",
    "alibi": False,
    "architectures": ["FalconForCausalLM"],
    "bias": False,
    "ffn_hidden_size": 32768,
    "hidden_size": 8192,
    "max_position_embeddings": 2048,
    "model_type": "falcon",
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
    "num_ln_in_parallel_attn": 2,
    "tie_word_embeddings": True,
    "vocab_size": 65024,
}
STABLELM = {
    "architectures": ["StableLmForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "max_position_embeddings": 4096,
    "model_type": "stablelm",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "tie_word_embeddings": False,
    "use_parallel_residual": False,
    "vocab_size": 50304,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 1600,
    "n_head": 25,
    "n_layer": 48,
    "n_positions": 1024,
    "vocab_size": 50257,
}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama3-8b"),
        (MISTRAL, "mistral-7b-window"),
        (QWEN, "qwen2.5-3b"),
        (GPT2, "gpt2-xl"),
        (NEOX, "gpt-neox-20b"),
        (FALCON, "falcon-40b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK, "deepseek-moe-16b"),
    ],
)
def test_published_configs_make_the_librarys_cards(config: dict[str, Any], name: str) -> None:
    card, known = from_hugging_face(config, name=name), load_card(name)
    published = {word: getattr(known, word) for word in ("source", "family", "train_seq_len", "train_seq_len_source")}
    assert replace(card, **published) == known


def test_a_checkpoints_directory_is_a_model(tmp_path: Path) -> None:
    directory = tmp_path / "My Llama-8B"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(LLAMA))
    assert load_card(directory).name == "My-Llama-8B"
    assert load_card(directory / "config.json").parameters == 8_030_261_248
    with pytest.raises(UsageError, match=r"no model card at .*config\.json"):
        load_card(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "num_local_experts": 8}, "mixture of experts .*is not supported in LlamaForCausalLM"),
        ({key: value for key, value in MIXTRAL.items() if key != "num_local_experts"}, "missing num_local_experts"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "top_k=9 is not from 1 to experts=8"),
        ({**QWEN_MOE, "decoder_sparse_step": "2"}, "a step of layers with experts must be a whole number"),
        ({**QWEN_MOE, "decoder_sparse_step": 0}, "a step of layers with experts must be a whole number from 1"),
        ({**DEEPSEEK, "moe_layer_freq": 0}, "moe_layer_freq must be a whole number from 1"),
        ({**DEEPSEEK, "moe_layer_freq": 2.5}, "moe_layer_freq must be a whole number"),
        (
            {**DEEPSEEK, "architectures": ["DeepseekV9ForCausalLM"]},
            "not supported: 'DeepseekV9ForCausalLM'; near in structure are Deepseek",
        ),
        ({**LLAMA, "architectures": ["T5ForConditionalGeneration"]}, "not supported: 'T5ForConditionalGeneration'"),
        ({**LLAMA, "architectures": [["LlamaForCausalLM"]]}, "not supported: none named"),
        ({**LLAMA, "architectures": None}, "none named in `architectures`"),
        ({**LLAMA, "hidden_act": "tanh"}, "hidden_act 'tanh' is not supported"),
        ({**LLAMA, "attention_bias": "yes"}, "attention_bias must be true or false"),
        ({**LLAMA, "num_attention_heads": 3}, "hidden size 4096 is not divisible by 3 heads"),
        ({**LLAMA, "num_hidden_layers": "32"}, "num_hidden_layers must be a whole number from 1"),
        ({key: value for key, value in LLAMA.items() if key != "vocab_size"}, "missing vocab_size"),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": None}, "which layers have a window"),
        ({**MISTRAL, "layer_types": ["chunked_attention"] * 32}, "layer_types 'chunked_attention' is not supported"),
        ({**MISTRAL, "layer_types": ["full_attention"]}, "layer_types of 1 layers, and there are 32"),
        ({**MISTRAL, "sliding_window": None, "layer_types": ["sliding_attention"] * 32}, "and the config no window"),
        (
            {**QWEN, "layer_types": ["full_attention"] * 35 + ["sliding_attention"]},
            r"no window: set sliding_window to its number of keys \(and use_sliding_window",
        ),
        *(
            ({**MISTRAL, "sliding_window": window}, "sliding_window must be a whole number from 1, not")
            for window in ("4096", 0, -4096, 4096.0, True)
        ),
        ({**MISTRAL, "sliding_window_pattern": "6"}, "sliding_window_pattern must be a whole number from 1, not '6'"),
        ({**MISTRAL, "sliding_window_pattern": 0}, "sliding_window_pattern must be a whole number from 1, not 0"),
        (
            {**QWEN, "use_sliding_window": True, "max_window_layers": -1},
            "max_window_layers must be a whole number from 0, not -1",
        ),
        ({**FALCON, "num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn 3 is not supported"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        ({**GPT2, "activation_function": "tanh"}, "activation_function 'tanh' is not supported"),
    ],
)
def test_configs_that_no_card_can_express_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_hugging_face(config, name="model")
    path = _written(tmp_path, json.dumps(config), "config.json")
    with pytest.raises(UsageError, match=message) as caught:
        load_card(path)
    assert str(path) in str(caught.value)


def test_optional_keys_of_configs() -> None:
    lean = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "tie_word_embeddings")}
    card = from_hugging_face({**lean, "head_dim": 64}, name="lean")
    assert (card.kv_heads, card.head_dim, card.tied) == (32, 64, False)
    biased = from_hugging_face({**LLAMA, "attention_bias": True, "mlp_bias": True}, name="biased")
    assert biased.linear_bias
    attention = from_hugging_face({**LLAMA, "attention_bias": True}, name="attention")
    assert attention.count_parameters() - load_card("llama3-8b").count_parameters() == 32 * (2 * 4096 + 2 * 1024)
    assert from_hugging_face({**FALCON, "alibi": True}, name="alibi").positions == "alibi"
    assert from_hugging_face(GPT2, name="gpt").tied
    assert from_hugging_face({**GPT2, "n_inner": 100}, name="gpt").ffn == 100


@pytest.mark.parametrize(
    ("config", "sparse"),
    [
        (QWEN_MOE, range(48)),
        ({**QWEN_MOE, "decoder_sparse_step": 2}, range(1, 48, 2)),
        ({**QWEN_MOE, "decoder_sparse_step": 3, "mlp_only_layers": [2, 47]}, range(5, 47, 3)),
        (DEEPSEEK, range(1, 28)),
        ({**DEEPSEEK, "moe_layer_freq": 2, "first_k_dense_replace": 3}, range(4, 28, 2)),
        ({**DEEPSEEK, "first_k_dense_replace": 3}, range(3, 28)),
    ],
)
def test_layers_of_configs_with_experts(config: dict[str, Any], sparse: range) -> None:
    card = from_hugging_face(config, name="sparse")
    assert [at for at, name in enumerate(card.sequence) if card.kinds[name].routes] == list(sparse)
    assert card.parameters == card.count_parameters()


def test_windows_and_experts_of_one_config_are_four_kinds() -> None:
    types = ["full_attention"] * 2 + ["sliding_attention"] * 2
    more = {"use_sliding_window": True, "sliding_window": 1024, "layer_types": types, "decoder_sparse_step": 2}
    card = from_hugging_face({**QWEN_MOE, **more, "num_hidden_layers": 4}, name="both")
    assert card.sequence == ("dense", "layer", "local_dense", "local")
    assert [(kind.mixer, kind.channel_mixer) for kind in card.kinds.values()] == [
        ("attention", "feed_forward"),
        ("attention", "experts"),
        ("sliding_window", "feed_forward"),
        ("sliding_window", "experts"),
    ]


def test_the_layers_of_llama_4_make_its_published_count() -> None:
    """Scout has experts in every layer, and its checkpoint's text model 107,769,861,120 parameters."""
    maverick = load_card("llama4-maverick-text")
    assert replace(maverick, experts=16, pattern=(), parameters=0).count_parameters() == 107_769_861_120


OLD_FALCON = {**FALCON, "new_decoder_architecture": False, "num_hidden_layers": 32, "hidden_size": 4544}


@pytest.mark.parametrize(
    ("config", "residual", "parameters"),
    [
        (STABLELM, "serial", 2_795_443_200),
        ({**STABLELM, "use_parallel_residual": True}, "parallel", 2_795_443_200 - 32 * 2 * 2560),
        ({**NEOX, "use_parallel_residual": False}, "serial", 20_554_567_680),
        ({**FALCON, "num_ln_in_parallel_attn": 1}, "parallel", 41_303_293_952 - 60 * 2 * 8192),
        ({**OLD_FALCON, "num_attention_heads": 71, "ffn_hidden_size": None}, "parallel", 6_921_720_704),
    ],
)
def test_what_configs_put_their_layers_together_with(config: dict[str, Any], residual: str, parameters: int) -> None:
    card = from_hugging_face(config, name="read")
    partial = config["model_type"] in ("gpt_neox", "stablelm")
    assert card.source == ("config.json; rotary positions on whole heads" if partial else "config.json")
    assert {kind.residual for kind in card.kinds.values()} == {residual}
    assert card.parameters == parameters


TYPES = ["sliding_attention"] * 5 + ["full_attention"]


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (MISTRAL, 32),
        ({**MISTRAL, "sliding_window": None}, 0),
        ({**MISTRAL, "num_hidden_layers": 12, "layer_types": TYPES * 2}, 10),
        ({**MISTRAL, "num_hidden_layers": 14, "sliding_window_pattern": 6}, 12),
        (QWEN, 0),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 28}, 8),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 36}, 0),
        ({**MIXTRAL, "sliding_window": 4096}, 32),
    ],
)
def test_layers_of_configs_with_a_sliding_window(config: dict[str, Any], windows: int) -> None:
    card = from_hugging_face(config, name="windowed")
    mixers = [card.kinds[name].mixer for name in card.sequence]
    assert mixers.count("sliding_window") == windows
    assert {value for kind in card.kinds.values() for _, value in kind.values} == ({4096} if windows else set())
    assert card.max_positions == config["max_position_embeddings"]
    if "layer_types" in config:
        assert [mixer == "sliding_window" for mixer in mixers] == [word == TYPES[0] for word in config["layer_types"]]


def test_cards_load_without_the_graphs_algebra() -> None:
    program = (
        "import sys\n"
        "from stagedb.models import load_card\n"
        "assert load_card('llama3-8b').layers == 32\n"
        "assert 'sympy' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_cards_have_the_activations_of_the_operators() -> None:
    # Routers and gates of heads have these, and no feed-forward has.
    assert set(CHOICES["activation"]) == (set(ACTIVATIONS) | set(GATES) | {LEARNED}) - {
        *("sigmoid", "softplus", "sqrtsoftplus")
    }


@pytest.mark.parametrize(
    ("whole", "text", "tied"), [(None, True, True), (None, False, True), (False, True, False), (True, False, True)]
)
def test_the_whole_model_ties_the_tables_of_its_text_model(whole: bool | None, text: bool, tied: bool) -> None:
    inner = {key: value for key, value in MISTRAL.items() if key != "architectures"}
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "tie_word_embeddings": whole}
    card = from_hugging_face({**config, "text_config": {**inner, "tie_word_embeddings": text}}, name="both")
    assert card.tied == tied
