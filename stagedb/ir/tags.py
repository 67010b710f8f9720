"""Tags: roles of operators for code that chooses among operators, independent of their names.

The author of a forward sets tags where an operator is written (`Tracer.enter`), or an operator has them in all its uses
(`Operator.tags`). Only building uses them; they are not stored.
"""

from enum import StrEnum


class Tag(StrEnum):
    """A role of an operator. Its gradients, and redistributions of its results, have the same tags."""

    ATTENTION_CORE = "attention core"  # scores, softmax and context, which `--recompute core` runs again
    SAVED = "saved"  # matmuls, attention and messages of rings, whose results `--recompute pointwise` keeps
    EXPERT = "expert"  # runs on the ranks of experts; tokens sent there serve all operators with this tag
