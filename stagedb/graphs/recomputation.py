"""Activation recomputation: the backward runs parts of a block's forward again, so that they need not be kept.

It works on matched operations, so that collectives are recomputed together with the operators that need them. If the
framework stops early (PyTorch's non-reentrant checkpoint), only the operations that the backward reads run again;
otherwise the whole part does (Megatron-LM).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.files import did_you_mean
from stagedb.ir.facts import Tag
from stagedb.ir.operators import Redistribution
from stagedb.ir.operators.optimizer import HOST_ACTIVATION, FromHost, ToHost
from stagedb.ir.tensors import Operation, Tensor
from stagedb.mentions import Word
from stagedb.models.adapters import is_under
from stagedb.models.card import Card
from stagedb.models.kinds import LayerKind
from stagedb.models.kinds.gated_delta import GATED_DELTA
from stagedb.models.kinds.gated_recurrence import GATED_RECURRENCE
from stagedb.models.kinds.kimi_delta import KIMI_DELTA
from stagedb.models.kinds.latent_attention import LATENT_ATTENTION
from stagedb.models.kinds.lightning_attention import LIGHTNING_ATTENTION
from stagedb.models.kinds.one_part import NONE
from stagedb.models.kinds.selective_scan import SELECTIVE_SCAN
from stagedb.models.kinds.short_convolution import SHORT_CONVOLUTION
from stagedb.models.kinds.shortcut_experts import SHORTCUT_EXPERTS
from stagedb.models.kinds.state_space import STATE_SPACE
from stagedb.models.named_facts import name_in_layer
from stagedb.workflows.training import FORWARD, INPUT_GRADIENT

SUFFIX = ".recompute"


@dataclass(frozen=True)
class RecomputedPart:
    """The part that runs again. `again` chooses among the forward operations.

    whole: the chosen operations are one checkpointed function, and its results are kept for readers outside of it;
    otherwise each operation is recomputed on its own, even if others read its results. early_stop: only as far as the
    backward reads. caches: every result of the other operations is kept until the block's backward, even if nothing
    there reads it. inside: what belongs to the layer, where a block has several; others are neither run again nor kept.
    offloads: the block's input is kept on the host.
    """

    again: Callable[[Operation], bool]
    whole: bool
    early_stop: bool
    caches: bool = False
    inside: Callable[[Operation], bool] = lambda op: True
    offloads: bool = False

    def chooses(self, op: Operation) -> bool:
        """Whether a forward operation runs again."""
        return self.inside(op) and self.again(op)


def recompute(operations: tuple[Operation, ...], part: RecomputedPart) -> tuple[tuple[Operation, ...], dict[str, str]]:
    """Run a part of the forward once more, before the first backward operation that needs it.

    The backward of an operator takes all its saved tensors when it begins, so both its gradients count as one. Returns
    the operations with the copies among them, and for each new tensor the one that it repeats.
    """
    forward = [op for op in operations if not op.template.differentiates]
    chosen = [op for op in forward if part.chooses(op)]
    outside = {tensor.name for op in forward if not part.chooses(op) for tensor in op.inputs}
    kept = outside if part.whole else set()
    makers = {tensor.name: op for op in chosen for tensor in op.outputs if tensor.name not in kept}
    first = next((i for i, op in enumerate(operations) if _reads(op, makers)), None)
    if first is None:
        return operations, {}
    origin = operations[first].origin
    begins = (i for i, op in enumerate(operations[:first]) if op.origin == origin and _computes_backward(op))
    first = next(begins, first)
    needed = _needed(operations, makers) if part.early_stop else {op.name for op in chosen}
    if part.early_stop and part.whole:
        # The function runs in its order until the last tensor that the backward wants is there.
        last = max(place for place, op in enumerate(chosen) if op.name in needed)
        needed = {op.name for op in chosen[: last + 1]}
    copies = [_copy(op, makers, needed) for op in chosen if op.name in needed]
    repeats = {
        tensor.name: copy
        for op, made in zip((op for op in chosen if op.name in needed), copies, strict=True)
        for tensor, copy in zip(op.outputs, made.outputs, strict=True)
    }
    rest = [_reading(op, {name: copy for name, copy in repeats.items() if name in makers}) for op in operations]
    rest[first:first] = copies
    return tuple(rest), {copy.name: name for name, copy in repeats.items()}


def cached(operations: tuple[Operation, ...], part: RecomputedPart) -> frozenset[str]:
    """The tensors that are kept for the backward even if nothing there reads them.

    They are results of operations outside the part that runs again. A result that only operators of the same call read
    is not kept, such as what one turn of a ring reads of the turn before.
    """
    forward = [op for op in operations if not op.template.differentiates and part.inside(op)]
    kept = [op for op in forward if not part.again(op) and not isinstance(op.operator, Redistribution)]
    readers: dict[str, set[str]] = {}
    for op in operations:
        for tensor in op.inputs:
            readers.setdefault(tensor.name, set()).add("" if op.template.differentiates else op.origin)
    results = (t.name for op in kept for t in op.outputs if readers.get(t.name) != {op.origin})
    return frozenset(results) if part.caches else frozenset()


def _computes_backward(op: Operation) -> bool:
    return op.template.differentiates and not isinstance(op.operator, Redistribution)


def _reads(op: Operation, makers: dict[str, Operation]) -> bool:
    return op.template.differentiates and any(tensor.name in makers for tensor in op.inputs)


def _needed(operations: tuple[Operation, ...], makers: dict[str, Operation]) -> set[str]:
    """The chosen operations that the backward's reads lead back to."""
    wanted = [tensor.name for op in operations if _reads(op, makers) for tensor in op.inputs]
    needed: set[str] = set()
    while wanted:
        maker = makers.get(wanted.pop())
        if maker is not None and maker.name not in needed:
            needed.add(maker.name)
            wanted += [tensor.name for tensor in maker.inputs]
    return needed


