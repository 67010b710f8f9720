"""Sharding strategies: for each region of the model, the mesh axes that partition each logical axis.

A rule gives the layouts that an operator reads and the one that it writes. The collective matcher does the rest. Data
parallelism partitions the batch everywhere, context parallelism the sequence. Tensor parallelism (Shoeybi et al. 2019)
partitions heads, feed-forward and vocabulary inside their regions. Sequence parallelism (Korthikanti et al. 2022)
partitions the sequence over tp between them.
"""

from collections.abc import Iterable, Mapping

from stagedb.ir.facts import KEY_PARTS, KEYS, LOSS_TOKENS
from stagedb.models.kinds import PARTS
from stagedb.models.kinds.experts import with_shared_width
from stagedb.models.kinds.part import LayerPart, Rule, Table
from stagedb.plans.graph_options import DEALT_KEYS, GraphOptions
from stagedb.plans.strategy_files import parse_strategy

ENDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "embedding": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "embedding_gradient": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "between": {"batch": ("dp",), "seq": ("cp",)},
    "prediction": {"batch": ("dp",), "seq": ("cp",), "hidden": ("tp",)},
    "gathered": {"batch": ("dp",), "seq": ("cp",)},
    "head": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "loss": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
}
"""The rows of all models. Those of the parts of layers are in `stagedb.models.kinds`.

`prediction` is the projection before a layer of multi-token prediction, and `gathered` its result on all ranks of tp,
where a framework gathers it."""

SEQUENCE_PARALLEL: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "between": {"batch": ("dp",), "seq": ("cp", "tp")},
}

GATHERED_LOGITS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "loss": {"batch": ("dp",), "seq": ("cp",)},
}


WHOLE_EMBEDDING_GRADIENT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "embedding_gradient": {"batch": ("dp",), "seq": ("cp",)},
}


def rules(options: GraphOptions, own: bool = True, parts: Iterable[LayerPart] = PARTS) -> Table:
    """The table of a graph's options: all models' rows, those of the parts of layers, and what an option changes.

    own: with the rows of a user's strategy. parts: the parts of layers, if a model has others than stagedb's.
    """
    table, parts = dict[str, Rule](ENDS), tuple(parts)
    for part in parts:
        table |= part.rows(options)
    if options.sp:
        table |= SEQUENCE_PARALLEL
    if options.framework.embedding_gradient == "whole":
        table |= WHOLE_EMBEDDING_GRADIENT
    if not options.loss_parallel:
        table |= GATHERED_LOGITS
    if options.strategy and own:
        table |= _of_gradient(_of_mesh(parse_strategy(options.strategy).regions, options), options)
    if options.cp_kind == "ulysses-ring":
        table = {region: _two_axes(rule) for region, rule in table.items()}
    if options.cp_kind == DEALT_KEYS:
        table = {region: _with_dealt_keys(rule) for region, rule in table.items()}
    for part in parts:
        table |= part.planned(options, table)
    if options.loss_chunks > 1:
        table |= {region: _with_parts(table[region]) for region in ("head", "loss")}
    return table


def _with_parts(rule: Rule) -> Rule:
    """The rule with the tokens of a part of the loss where batch and sequence are."""
    return {**rule, LOSS_TOKENS: (*rule.get("batch", ()), *rule.get("seq", ()))}


def _of_gradient(regions: Table, options: GraphOptions) -> Table:
    """The regions of a user's strategy. The gradient of an embedding table follows the rules of `embedding`."""
    if "embedding" not in regions:
        return regions
    whole = options.framework.embedding_gradient == "whole"
    over = {axis: rule for axis, rule in regions["embedding"].items() if not (whole and axis == "vocab")}
    return {**regions, "embedding_gradient": over}


def _of_mesh(table: Table, options: GraphOptions) -> Table:
    """The rules without cp if the graph has none: a weight that cp would cut is whole.

    Tokens keep cp in all regions, as they do in the built-in table.
    """
    if options.cp_kind != "none":
        return table
    return {
        region: {
            axis: over if axis in ("batch", "seq") else tuple(each for each in over if each != "cp")
            for axis, over in rule.items()
        }
        for region, rule in table.items()
    }


def _with_dealt_keys(rule: Rule) -> Rule:
    """The rule where ranks of cp share caches: they have the same queries, and keys of their own."""
    without = {axis: tuple(each for each in over if each != "cp") for axis, over in rule.items()}
    return {**without, KEYS: ("cp",), KEY_PARTS: ("cp",)}


def _two_axes(rule: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """The rule with the ranks of cp written as those of two axes."""
    return {
        axis: tuple(part for mesh_axis in over for part in (("cpr", "cpa") if mesh_axis == "cp" else (mesh_axis,)))
        for axis, over in rule.items()
    }


def crossed(options: GraphOptions) -> tuple[str, ...]:
    """The regions in which tp and the data-parallel axes partition one axis of the weights.

    There the layout in memory differs from the one that operators read, over dp or cp, of an axis that tp partitions in
    one of the two. A weight on the way from one layout to the other is partitioned by tp along its hidden axis.
    """
    table = rules(options)
    return tuple(
        region
        for region, rule in kept(options).items()
        if not {*rule.get("hidden", ()), *table[region].get("hidden", ())}
        and any(
            "tp" in {*over, *table[region].get(axis, ())}
            and {*over} - {"tp"} != {*table[region].get(axis, ())} - {"tp"}
            for axis, over in rule.items()
        )
    )


def kept(options: GraphOptions) -> Table:
    """By region, the layout of its weights in memory, if it differs from the layout that its operators read."""
    weights = _of_mesh(parse_strategy(options.strategy).weights, options) if options.strategy else {}
    if options.cp_kind == "ulysses-ring":
        weights = {region: _two_axes(rule) for region, rule in weights.items()}
    return {region: with_shared_width(rule) for region, rule in weights.items()}
