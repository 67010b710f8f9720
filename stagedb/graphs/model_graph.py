"""A model under one strategy and one framework as a symbolic graph."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.frameworks import Framework
from stagedb.graphs.assembly import assemble
from stagedb.graphs.block import BlockPlan, LaidOut, lay_out, summed
from stagedb.graphs.block_trial import check_blocks
from stagedb.graphs.costs import Sizes, request_axes
from stagedb.graphs.graph_identity import drafting, graph_key, graph_sizes
from stagedb.graphs.optimizer_step import Tie, UpdateRule
from stagedb.graphs.recomputation import RecomputedPart, check_modules, has_core, in_layer, meant, module_parts
from stagedb.graphs.sharing import BucketRule, of_experts, reduction_rules
from stagedb.graphs.trained_weights import LayerBlock, Trained, check_trained, layer_blocks
from stagedb.ir.collective_matcher import Matching, wanted
from stagedb.ir.expressions import Expression, ceiling, largest, parse, symbol
from stagedb.ir.facts import KEY_PARTS, LOSS_TOKENS, Tag
from stagedb.ir.key_lengths import check_lengths
from stagedb.ir.operators import (
    BEFORE,
    COPIES,
    KEYS,
    KV_HEADS,
    QUERIES,
    PartAttention,
    Passing,
    Redistribution,
    RingAttention,
)
from stagedb.ir.operators.scored_pairs import ADDED, dealt
from stagedb.ir.packed_weights import PACKED
from stagedb.ir.symbolic_graph import SymGraph, SymOp
from stagedb.ir.tensors import Operation, Tensor, Tracer
from stagedb.mentions import Word
from stagedb.models import blocks
from stagedb.models.adapters import is_under
from stagedb.models.card import Card
from stagedb.models.kinds import LayerKind, hyper_connections, layer_inputs
from stagedb.models.kinds.attention_experts import ATTENTION_EXPERTS
from stagedb.models.kinds.experts import dealers
from stagedb.models.kinds.head_sizes import names_in_stack, own_axes, repeats_heads, rotary_axes, stack_axes, usual_name
from stagedb.models.kinds.layer_inputs import VOCABULARY
from stagedb.models.kinds.part import Table
from stagedb.models.kinds.shared_keys import KEY_BLOCKS
from stagedb.models.kinds.token_copies import EXCHANGES
from stagedb.models.multi_token_prediction import recomputed_with
from stagedb.models.named_facts import in_experts, in_stack
from stagedb.models.shared_operations import LinearFormat, Style
from stagedb.plans.graph_options import DEALT_KEYS, GraphOptions
from stagedb.plans.nearest_plans import Misfit, Way
from stagedb.plans.request_batches import MEAN_SYMBOLS
from stagedb.plans.sharding_checks import check_routed
from stagedb.plans.strategies import kept, rules
from stagedb.plans.strategy_files import REGIONS, Strategy, parse_strategy
from stagedb.plans.token_copies import COPY_SYMBOLS
from stagedb.workflows import find_workflow

# Whether a model can follow a user's strategy: all names exist, and tensors that belong together are treated alike.

SAME = {"shared_ffn": "ffn", VOCABULARY: "vocab"}
"""Tensor axes that a strategy calls by another name."""

EXPERTS = f" (experts follow {Word('ep')} and {Word('expert_tp')})"


def axes_by_region(blocks: tuple[LaidOut, ...]) -> dict[str, frozenset[str]]:
    """The regions of a model, each with the axes of its weights as a strategy calls them.

    blocks: of the model, with the layouts of their tensors.
    """
    found: dict[str, set[str]] = {}
    for op in (op for block in blocks for op in block.operations):
        axes = {
            SAME.get(usual_name(axis), usual_name(axis)) for t in op.inputs if t.role == "weight" for axis in t.axes
        }
        found.setdefault(op.region, set()).update(axes)
    return {region: frozenset(axes) for region, axes in found.items()}


def check_named(strategy: Strategy, blocks: tuple[LaidOut, ...], model: str) -> None:
    """Raise UsageError if a strategy names something that a model does not have, so that it would have no effect.

    blocks: of the model. model: its name, for the error.
    """
    found = axes_by_region(blocks)
    here = [region for region in REGIONS if region in found]
    for table, regions in (("regions", strategy.regions), ("weights", strategy.weights)):
        for region in regions:
            if region not in found:
                raise UsageError(
                    f"the strategy's {table} name {shown(region)}, of which {model} has no operator: it has "
                    f"{', '.join(here)}{EXPERTS if 'experts' in found else ''}"
                )
    for region, rule in strategy.weights.items():
        missing = [axis for axis in rule if axis not in found[region]]
        if missing:
            raise UsageError(
                f"the strategy keeps weights of {region} in parts of {' and '.join(missing)}, and in {model} none of "
                f"them has that axis: "
                + (f"they have {', '.join(sorted(found[region]))}" if found[region] else "there are none")
            )


def check_synced(ops: Iterable[SymOp], alone: Iterable[BucketRule]) -> None:
    """Raise UsageError if gradients are reduced only over dp, or only over cp: both have ranks of ep among others.

    A reduction without the ranks of ep would need groups that are in one of the two and hold the same experts. ops: of
    the graph. alone: the rules for buckets over one of the two axes.
    """
    used = {op.name for op in ops}
    found = next((bucket for bucket in alone if bucket.name in used), None)
    if found is not None:
        whole, other = ("cp", "dp") if found.axis == "data" else ("dp", "cp")
        raise UsageError(
            f"with this strategy the gradients of some weights are reduced only over {other}, and "
            f"{Word('ep_sync', False)} takes the ranks of ep out of dp and cp together: let the strategy cut batch "
            f"over dp and seq over cp wherever it has weights, keep no weight in parts over {whole}, or leave "
            f"{Word('ep_sync', False)} or {Word('strategy')} out"
        )


def tied_alike(tie: Tie, blocks: tuple[LaidOut, ...]) -> tuple[LaidOut, ...]:
    """The blocks with both ends of a tied weight partial on the same mesh axes, so that their gradients can be added.

    Raises UsageError if a strategy keeps the two ends in different ways.
    """
    kept = {weight.name: block for block in blocks for weight in block.weights}
    ends = {name: kept[name] for name in (tie.first, tie.second)}
    first, second = (block.layouts[name] for name, block in ends.items())
    if first != second:
        raise UsageError(
            "the embedding and the head of this model are one weight, and the strategy keeps it in two ways: give the "
            "same of vocab and hidden for both, under weights: embedding and weights: head"
        )
    made = {name: block for name, block in ends.items() if name in block.gradients}
    partial = {name: block.layouts[block.gradients[name].name].partials() for name, block in made.items()}
    common = set.intersection(*map(set, partial.values())) if partial else set()
    alike = {
        block.plan.name: summed(block, name, [axis for axis in partial[name] if axis not in common])
        for name, block in made.items()
    }
    return tuple(alike.get(block.plan.name, block) for block in blocks)


_RINGS: Mapping[str, Passing] = {
    "ring-allgather": "gathered",
    "ring-alltoall": "rotated",
    "ring-p2p": "sent",
    "ulysses-ring": "sent",
}


def _linear_formats(options: GraphOptions) -> tuple[LinearFormat, LinearFormat]:
    """The format of linear layers inside layers, and that of routed experts."""
    if options.weight_dtype == "same":
        form: LinearFormat = "fp8" if options.matmul_dtype == "fp8" else ""
        return form, form
    return "" if PACKED[options.weight_dtype].experts_alone else options.weight_dtype, options.weight_dtype


def _style(card: Card, options: GraphOptions, framework: Framework) -> Style:
    always, serves = framework.fused_projections == "always", find_workflow(options.workflow).caches
    linear, experts = _linear_formats(options)
    return Style(
        pack_qkv=always or card.positions == "learned",
        pack_gate=always,
        row_bias=framework.row_bias,
        linear=linear,
        experts=experts,
        embedding_dropout=framework.embedding_dropout,
        attention=options.attention,
        eager=options.kernels == "eager",
        dropout=options.dropout,
        loss_parallel=options.loss_parallel,
        apart=options.cp_kind != "none" or serves,
        explicit_mask=options.cp_kind == "allgather-kv" and options.attention == "fused" and framework.explicit_mask,
        core=_core_of(options),
        serves=serves,
        one_token=find_workflow(options.workflow).next_token,
        drafts=find_workflow(options.workflow).drafts,
        routing_tables=framework.routing_tables,
        gathers_projection=framework.gathers_projection,
        further_reads=framework.further_reads,
        logits_first=framework.logits_first,
        latent_views=framework.latent_views,
        absorbs=options.absorbs,
        latents=framework.latents,
        sinks=framework.sinks,
        loss_chunks=options.loss_chunks,
        deals_keys=options.cp_kind == DEALT_KEYS,
        dispatch=options.dispatch,
        copied_experts=options.redundant_experts > 0,
        narrow_tokens=options.dispatch_dtype == "fp8",
        dealers=tuple(axis for axis in dealers(options) if axis != "edp"),
    )


def _core_of(options: GraphOptions) -> RingAttention | PartAttention | None:
    """The attention of ranks that share a sequence, if it differs from that of one rank."""
    balanced = options.cp_chunks == "balanced"
    if options.cp_kind in _RINGS:
        return RingAttention(_RINGS[options.cp_kind], "cpr" if options.cp_kind == "ulysses-ring" else "cp", balanced)
    return PartAttention(balanced=balanced) if options.calls_by_part else None


def _sizes(card: Card, framework: Framework, options: GraphOptions) -> Sizes:
    """The size of each logical axis: the axes of all models, and those of the parts of layers."""
    rows = {"vocab": "V", **({layer_inputs.VOCABULARY: "VL"} if card.layer_input else {})}
    tables = {axis: _padded(symbol(name), framework) for axis, name in rows.items()}
    texts = {"batch": "B", QUERIES: "S", KEYS: "SK", BEFORE: "SK - S"}
    texts |= {"last": "last", "hidden": "H", "joined": "2*H", "read_hidden": "H", "positions": "P"}
    texts |= request_axes(find_workflow(options.workflow))
    texts |= {"embedded": "HE", "lora": "lora", **hyper_connections.AXES}
    if options.loss_chunks > 1:
        texts[LOSS_TOKENS] = f"B*S/{options.loss_chunks}"
    texts |= {axis: text for part in card.parts for axis, text in part.axes.items()}
    if options.redundant_experts and "experts" in texts:
        texts["experts"] += f" + {options.redundant_experts}"
    texts |= rotary_axes(card, card.kinds)
    if card.stacked:
        texts |= stack_axes(card, card.kinds)
    if card.layer_input:
        texts |= layer_inputs.AXES
    dealing = f"({'*'.join(dealers(options))})"
    axes = _with_copies({axis: parse(text.replace("dealers", dealing)) for axis, text in texts.items()})
    if options.cp_kind == DEALT_KEYS:
        axes |= {KEY_PARTS: symbol("cp"), ADDED: dealt(symbol("S"), symbol("SK"))}
    return Sizes({**axes, **tables}, frozenset(axis for part in card.parts for axis in part.replicable))


def _padded(vocabulary: Expression, framework: Framework) -> Expression:
    """The rows of a table of tokens, as a framework pads them."""
    if framework.vocabulary_multiple is None:
        return vocabulary
    multiple = framework.vocabulary_multiple * symbol("tp")
    return multiple * ceiling(vocabulary / multiple)


def _with_copies(axes: Mapping[str, Expression]) -> dict[str, Expression]:
    """The sizes of axes, with that of copies of key/value heads: one for each rank of tp and cp, if these are more."""
    if KV_HEADS not in axes:
        return dict(axes)
    return {**axes, COPIES: largest(axes[KV_HEADS], symbol("tp") * symbol("cp"))}


def _own_sizes(card: Card, usual: Sizes, layers: Iterable[LayerBlock]) -> dict[str, Sizes]:
    """The sizes of axes in blocks whose heads differ from the card's, by the block's name. layers: those of layers."""
    found = {}
    last = card.mtp_kind
    parts = {part.name: part.kind for part in layers}
    if card.stacked:
        return {}  # its axes of other sizes have names of their own
    for name, kind in {**parts, **({"head": last} if card.multi_token_prediction else {})}.items():
        if axes := own_axes(card, kind):
            without = frozenset() if repeats_heads(card, kind) else frozenset({"kv_heads"})
            made = _with_copies({axis: parse(text) for axis, text in axes.items()})
            found[name] = Sizes({**usual.axes, **made}, usual.replicable - without)
    return found


def _both(first: Callable[[Operation], bool], second: Callable[[Operation], bool]) -> Callable[[Operation], bool]:
    return lambda op: first(op) and second(op)


def _recomputed(card: Card, kind: LayerKind, options: GraphOptions, framework: Framework) -> tuple[RecomputedPart, ...]:
    """The forward operations of a layer that its backward runs again. kind: that of the layer."""
    early_stop = framework.early_stop if options.early_stop is None else options.early_stop
    if options.recompute == "modules":
        return tuple(module_parts(card, kind, options.recompute_modules, early_stop))
    parts = {
        "none": None,
        "full": RecomputedPart(lambda op: True, True, early_stop, offloads=options.offload == "activations"),
        "core": RecomputedPart(lambda op: Tag.ATTENTION_CORE in op.tags, True, early_stop),
        "pointwise": RecomputedPart(lambda op: Tag.SAVED not in op.tags, False, early_stop, caches=True),
        "operators": RecomputedPart(
            lambda op: is_under(in_layer(op.name), options.recompute_operators), False, early_stop
        ),
    }
    found = parts[options.recompute]
    return () if found is None else (found,)


def _recomputed_stack(card: Card, options: GraphOptions, framework: Framework) -> tuple[RecomputedPart, ...]:
    """The forward operations that a backward runs again (`_recomputed`), for each layer of a block that has all layers.

    UsageError if the host keeps the inputs of layers.
    """
    if options.offload == "activations":
        raise UsageError(
            f"{card.name} has layers with {' and '.join(card.stacked)}, and these layers are one block, whose input "
            f"alone would be on the host: leave {Word('offload', 'activations')} out"
        )
    return tuple(
        replace(part, inside=in_stack(number))
        for number, name in enumerate(card.sequence)
        for part in _recomputed(card, card.kinds[name], options, framework)
    )


def _trace_layer(card: Card, style: Style, trained: Trained, kind: LayerKind, t: Tracer, x: Tensor) -> Tensor:
    t.adapts = trained.adapts
    if card.stacked:
        return blocks.stack(t, card, style, [card.kinds[name] for name in card.sequence], x)
    return blocks.layer(t, card, style, kind, x)


def _layers(card: Card, options: GraphOptions) -> tuple[LayerBlock, ...]:
    """The blocks of a model's layers."""
    return layer_blocks(card, Trained.of(options), partial(_traced, card, options))


