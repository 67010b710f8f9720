"""Styles: how a framework writes a model as kernels."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stagedb.ir.operators import PartAttention, RingAttention

LinearFormat = Literal["", "fp8", "int4", "int4_symmetric", "mxfp4", "nvfp4"]
"""Formats of a linear layer. fp8 is that of both operands, the others are those of the stored weight alone."""


@dataclass(frozen=True)
class Style:
    """How a framework writes the same model as kernels.

    pack_qkv, pack_gate: one matmul makes q, k and v (gate and up). row_bias: a bias after a row-parallel matmul is
    added inside it, or after its result has been reduced. linear: the format of the linear layers of
    layers; empty: that of activations. fp8: both operands are cast to it. One of `PACKED`: the weight is stored so, and
    multiplied in the format of activations. experts: the same of routed experts.
    embedding_dropout: the region that gives the layout of its mask. core: the fused attention of ranks that share a
    sequence, if it differs from that of one rank. routing_tables: the order of tokens by expert is made once.
    gathers_projection: the projection before a layer that predicts a further token is gathered whole; else each rank
    has all of its weight. further_reads: what the first of these layers reads. logits_first: the logits of all
    predicted tokens come before their losses. latent_views: the latent of latent attention, and its values, are views
    of the matmul results that they are parts of. absorbs: queries of latent attention read the latents of a cache.
    latents: the region in which latents are made. sinks: the fused kernel knows sinks, or its result is rescaled for
    them. dispatch: what a token is sent to its experts for.
    copied_experts: whether some experts have copies, so that there are more of them than a token chooses from.
    loss_chunks: parts of the tokens whose logits are made, and differentiated, in turn.
    serves: sequences are requests, which want the token after their last one, not a loss.
    one_token: a step adds one token to each request. drafts: it checks a draft, so that all its tokens have logits.
    deals_keys: ranks of cp share the cache of each request, so that attention adds up their parts.
    narrow_tokens: tokens are sent to experts in fp8. dealers: the mesh axes whose ranks an expert's rank gets tokens
    from.
    """

    pack_qkv: bool
    pack_gate: bool
    row_bias: Literal["inside", "after"]
    linear: LinearFormat
    experts: LinearFormat
    embedding_dropout: Literal["embedding", "between"]
    attention: Literal["fused", "math"]
    eager: bool
    dropout: float
    loss_parallel: bool
    apart: bool
    explicit_mask: bool
    core: "RingAttention | PartAttention | None"
    serves: bool = False
    one_token: bool = False
    drafts: bool = False
    routing_tables: bool = False
    gathers_projection: bool = False
    further_reads: Literal["normalised", "stream"] = "normalised"
    logits_first: bool = False
    latent_views: bool = False
    absorbs: bool = False
    dispatch: Literal["copies", "ranks", "nodes"] = "copies"
    copied_experts: bool = False
    narrow_tokens: bool = False
    dealers: tuple[str, ...] = ()
    latents: Literal["attention", "between"] = "attention"
    sinks: Literal["kernel", "rescaled"] = "kernel"
    loss_chunks: int = 1
    deals_keys: bool = False
