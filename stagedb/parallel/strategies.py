"""Sharding strategies: by region of the model, which mesh axes partition which logical axis.

Applied to an operator's named axes a rule gives the layouts that it wants and the one it leaves; the collective matcher
does the rest. Data parallelism partitions the batch everywhere, context parallelism the sequence; tensor parallelism
(Shoeybi et al. 2019) partitions heads, feed-forward and vocabulary inside their regions; sequence parallelism
(Korthikanti et al. 2022) partitions the sequence over tp between them.
"""

from collections.abc import Mapping

from stagedb.parallel.custom import parse_strategy
from stagedb.parallel.options import GraphOptions
from stagedb.parallel.recipes import RECIPES

TENSOR_PARALLEL: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "embedding": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "embedding_gradient": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "between": {"batch": ("dp",), "seq": ("cp",)},
    "attention": {"batch": ("dp",), "seq": ("cp",), "heads": ("tp",), "kv_heads": ("tp",)},
    "ffn": {"batch": ("dp",), "seq": ("cp",), "ffn": ("tp",)},
    "head": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
    "loss": {"batch": ("dp",), "seq": ("cp",), "vocab": ("tp",)},
}

SEQUENCE_PARALLEL: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "between": {"batch": ("dp",), "seq": ("cp", "tp")},
}

GATHERED_LOGITS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "loss": {"batch": ("dp",), "seq": ("cp",)},
}


WHOLE_EMBEDDING_GRADIENT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "embedding_gradient": {"batch": ("dp",), "seq": ("cp",)},
}


def rules(options: GraphOptions) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The table of a graph's options: the base with the regions that an option changes."""
    table: dict[str, Mapping[str, tuple[str, ...]]] = dict(TENSOR_PARALLEL)
    if options.sp:
        table |= SEQUENCE_PARALLEL
    if RECIPES[options.recipe].embedding_gradient == "whole":
        table |= WHOLE_EMBEDDING_GRADIENT
    if not options.loss_parallel:
        table |= GATHERED_LOGITS
    return {**table, **(parse_strategy(options.strategy).regions if options.strategy else {})}


def kept(options: GraphOptions) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """By region, how its weights are kept where that is not as its operators want them."""
    return parse_strategy(options.strategy).weights if options.strategy else {}