def _traced(card: Card, options: GraphOptions, kind: LayerKind) -> Tracer:
    """The forward of a layer, for the names of its linear layers and weights."""
    tracer = Tracer(kind.name)
    x = tracer.tensor("input", blocks.stream(card), "act", "activation")
    _trace_layer(card, _style(card, options, options.framework), Trained.of(options), kind, tracer, x)
    return tracer


def _block_plans(card: Card, options: GraphOptions, layers: Iterable[LayerBlock]) -> tuple[BlockPlan, ...]:
    """How each block of a model is traced, in the order of the forward."""
    framework, trained = options.framework, Trained.of(options)
    style, last = _style(card, options, framework), card.mtp_kind
    return (
        BlockPlan(
            name="embedding",
            repeat="1",
            trace=lambda t, _: blocks.embedding(t, card, style),
            input=False,
            loss=False,
            cut_gradients=_tie(card) is not None or options.zero >= 2,
            trains=trained.trains,
        ),
        *(
            BlockPlan(
                name=part.name,
                repeat=part.repeat,
                trace=partial(_trace_layer, card, style, trained, part.kind),
                input=True,
                loss=False,
                recomputed=_recomputed_stack(card, options, framework)
                if card.stacked
                else _recomputed(card, part.kind, options, framework),
                layers=part.layers,
                trains=trained.trains,
                below=part.below,
            )
            for part in layers
        ),
        BlockPlan(
            name="head",
            repeat="1",
            trace=lambda t, x: blocks.head(t, card, style, last, x),
            input=True,
            loss=True,
            recomputed=tuple(
                replace(part, again=_both(part.again, recomputed_with(depth)))
                for part in _recomputed(card, last, options, framework)
                for depth in range(1, card.multi_token_prediction + 1)
            ),
            trains=trained.trains,
            below=any(part.leads for part in layers),
        ),
    )


