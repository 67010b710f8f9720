"""Records which rank updates which parameters in Megatron-Core, and what ranks gather: tests/memory/layer_owners.json.

    PYTHONPATH=MEGATRON python scripts/recording/under_torch/layer_owners.py FILE

MEGATRON is the unpacked wheel of megatron-core 0.16.1; torch, numpy, packaging, einops and PyYAML are needed, an
accelerator is not. One process takes the place of each rank of a world in turn, with a backend that sends nothing: it
builds the rank's part of a `GPTModel` and the optimizer of `get_megatron_muon_optimizer` with its layer-wise wrapper.
The package of Muon itself (`emerging_optimizers`) is not needed for that, and is replaced by a class that keeps its
parameters. The file has for each rank, by configuration, the parameters that it updates: chunk and name, the number of
elements, whether Muon updates it; and for each gather the elements of every member's part.
"""

import json
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


class KeptParameters(torch.optim.Optimizer):
    """The parameter groups of an optimizer that never steps."""

    def __init__(self, params: Any, lr: float, momentum_beta: float, **more: Any) -> None:
        super().__init__(params, {"lr": lr})


def _without_muon() -> None:
    """Put a class that keeps parameters in the place of Muon's own package."""
    package = "emerging_optimizers.orthogonalized_optimizers"
    names = ("emerging_optimizers", package, f"{package}.muon_utils")
    modules = {name: types.ModuleType(name) for name in names}
    vars(modules[package]).update(OrthogonalizedOptimizer=KeptParameters, get_muon_scale_factor=None)
    vars(modules[f"{package}.muon_utils"]).update(newton_schulz_tp=None)
    sys.modules.update(modules)


warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
_without_muon()

from megatron.core import (  # type: ignore[import-not-found]  # noqa: E402  # after the class in the place of Muon
    package_info,
    parallel_state,
)
from megatron.core.distributed import (  # type: ignore[import-not-found]  # noqa: E402
    DistributedDataParallelConfig,
)
from megatron.core.models.gpt import GPTModel  # type: ignore[import-not-found]  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # type: ignore[import-not-found]  # noqa: E402
    get_gpt_layer_local_spec,
)
from megatron.core.optimizer import OptimizerConfig  # type: ignore[import-not-found]  # noqa: E402
from megatron.core.optimizer.muon import (  # type: ignore[import-not-found]  # noqa: E402
    get_megatron_muon_optimizer,
)
from megatron.core.transformer import TransformerConfig  # type: ignore[import-not-found]  # noqa: E402

LAYERS, VOCAB = 4, 512
SIZES = {
    "num_layers": LAYERS,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 4,
    "ffn_hidden_size": 24,
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "normalization": "RMSNorm",
}
"""The models of `tests.ir.tiny`."""

GPT = {"num_query_groups": 4, "gated_linear_unit": False, "add_bias_linear": True, "normalization": "LayerNorm"}
EXPERTS = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 8,
    "moe_token_dispatcher_type": "allgather",
}
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "one rank": {"world": 1},
    "dp": {"world": 3},
    "more ranks than weights": {"world": 64},
    "tp, pp": {"world": 8, "tp": 2, "pp": 2},
    "cp": {"world": 8, "cp": 2},
    "chunks": {"world": 6, "pp": 2, "vp": 2},
    "chunks with experts": {"world": 8, "pp": 2, "vp": 2, "ep": 2, "experts": True},
    "tied": {"world": 4, "pp": 2, "tied": True},
    "tied on one stage": {"world": 4, "tied": True},
    "normalised heads": {"world": 4, "qk_norm": True},
    "positions and biases": {"world": 4, "tp": 2, "gpt": True},
    "frozen": {"world": 4, "frozen": ["embedding", "self_attention"]},
    "equal sizes": {"world": 5, "ffn": 64, "vocab": 128},
    "experts": {"world": 4, "experts": True},
    "ep": {"world": 8, "ep": 2, "experts": True},
    "ep, tp": {"world": 8, "tp": 2, "ep": 2, "etp": 2, "experts": True},
    "ep over tp": {"world": 8, "tp": 2, "ep": 4, "experts": True},
    "ep, cp, pp": {"world": 8, "pp": 2, "cp": 2, "ep": 2, "experts": True},
    "experts of one rank each": {"world": 4, "ep": 4, "experts": True},
}


