"""The optimizer, and how it sees matrices that ranks of tp partition."""

from typing import Annotated, Literal

from stagedb.plans.aspects.word import WordSpec, aspect


@aspect
class OptimizerOptions:
    """Words that choose the optimizer and where it runs."""

    optimizer: Annotated[
        Literal["adamw", "adamw-8bit", "adamw-8bit-ao", "adafactor", "muon", "dist-muon", "sgd", "sgd-momentum"],
        WordSpec(
            "What updates the weights. Muon updates the matrices of layers, and AdamW the rest, dist-muon with each "
            "weight on one rank of dp; adamw-8bit is that of bitsandbytes, adamw-8bit-ao that of torchao.",
            property="optimizer: adamw, adamw-8bit (bitsandbytes), adamw-8bit-ao (torchao), adafactor, muon, dist-muon "
            "(each weight on one rank of dp), sgd or sgd-momentum",
            needs="optimizer",
        ),
    ] = "adamw"
    """Muon (Jordan et al. 2024; `torch.optim.Muon`, Megatron-LM's `TensorParallelMuon`) has one state a weight, and
    makes an orthogonal matrix of it by matmuls. dist-muon is Megatron-Core's `LayerWiseDistributedOptimizer`: each rank
    of dp updates whole weights of its own by Muon or AdamW, and all gather the updated weights. SGD has no state, or
    with momentum one. Adafactor (Shazeer and Stern 2018; `torch.optim.Adafactor`) has the means of rows and columns of
    a matrix. AdamW in 8 bits (Dettmers et al. 2022; `bitsandbytes.optim.AdamW8bit`, `torchao.optim.AdamW8bit`) has a
    byte a number and a scale for each block of 256."""
    muon_tp: Annotated[
        Literal["usual", "blockwise", "duplicated"],
        WordSpec(
            "Matrices that tp partitions in Muon: each rank's part alone, or gathered, so that each has the whole.",
            property="matrices that tp partitions in Muon: blockwise, duplicated, or usual (the framework's)",
            needs="optimizer",
            unset="megatron: blockwise",
        ),
    ] = "usual"
    """Megatron-LM's `muon_tp_mode`."""
    offload: Annotated[
        Literal["none", "optimizer", "activations"],
        WordSpec(
            "What a rank keeps in its host's memory: the optimizer's states, which the host's processor updates, or "
            "the inputs of layers that recompute.",
            property="what is in the host's memory: none, optimizer (its states) or activations (inputs of layers)",
            needs="optimizer",
        ),
    ] = "none"
    """Megatron-Core's `HybridDeviceOptimizer` with all parameters (`optimizer_cpu_offload`, and 1 as the
    `optimizer_offload_fraction`): gradients go to the host, its processor updates master weights and moments, and the
    weights come back, one after the other. Activations: with full recomputation, PyTorch's `offload_wrapper` around
    `checkpoint_wrapper`."""
