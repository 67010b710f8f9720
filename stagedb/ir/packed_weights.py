"""Weights that serving stores in 4 bits: how many numbers share a scale, and the bytes of a weight with all of that.

Kernels for them (Marlin and others) read a weight so and multiply in the format of activations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stagedb.ir.expressions import Expression

BITS = 4
"""Bits of a number."""


@dataclass(frozen=True)
class PackedFormat:
    """A format of weights in which groups of numbers along the inputs of a matrix share a scale.

    name: its dtype class, and the value of the word `weight_dtype`. group: numbers of a group. shared_bits: of a
    group's scale and zero point. matrix_bytes: of the scale of a whole matrix. together: rows of outputs whose numbers,
    or zero points, are in one integer. experts_alone: only the matrices of routed experts are stored so.
    """

    name: str
    group: int
    shared_bits: int
    matrix_bytes: int = 0
    together: int = 1
    experts_alone: bool = False

    def bytes(self, numbers: Expression, matrices: Expression) -> Expression:
        """The bytes of a weight of whole groups. numbers: its elements. matrices: how many it has, one an expert."""
        return numbers * self._group_bits / (8 * self.group) + self.matrix_bytes * matrices

    def spared(self, numbers: int, matrices: int) -> int:
        """The bytes that a weight of whole groups has less than one in 16 bits. numbers, matrices: as in `bytes`."""
        return 2 * numbers - numbers * self._group_bits // (8 * self.group) - self.matrix_bytes * matrices

    @property
    def _group_bits(self) -> int:
        return BITS * self.group + self.shared_bits


PACKED: Mapping[str, PackedFormat] = {
    each.name: each
    for each in (
        # AWQ, and GPTQ without its kernel for symmetric groups: scales in 16 bits, zero points in 4, and eight numbers
        # of 4 bits in an int32 (`qweight`, `qzeros`, `scales` of AutoAWQ and AutoGPTQ).
        PackedFormat("int4", 128, 16 + BITS, together=8),
        # GPTQ with symmetric groups, as Marlin keeps them: without zero points.
        PackedFormat("int4_symmetric", 128, 16, together=8),
        # OCP Microscaling Formats 1.0, section 5.3: e2m1, a scale in e8m0 a block of 32. gpt-oss has its experts so.
        PackedFormat("mxfp4", 32, 8, experts_alone=True),
        # NVIDIA ModelOpt's NVFP4: e2m1, a scale in e4m3 a block of 16, one in fp32 a matrix.
        PackedFormat("nvfp4", 16, 8, matrix_bytes=4),
    )
}
"""The formats by name."""
