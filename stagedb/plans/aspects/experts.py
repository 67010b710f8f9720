"""How ranks share experts, and how tokens reach them."""

from typing import Annotated, Literal

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect


@aspect
class Experts:
    """How many tokens go to each expert, and what runs while they are exchanged."""

    capacity_factor: Annotated[
        float | None,
        WordSpec(
            "Slots of an expert, as a multiple of its even share.",
            property="slots of an expert over its even share of tokens; absent: dropless",
            unset="dropless",
        ),
    ] = None
    expert_load: Annotated[
        tuple[int, ...],
        WordSpec(
            "Choices of tokens that go to each expert: numbers such as 3,1,2,2, shares such as 0.3,0.1,0.4,0.2, or a "
            "YAML or JSON list of them.",
            property="choices in a row that go to each expert; empty: the same for all",
            unset="even",
            metavar="N,N,…|FILE",
            file=True,
            shares=True,
        ),
    ] = ()
    routing: Annotated[
        tuple[str, ...],
        WordSpec(
            "The experts of each token: a YAML or JSON list with a list of experts for each of some tokens, which a "
            "rank's tokens repeat.",
            property="the experts of each of some tokens, which a rank's tokens repeat; empty: unknown",
            unset="all choices equally likely",
            metavar="FILE",
            file=True,
            rows=True,
        ),
    ] = ()
    node_ranks: Annotated[
        int,
        WordSpec(
            f"Ranks of ep that are one node, for {Word('dispatch', 'nodes')}.",
            property="ranks of ep that are one node, to which a token is sent once",
            symbol="epr",
            least=1,
        ),
    ] = 1
    overlap_experts: Annotated[
        bool,
        WordSpec(
            "Run the forward of one micro-batch and the backward of another together, or without a backward two "
            "forwards, so that each computes while the other exchanges tokens.",
            property="forwards and backwards, or two forwards, run together, each during the exchanges of the other",
        ),
    ] = False
    """Megatron-Core's `overlap_moe_expert_parallel_comm`, and the pairs of DualPipeV; in serving two-batch overlap, as
    in SGLang (`enable_two_batch_overlap`) and vLLM (`enable_dbo`)."""


@aspect
class ExpertOptions:
    """How experts are divided among ranks, and their gradients reduced."""

    expert_tp: Annotated[
        bool,
        WordSpec(
            f"Tensor parallelism partitions each expert; or its ranks have whole experts, among those of {Word('ep')}: "
            f"with {Word('sp', True)} of tokens that are sent, or in a forward without it of the tokens that all have.",
            property="tensor parallelism partitions each expert",
        ),
    ] = True
    """False: experts are whole, and the ranks of tp are among those that share them: under sp with tokens of their own
    (`experts_over_tp`), without it with the same ones, of which each computes its experts' part (`experts_of_tp`)."""
    redundant_experts: Annotated[
        int,
        WordSpec(
            f"Copies of the experts with most choices, so many in each layer, on ranks of {Word('ep')}.",
            property="copies of experts in each layer",
            least=0,
            needs="cache",
        ),
    ] = 0
    """DeepSeek's EPLB: `ep-num-redundant-experts` of SGLang, `num_redundant_experts` of vLLM."""
    dispatch: Annotated[
        Literal["copies", "ranks", "nodes"],
        WordSpec(
            "What a token is sent to its experts for: once for each expert, once for each rank with some of them "
            "(DeepEP, HybridEP), or once for each node with some and from there to its ranks.",
            property="a token is sent once for each expert (copies), rank or node that has some",
        ),
    ] = "copies"
    dispatch_dtype: Annotated[
        Literal["same", "fp8"],
        WordSpec(
            f"Format in which {Word('dispatch', 'ranks')} or nodes sends tokens to their experts; fp8 has a scale for "
            "each 128 values, and results come back as they are.",
            property="format of tokens on their way to experts",
        ),
    ] = "same"
    ep_sync: Annotated[
        bool,
        WordSpec(
            "Reduce the gradients of all weights but experts over ep; without it, copies drift apart.",
            property="gradients of weights that all ranks of ep have are reduced over ep",
            needs="gradients",
        ),
    ] = True
    """False leaves out a reduction that training needs, as in a measurement of expert parallelism alone."""
    expert_unit: Annotated[
        bool,
        WordSpec(
            f"With {Word('zero', 2)} or 3, the experts of each layer are an FSDP unit of their own, next to the rest.",
            property="experts are an FSDP unit of their own, next to the rest of their layer",
            needs="gradients",
        ),
    ] = False
    """The `fully_shard` of the experts in torchtitan, with the prefetch that it sets: the next layer's units."""
