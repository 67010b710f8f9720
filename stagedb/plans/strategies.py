"""Sharding strategies: for each region of the model, the mesh axes that partition each logical axis.

A rule gives the layouts that an operator reads and the one that it writes. The collective matcher does the rest. Data
parallelism partitions the batch everywhere, context parallelism the sequence. Tensor parallelism (Shoeybi et al. 2019)
partitions heads, feed-forward and vocabulary inside their regions. Sequence parallelism (Korthikanti et al. 2022)
partitions the sequence over tp between them.
"""

from collections.abc import Mapping

from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.strategy_files import parse_strategy

TENSOR_PARALLEL: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "embedding": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "embedding_gradient": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "between": {"batch": ("dp",), "seq": ("cp",)},
    "attention": {"batch": ("dp",), "seq": ("cp",), "heads": ("tp",), "kv_heads": ("tp",)},
    "attention_core": {"batch": ("dp",), "seq": ("cp",), "heads": ("tp",), "kv_heads": ("tp",)},
    "ffn": {"batch": ("dp",), "seq": ("cp",), "ffn": ("tp",)},
    "head": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "loss": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
}

HEADS_OVER_CONTEXT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "attention_core": {"batch": ("dp",), "heads": ("tp", "cp"), "kv_heads": ("tp", "cp")},
}
"""Ulysses (Jacobs et al. 2023): inside attention each rank has the whole sequence of some heads. Without it queries
stay partitioned, and keys and values are gathered, because no rule names their sequence `kseq`."""

HEADS_OVER_NEIGHBOURS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "attention_core": {"batch": ("dp",), "seq": ("cpr",), "heads": ("tp", "cpa"), "kv_heads": ("tp", "cpa")},
}
"""Ulysses inside a ring (Fang and Zhao 2024): neighbours exchange sequence for heads; a ring connects the others."""

SEQUENCE_PARALLEL: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "between": {"batch": ("dp",), "seq": ("cp", "tp")},
}

GATHERED_LOGITS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "loss": {"batch": ("dp",), "seq": ("cp",)},
}


WHOLE_EMBEDDING_GRADIENT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "embedding_gradient": {"batch": ("dp",), "seq": ("cp",)},
}


Table = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By region, the mesh axes that partition each logical axis."""


def rules(options: GraphOptions, experts: bool = False, own: bool = True) -> Table:
    """The table of a graph's options: the base, the regions that an option changes, and those of experts.

    own: include the regions of a user's strategy.
    """
    table: dict[str, Mapping[str, tuple[str, ...]]] = dict(TENSOR_PARALLEL)
    if options.cp_kind == "ulysses":
        table |= HEADS_OVER_CONTEXT
    if options.sp:
        table |= SEQUENCE_PARALLEL
    if options.framework.embedding_gradient == "whole":
        table |= WHOLE_EMBEDDING_GRADIENT
    if not options.loss_parallel:
        table |= GATHERED_LOGITS
    if options.strategy and own:
        table |= _of_gradient(_of_mesh(parse_strategy(options.strategy).regions, options), options)
    if options.cp_kind == "ulysses-ring":
        table = {**{region: _two_axes(rule) for region, rule in table.items()}, **HEADS_OVER_NEIGHBOURS}
    return _with_experts(table, options) if experts else table


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


def _two_axes(rule: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """The rule with the ranks of cp written as those of two axes."""
    return {
        axis: tuple(part for mesh_axis in over for part in (("cpr", "cpa") if mesh_axis == "cp" else (mesh_axis,)))
        for axis, over in rule.items()
    }


def kept(options: GraphOptions) -> Table:
    """By region, the layout of its weights in memory, if it differs from the layout that its operators read."""
    weights = _of_mesh(parse_strategy(options.strategy).weights, options) if options.strategy else {}
    if options.cp_kind == "ulysses-ring":
        weights = {region: _two_axes(rule) for region, rule in weights.items()}
    return {region: _with_shared(rule) for region, rule in weights.items()}


def _with_shared(rule: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The rule with the width of shared experts treated as that of a feed-forward, if a model has shared experts."""
    return {**rule, "shared_ffn": rule["ffn"]} if "ffn" in rule else dict(rule)


def _with_experts(table: Table, options: GraphOptions) -> dict[str, dict[str, tuple[str, ...]]]:
    """Expert parallelism (Lepikhin et al. 2020): the ranks of dp and cp are those of `edp` times those of `ep`.

    Between the experts tokens stay on their ranks, and a token's rank chooses its slot in an expert. Inside the experts
    the slots of all ranks of `ep` are together. Tensor parallelism partitions each expert. With `expert_tp` off, under
    sp, the ranks of tp have tokens of their own and are among those of `edp` and `ep`.
    """
    split = {region: _with_shared(rule) for region, rule in table.items()}
    home = split["between"]
    split["router"] = {**home, "slots": slot_axes(options)}
    split["experts"] = {"experts": ("ep",), "slots": ("edp",)}
    if options.expert_tp:
        split["experts"]["expert_ffn"] = ("tp",)
    return split


def slot_axes(options: GraphOptions) -> tuple[str, ...]:
    """The mesh axes on which each rank has tokens of its own for the slots of experts."""
    return ("edp", "ep", "tp") if options.sp and options.expert_tp else ("edp", "ep")