def _lay_out_blocks(card: Card, options: GraphOptions, layers: Iterable[LayerBlock]) -> tuple[LaidOut, ...]:
    check_modules(card, options.recompute_modules)
    if options.recompute == "core" and not any(has_core(card, kind) for kind in card.kinds.values()):
        raise UsageError(
            f"{card.name} has no attention whose core would run again: take {Word('recompute', 'full')} or "
            f"{Word('recompute', 'none')}"
        )
    plans, framework = _block_plans(card, options, layers), options.framework
    matching = Matching(
        options.shared_input,
        framework.regather,
        framework.whole_backward,
        joins_shares=framework.joins_shares,
        copies_heads=options.cp_kind == "ulysses" and framework.copies_heads,
        late=dict.fromkeys(("router", *EXCHANGES) if options.routes_whole or options.experts_of_tp else (), "tp")
        | {KEY_BLOCKS: "cp"},
    )

    def weight_first(has_bias: bool) -> bool:
        return framework.weight_gradient_first and not has_bias

    table, stored = _named(card, rules(options, parts=card.parts)), _named(card, kept(options))
    workflow, port = find_workflow(options.workflow), blocks.stream(card)
    laid_out = tuple(lay_out(plan, table, matching, port, weight_first, stored, workflow) for plan in plans)
    if options.recompute == "operators":
        _check_operators(options.recompute_operators, tuple(op for block in laid_out[1:-1] for op in block.operations))
    return laid_out


