"""The modules of a layer that Megatron-Core computes again, by its names (`recompute_modules`).

A module is of one of two kinds (megatron/core/transformer/transformer_config.py, `recompute_modules`):

- a checkpointed function: its inputs are kept, and it runs again as a whole. Readers outside of it keep its result.
- a function whose output is discarded: its result is freed as soon as the next operator has read it, and made again
  right before the backward of that operator.

Norms that Transformer Engine fuses into the matmul after them are operators of their own here, and are computed again
like any other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.files import did_you_mean
from stagedb.graphs.recomputation import RecomputedPart
from stagedb.ir.tags import Tag
from stagedb.ir.tensors import Operation
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
