"""What data-parallel ranks shard instead of copying, and what tensor-parallel ranks partition."""

from typing import Annotated

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect


@aspect
class Sharding:
    """The number of copies of what is sharded."""

    hsdp: Annotated[
        int,
        WordSpec(
            "Copies of what is sharded, each on dp / N neighbouring ranks.",
            property="copies of what dp shards (hybrid sharding)",
            least=1,
            symbol="hsdp",
        ),
    ] = 1


@aspect
class TensorOptions:
    """What the ranks of tp partition, or a strategy partitions."""

    sp: Annotated[
        bool,
        WordSpec(
            "Sequence parallelism between tensor-parallel regions.",
            property="sequence parallelism",
        ),
    ] = False
    """Korthikanti et al. 2022, section 4.2.2."""
    shared_input: Annotated[
        bool,
        WordSpec(
            "Gather a tensor-parallel region's input once; without it, once for each matmul.",
            property="one gather feeds all matmuls that read the same input",
        ),
    ] = True
    """One gather feeds q, k, v (and gate, up). False is a tensor-parallel plan without a shared input module."""
    loss_parallel: Annotated[
        bool,
        WordSpec(
            "Cross-entropy on vocabulary-parallel logits; without it, on gathered ones.",
            property="the loss works on logits that are partitioned over tp",
            off="gather_logits",
        ),
    ] = True
    strategy: Annotated[
        str,
        WordSpec(
            "Your own sharding rules, by region of the model: a file (YAML), or their JSON.",
            property="a sharding strategy of the user's, as JSON; empty: none",
            metavar="FILE|JSON",
        ),
    ] = ""
    """The text of `stagedb.plans.strategy_files`."""


@aspect
class ShardingOptions:
    """What the ranks of dp shard, and when they exchange it."""

    zero: Annotated[
        int,
        WordSpec(
            "Sharded over dp: nothing, the optimizer's state, gradients too, parameters too.",
            property="what dp shards: nothing (0), optimizer state (1), gradients and stored parameters too (2), "
            "parameters in use too (3)",
            noun="ZeRO stage",
            choices=(0, 1, 2, 3),
        ),
    ] = 0
    """Each stage shards all that the previous one shards (Rajbhandari et al. 2020). In torch 2 and 3 are FSDP2."""
    reshard: Annotated[
        bool | None,
        WordSpec(
            f"With {Word('zero', 3)}, free gathered parameters after the forward.",
            property="whether gathered parameters are freed after the forward; absent: yes",
            needs="gradients",
            unset="reshard",
        ),
    ] = None
    """The backward gathers them again. Without it they stay gathered until the end of the backward, as with zero 2."""
    reshard_to: Annotated[
        int | None,
        WordSpec(
            f"With {Word('zero', 3)}, N neighbouring ranks keep all parameters from the forward to the backward.",
            property="neighbouring ranks that keep all parameters from the forward to the backward; absent: all ranks "
            "that shard them",
            unit="ranks",
            least=2,
            needs="gradients",
            unset="all that shard them",
        ),
    ] = None
    """The backward gathers among them only, from parts that are larger than those between steps. The
    `reshard_after_forward=N` of `fully_shard`; ZeRO++'s secondary partition (Wang et al. 2023, section 3.2).
    """
    fsdp_version: Annotated[
        int,
        WordSpec(
            f"FSDP of {Word('zero', 2)} and 3: FullyShardedDataParallel (1), which frees units late, or fully_shard.",
            property="version of PyTorch's FSDP: FullyShardedDataParallel (1) or fully_shard (2)",
            noun="version of FSDP",
            choices=(1, 2),
            needs="gradients",
        ),
    ] = 2
    """Version 1 frees the parameters of up to two units late: `stagedb.memory.resident_state`."""
    grad_sync: Annotated[
        bool | None,
        WordSpec(
            "Reduce gradients over dp after each micro-batch, or after the last.",
            property="whether each micro-batch reduces gradients; absent: the recipe's default",
            needs="gradients",
            unset="the framework's default",
        ),
    ] = None
