"""A Hugging Face config with a record of the keys that its reader has used."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.models.readers.classes import NO_CLASS, ConfigClass

WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_name_or_path",
            "architectures",
            "auto_map",
            "chunk_size_feed_forward",
            "finetuning_task",
            "id2label",
            "is_decoder",
            "label2id",
            "model_type",
            "output_attentions",
            "output_hidden_states",
            "output_router_logits",
            "problem_type",
            "return_dict",
            "return_dict_in_generate",
            "slow_but_exact",
            "task_specific_params",
            "tokenizer_class",
            "transformers_version",
            "use_cache",
            "use_flash_attn",
            "moe_shared_expert_overlap",
            "mamba_ssm_cache_dtype",
            "mamba_ssm_dtype",
            "use_associative_scan",
            "use_falcon_mambapy",
            "use_mamba_kernels",
            "use_mambapy",
            "use_mem_eff_path",
        ),
        "how the package runs the model, or what it is called",
    ),
    **dict.fromkeys(
        (
            *("dtype", "torch_dtype", "quantization_config", "compression_config", "use_fp8"),
            *("fp32_residual", "residual_in_fp32", "expert_dtype", "enable_moe_fp32_combine"),
        ),
        "the plan decides number formats",
    ),
    **dict.fromkeys(
        (
            "bos_token_id",
            "eod_token_id",
            "eos_token_id",
            "forced_eos_token_id",
            "decoder_start_token_id",
            "image_token_index",
            "image_token_id",
            "ignore_index",
            "media_placeholder_token_id",
            "pad_token_id",
            "sep_token_id",
            "unk_token_id",
            "text_start_id",
            "text_end_id",
            "mask_init_id",
            "bad_words_ids",
            "num_logits_to_keep",
        ),
        "tokens with a meaning, and sampling",
    ),
    **dict.fromkeys(
        (
            "embd_initializer_range",
            "rescale_prenorm_residual",
            "ep_size",
            "init_config",
            "init_device",
            "init_method",
            "init_std",
            "embedding_initializer_range",
            "initializer_factor",
            "initializer_range",
            "layerdrop",
            "learned_pos_emb_initializer",
            "pretraining_tp",
            "seq_aux",
            "aux_loss_alpha",
            "moe_jitter_eps",
            "moe_loss_weight",
            "input_jitter_noise",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "router_z_loss_coef",
            "z_loss_coefficient",
            "moe_norm_min",
            "time_step_floor",
            "time_step_init_scheme",
            "time_step_max",
            "time_step_scale",
            "w_init_variance_scale",
            "final_w_init_variance_scale",
            "embedding_fraction",
            "learned_pos_emb",
            "verbose",
            *("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"),
        ),
        "how weights begin, and terms of the loss without a matmul",
    ),
    **dict.fromkeys(
        (
            "attention_dropout",
            "attention_probs_dropout_prob",
            "attn_pdrop",
            "classifier_dropout",
            "dropout",
            "embd_pdrop",
            "embedding_dropout",
            "emb_pdrop",
            "embed_dropout",
            "resid_dropout",
            "activation_dropout",
            "hidden_dropout_prob",
            "hidden_dropout",
            "resid_pdrop",
            "residual_dropout",
        ),
        f"the plan decides dropout ({Word('dropout')})",
    ),
    **dict.fromkeys(
        (
            *("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "rms_norm_eps", "partial_norm_eps"),
            *("mixer_rms_eps", "block_norm_eps"),
        ),
        "a constant in the root of norms",
    ),
    **dict.fromkeys(
        (
            "attn_scale",
            "attn_temperature_tuning",
            "floor_scale",
            "indexer_rope_interleave",
            "initial_context_length",
            "max_window_layers",
            "rope_interleave",
            "rope_interleaved",
            "rope_local_base_freq",
            "rope_theta",
            "theta",
            "rotary_emb_base",
            "compress_rope_theta",
            "use_dynamic_ntk",
            "use_logn_attn",
            "use_mrope",
            "mrope_interleaved",
            "mrope_section",
            "use_position_embedding",
            "cache_implementation",
        ),
        "values of rotary positions and of their scale, not their number",
    ),
    **dict.fromkeys(
        ("n_group", "topk_group", "topk_method"),
        "groups of experts from some of which a token chooses, in architectures whose routers have none",
    ),
    **dict.fromkeys(
        (
            "scoring_noise",
            "swiglu_alpha",
            "swiglu_limit",
            "swiglu_limits",
            "swiglu_limits_shared",
            "clip_qkv",
            "attention_softmax_in_fp32",
            "scale_attention_softmax_in_fp32",
            "reorder_and_upcast_attn",
            "scale_attn_by_inverse_layer_idx",
            "scale_attn_weights",
            "use_bidirectional_attention",
            "moe_normalize_expert_weights",
            "alibi_bias_max",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "hc_eps",
            "offset_alibi",
            "seq_length",
            "is_causal",
            "use_expert_bias",
            "use_grouped_topk",
        ),
        "which experts are chosen, and constants of element-wise operations",
    ),
    **dict.fromkeys(
        (
            "mtp_layer_types",
            "mtp_mlp_layer_types",
            "mtp_num_hidden_layers",
            "mtp_use_dedicated_embeddings",
            "mtp_transformer_layers",
            "num_mtp_layers",
            "num_mtp_modules",
            "num_nextn_predict_layers",
            "use_mtp",
        ),
        "layers that predict further tokens, in architectures whose publication does not define them",
    ),
    **dict.fromkeys(
        ("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        "a head that the language model does not have",
    ),
    **dict.fromkeys(
        (
            "anyres_pooling_size",
            "anyres_vit_max_image_size",
            "_pad_token_id",
            "acoustic_tokenizer_chunk_size",
            "acoustic_tokenizer_encoder_config",
            "adapter_layer_norm_eps",
            "alignment_intermediate_size",
            "audio_bos_token_id",
            "audio_end_token_id",
            "audio_eos_token_id",
            "audio_start_token_id",
            "audio_token_id",
            "audio_token_index",
            "downsample_factor",
            "downsample_rate",
            "downsample_ratio",
            "encoder_config",
            "has_lora_adapter",
            "high_res_vision_config",
            "image_end_token_id",
            "image_grid_pinpoints",
            "image_seq_length",
            "image_start_token_id",
            "num_image_tokens",
            "perceiver_config",
            "position_id_per_seconds",
            "projection_hidden_size",
            "projection_layer_norm_eps",
            "projector_config",
            "projector_layernorm_eps",
            "projector_pooling_ratio",
            "scale_factor",
            "semantic_tokenizer_encoder_config",
            "spatial_pool_mode",
            "spatial_pool_stride",
            "timestamp_token_id",
            "use_unified_vision_chunk",
            "video_placeholder",
            "token_classification_bias",
            "video_end_token_id",
            "video_seq_length",
            "video_start_token_id",
            "video_token_id",
            "video_token_index",
            "vision_aspect_ratio",
            "vision_end_token_id",
            "vision_feature_select_strategy",
            "vision_start_token_id",
            "vision_token_id",
            "vision_use_cls_token",
            "visual_indicator_token_ids",
            "vq_config",
            "audio_config",
            "audio_token_id",
            "boa_token_id",
            "boi_token_id",
            "boi_token_index",
            "eoa_token_index",
            "eoi_token_id",
            "eoi_token_index",
            "merged_hidden_size",
            "mm_tokens_per_image",
            "multimodal_projector_bias",
            "projector_hidden_act",
            "spatial_merge_size",
            "vision_config",
            "video_token_id",
            "vision_feature_layer",
            "vision_soft_tokens_per_image",
        ),
        "parts other than the text model, which the card describes",
    ),
}
"""The keys that change no shape, no FLOPs and no memory of a training step, each with the reason."""

SAMPLING: Mapping[str, float] = {
    **dict.fromkeys(("length_penalty", "repetition_penalty", "temperature", "top_p", "typical_p"), 1.0),
    **dict.fromkeys(("num_beam_groups", "num_beams", "num_return_sequences"), 1),
    "max_length": 20,
    "top_k": 50,
}
"""Choices of sampling with the values that transformers 4 wrote into every config. Others may mean something else."""

OF_STATES = (
    *("ssm_state_size", "mamba_num_heads", "mamba_head_dim", "mamba_hidden_act", "n_groups", "conv_kernel", "expand"),
    *("time_step_min", "time_step_limit", "use_conv_bias", "use_bias", "chunk_size", "mamba_proj_bias"),
)
"""Keys of the scans of Nemotron-H."""

UNUSED_WHERE: Mapping[str, str] = {
    **dict.fromkeys(OF_STATES, "no block has a scan"),
    "expand": "no block has a scan, or heads and their size are given (Nemotron-H), or intermediate_size (Mamba)",
    "mamba_proj_bias": "no block has a scan, or use_bias is for both projections (Nemotron-H)",
    "time_step_limit": "no block has a scan, or time_step_min is the least step (Nemotron-H)",
    "time_step_min": "no block has a scan, or time_step_limit is the least step (Mamba-2), or weights begin so (Mamba)",
    **dict.fromkeys(
        ("mtp_layers_block_type", "mtp_hybrid_override_pattern"), "num_nextn_predict_layers is 0 or left out"
    ),
    "_sliding_window_pattern": "layer_types names the type of each layer",
    "attention_types": "attention_layers names the type of each layer",
    "block_multiple_of": "widths are in whole blocks of this size already (LFM2)",
    "full_attention_interval": "layer_types names the type of each layer",
    "first_k_dense_replace": "mlp_layer_types names the layers with experts",
    "global_attn_every_n_layers": "layer_types names the type of each layer",
    "interleave_moe_layer_step": "moe_layers names the layers with experts",
    "layer_types": "use_sliding_window is false",
    "mamba_expand": "mamba_d_ssm is the width of the scan (Falcon-H1)",
    "mamba_norm_before_gate": "mamba_rms_norm is false (Falcon-H1)",
    "moe_layer_end_index": "it is the last layer or a later one",
    "moe_router_scaling_factor": "no layer has experts (Step 3)",
    "multi_query": "new_decoder_architecture is true",
    "n_shared_experts": "moe_shared_expert_intermediate_size is the width of all shared experts (Nemotron-H)",
    "n_ctx": "n_positions is the number of positions",
    "no_rope_layer_interval": "no_rope_layers names the layers with positions",
    "num_kv_heads": "new_decoder_architecture is false",
    "num_ln_in_parallel_attn": "new_decoder_architecture is false",
    "original_max_position_embeddings": "it is not below max_position_embeddings",
    "parallel_attn": "new_decoder_architecture is true",
    "rotary_dim": "partial_rotary_factor is what the class reads (MiniMax M3)",
    "sliding_window": "no layer has a window",
    "sliding_window_pattern": "layer_types names the type of each layer",
    "time_step_rank": "each head has a step of its own (Mamba-2)",
    "use_double_wide_mlp": "num_kv_shared_layers is 0 or left out (Gemma 4)",
    "use_sliding_window": "the config has no window",
    "use_conv_bias": "no block has a scan, or each convolution has a bias (Zamba 2)",
    "vocab_size_per_layer_input": "hidden_size_per_layer_input is 0 (Gemma 4)",
    **dict.fromkeys(("kv_channels", "num_query_groups"), "attention_head_dim is the size of a head (Zamba 2)"),
}
"""The keys that another key makes meaningless, each with the condition."""

Value = Any


class Config(Mapping[str, Any]):
    """A config's keys, in each spelling of its class. `unread` names those with a meaning that nothing asked for."""

    def __init__(
        self, content: Mapping[str, Any], read: set[str] | None = None, of: ConfigClass = NO_CLASS, inner: bool = False
    ) -> None:
        """of: its class, whose defaults a file leaves out. inner: sizes too, as the config of a text model does."""
        self._content = content
        self._read: set[str] = set() if read is None else read
        self._of = of
        self._inner = inner

    def __getitem__(self, key: str) -> Value:
        for each in self._of.spellings(key):
            if each in self._content:
                self._read.add(each)
                return self._content[each]
        default = self._of.default(key)
        if default is None:
            raise KeyError(key)
        return default

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def changed(self, **values: Value) -> "Config":
        """The config with other values of some keys. What is read there counts as read here."""
        gone = {each for key in values for each in self._of.spellings(key)}
        rest = {key: value for key, value in self._content.items() if key not in gone}
        self._read.update(key for key in gone if key in self._content)
        return Config({**rest, **values}, self._read, self._of, self._inner)

    def need(self, *keys: str) -> Value:
        """The value of the first of these keys that is there. UsageError, with the first one, if none is."""
        found = self._given(*keys)
        if found is None and self._inner:
            found = self._left_out(*keys)
        if found is None:
            raise UsageError(f"missing {keys[0]}")
        return found

    def get(self, *keys: str, default: Value = None) -> Value:  # type: ignore[override]  # several keys, not a default
        """The value of the first of these keys that is there and not null; then the class's; then this default."""
        found = self._given(*keys)
        found = self._left_out(*keys) if found is None else found
        return default if found is None else found

    def _given(self, *keys: str) -> Value:
        """The value of the file. Keys with other values are not read: `unread` names them.

        UsageError if two spellings of a key have two values.
        """
        found: Value = None
        first = ""
        for key in keys:
            for each in self._of.spellings(key):
                value = self._content.get(each)
                if found is None and value is not None:
                    found, first = value, each
                if value is None or _same(value, found):
                    self._read.add(each)
                elif each in self._of.spellings(first):
                    raise UsageError(
                        f"{first} is {shown(found)} and {each} is {shown(value)}, which are two spellings of one key: "
                        "leave one of them"
                    )
        return found

    def _left_out(self, *keys: str) -> Value:
        """The default of the class, if the file has none of the keys, not even as null."""
        if any(each in self._content for key in keys for each in self._of.spellings(key)):
            return None
        found = (self._of.default(key) for key in keys)
        return next((value for value in found if value is not None), None)

    @property
    def inner(self) -> bool:
        """Whether it is that of a text model in a whole one."""
        return self._inner

    @property
    def asked(self) -> frozenset[str]:
        """The keys that a reader has asked for, whether they are there or not."""
        return frozenset(self._read)

    def of_no_class(self) -> list[str]:
        """The keys that a reader has used, and that its class does not have."""
        return [key for key in self._content if key in self._read and not self._of.has(key)]

    def without(self, *keys: str) -> "Config":
        """The config without some keys."""
        return Config(
            {key: value for key, value in self._content.items() if key not in keys}, None, self._of, self._inner
        )

    def given(self, key: str) -> Value:
        """The value that the file itself has, which counts as read only if a reader asks for it too.

        key: of the file.
        """
        return self._content.get(key)

    def alike(self, key: str, default: Value = None) -> Value:
        """A value that may be a list of equal ones, one for each layer.

        key: of the file. default: where the file has none. UsageError for a list of others.
        """
        found = self.get(key, default=default)
        if not isinstance(found, list):
            return found
        if not found or any(each != found[0] for each in found):
            raise UsageError(f"{key} {shown(found)} is not supported: layers that differ in it are not read")
        return found[0]

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A value that must be true or false.

        keys: of which the first in the file counts. default: without any of them. UsageError for others.
        """
        value = self.get(*keys, default=default)
        if not isinstance(value, bool):
            raise UsageError(f"{keys[0]} must be true or false, not {shown(value)}")
        return value

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """A whole number.

        keys: of which the first in the file counts. least: the smallest number that is taken. UsageError for others,
        and if it is missing and there is no default.
        """
        value = self.need(*keys) if default is None else self.get(*keys, default=default)
        if type(value) is not int or value < least:
            raise UsageError(f"{keys[0]} must be a whole number from {least}, not {shown(value)}")
        return value

    def number(self, *keys: str, default: float) -> float:
        """A finite number.

        keys: of which the first in the file counts. default: without any of them. UsageError for others.
        """
        value = self.get(*keys, default=default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise UsageError(f"{keys[0]} must be a number, not {shown(value)}")
        return float(value)

    def only(self, key: str, value: Value, why: str) -> None:
        """Refuse another value of a key than this one, which is its default.

        why: the reason, for the error. UsageError with the reason.
        """
        found = self.get(key, default=value)
        if found != value or type(found) is not type(value):
            raise UsageError(f"{key} {shown(found)} is not supported: {why}")

    def uses(self, *keys: str) -> None:
        """Note that these keys are read."""
        self._read.update(each for key in keys for each in self._of.spellings(key))

    def has_read(self, key: str) -> bool:
        """Whether a reader has asked for a key."""
        return key in self._read

    def unread(self) -> Iterator[str]:
        """The keys with a meaning that no reader has asked for: neither null nor false nor empty, nor of sampling."""
        for key, value in self._content.items():
            if key in self._read or key in WITHOUT_EFFECT or value in (None, False, "", [], {}, ()):
                continue
            if key not in SAMPLING or value != SAMPLING[key]:
                yield key


def _same(value: Value, other: Value) -> bool:
    return bool(value == other) and type(value) is type(other)


def rotary(config: Config) -> Mapping[str, Any]:
    """The choices of rotary positions, in older and newer words. Those by type of layer are merged."""
    found: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        given = config.get(key)
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(f"{key} must be a mapping, not {shown(given)}")
        if given:
            found |= {name: value for name, value in given.items() if not isinstance(value, Mapping)}
            for each in given.values():
                found |= dict(each) if isinstance(each, Mapping) else {}
    return found


def rotary_dim(config: Config, head_dim: int, default: float = 1.0) -> int:
    """How many dimensions of a head are turned; 0: all.

    head_dim: the width of a head. default: the share of it that is turned, if the file has none. UsageError for a share
    that is none.
    """
    share = rotary(config).get("partial_rotary_factor")
    named = config.get("partial_rotary_factor", "rotary_pct", "rope_pct", default=default)
    share = named if share is None else share
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise UsageError(f"partial_rotary_factor must be above 0 and at most 1, not {shown(share)}")
    size = config.get("rotary_dim")
    size = int(head_dim * share) if size is None else size
    if type(size) is not int or not 0 < size <= head_dim:
        raise UsageError(f"rotary_dim must be a whole number from 1 to {head_dim}, not {shown(size)}")
    return 0 if size == head_dim else size - size % 2
