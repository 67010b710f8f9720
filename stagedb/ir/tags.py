"""Tags: what an operator is to those who choose among operators, whatever its name.

The author of a forward sets tags where an operator is written (`Tracer.enter`), or an operator has them in all its uses
(`Operator.tags`). They serve building alone and are not stored.
"""

from enum import StrEnum


class Tag(StrEnum):
    """What an operator is. Its gradients, and what redistributes its results, have the same tags."""

    ATTENTION_CORE = "attention core"  # scores, softmax and context, which `--recompute core` runs again
    SAVED = "saved"  # matmuls, attention and messages of rings, whose results `--recompute pointwise` keeps
    EXPERT = "expert"  # runs where experts are; what they were sent serves all operators there