def _named(card: Card, table: Table) -> Table:
    """Rules with those of axes that have another name in a block of all layers, or are another vocabulary."""
    if not card.stacked:
        return table
    names = {name: axis for kind in card.kinds.values() for axis, name in names_in_stack(card, kind).items()}
    names[layer_inputs.VOCABULARY] = "vocab"
    return {
        region: {**rule, **{name: rule[axis] for name, axis in names.items() if axis in rule}}
        for region, rule in table.items()
    }


def weight_axes(card: Card, options: GraphOptions) -> dict[str, frozenset[str]]:
    """The regions of a model's graph, each with the axes of its weights as a strategy calls them."""
    return axes_by_region(_lay_out_blocks(card, options, _layers(card, options)))


def _followed(card: Card, options: GraphOptions, laid_out: tuple[LaidOut, ...], tie: Tie | None) -> tuple[LaidOut, ...]:
    """The blocks of a model, checked to follow the user's strategy. UsageError if they cannot."""
    strategy = parse_strategy(options.strategy)
    check_named(strategy, laid_out, card.name)
    if card.routes:
        check_routed(options)
    return laid_out if tie is None else tied_alike(tie, laid_out)


def _check_operators(chosen: tuple[str, ...], operations: tuple[Operation, ...]) -> None:
    """Raise UsageError for names that match no operation of a layer's forward, or if the names have no effect."""
    forward = [op for op in operations if not op.template.differentiates]
    names = [in_layer(op.name) for op in forward if not isinstance(op.operator, Redistribution)]
    above = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
    for operator in chosen:
        if not any(is_under(in_layer(op.name), (operator,)) for op in forward):
            raise UsageError(
                f"a layer has no operator {shown(operator)}{meant(operator, [*names, *sorted(above)])} "
                f"{Word('recompute_operators')} takes {', '.join(names)}, and the beginning of a name for all under it"
            )
    if not any(op.recomputed for op in operations):
        raise UsageError(
            f"the backward reads nothing that {', '.join(chosen)} makes, so that nothing would be recomputed: name "
            f"others with {Word('recompute_operators')}, or take {Word('recompute', 'none')}"
        )


