"""Graphs of drawn configs against the models' own code, run by `scripts/record_models` on torch's meta device.

It needs torch 2.13 and transformers 5.23: `pytest -m transformers`, with STAGEDB_TORCH_PYTHON. `models.json` has what
such runs recorded, for tests without them.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stagedb.validation import check_model
from stagedb.validation.model_check import RecordedModel, read_models, record_of

pytestmark = pytest.mark.transformers
ROOT = Path(__file__).parents[2]
Recorder = Callable[[dict[str, Any]], RecordedModel]


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    """Records a config, in one process for all tests."""
    with subprocess.Popen(
        [ROOT / "scripts" / "record_models", "-", "--seq", "32"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask(config: dict[str, Any]) -> RecordedModel:
            asked.write(json.dumps(config) + "\n")
            asked.flush()
            found = json.loads(answers.readline())
            assert "error" not in found, (found, config)
            return record_of(found, "drawn")

        yield ask
        asked.close()


def test_a_step_of_decoding_and_its_cache_are_those_of_the_graph(tmp_path: Path) -> None:
    recorded = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
    names = ("lfm2-1.2b", "falcon-h1-x", "mamba2-2.7b", "minimax-x")
    chosen = [{word: each[word] for word in ("name", "config", "seq")} for each in recorded if each["name"] in names]
    configs, found = tmp_path / "configs.json", tmp_path / "found.json"
    configs.write_text(json.dumps(chosen), encoding="utf-8")
    made = subprocess.run(
        [ROOT / "scripts" / "record_models", "--decode", configs, "-o", found], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    models = read_models(found)
    assert len(models) == len(names)
    for model in models:
        assert model.decode
        assert model.cache
        assert check_model(model).agrees


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes in the usual words."""
    heads, layers = draw(st.sampled_from([2, 4, 6, 8])), draw(st.integers(1, 7))
    kv_heads = draw(st.sampled_from([count for count in (1, 2, heads) if heads % count == 0]))
    size = draw(st.sampled_from([16, 32, 48]))
    return {
        "hidden_size": heads * draw(st.sampled_from([size, 24, 40])),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "intermediate_size": draw(st.sampled_from([64, 136, 200])),
        "vocab_size": draw(st.sampled_from([104, 248])),
        "max_position_embeddings": draw(st.sampled_from([64, 512])),
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": None,
    }


