"""Memory that a rank holds before and after a step: parameters, optimizer states, inputs, permanent buffers."""

from collections import Counter
from collections.abc import Iterable, Iterator

from stagedb.frameworks import bucket_policy
from stagedb.graphs.costs import LEAST
from stagedb.ir.symbolic_graph import OpType
from stagedb.memory.chunk_tensors import Chunk, Unit
from stagedb.memory.class_program import Key
from stagedb.memory.lifetimes import Category, State
from stagedb.plans import Plan

FREED_LATE = 2
"""Units whose parameters are freed, and whose memory the next gather may not have yet, under FullyShardedDataParallel:
`_max_num_inflight_all_gathers` of torch/distributed/fsdp/_limiter_utils.py. A model of 7B (units of 404 MB in bf16)
held 0.81 and 0.85 GiB more than with `fully_shard` (pull request 165 of pytorch/torchtitan: 52.98 and 24.81 % of
95.04 GiB where that had 52.13 and 23.92); two units are 0.75 GiB."""

STAGE = "stage"
"""The block of buffers that a stage has once; others are those of their layer."""


def states(chunk: Chunk) -> Iterator[State]:
    """All that a chunk holds before and after a step."""
    for position, block in chunk.program.places:
        yield from states_at(chunk, position, block)
    yield from _shared_states(chunk)
    yield from _tables(chunk)
    yield from _inputs(chunk)
    yield from _buffers(chunk)
    yield from _freed_late(chunk)


def states_at(chunk: Chunk, position: int, block: str) -> Iterator[State]:
    """The parameters, and the states of the optimizer, of the block at a position; without those of a shared buffer."""
    for tensor in chunk.program.by_block.get(block, ()):
        key = (tensor.name, position)
        if tensor.name in chunk.program.sizes and chunk.program.resolve(key) == key:
            yield from _state_of(chunk, key)


def offloaded(found: Iterable[State], plan: Plan) -> tuple[tuple[State, ...], tuple[State, ...]]:
    """What a rank holds of some states, and what its host holds.

    With the optimizer on the host these are its states, the master copies, and a gradient of each of these, which is as
    wide (`cpu_copy_map_grad` of Megatron-Core's `HybridDeviceOptimizer`). found: all states of a rank.
    """
    if plan.options.offload != "optimizer":
        return tuple(found), ()
    on_rank, on_host = list[State](), list[State]()
    for state in found:
        (on_host if state.category in (Category.OPTIMIZER, Category.MASTER) else on_rank).append(state)
    copies = (master for master in on_host if master.category is Category.MASTER)
    gradients = [
        State(
            f"{master.name.removesuffix('master')}host_gradient",
            master.layer,
            master.bytes,
            Category.GRADIENTS,
        )
        for master in copies
    ]
    return tuple(on_rank), (*on_host, *gradients)


