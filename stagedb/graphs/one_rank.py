"""A graph on one rank: the values of its symbols without any partition, and with balanced experts."""

from stagedb.ir.key_lengths import check_lengths
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.plans.request_batches import MEAN_SYMBOLS
from stagedb.plans.token_copies import COPY_SYMBOLS


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
