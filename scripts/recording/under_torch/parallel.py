"""A model made parallel by PyTorch's own means: tensor-parallel plans, FSDP2, DDP, over a mesh of named axes."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from scripts.recording.under_torch.model import Model, Routed

AXES = (("pp", "pp"), ("dp_replicate", "dp_replicate"), ("dp", "dp"), ("cp", "cp"), ("ep", "ep"), ("tp", "tp"))
"""The axes of a mesh and their degrees in a configuration, outermost first."""

BUCKET = 25
"""Mebibytes of a bucket of DDP."""


class Ranks:
    """The process group of the whole job, with one axis for each kind of parallelism that is there.

    A group that sends nothing is made, unless the process has one.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        sharded = config["dp_kind"] == "fsdp" and config.get("cp_join")
        sizes = {name: config[field] for name, field in AXES}
        sharded = sharded or sharded_experts(config)
        kept = {name: size for name, size in sizes.items() if size > 1 or (name == "dp" and sharded)}
        self.sizes = {name: size for name, size in kept.items() if size > 1} or {"none": 1}
        world = 1
        for size in kept.values():
            world *= size
        self.world = world
        if not dist.is_initialized():
            dist.init_process_group("fake", rank=config["rank"], world_size=world, store=FakeStore())
        self.mesh: Any = None
        if kept:
            self.mesh = init_device_mesh("cpu", tuple(kept.values()), mesh_dim_names=tuple(kept))
        self.names = {self[name].get_group().group_name: name for name in kept if len(kept) > 0}
        if config.get("cp_join") and "cp" in kept and "dp" in kept:
            self.joined = self.mesh["dp", "cp"]._flatten("dp_cp")
            self.names[self.joined.get_group().group_name] = "dp"

        if sharded_experts(config):
            self.joined = self.mesh["dp", "ep"]._flatten("dp_ep")
            self.names |= {self["dp"].get_group().group_name: "edp", self.joined.get_group().group_name: "dp"}

    def __getitem__(self, axis: str) -> Any:
        return self.mesh[axis]

    def place(self, axis: str) -> int:
        """The rank's place on an axis, 0 where there is none."""
        return int(self[axis].get_local_rank()) if axis in self.sizes else 0

    def shard_mesh(self, config: Mapping[str, Any]) -> Any:
        """The ranks that share weights under FSDP, behind those that keep copies."""
        if config["dp_replicate"] > 1:
            if config.get("cp_join"):
                return self.mesh["dp_replicate", "dp_cp"]
            return self.mesh["dp_replicate", "dp"]
        joined = config.get("cp_join") or sharded_experts(config)
        return self.joined if joined and hasattr(self, "joined") else self["dp"]


def tensor_plan(config: Mapping[str, Any], model: Model) -> dict[str, ParallelStyle]:
    """The tensor-parallel plan of a model, by the names of its modules."""
    rows = Shard(1) if config["sp"] else Replicate()
    shared = config["tp_plan"] == "shared"
    entering = Replicate() if shared else rows

    def column() -> ColwiseParallel:
        return ColwiseParallel(input_layouts=entering)

    plan: dict[str, ParallelStyle] = {}
    if hasattr(model, "embed"):
        cut = config["sp"] and config["style"] == "gpt"
        plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate() if cut else rows)
        if cut:
            plan["entry"] = PrepareModuleInput(
                input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
            )
    for layer, module in model.units.items():
        if config["sp"]:
            plan[layer + "attn_norm"] = plan[layer + "ffn_norm"] = SequenceParallel()
        if shared:
            for part in ("attn", "ffn"):
                plan[layer + part] = PrepareModuleInput(input_layouts=rows, desired_input_layouts=Replicate())
        for part in ("attn.wqkv",) if config["style"] == "gpt" else ("attn.wq", "attn.wk", "attn.wv"):
            plan[layer + part] = column()
        plan[layer + "attn.wo"] = RowwiseParallel(output_layouts=rows)
        if isinstance(module.ffn, Routed):
            plan |= routed_plan(layer, rows)
            continue
        for part in ("ffn.w1",) if config["style"] == "gpt" else ("ffn.w1", "ffn.w3"):
            plan[layer + part] = column()
        plan[layer + "ffn.w2"] = RowwiseParallel(output_layouts=rows)
    if hasattr(model, "head"):
        if config["sp"]:
            plan["norm"] = SequenceParallel()
        whole = not config["loss_parallel"]
        plan["head"] = ColwiseParallel(
            input_layouts=rows, output_layouts=Replicate() if whole else Shard(-1), use_local_output=whole
        )
    return model.planned(plan, config)


