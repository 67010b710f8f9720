"""What operators and tensors are to their model and its framework, beyond kinds and sizes.

The builder writes them down, and a store has them as properties, so that what reads a graph or an instance asks for
them and takes no name apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ATTENTION, FEED_FORWARD = "attn", "ffn"
"""The parts of a layer."""

DEALT = "dealt_experts"
"""The axis of the experts that a rank deals choices to: all, or those of its place on tp."""

KEYS, KEY_PARTS = "kseq", "key_parts"
"""The axis of the positions of a sequence that have keys, and that of their parts, one on each rank of cp."""

LOSS_TOKENS = "loss_tokens"
"""The axis of a part of a rank's tokens, where a loss is made in parts: batch and sequence are one axis there."""


class InExperts(StrEnum):
    """The place of an operator in the module of a layer's experts."""

    MODULE = "module"  # it is in the module: the exchanges of tokens
    MATMUL = "matmul"  # it is one of their matmuls, or belongs to one
    RETURN = "return"  # it sends back what they have made, in a forward or in one that runs again


class Casts(StrEnum):
    """The operand of a matmul that an operator casts to a narrower format."""

    INPUT = "input"
    WEIGHT = "weight"
    WEIGHT_AGAIN = "weight_again"  # transposed, for the backward
    GRADIENT = "gradient"


@dataclass(frozen=True)
class OpFacts:
    """Facts of an operator that code asks for, so that nothing has to read names of operators.

    origin: the forward operator that it differentiates. part: the part of a layer that it is in. module: the module of
    a layer whose call it is in; norms and sums between modules are in none. depth: of the layer for multi-token
    prediction that it is in, from 1. experts: what it does in a layer's experts. casts: what it casts to a narrower
    format. ring: the operator whose turns around a ring it computes, or whose keys it sends. packed: the format in
    which the weight of a matmul is stored in 4 bits. None: not so.
    """

    origin: str | None = None
    part: str | None = None
    module: str | None = None
    depth: int | None = None
    experts: InExperts | None = None
    casts: Casts | None = None
    ring: str | None = None
    packed: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "OpFacts":
        """The facts of an operator of a store, from its properties; those that are absent or empty are None.

        row: the operator's properties by name.
        """
        return cls(
            origin=row.get("origin") or None,
            part=row.get("part") or None,
            module=row.get("module") or None,
            depth=row.get("depth") or None,
            experts=InExperts(row["experts"]) if row.get("experts") else None,
            casts=Casts(row["casts"]) if row.get("casts") else None,
            ring=row.get("ring") or None,
            packed=row.get("packed") or None,
        )

    @property
    def of_experts(self) -> bool:
        """Whether it is one of the experts' matmuls, or belongs to one."""
        return self.experts in (InExperts.MATMUL, InExperts.RETURN)


@dataclass(frozen=True)
class TensorFacts:
    """Facts of a tensor that code asks for, so that nothing has to read names of tensors.

    depth: of the layer for multi-token prediction that it is in, from 1. experts: whether it is in the module of a
    layer's experts. joined: whether it is the weight of one matmul that makes queries, keys and values. owner: the
    weight whose state of the optimizer it is. word: which state, such as `master`. None: not so.
    """

    depth: int | None = None
    experts: bool = False
    joined: bool = False
    owner: str | None = None
    word: str | None = None


NO_FACTS = OpFacts()
"""Those of an operator that is nothing of all that."""

PLAIN = TensorFacts()
"""Those of a tensor that is nothing of all that."""

# Tags: roles of operators for code that chooses among operators, independent of their names.
#
# The author of a forward sets tags where an operator is written (`Tracer.enter`), or an operator has them in all its
# uses (`Operator.tags`). Only building uses them; they are not stored.


class Tag(StrEnum):
    """A role of an operator. Its gradients, and redistributions of its results, have the same tags."""

    ATTENTION_CORE = "attention core"  # scores, softmax and context, which `--recompute core` runs again
    SAVED = "saved"  # matmuls, attention and messages of rings, whose results `--recompute pointwise` keeps
    EXPERT = "expert"  # runs on the ranks of experts; tokens sent there serve all operators with this tag
