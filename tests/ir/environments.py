"""The values of the symbols of a tiny model's graph on one rank of a mesh."""

import json

from stagedb.ir import SymGraph
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.request_batches import MEAN_SYMBOLS
from stagedb.plans.token_copies import COPY_SYMBOLS

BATCH, SEQ = 4, 8


def environment(
    graph: SymGraph,
    dp: int = 1,
    tp: int = 1,
    hsdp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    load: tuple[int, ...] = (),
    ep_rank: int = 0,
    cpa: int = 1,
    epr: int = 1,
) -> dict[str, int]:
    """What a plan binds on one rank of ep: degrees, the global micro-batch, the sequence, dtype widths, the load."""
    widths = {f"e_{name}": 2 for name in ("act", "param", "grad", "reduce", "opt", "logits", "cache")}
    options = GraphOptions(**json.loads(graph.options))
    edp = dp * cp * (tp if options.experts_over_tp else 1) // ep
    degrees = {"dp": dp, "tp": tp, "cp": cp, "ep": ep, "edp": edp, "pp": pp, "hsdp": hsdp}
    degrees |= {"cpr": cp // cpa, "cpa": cpa, "epn": ep // epr, "epr": epr}
    loads = {}
    if "E" in graph.sizes:
        load = load or (1,) * graph.sizes["E"]
        parts = tp if options.experts_of_tp else 1
        each = len(load) // (ep * parts)
        ranks = [sum(load[at : at + each]) for at in range(0, len(load), each)]
        dealt = ranks[ep_rank // ep * ep :][:ep]
        loads = {"load_all": sum(load), "load_most": max(load), "load_here": ranks[ep_rank] + 1}
        loads["load_dealt"] = sum(dealt) + 1
    fixed = {
        "lora": 3,
        "copies": 1,
        "runs": 2,
        "capacity": 1,
        "per": 1,
        "B": BATCH,
        "S": SEQ,
        "SK": SEQ,
        "cp_rank": 1,
        "step": 1,
    }
    fixed |= {"last": 1, **dict(zip(MEAN_SYMBOLS, (BATCH, SEQ, SEQ), strict=True))}
    shards, own = edp // hsdp, graph.sizes.get("E", ep) // ep
    divided = ep * (tp if options.experts_over_tp else 1) > 1
    cut = options.framework.cuts_columns and divided and shards > own
    fixed |= {"kept": own, "cuts": shards} if cut else {"kept": -(-own // max(shards, 1)), "cuts": 1}
    fixed |= dict.fromkeys(COPY_SYMBOLS, 1)
    return {**graph.sizes, **widths, **fixed, **loads, **degrees}