def routed_plan(layer: str, rows: Placement) -> dict[str, ParallelStyle]:
    """Experts in parts. All ranks have the same tokens; what experts and shared ones give are shares of one sum."""
    plan: dict[str, ParallelStyle] = {
        layer + "ffn": PrepareModuleInput(input_layouts=rows, desired_input_layouts=Replicate()),
        layer + "ffn.router": InParts({}),
        layer + "ffn.experts": InParts({"w1": 2, "w3": 2, "w2": 1}),
        layer + "ffn.shared.w2": RowwiseParallel(output_layouts=Partial(), use_local_output=False),
    }
    return plan | {f"{layer}ffn.shared.{part}": ColwiseParallel(input_layouts=Replicate()) for part in ("w1", "w3")}


class InParts(ParallelStyle):
    """Weights that are cut along a dimension, or whole on each rank, as distributed tensors."""

    def __init__(self, cut: Mapping[str, int]) -> None:
        super().__init__()
        self.cut = cut

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, weight in list(module.named_parameters(recurse=False)):
            placement = Shard(self.cut[name]) if name in self.cut else Replicate()
            module.register_parameter(name, nn.Parameter(distribute_tensor(weight, device_mesh, [placement])))
        return module


def policy(config: Mapping[str, Any]) -> MixedPrecisionPolicy:
    """What FSDP gathers and reduces in."""
    if config["mixed"] == "fp32master":
        reduced = torch.bfloat16 if config.get("reduce_bf16") else torch.float32
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
    return MixedPrecisionPolicy(reduce_dtype=torch.float32) if config.get("reduce_fp32") else MixedPrecisionPolicy()


