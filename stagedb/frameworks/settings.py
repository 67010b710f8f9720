"""What the words of a plan are called in the settings of a framework: a plan that a search found, ready to be run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stagedb.collectives import ALL_GATHER

Words = Mapping[str, Any]
"""Words of a plan and their values."""

SILENT = ("dp", "recipe", "recompute_modules")
"""Words without a setting of their own: dp follows from the world, and modules are in the setting of `recompute`."""

METHOD = "{method}"
"""What a setting of `recompute` has that can recompute the first layers of each chunk alone (`recompute_first`)."""

OPTION = "--"
"""What settings begin with that are options of a training script."""

ALWAYS = ("tp", "pp", "micro_batch_size", "global_batch_size", "seq_len")
"""Numbers that have a setting if they are 1, too."""


@dataclass(frozen=True)
class FrameworkSettings:
    """A plan in the settings of a framework. text: as they are written. without: words that have no setting there."""

    text: str
    without: tuple[str, ...]


@dataclass(frozen=True)
class SettingNames:
    """The settings of a framework for the words of plans.

    numbers: by word, the setting, with `{}` for the number. values: by word, the settings of each value, which may have
    other words in them, such as `{tp}`; none where the framework does so by itself. prefix: before each setting.
    """

    numbers: Mapping[str, str]
    values: Mapping[str, Mapping[Any, tuple[str, ...]]] = field(default_factory=dict)
    prefix: str = ""

    def recomputes_first(self, kind: str) -> bool:
        """Whether the first layers of each chunk alone may recompute. kind: what they recompute (`recompute`)."""
        return any(METHOD in setting for setting in self.values.get("recompute", {}).get(kind, ()))

    def has(self, word: str, value: Any) -> bool:
        """Whether a word of a plan can have this value. One without a setting can be 1: one rank, or one copy."""
        if word in self.values:
            return value in self.values[word]
        return word in self.numbers or (value == 1 and not isinstance(value, bool))

    def settings(self, words: Words, chosen: Words) -> FrameworkSettings:
        """A plan in these settings. words: all that it has. chosen: those whose absence must be named."""
        modules = words.get("recompute_modules") or ()
        first = words.get("recompute_first")
        texts = {"tp": 1, **words, "modules": " ".join(modules), "modules_listed": ",".join(modules)}
        texts |= {"method": "uniform", "layers": 1} if first is None else {"method": "block", "layers": first}
        known: list[str] = []
        found: list[str] = []
        for word, setting in self.numbers.items():
            number = words.get(word)
            if number is not None:
                known.append(word)
                found += [setting.format(number)] if number != 1 or word in ALWAYS else []
        for word, settings in self.values.items():
            if word in words and words[word] in settings:
                known.append(word)
                own = settings[words[word]]
                found += [setting.format(**texts) for setting in own]
        known += ["recompute_first"] if self.recomputes_first(words.get("recompute", "none")) else []
        without = [word for word in chosen if word not in known and word not in SILENT]
        return FrameworkSettings(" ".join(self.prefix + setting for setting in found), tuple(without))


_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}

_IN_ORDER: Mapping[str, tuple[str, ...]] = {"1f1b": (), "interleaved": ()}
"""Orders of micro-batches that Megatron has: interleaved with several chunks a stage."""


def _option(name: str) -> str:
    return f"{name.replace('_', '-')} {{}}"


_LM_NUMBERS = {
    **{word: _option(name) for word, name in _SIZES.items()},
    **{word: _option(word) for word in ("micro_batch_size", "global_batch_size")},
    "seq_len": "seq-length {}",
}

MEGATRON_LM = SettingNames(
    prefix=OPTION,
    numbers={
        **_LM_NUMBERS,
        "virtual_stages": "num-virtual-stages-per-pipeline-rank {}",
        "hsdp": "num-distributed-optimizer-instances {}",
    },
    values={
        "sp": {True: ("sequence-parallel",), False: ()},
        "zero": {
            0: (),
            1: ("use-distributed-optimizer",),
            3: (
                "use-megatron-fsdp",
                "data-parallel-sharding-strategy optim_grads_params",
                "use-distributed-optimizer",
                "no-gradient-accumulation-fusion",
                "ckpt-format fsdp_dtensor",
            ),
        },
        "recompute": {
            "none": (),
            "full": (
                "recompute-granularity full",
                "recompute-method {method}",
                "recompute-num-layers {layers}",
            ),
            "core": (
                "recompute-granularity selective",
                "recompute-modules core_attn",
            ),
            "modules": (
                "recompute-granularity selective",
                "recompute-modules {modules}",
            ),
        },
        "optimizer": {
            "adamw": (),
            "muon": ("optimizer muon",),
            "dist-muon": ("optimizer dist_muon",),
            "sgd": ("optimizer sgd", "sgd-momentum 0"),
            "sgd-momentum": ("optimizer sgd",),
        },
        "muon_tp": {"usual": (), "duplicated": ("muon-tp-mode duplicated",)},
        "offload": {
            "none": (),
            "optimizer": (
                "optimizer-cpu-offload",
                "optimizer-offload-fraction 1.0",
                "use-precision-aware-optimizer",
            ),
        },
        "recompute_every": {1: ()},
        "schedule": _IN_ORDER,
        "cp_kind": {
            "none": (),
            "ring-p2p": ("cp-comm-type p2p",),
            "allgather-kv": (f"cp-comm-type {ALL_GATHER.name}",),
            "ulysses": ("cp-comm-type a2a",),
        },
        "expert_tp": {True: ("expert-tensor-parallel-size {tp}",), False: ("expert-tensor-parallel-size 1",)},
        "dispatch": {
            "copies": ("moe-token-dispatcher-type alltoall",),
            "ranks": ("moe-token-dispatcher-type flex",),
            "nodes": ("moe-token-dispatcher-type flex",),
        },
        "counted_ends": {
            "none": (),
            "embedding": ("account-for-embedding-in-pipeline-split",),
            "loss": ("account-for-loss-in-pipeline-split",),
            "both": (
                "account-for-embedding-in-pipeline-split",
                "account-for-loss-in-pipeline-split",
            ),
        },
    },
)
"""Megatron-Core's training script (megatron/training/arguments.py)."""