def _again(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, name=tensor.name + SUFFIX)


def _copy(op: Operation, makers: dict[str, Operation], needed: set[str]) -> Operation:
    def source(tensor: Tensor) -> Tensor:
        maker = makers.get(tensor.name)
        return _again(tensor) if maker is not None and maker.name in needed else tensor

    loop = op.loop
    if loop is not None:
        previous = tuple(name + SUFFIX for name in loop.previous)
        loop = dataclasses.replace(loop, name=loop.name + SUFFIX, previous=previous)
    return dataclasses.replace(
        op,
        name=op.name + SUFFIX,
        inputs=tuple(map(source, op.inputs)),
        outputs=tuple(map(_again, op.outputs)),
        template=INPUT_GRADIENT,
        recomputed=True,
        loop=loop,
    )


def _reading(op: Operation, renamed: dict[str, Tensor]) -> Operation:
    """The operation with its reads renamed to copies, if it is a backward one; the forward keeps its reads."""
    if not op.template.differentiates or all(tensor.name not in renamed for tensor in op.inputs):
        return op
    return dataclasses.replace(op, inputs=tuple(renamed.get(tensor.name, tensor) for tensor in op.inputs))


# The modules of a layer that Megatron-Core computes again, by its names (`recompute_modules`).
#
# A module is of one of two kinds (megatron/core/transformer/transformer_config.py, `recompute_modules`):
#
# - a checkpointed function: its inputs are kept, and it runs again as a whole. Readers outside of it keep its result.
# - a function whose output is discarded: its result is freed as soon as the next operator has read it, and made again
#   right before the backward of that operator.
#
# Norms that Transformer Engine fuses into the matmul after them are operators of their own here, and are computed again
# like any other.

CAST_INPUT = ".cast_input"
"""Part of the names of operators that cast an input of a matmul to fp8."""


@dataclass(frozen=True)
class Module:
    """What a module's name covers.

    operators: one group of names inside a layer for each function; a name covers all operators under it.
    without: names that are in no function. discards: the functions' outputs are discarded; else the functions are
    checkpointed. covers: modules that are inside this one. has: whether a layer of this kind has the module.
    lacks: what a model without it lacks.
    """

    operators: tuple[tuple[str, ...], ...]
    has: Callable[[Card, LayerKind], bool]
    lacks: str
    discards: bool = False
    without: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()


def has_core(card: Card, kind: LayerKind) -> bool:
    """Whether a layer has attention, whose core may run again: scans and short convolutions have none."""
    scans = (STATE_SPACE, SELECTIVE_SCAN, GATED_DELTA, KIMI_DELTA, LIGHTNING_ATTENTION, GATED_RECURRENCE)
    return kind.parts[0] not in (*scans, SHORT_CONVOLUTION, NONE)


_LATENT = ("q_a_norm", "wq", "rotary_q", "kv_a_norm", "wkv_b", "k", "rotary_k")

MODULES: Mapping[str, Module] = {
    "core_attn": Module((), has_core, "attention"),
    "layernorm": Module((("attn_norm",), ("ffn_norm",)), lambda card, kind: True, "norms", discards=True),
    "mla_up_proj": Module(
        (tuple(f"attn.{name}" for name in _LATENT),),
        lambda card, kind: LATENT_ATTENTION in kind.parts,
        "latent attention",
        discards=True,
    ),
    "mlp": Module(
        (("ffn_norm", "ffn"),),
        lambda card, kind: kind.shares or (not kind.routes and kind.parts[1] is not NONE),
        "feed-forward without experts",
        without=("ffn.add",),
    ),
    "moe": Module(
        (("ffn",),),
        lambda card, kind: kind.routes,
        "layers with experts",
        without=("ffn.add",),
        covers=("moe_act", "shared_experts"),
    ),
    "moe_act": Module(
        (("ffn.experts.gate", "ffn.experts.activation"),),
        lambda card, kind: kind.routes,
        "layers with experts",
        discards=True,
    ),
    "shared_experts": Module(
        (("ffn.shared",),), lambda card, kind: kind.routes and card.shared_ffn > 0, "shared experts"
    ),
}
"""Every module by Megatron-Core's name. The core of attention is known by its tag."""