def parallel(config: Mapping[str, Any], ranks: Ranks, model: Model) -> nn.Module:
    """The model as this rank has it."""
    if config["tp"] > 1:
        parallelize_module(model, ranks["tp"], tensor_plan(config, model))
        if config.get("tied") and hasattr(model, "head"):
            model.head.weight = model.embed.weight
    if config["dp_kind"] == "fsdp":
        given = {"mesh": ranks.shard_mesh(config), "mp_policy": policy(config)}
        for layer in model.units.values():
            if config.get("ep_fsdp") and isinstance(layer.ffn, Routed):
                expert_unit(layer.ffn.experts, ranks, config)
            placed = {"shard_placement_fn": placement(layer, ranks, config)} if in_layers(config) else {}
            sharded = fully_shard(layer, reshard_after_forward=config["reshard"], **given, **placed)
            named(sharded, ranks, config)
        fully_shard(model, **given)
        if config.get("ep_fsdp"):
            prefetch(model)
    elif config["dp_kind"] == "ddp":
        joined = config.get("cp_join") and hasattr(ranks, "joined")
        return replicated(model, ranks.joined if joined else ranks["dp"])
    elif config["ep"] > 1 and config["ep_sync"]:
        own = [name for name, _ in model.named_parameters() if ".experts." in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
        return replicated(model, ranks["ep"])
    return model


def sharded_experts(config: Mapping[str, Any]) -> bool:
    """Whether experts are divided among ranks, and those that hold the same ones share them under FSDP."""
    return bool(config["dp_kind"] == "fsdp" and config["ep"] > 1)


def in_layers(config: Mapping[str, Any]) -> bool:
    """Whether such experts are in the units of their layers."""
    return sharded_experts(config) and not config.get("ep_fsdp")


def expert_unit(experts: Any, ranks: Ranks, config: Mapping[str, Any]) -> None:
    """Experts as a unit of their own, as torchtitan of 2025 makes them (`apply_fsdp` of its `llama4/infra`)."""
    mesh = ranks["dp"] if sharded_experts(config) else ranks.shard_mesh(config)
    wide = sharded_experts(config) and ranks.sizes.get("dp", 1) * config["ep"] > config["experts"]
    placed = {"shard_placement_fn": lambda _: Shard(1)} if wide else {}
    unit = fully_shard(experts, mesh=mesh, mp_policy=policy(config), reshard_after_forward=config["reshard"], **placed)
    named(unit, ranks, config)


def named(unit: Any, ranks: Ranks, config: Mapping[str, Any]) -> None:
    """Give the ranks that keep a unit's parameters for its backward their name."""
    if type(config["reshard"]) is int:
        ranks.names[neighbours(unit)] = "dp_reshard"


def prefetch(model: Any) -> None:
    """The prefetch that torchtitan sets for units of experts: the next layer's units, forward and backward.

    It has a unit for the embedding and one for norm and head, which are in the model's unit here.
    """
    layers = list(model.units.values())

    def units(layer: Any) -> list[Any]:
        return [layer, layer.ffn.experts] if isinstance(layer.ffn, Routed) else [layer]

    model.set_modules_to_forward_prefetch(layers[:1])
    model.set_modules_to_backward_prefetch(layers[-1:])
    for one, following in pairwise(layers):
        one.set_modules_to_forward_prefetch(units(following))
        following.set_modules_to_backward_prefetch(units(one))


def placement(layer: Any, ranks: Ranks, config: Mapping[str, Any]) -> Callable[[nn.Parameter], ShardPlacementResult]:
    """The mesh of each weight of a layer: experts are in its unit, over ranks of their own (torchtitan's `fsdp.py`)."""
    own = set(layer.ffn.experts.parameters()) if isinstance(layer.ffn, Routed) else set()
    meshes = {True: FSDPMeshInfo(ranks["dp"], 0), False: FSDPMeshInfo(ranks.shard_mesh(config), 0)}
    wide = ranks.sizes.get("dp", 1) * config["ep"] > config["experts"]

    def place(weight: nn.Parameter) -> ShardPlacementResult:
        return ShardPlacementResult(Shard(1 if weight in own and wide else 0), meshes[weight in own])

    return place


def neighbours(layer: Any) -> str:
    """The name of the group that keeps a layer's parameters from the forward to the backward."""
    group = layer._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info.shard_process_group
    return str(group.group_name)


def replicated(model: Model, mesh: DeviceMesh) -> DistributedDataParallel:
    """The model under DDP. Its reducer waits for no result of an all-reduce, for there is none."""
    group = mesh.get_group()
    with sized_buckets():
        module = DistributedDataParallel(model, process_group=group, bucket_cap_mb=BUCKET, init_sync=False)

    def reduced(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer(), group=group)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    module.register_comm_hook(None, reduced)
    module.reducer = _FirstBuckets(module.reducer)
    return module


@contextlib.contextmanager
def sized_buckets() -> Iterator[None]:
    """DDP makes buckets of its usual sizes at once inside, from the last weight on, and not after its first step."""
    original = dist._compute_bucket_assignment_by_size
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, BUCKET << 20]

    def sized(tensors: Any, _: Any, *given: Any) -> Any:
        found, sizes = original(tensors[::-1], limits, *given)
        buckets = [[len(tensors) - 1 - place for place in bucket] for bucket in found]
        # DDP itself begins with the last bucket.
        return buckets[::-1], sizes[::-1]

    dist._compute_bucket_assignment_by_size = sized
    try:
        yield
    finally:
        dist._compute_bucket_assignment_by_size = original


class _FirstBuckets:
    """DDP's reducer with the buckets of its first step. To make others, it would read the values of a tensor."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False
