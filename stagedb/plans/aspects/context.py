"""How ranks share a sequence and compute its attention together."""

from typing import Annotated, Literal

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect

CpKind = Literal[
    "none", "allgather-kv", "allgather-lse", "ring-allgather", "ring-alltoall", "ring-p2p", "ulysses", "ulysses-ring"
]
CpChunks = Literal["none", "balanced", "contiguous"]


@aspect
class Context:
    """The word that groups the ranks of cp for Ulysses inside a ring."""

    ulysses: Annotated[
        int,
        WordSpec(
            f"With {Word('cp_kind', 'ulysses-ring')}: neighbours that exchange heads, in a ring over cp / N.",
            property="neighbours on cp that exchange heads, in a ring over the others",
            least=1,
        ),
    ] = 1


@aspect
class ContextOptions:
    """How the ranks of cp, each with a part of the sequence, compute attention."""

    cp_kind: Annotated[
        CpKind,
        WordSpec(
            f"How the ranks of {Word('cp')} compute attention: allgather-kv, ring-allgather, ring-alltoall, ring-p2p, "
            "ulysses or ulysses-ring; with a cache: allgather-lse.",
            property="how ranks of cp compute attention",
            unset="torch: ring-allgather; megatron: ring-p2p; with a cache: allgather-lse",
            metavar="KIND",
            noun="kind of context parallelism",
        ),
    ] = "none"
    """`none`: cp is 1. `allgather-kv`: keys and values are gathered. `allgather-lse`: ranks share the cache of each
    request, position by position; all have all queries, the log-sum-exps of their parts are gathered, and the scaled
    results are added up by an all-reduce (vLLM's `cp_lse_ag_out_ar`). `ring-allgather`: keys and values are gathered
    once, and a rank computes with those of one rank a turn. `ring-alltoall`: they go from rank to rank (both are
    torch's rings). `ring-p2p`: they go by sends and receives (Transformer Engine). `ulysses`: each rank has the whole
    sequence of some heads. `ulysses-ring`: neighbours share the sequence of some heads, in a ring over the others
    (Transformer Engine's `a2a+p2p`; Fang and Zhao 2024)."""
    cp_chunks: Annotated[
        CpChunks,
        WordSpec(
            f"Which part of a sequence a rank of {Word('cp')} has: balanced (a chunk from the front and one from the "
            "back) or contiguous.",
            property="which part of the sequence a rank of cp has",
            unset="balanced if the kind allows it",
            metavar="KIND",
            noun="chunks",
            listed="balanced or contiguous",
        ),
    ] = "none"
    """`balanced`: a chunk from the front and its counterpart from the back, so that causal work is equal. `contiguous`:
    one part (torch's `enable_load_balance=False`), in which late ranks compute more. `none`: the kind decides. Most
    kinds are balanced. Contiguous are ulysses, torch's gathered keys, which an explicit mask reads, and `attention` in
    matmuls."""
    cp_grad_sync: Annotated[
        bool,
        WordSpec(
            "Reduce gradients over cp as well as dp; without it, over dp only.",
            property="gradients are reduced over cp too",
            needs="gradients",
        ),
    ] = True
    """Gradients are reduced over dp and cp together. False leaves cp out, as in a step that only computes
    gradients."""
