"""Records the states that torchao's AdamW of 8 bits makes of parts of weights: tests/memory/sharded_states.json.

    python scripts/recording/under_torch/sharded_states.py FILE

It needs torch and torchao, and no accelerator: one process takes the place of each rank of a world in turn, with a
backend that sends nothing. FSDP2 (`fully_shard`) gives each rank its part of the weights of a small llama and of
experts. The file has the bytes of both moments by world, rank and weight.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchao  # type: ignore[import-not-found]  # the recorder's environment alone has it
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchao.optim import AdamW8bit  # type: ignore[import-not-found]  # the recorder's environment alone has it

HIDDEN, FFN, VOCAB, KEYS, EXPERTS, EXPERT_FFN = 128, 99, 512, 64, 4, 24
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "llama": {
        "embedding.word": (VOCAB, HIDDEN),
        "layer.attn_norm": (HIDDEN,),
        "layer.attn.wq": (HIDDEN, HIDDEN),
        "layer.attn.wk": (KEYS, HIDDEN),
        "layer.attn.wv": (KEYS, HIDDEN),
        "layer.attn.wo": (HIDDEN, HIDDEN),
        "layer.ffn_norm": (HIDDEN,),
        "layer.ffn.w1": (FFN, HIDDEN),
        "layer.ffn.w3": (FFN, HIDDEN),
        "layer.ffn.w2": (HIDDEN, FFN),
        "head.norm": (HIDDEN,),
        "head.out": (VOCAB, HIDDEN),
    },
    "experts": {
        "layer.ffn.experts.w1": (EXPERTS, EXPERT_FFN, HIDDEN),
        "layer.ffn.experts.w2": (EXPERTS, HIDDEN, EXPERT_FFN),
    },
}
WORLDS = (2, 3, 5, 8)


def size(tensor: Any) -> int:
    """Bytes of a tensor, or of the tensors that a state in blocks has."""
    if hasattr(tensor, "codes"):
        return sum(map(size, (tensor.codes, tensor.scale, tensor.qmap)))
    return int(tensor.numel() * tensor.element_size())


def rank_of(shapes: Mapping[str, tuple[int, ...]], world: int, rank: int) -> dict[str, list[int]]:
    """The bytes of both moments of each weight on a rank."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    module = torch.nn.Module()
    for name, shape in shapes.items():
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))
        module.register_parameter(name.replace(".", "/"), parameter)
    fully_shard(module, mesh=init_device_mesh("cpu", (world,)))
    optimizer = AdamW8bit(module.parameters())
    found = {
        name.replace("/", "."): [size(optimizer._new_buffer(each, signed).to_local()) for signed in (True, False)]
        for name, each in module.named_parameters()
    }
    dist.destroy_process_group()
    return found


def main() -> None:
    """Write the file that the command line names."""
    found: dict[str, Any] = {"version": f"torch {torch.__version__}, torchao {torchao.__version__}"}
    for name, shapes in SHAPES.items():
        found[name] = {world: [rank_of(shapes, world, rank) for rank in range(world)] for world in WORLDS}
    Path(sys.argv[1]).write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