def _check_context(card: Card, options: GraphOptions) -> None:
    """Raise Misfit for ranks of cp that would divide a sequence that a part needs whole."""
    for part in (part for kind in card.kinds.values() for part in kind.parts if part.alone):
        exchanged = (
            part.exchanged
            if "ulysses" in options.framework.cp_kinds and not find_workflow(options.workflow).caches
            else ""
        )
        if options.cp_kind in ("none", DEALT_KEYS) or (exchanged and options.cp_kind == "ulysses"):
            continue
        exchange = Way({"cp_kind": "ulysses", "ulysses": 1, "cp_chunks": "none"}, str(Word("cp_kind", "ulysses")))
        alone = Way({"cp": 1, "cp_kind": "none", "cp_chunks": "none"}, str(Word("cp", 1)))
        raise Misfit(
            f"{card.name} has {part.name}, which {part.alone}",
            ways=[*([exchange] if exchanged else ()), alone],
            last=f" (ranks of cp exchange {exchanged} for tokens)" if exchanged else " (tp and dp divide the work)",
        )


def _check_units(card: Card, options: GraphOptions, laid_out: tuple[LaidOut, ...]) -> None:
    """Raise UsageError for experts that cannot be a unit of their own."""
    if not options.expert_unit:
        return
    if card.multi_token_prediction:
        raise UsageError(
            f"{card.name} predicts further tokens by layers of its last stage, whose experts stagedb gathers with the "
            f"rest of their layer only: leave {Word('expert_unit', True)} out"
        )
    if card.has(ATTENTION_EXPERTS.name):
        raise UsageError(
            f"{card.name} has two modules of experts in a layer, one of them in its attention, and a unit of one is "
            f"known: leave {Word('expert_unit', True)} out"
        )
    for block in laid_out:
        for weight in block.weights:
            if of_experts(block.layouts[weight.name]) and not in_experts(weight.name):
                raise UsageError(
                    f"{weight.name} is a weight of experts in a block of your own, for which stagedb does not know "
                    f"where a unit begins: leave {Word('expert_unit', True)} out"
                )