MEGATRON_LM_2 = SettingNames(
    prefix=OPTION,
    numbers={word: text for word, text in _LM_NUMBERS.items() if word not in ("cp", "ep")},
    values={
        "sp": {False: ()},
        "zero": {0: ()},
        "recompute": {"none": (), "full": ("checkpoint-activations",)},
        "recompute_every": {1: ()},
        "schedule": _IN_ORDER,
    },
)
"""Megatron-LM 2.x. Its chunks of stages are given as layers, which depend on the model."""

MEGATRON_DEEPSPEED = SettingNames(
    prefix=OPTION,
    numbers=MEGATRON_LM_2.numbers,
    values={
        **MEGATRON_LM_2.values,
        "zero": {0: (), 1: ("zero-stage 1",)},
        "schedule": {"1f1b": ()},
        "recompute": {
            "none": (),
            "full": (
                "checkpoint-activations",
                "deepspeed-activation-checkpointing",
            ),
        },
    },
)
"""Megatron-DeepSpeed (megatron/arguments.py); DeepSpeed's file has the ZeRO stage, too."""


def _keys(prefix: str, words: Mapping[str, str]) -> dict[str, str]:
    return {word: f"{prefix}{name}={{}}" for word, name in words.items()}


_MODEL = {**_SIZES, "virtual_stages": "virtual_pipeline_model_parallel_size"}
_BATCHES = {word: word for word in ("micro_batch_size", "global_batch_size")}
_SEQUENCE_PARALLEL = {True: ("model.sequence_parallel=True",), False: ("model.sequence_parallel=False",)}

NEMO = SettingNames(
    numbers={**_keys("model.", {**_MODEL, **_BATCHES, "seq_len": "encoder_seq_length"})},
    values={
        "sp": _SEQUENCE_PARALLEL,
        "zero": {0: (), 1: ("model.optim.name=mcore_distributed_optim",)},
        "recompute": {
            "none": (),
            "full": (
                "model.activations_checkpoint_granularity=full",
                "model.activations_checkpoint_method={method}",
                "model.activations_checkpoint_num_layers={layers}",
            ),
            "core": ("model.activations_checkpoint_granularity=selective",),
        },
        "recompute_every": {1: ()},
        "schedule": _IN_ORDER,
        "cp_kind": {"none": (), "ring-p2p": ()},
    },
)
"""The configuration of a training of NeMo 24.x (megatron_gpt_config.yaml)."""

MEGATRON_BRIDGE = SettingNames(
    numbers={
        **_keys("model.", {**_MODEL, "seq_len": "seq_length"}),
        **_keys("train.", _BATCHES),
        "hsdp": "ddp.num_distributed_optimizer_instances={}",
    },
    values={
        "sp": _SEQUENCE_PARALLEL,
        "zero": {
            0: (
                "ddp.use_distributed_optimizer=False",
                "optimizer.use_distributed_optimizer=False",
            ),
            1: (
                "ddp.use_distributed_optimizer=True",
                "optimizer.use_distributed_optimizer=True",
            ),
            3: (
                "ddp.use_megatron_fsdp=True",
                "ddp.data_parallel_sharding_strategy=optim_grads_params",
            ),
        },
        "recompute": {
            "none": (),
            "full": (
                "model.recompute_granularity=full",
                "model.recompute_method={method}",
                "model.recompute_num_layers={layers}",
            ),
            "core": (
                "model.recompute_granularity=selective",
                "model.recompute_modules=[core_attn]",
            ),
            "modules": (
                "model.recompute_granularity=selective",
                "model.recompute_modules=[{modules_listed}]",
            ),
        },
        "recompute_every": {1: ()},
        "schedule": _IN_ORDER,
        "cp_kind": {
            "none": (),
            "ring-p2p": ("model.cp_comm_type=p2p",),
            "allgather-kv": (f"model.cp_comm_type={ALL_GATHER.name}",),
            "ulysses": ("model.cp_comm_type=a2a",),
        },
        "expert_tp": {
            True: ("model.expert_tensor_parallel_size={tp}",),
            False: ("model.expert_tensor_parallel_size=1",),
        },
        "dispatch": {
            "copies": ("model.moe_token_dispatcher_type=alltoall",),
            "ranks": ("model.moe_token_dispatcher_type=flex",),
            "nodes": ("model.moe_token_dispatcher_type=flex",),
        },
        "counted_ends": {
            "none": (),
            "embedding": ("model.account_for_embedding_in_pipeline_split=True",),
            "loss": ("model.account_for_loss_in_pipeline_split=True",),
            "both": (
                "model.account_for_embedding_in_pipeline_split=True",
                "model.account_for_loss_in_pipeline_split=True",
            ),
        },
    },
)
"""Overrides of a recipe of Megatron-Bridge (docs/parallelisms.md, src/megatron/bridge/training/config.py)."""
