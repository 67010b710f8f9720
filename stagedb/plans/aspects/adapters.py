"""Which weights a step trains: all, some, or adapters of frozen ones."""

from typing import Annotated

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect


@aspect
class Adapters:
    """Words on low-rank adapters that do not change the graph: their rank."""

    lora_rank: Annotated[
        int,
        WordSpec(
            f"Rank of the adapters that {Word('lora')} names.",
            property="rank of low-rank adapters",
            least=1,
            needs="optimizer",
            symbol="lora",
        ),
    ] = 16


@aspect
class TrainedOptions:
    """Words that choose which weights are trained."""

    lora: Annotated[
        tuple[str, ...],
        WordSpec(
            "Linear layers with low-rank adapters (LoRA), such as q_proj,v_proj or all. Nothing else is trained.",
            property="linear layers of a layer with low-rank adapters, the only weights that are trained; empty: none",
            needs="optimizer",
            metavar="NAME,…",
        ),
    ] = ()
    """Names inside the layer (`attn.wq`; `attn` is all of attention), transformers' names of a Llama's, or `all`:
    every linear layer but routers and routed experts (Hu et al. 2021)."""
    frozen: Annotated[
        tuple[str, ...],
        WordSpec(
            "Parts that are not trained: embedding, head, or operators of a layer, such as ffn.router.",
            property="parts whose weights are not trained; empty: none",
            needs="optimizer",
            metavar="NAME,…",
        ),
    ] = ()
    """They have no gradient and no optimizer state, and where nothing before a layer is trained, its input has no
    gradient either."""