def _check_cached(card: Card, options: GraphOptions, laid_out: tuple[LaidOut, ...]) -> None:
    """Raise UsageError for operators whose keys no cache can keep from step to step."""
    workflow = find_workflow(options.workflow)
    for op in (op for block in laid_out for op in block.operations if workflow.caches and op.operator.alike):
        raise UsageError(
            f"{card.name} cannot be served with a cache, because of {op.name}: {op.operator.alike}; "
            f"{Word('workflow', 'forward-only')} runs its forward over whole sequences"
        )


def _check_dealt(card: Card, options: GraphOptions, laid_out: tuple[LaidOut, ...]) -> None:
    """Raise UsageError for operators that read the keys of a whole request, where ranks of cp share its cache."""
    if options.cp_kind != DEALT_KEYS:
        return
    for op in (op for block in laid_out for op in block.operations if not op.operator.deals_keys()):
        read, made = ({axis for t in each for axis in t.axes} for each in (op.inputs, op.outputs))
        if KEYS in read and (KEYS not in made or QUERIES in made):
            raise UsageError(
                f"{card.name} has {op.name}, which reads the keys of a whole request, and ranks of cp that share its "
                f"cache each have some of them: take {Word('cp', 1)}, and {Word('dp')} for more requests"
            )


def _check_latents(card: Card, options: GraphOptions) -> None:
    """Raise UsageError for a choice of latent attention in a model that has none."""
    if options.latents != "usual" and not card.word("kv_rank"):
        raise UsageError(
            f"{card.name} has no latent attention, which {Word('latents', options.latents)} is for: leave it out"
        )


def _check_packed(card: Card, options: GraphOptions) -> None:
    """Raise UsageError for weights of 4 bits in a model for which it is not known which of them are."""
    word = Word("weight_dtype", options.weight_dtype)
    if options.weight_dtype == "same":
        return
    if card.blocks:
        raise UsageError(
            f"{card.name} has blocks of your own, for which stagedb does not know what is stored in 4 bits: leave "
            f"{word} out"
        )
    if card.has(ATTENTION_EXPERTS.name):
        raise UsageError(
            f"{card.name} has experts of attention, for which no checkpoint in 4 bits is known: leave {word} out"
        )
    if PACKED[options.weight_dtype].experts_alone and not card.routes:
        others = ", ".join(name for name, each in PACKED.items() if not each.experts_alone)
        raise UsageError(
            f"{card.name} has no experts, which alone are stored in {options.weight_dtype}: leave {word} out, or take "
            f"one of {others}"
        )