def check_modules(card: Card, chosen: Sequence[str]) -> None:
    """Refuse modules that a model does not have, and modules inside each other.

    card: the model. chosen: modules by name. Raises UsageError, with the modules that the model has.
    """
    kinds = tuple(card.kinds.values())
    if any(SHORTCUT_EXPERTS in kind.parts for kind in kinds) and set(chosen) - {"core_attn"}:
        raise UsageError(
            f"{card.name} has two attentions and two feed-forwards in a layer ({SHORTCUT_EXPERTS.name}), which "
            f"Megatron-Core does not have: {Word('recompute_modules')} takes core_attn for it"
        )
    for name in chosen:
        module = MODULES[name]
        if not any(module.has(card, kind) for kind in kinds):
            others = [other for other, each in MODULES.items() if any(each.has(card, kind) for kind in kinds)]
            raise UsageError(
                f"{card.name} has no {module.lacks}, so that nothing of {name} would run again: "
                f"{Word('recompute_modules')} takes {', '.join(others)} for it"
            )
        inside = [other for other in module.covers if other in chosen]
        if inside:
            raise UsageError(
                f"{name} runs {' and '.join(inside)} again as a part of it: leave {' and '.join(inside)} out of "
                f"{Word('recompute_modules')}"
            )
    for kind in kinds:
        part = next((part.name for part in kind.parts if part.routes and part.reads_stream), None)
        if part is not None and {"mlp", "moe"} & set(chosen):
            raise UsageError(
                f"{card.name} has a feed-forward and experts side by side ({part}), which Megatron-Core does not "
                f"have: {Word('recompute_modules')} takes layernorm, moe_act and core_attn for it"
            )


def module_parts(card: Card, kind: LayerKind, chosen: Sequence[str], early_stop: bool) -> Iterator[RecomputedPart]:
    """The parts of a layer that its backward runs again, those of checkpointed functions first.

    card: the model. kind: the kind of the layer. chosen: modules by name. early_stop: a checkpointed function runs only
    as far as the backward reads it; a discarded output is always made by what it needs alone.
    """
    own = {name: MODULES[name] for name in chosen if MODULES[name].has(card, kind)}
    if "core_attn" in own:
        yield RecomputedPart(lambda op: Tag.ATTENTION_CORE in op.tags, True, early_stop)
    covered = [name for module in own.values() if not module.discards for names in module.operators for name in names]
    for module in sorted(own.values(), key=lambda module: module.discards):
        for names in module.operators:
            if module.discards and set(names) <= set(covered):
                continue  # the operators are in a checkpointed function already
            yield RecomputedPart(
                _of(names, module.without, module.discards), not module.discards, early_stop or module.discards
            )


def _of(names: Sequence[str], without: Sequence[str], discards: bool) -> Callable[[Operation], bool]:
    """Whether an operation is in a function. A discarded output is cast to fp8 again where a matmul reads it."""

    def inside(op: Operation) -> bool:
        name = in_layer(op.name)
        if discards and CAST_INPUT in name and op.inputs:
            name = in_layer(op.inputs[0].name)
        return is_under(name, names) and not is_under(name, without)

    return inside


def in_layer(name: str) -> str:
    """An operation's name without the name of its block."""
    return name_in_layer(name).partition(".")[2]


def meant(name: str, known: Sequence[str]) -> str:
    """The text of a refusal after an unknown name inside a layer: a colon, or similar known names and a colon."""
    return did_you_mean(name, known, ": {}", most=3, cutoff=0.5) or ":"


# The input of a recomputed layer on the host: it is copied there in the forward, and back where the backward begins.
#
# `torch.autograd.graph.save_on_cpu` around `torch.utils.checkpoint.checkpoint`, as `offload_wrapper` of
# torch.distributed.algorithms._checkpoint.checkpoint_wrapper has it: the checkpoint saves nothing but its input.


def offload_input(
    operations: tuple[Operation, ...], x: Tensor, region: str
) -> tuple[tuple[Operation, ...], Tensor, Tensor]:
    """A block's operations with both copies, the tensor on the host, and the one that the backward reads.

    operations: those of a layer that runs its forward again. x: its input. region: of the copies.
    """
    there = dataclasses.replace(x, name=f"{x.name}.host", role=HOST_ACTIVATION)
    back = dataclasses.replace(x, name=f"{x.name}.back")
    names = f"{x.name}.to_host", f"{x.name}.from_host"
    down = Operation(names[0], ToHost(), (x,), (there,), region, FORWARD, names[0])
    up = Operation(names[1], FromHost(), (there,), (back,), region, INPUT_GRADIENT, names[1], recomputed=True)
    first = next(place for place, op in enumerate(operations) if op.recomputed)
    found = [down]
    for place, op in enumerate(operations):
        found += [up] * (place == first)
        inputs = tuple(back if each.name == x.name else each for each in op.inputs)
        found.append(dataclasses.replace(op, inputs=inputs) if op.template.differentiates else op)
    return tuple(found), there, back