def some(**words: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values of words, each from a list."""
    return st.fixed_dictionaries({word: st.sampled_from(values) for word, values in words.items()})


BIAS = [False, True]
EXPERTS: dict[str, list[Any]] = {"num_experts_per_tok": [1, 2, 3], "moe_intermediate_size": [40, 72]}
ROUTED: dict[str, list[Any]] = {
    **EXPERTS,
    "n_routed_experts": [8, 12],
    "n_shared_experts": [1, 2],
    "norm_topk_prob": BIAS,
}
LATENT: dict[str, list[Any]] = {
    **ROUTED,
    "q_lora_rank": [24, 40],
    "kv_lora_rank": [32, 56],
    "qk_nope_head_dim": [16, 24],
    "qk_rope_head_dim": [8, 16],
    "v_head_dim": [16, 32],
    "n_group": [1, 2],
    "topk_group": [1],
    "first_k_dense_replace": [0, 1],
    "attention_bias": BIAS,
}
SHARED: dict[str, list[Any]] = {**EXPERTS, "num_experts": [8, 12], "num_shared_experts": [1, 2]}
FIRST = "first_k_dense_replace"
INDEX: dict[str, list[Any]] = {"index_topk": [8, 100], "index_n_heads": [2, 4], "index_head_dim": [16, 32]}
WINDOW: dict[str, list[Any]] = {"sliding_window": [8, 16, 100]}

GEMMA4: dict[str, list[Any]] = {
    **WINDOW,
    "hidden_size_per_layer_input": [0],
    "attention_k_eq_v": BIAS,
    "attention_bias": BIAS,
    "global_head_dim": [16, 40],
    "num_global_key_value_heads": [None, 1],
}


def _without_experts(words: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {word: values for word, values in words.items() if word not in {*ROUTED, FIRST, "n_group", "topk_group"}}


DRAWN: dict[str, tuple[str, st.SearchStrategy[dict[str, Any]]]] = {
    "LlamaForCausalLM": ("llama", some(attention_bias=BIAS, mlp_bias=BIAS)),
    "Qwen3ForCausalLM": ("qwen3", some(**WINDOW, use_sliding_window=BIAS, max_window_layers=[1, 2])),
    "Gemma3ForCausalLM": ("gemma3_text", some(**WINDOW)),
    "Cohere2ForCausalLM": ("cohere2", some(**WINDOW, attention_bias=BIAS)),
    "Olmo3ForCausalLM": ("olmo3", some(**WINDOW, attention_bias=BIAS)),
    "Starcoder2ForCausalLM": ("starcoder2", some(**WINDOW, use_bias=BIAS)),
    "Exaone4ForCausalLM": ("exaone4", some(**WINDOW)),
    "Qwen2MoeForCausalLM": (
        "qwen2_moe",
        some(**EXPERTS, num_experts=[8, 12], shared_expert_intermediate_size=[48, 88], decoder_sparse_step=[1, 2]),
    ),
    "Qwen3MoeForCausalLM": ("qwen3_moe", some(**EXPERTS, num_experts=[8, 12], mlp_only_layers=[[], [0]])),
    "Glm4MoeForCausalLM": ("glm4_moe", some(**ROUTED, use_qk_norm=BIAS, attention_bias=BIAS, n_group=[1, 2])),
    "GptOssForCausalLM": ("gpt_oss", some(**WINDOW, num_local_experts=[8, 12], num_experts_per_tok=[1, 2, 3])),
    "Llama4ForCausalLM": (
        "llama4_text",
        some(
            num_experts_per_tok=[1, 2],
            num_local_experts=[8],
            attention_chunk_size=[8, 16, 100],
            intermediate_size_mlp=[72, 104],
            interleave_moe_layer_step=[1, 2],
        ),
    ),
    "VaultGemmaForCausalLM": ("vaultgemma", some(**WINDOW, attention_bias=BIAS)),
    "CwmForCausalLM": ("cwm", some(**WINDOW)),
    "HyperCLOVAXForCausalLM": ("hyperclovax", some(use_post_norm=BIAS, attention_bias=BIAS, mlp_bias=BIAS)),
    "SolarOpenForCausalLM": ("solar_open", some(**ROUTED, attention_bias=BIAS)),
    "ExaoneMoeForCausalLM": (
        "exaone_moe",
        some(**EXPERTS, **WINDOW, num_experts=[8, 12], num_shared_experts=[1, 2], first_k_dense_replace=[0, 1]),
    ),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", some(**{k: v for k, v in LATENT.items() if k != FIRST})),
    "MiMoV2FlashForCausalLM": (
        "mimo_v2_flash",
        some(
            **{word: values for word, values in ROUTED.items() if word != "n_shared_experts"},
            **WINDOW,
            v_head_dim=[16, 24, 32],
            attention_bias=BIAS,
            mlp_layer_types=[None],
        ),
    ),
    "Gemma4ForCausalLM": (
        "gemma4_text",
        st.one_of(
            some(**GEMMA4),
            some(
                **GEMMA4,
                enable_moe_block=[True],
                num_experts=[8, 12],
                top_k_experts=[1, 3],
                moe_intermediate_size=[40, 72],
            ),
        ),
    ),
    "YoutuForCausalLM": ("youtu", some(**_without_experts(LATENT))),
    "AfmoeForCausalLM": (
        "afmoe",
        some(
            **SHARED,
            **WINDOW,
            num_dense_layers=[0, 1],
            attention_bias=BIAS,
            mup_enabled=BIAS,
            global_attn_every_n_layers=[2, 3],
        ),
    ),
    "HYV3ForCausalLM": ("hy_v3", some(**SHARED, attention_bias=BIAS, mlp_bias=BIAS)),
    "LagunaForCausalLM": (
        "laguna",
        some(
            **EXPERTS,
            **WINDOW,
            num_experts=[8, 12],
            gating=[True, "per-head", "per-element"],
            shared_expert_intermediate_size=[48],
            attention_bias=BIAS,
        ),
    ),
    "Cohere2MoeForCausalLM": (
        "cohere2_moe",
        some(
            **WINDOW,
            num_experts=[8, 12],
            num_experts_per_tok=[1, 2, 3],
            num_shared_experts=[0, 2],
            expert_selection_fn=["softmax", "sigmoid"],
            shared_expert_combination_strategy=["sum", "average"],
            first_k_dense_replace=[0, 1],
            prefix_dense_intermediate_size=[104],
            prefix_dense_sliding_window_pattern=[1, 2],
            rms_norm_eps=[None, 1e-5],
        ),
    ),
    "GraniteSWAForCausalLM": ("granite_swa", some(**WINDOW, attention_bias=BIAS, mlp_bias=BIAS)),
    "FlintForCausalLM": (
        "flint",
        some(**EXPERTS, **WINDOW, num_experts=[8, 12], shared_expert_intermediate_size=[48], mlp_only_layers=[[], [0]]),
    ),
    "BitNetForCausalLM": ("bitnet", some(attention_bias=BIAS)),
    "NanoChatForCausalLM": ("nanochat", some(attention_bias=BIAS)),
    "Mistral4ForCausalLM": ("mistral4", some(**{k: v for k, v in LATENT.items() if k != "n_group"})),
    "MiniCPM3ForCausalLM": ("minicpm3", some(**_without_experts(LATENT), mlp_bias=BIAS, scale_depth=[1.4, None])),
    "AXK1ForCausalLM": ("axk1", some(**LATENT)),
    "DeepseekV3ForCausalLM": ("deepseek_v3", some(**LATENT)),
    "DeepseekV32ForCausalLM": ("deepseek_v32", some(**LATENT, **INDEX)),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa", some(**LATENT, **INDEX)),
}
"""By architecture: its `model_type`, and the words that it has in addition to sizes."""

OF_HIDDEN = tuple(
    f"{each}ForCausalLM" for each in ("Starcoder2", "Olmo3", "GraniteSWA", "BitNet", "NanoChat", "MiniCPM3")
)
"""Architectures whose own code takes the size of a head from the hidden size."""


@pytest.mark.parametrize("architecture", DRAWN)
def test_graphs_of_drawn_configs_have_the_parameters_and_matmuls_of_the_models_own_code(
    architecture: str, recorder: Recorder
) -> None:
    model_type, more = DRAWN[architecture]

    @settings(max_examples=8, phases=[Phase.generate])
    @given(sizes(), more)
    def compared(usual: dict[str, Any], own: dict[str, Any]) -> None:
        config = {**usual, **own, "architectures": [architecture], "model_type": model_type}
        if "qk_rope_head_dim" in own:
            size = own["qk_rope_head_dim"] + (own["qk_nope_head_dim"] if model_type == "mistral4" else 0)
            config |= {"num_key_value_heads": usual["num_attention_heads"], "head_dim": size}
        if architecture.startswith("MiMoV2") and usual["num_attention_heads"] % (2 * usual["num_key_value_heads"]):
            # Layers with a window have twice as many heads of keys as others.
            config["num_key_value_heads"] = 1
        if "head_dim" not in own and architecture in OF_HIDDEN:
            # Their code takes the head from the hidden size.
            config["hidden_size"] = usual["num_attention_heads"] * config.pop("head_dim")
        checked = check_model(recorder(config))
        assert checked.unsupported is None, (checked.unsupported, config)
        assert not checked.differences, config

    compared()