def _check_loss(card: Card, options: GraphOptions) -> None:
    """Raise UsageError for a loss in parts, or inputs on the host, of a model with multi-token prediction."""
    if options.offload == "activations" and card.multi_token_prediction:
        raise UsageError(
            f"{card.name} predicts further tokens by layers whose inputs are kept on the accelerator: "
            f"{Word('offload', options.offload)} needs a card with multi_token_prediction: 0, or leave it out"
        )
    if options.loss_chunks > 1 and card.multi_token_prediction:
        raise UsageError(
            f"{card.name} predicts further tokens, whose losses stagedb makes of all tokens at once: "
            f"{Word('loss_chunks', options.loss_chunks)} needs a card with multi_token_prediction: 0, or leave it out"
        )


def _tie(card: Card) -> Tie | None:
    """The copy of the embedding on the last stage: the head's weight, or what layers of multi-token prediction read."""
    if card.tied:
        return Tie("embedding.word.weight", "head.out.weight")
    return Tie("embedding.word.weight", "head.word.weight") if card.multi_token_prediction else None


@lru_cache(maxsize=16)
def build_graph(card: Card, options: GraphOptions) -> SymGraph:
    """The symbolic graph: the forward as its author wrote it, its backward, and collectives where layouts differ."""
    framework, named = options.framework, card
    if find_workflow(options.workflow).caches:
        card = replace(card, multi_token_prediction=drafting(card, options))
    check_blocks(card, options)
    _check_context(card, options)
    _check_latents(card, options)
    _check_packed(card, options)
    _check_loss(card, options)
    layers = _layers(card, options)
    laid_out = _lay_out_blocks(card, options, layers)
    _check_units(card, options, laid_out)
    _check_cached(card, options, laid_out)
    _check_dealt(card, options, laid_out)
    tie = _tie(card)
    check_trained(card, options, layers, laid_out, tie)
    if options.strategy:
        laid_out = _followed(card, options, laid_out, tie)
    table = rules(options, parts=card.parts)
    held = blocks.buffers(card, _style(card, options, framework), card.kinds.values())
    buffers = tuple((tensor, wanted(tensor.axes, table[region])) for tensor, region in held)
    shared = reduction_rules(options, framework, card.routes)
    sizes = _sizes(card, framework, options)
    own, rule = _own_sizes(card, sizes, layers), UpdateRule.of(options)
    rows = assemble(laid_out, sizes, own, shared, tie, rule, buffers, options.scatter_gather)
    if card.routes and not options.ep_sync and options.cp_kind != "none":
        check_synced(rows.ops, chain.from_iterable(shared.alone.values()))
    return SymGraph(
        key=graph_key(named, options),
        name=card.name,
        recipe=options.recipe,
        options=json.dumps(options.to_dict(), sort_keys=True),
        sizes=graph_sizes(named, options),
        blocks=rows.blocks,
        tensors=rows.tensors,
        ops=rows.ops,
        edges=rows.edges,
    )


# A graph on one rank: the values of its symbols without any partition, and with balanced experts.


def on_one_rank(graph: SymGraph, batch: int, tokens: int, keys: int | None = None) -> dict[str, int]:
    """The values of a graph's symbols on one rank, for `batch` sequences of `tokens` tokens each.

    keys: the keys of a sequence, if there are more than tokens: its queries are the last `tokens` of `keys` positions,
    as in a step of decoding or a chunk of a prefill. Raises UsageError for a graph that has a key for each query.
    """
    degrees = dict.fromkeys(("dp", "tp", "cp", "ep", "epn", "epr", "edp", "pp", "hsdp", "cpr", "cpa"), 1)
    fixed = {"copies": 1, "runs": 1, "capacity": 1, "per": 1, "cp_rank": 1, "step": 1, "cuts": 1, "last": 1}
    widths = {f"e_{name}": 2 for name in ("act", "param", "grad", "reduce", "opt", "logits", "cache")}
    experts = graph.sizes.get("E", 1)
    loads = {"load_all": experts, "load_most": 1, "load_here": experts + 1, "load_dealt": experts + 1, "kept": experts}
    copies = dict.fromkeys(COPY_SYMBOLS, 1 + batch * tokens)
    lengths = {"B": batch, "S": tokens, "SK": tokens if keys is None else keys}
    means = dict(zip(MEAN_SYMBOLS, lengths.values(), strict=True))
    check_lengths(graph, lengths)
    return {**graph.sizes, **degrees, **fixed, **widths, **loads, **copies, **lengths, **means}