def model_of(words: Mapping[str, Any], chunk: int) -> torch.nn.Module:
    """A chunk of the model that this rank has.

    Local modules refuse ranks of cp and sequence parallelism, which change no parameter: the model has neither, and
    groups have the ranks of cp.
    """
    gpt = words.get("gpt", False)
    degrees = {
        "tensor_model_parallel_size": words.get("tp", 1),
        "pipeline_model_parallel_size": words.get("pp", 1),
        "virtual_pipeline_model_parallel_size": words.get("vp"),
        "expert_model_parallel_size": words.get("ep", 1),
        "expert_tensor_parallel_size": words.get("etp", 1),
    }
    experts = EXPERTS if words.get("experts") else {}
    config = TransformerConfig(
        **{**SIZES, **(GPT if gpt else {}), "ffn_hidden_size": words.get("ffn", SIZES["ffn_hidden_size"])},
        **degrees,
        **experts,
        qk_layernorm=words.get("qk_norm", False),
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
    )
    layer = get_gpt_layer_local_spec(
        experts.get("num_moe_experts"),
        False,
        words.get("qk_norm", False),
        normalization=GPT["normalization"] if gpt else "RMSNorm",
    )
    model = GPTModel(
        config,
        layer,
        words.get("vocab", VOCAB),
        8,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
        vp_stage=chunk if "vp" in words else None,
        share_embeddings_and_output_weights=words.get("tied", False),
        position_embedding_type="learned_absolute" if gpt else "rope",
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(part in name for part in words.get("frozen", ()))
    model.ddp_config = DistributedDataParallelConfig()
    return model


def gathered(optimizer: Any) -> list[list[int]]:
    """The elements of every member's part in each all-gather of the updated parameters."""
    found: list[list[int]] = []

    def all_gather(results: Iterable[torch.Tensor], own: torch.Tensor, group: Any) -> None:
        sizes = [each.numel() for each in results]
        if sizes[dist.get_rank(group)] != own.numel():
            raise ValueError("a rank passes in another part than the others expect")
        found.append(sizes)

    kept, dist.all_gather = dist.all_gather, all_gather
    optimizer.allgather_params()
    dist.all_gather = kept
    return found


def rank_of(words: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """What a rank updates and gathers."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=words["world"])
    parallel_state.initialize_model_parallel(
        words.get("tp", 1),
        words.get("pp", 1),
        virtual_pipeline_model_parallel_size=words.get("vp"),
        context_parallel_size=words.get("cp", 1),
        expert_model_parallel_size=words.get("ep", 1),
        expert_tensor_parallel_size=words.get("etp", 1) if words.get("experts") else None,
        create_gloo_process_groups=False,
    )
    chunks = [model_of(words, chunk) for chunk in range(words.get("vp", 1))]
    names = {
        id(parameter): f"{chunk}/{name}"
        for chunk, model in enumerate(chunks)
        for name, parameter in model.named_parameters()
    }
    config = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=False, fp16=False)
    made = get_megatron_muon_optimizer(
        config, chunks, use_gloo_process_groups=False, layer_wise_distributed_optimizer=True
    )
    updated = [
        [names[id(each)], each.numel(), isinstance(one.optimizer, KeptParameters)]
        for one in made.chained_optimizers
        for group in one.param_groups
        for each in group["params"]
    ]
    row = {"stage": parallel_state.get_pipeline_model_parallel_rank(), "updates": sorted(updated)}
    row["gathers"] = gathered(made)
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return row


def _own_objects(found: list[Any], own: Any, group: Any = None) -> None:
    """`all_gather_object` where all ranks have the same."""
    found[:] = [own] * len(found)


def _on_processor(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A maker of tensors that has no accelerator: wrappers of optimizers keep a scale there."""
    return lambda *args, **more: make(*args, **{**more, "device": "cpu"})


def main() -> None:
    """Write the file that the command line names."""
    dist.all_gather_object = _own_objects
    torch.tensor = _on_processor(torch.tensor)
    torch.Tensor.cuda = lambda self, *args: self  # tied weights are summed there
    found: dict[str, Any] = {"version": f"megatron-core {package_info.__version__}"}
    for name, words in CONFIGURATIONS.items():
        found[name] = {"words": dict(words), "ranks": [rank_of(words, rank) for rank in range(words["world"])]}
        print(name, [len(row["updates"]) for row in found[name]["ranks"]])
    Path(sys.argv[1]).write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