def _tables(chunk: Chunk) -> Iterator[State]:
    """The fp32 values of bytes in bitsandbytes' AdamW: 256 for each moment, which all weights share."""
    if not chunk.first or chunk.plan.options.optimizer != "adamw-8bit":
        return
    weights = (chunk.program.sizes[name] // chunk.width("param") for name, _ in chunk.trained)
    if any(numbers >= LEAST for numbers in weights):
        yield State("optimizer.tables", None, 2 * 256 * 4, Category.OPTIMIZER)


def _shared_states(chunk: Chunk) -> Iterator[State]:
    """The optimizer's state of this rank's part of one buffer, whichever weights are in the part.

    Parameters and gradients are views of such a buffer, so that its padding is held with them.
    """
    if chunk.shared_buffer is None:
        return
    elements, part = chunk.shared_buffer
    padding = elements - sum(chunk.program.sizes[name] for name, _ in chunk.buffered) // chunk.width("param")
    yield State("buffer.padding", None, padding * chunk.width("param"), Category.PARAMETERS)
    if chunk.held.gradient_buffer:
        yield State("buffer.padding", None, padding * chunk.width("grad"), Category.GRADIENTS)
    tensors = chunk.program.tensors.values()
    kept = [t for t in tensors if t.name in chunk.program.sizes and t.role == "optimizer_state"]
    words = {tensor.facts.word or "": tensor.dtype for tensor in kept}
    for word, dtype in words.items():
        category = Category.MASTER if word == "master" else Category.OPTIMIZER
        yield State(f"buffer.{word}", None, part * chunk.width(dtype), category)


def _freed_late(chunk: Chunk) -> Iterator[State]:
    """What PyTorch holds of units that FullyShardedDataParallel has freed: those with the most parameters.

    Streams that may still read them are recorded with their memory (`record_stream`), which is free when a processor
    has seen that they do not.
    """
    if chunk.plan.options.fsdp_version != 1:
        return
    sizes: Counter[Unit] = Counter()
    for item in chunk.program.items[chunk.program.forward]:
        if item.bucket is not None and item.bucket.gathers:
            unit = chunk.unit(item.bucket)
            if unit is not None and unit in chunk.regathered:
                sizes[unit] += item.bucket.bytes_out
    held = sum(size for _, size in sizes.most_common(FREED_LATE))
    if held:
        yield State("units.freed_late", None, held, Category.GATHERED)


def _state_of(chunk: Chunk, key: Key) -> Iterator[State]:
    name, layer = key[0], chunk.layer(key)
    role = chunk.program.tensors[name].role
    if role == "weight":
        yield State(name, layer, chunk.owned(name, chunk.sharded), Category.PARAMETERS)
        if key not in chunk.trained:
            return
        if chunk.held.gradient_buffer:
            elements = chunk.owned(name, chunk.sharded) // chunk.width("param")
            yield State(f"{name}.main_gradient", layer, elements * chunk.width("grad"), Category.GRADIENTS)
        if chunk.held.optimizer_scalar and chunk.counts_steps(name):
            yield State(f"{name}.step", layer, chunk.held.optimizer_scalar, Category.OPTIMIZER)
    elif role == "buffer":
        yield State(name, layer, chunk.program.sizes[name], Category.INPUTS)
    elif role == "cache":
        # The requests of all micro-batches have their caches at once, and prefixes that they share once.
        size = chunk.plan.microbatches * chunk.program.sizes[name] - chunk.program.repeated.get(name, 0)
        yield State(name, layer, size, Category.CACHE)
    elif role == "optimizer_state":
        facts = chunk.program.tensors[name].facts
        weight, word = facts.owner or "", facts.word
        if (weight, key[1]) in chunk.buffered:
            return
        if chunk.program.resolve((weight, key[1])) == (weight, key[1]):
            category = Category.MASTER if word == "master" else Category.OPTIMIZER
            # A parameter's storage is padded, and the optimizer makes its state for the rank's own rows.
            size = chunk.program.own[name] if chunk.sharded else chunk.owned(name, chunk.plan.options.zero >= 1)
            if chunk.program.shares:
                size = chunk.program.updated(name, (weight, key[1]))
            if size:
                yield State(name, layer, size, category)


def _inputs(chunk: Chunk) -> Iterator[State]:
    for tensor in chunk.program.tensors.values():
        if tensor.role == "buffer" and tensor.block == STAGE and chunk.first:
            yield State(tensor.name, None, chunk.program.sizes[tensor.name], Category.INPUTS)
        if tensor.role == "input" and tensor.storage is None and chunk.first and chunk.held.whole_batch:
            size = chunk.plan.microbatches * chunk.program.sizes[tensor.name]
            yield State(tensor.name, None, size, Category.INPUTS)


def _buffers(chunk: Chunk) -> Iterator[State]:
    plan, held = chunk.plan, chunk.held
    for _, _, item in chunk.running:
        if held.receive_buffers and item.op.type is OpType.RECV and item.op.axis == "pp":
            size = plan.microbatches * item.message
            yield State(f"{item.op.name}.buffers", None, size, Category.COMMUNICATION)
    handed = ((chunk.program.given, "recv_forward"), (chunk.program.gives, "recv_backward"))
    for other, name in handed if held.receive_buffers else ():
        if other is not None and (name == "recv_forward" or chunk.program.backwards):
            # Chunks of one stage hand results over in place of receive buffers: those of the step before are still
            # held.
            size = plan.microbatches * chunk.program.sizes[f"cut.{name}"]
            yield State(f"cut.{name}.buffers", None, size, Category.ACTIVATIONS)
    copies = [item for item in chunk.weights_items if item.bucket is not None and bucket_policy(item.op.bucket).copied]
    for name in dict.fromkeys(item.op.name for item in copies):
        size = sum(item.bucket.bytes_in for item in copies if item.bucket is not None and item.op.name == name)
        yield State(name, None, size, Category.COMMUNICATION)
    degrees = (plan.tp, plan.pp, plan.cp, plan.dp // plan.hsdp, plan.hsdp)
    several = sum(degree > 1 for degree in degrees) > 1 or plan.options.reshard_to is not None
    several = several or (plan.ep > 1 and plan.edp > 1)
    if chunk.first and held.mesh_rank and several:
        yield State("mesh", None, held.mesh_rank * plan.world, Category.COMMUNICATION)
