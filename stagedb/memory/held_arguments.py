"""What the calls of a layer's modules hold in a forward until they return."""

from collections.abc import Iterator, Mapping

from stagedb.collectives import gathers
from stagedb.memory.class_program import ChunkProgram, Item, Key
from stagedb.workflows import TaskKind


def held_arguments(
    program: ChunkProgram, begins: Mapping[Key, tuple[TaskKind, int, Item]]
) -> Iterator[tuple[Key, tuple[TaskKind, int]]]:
    """What a call holds, and the item at which it returns.

    Attention and feed-forward hold their inputs, before and after they are gathered. Attention holds queries, keys and
    values. A linear layer holds its input until its result is reduced. Experts are one call, which holds what it gets:
    their matmuls are no calls of their own. begins: the item that makes each tensor.
    """
    kind = program.forward
    items = program.items[kind]
    last: dict[tuple[int, str], int] = {}
    for index, item in enumerate(items):
        last |= dict.fromkeys(((item.position, _part(item)), (item.position, _call(item))), index)
    sources = {key: item.reads for item in items if gathers(item.op.kind) for key in item.writes}
    for item in items:
        part = _part(item)
        for key in item.reads if part and item.bucket is None else ():
            if key not in begins or (_of_experts(item) and _of_experts(begins[key][2])):
                continue
            entering = _part(begins[key][2]) != part
            whole_call = entering or item.op.kind == "attention"
            over = kind, last[item.position, part if whole_call else _call(item)]
            yield key, over
            for held in sources.get(key, ()) if entering else ():
                yield held, over


def _part(item: Item) -> str:
    """The part of a layer that an operator of it is in: `attn` or `ffn`; empty for norms, sums and all others."""
    return item.facts.part or "" if item.facts.module else ""


def _of_experts(item: Item) -> bool:
    return item.facts.of_experts


def _call(item: Item) -> str:
    """The call of a layer's module that an operator is in: of `layer.ffn.w2.reduce_scatter.tp`, `layer.ffn.w2`."""
    return item.facts.module or ""
