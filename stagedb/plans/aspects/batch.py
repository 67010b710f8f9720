"""The number of sequences in a step, their length, and how many a rank runs at once."""

from typing import Annotated

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect


@aspect
class Batch:
    """Words on the sequences, or requests, of a step: how many, and how long."""

    micro_batch_size: Annotated[
        int,
        WordSpec(
            "Sequences of one micro-batch on a data-parallel rank.",
            property="sequences of one micro-batch on one rank of dp",
            unit="sequences",
            least=1,
        ),
    ] = 1
    global_batch_size: Annotated[
        int | None,
        WordSpec(
            "Sequences of one step.",
            property="sequences of a step",
            unit="sequences",
            unset="one micro-batch a data-parallel rank",
            filled=True,
        ),
    ] = None
    seq_len: Annotated[
        int,
        WordSpec(
            "Tokens of a sequence.",
            property="length of a sequence",
            unit="tokens",
            unset="the length that the model was trained with",
            least=1,
            symbol="S",
        ),
    ] = 2048
    cache_len: Annotated[
        int,
        WordSpec(
            "Tokens of each request that its cache has before a step of serving.",
            property="tokens of each request in its cache before the step",
            unit="tokens",
            least=0,
            needs="cache",
        ),
    ] = 0
    requests: Annotated[
        tuple[str, ...],
        WordSpec(
            "The requests of a micro-batch on a data-parallel rank: REQUESTSxNEW+CACHED/SHARED,…, with their new "
            "tokens, those in the cache of each, and of these a prefix that is kept once, sums, an iteration of vLLM, "
            "SGLang or ATOM, or a CSV, YAML or JSON file.",
            property="the requests of a micro-batch on one rank of dp by length, or their sums; empty: all alike",
            unset=f"{Word('micro_batch_size')} of one length",
            metavar="LIST|FILE",
            file=True,
            needs="cache",
        ),
    ] = ()
    acceptance: Annotated[
        float | None,
        WordSpec(
            "The probability that the model accepts a token of a draft, if it accepted those before.",
            property="probability that a token of a draft is accepted if those before it are",
            unit="ratio",
            metavar="P",
            needs="draft",
        ),
    ] = None
    """It is of the model, the draft and the text, and gives the tokens that a step adds: 1 + P + P^2 + …, one more than
    a draft has."""
