"""Attentions of a few queries over a cache, as in a step of decode: kernels that divide the keys among their blocks."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class DecodeAttention:
    """What such a kernel takes on an accelerator, whichever engine has it.

    start: ns without keys, the launch and the sum over blocks in it. read_share: of the memory's bandwidth, with which
    keys are read. compute_share: of the peak, for many heads of queries over one head of keys, as in latent attention.
    """

    start: Fraction
    read_share: Fraction
    compute_share: Fraction

    def time(self, reading: Fraction, computing: Fraction) -> tuple[Fraction, str]:
        """ns of a kernel, and the rule that bounds it. reading, computing: ns at the accelerator's peaks."""
        read, computed = reading / self.read_share, computing / self.compute_share
        return self.start + max(read, computed), "roofline:memory" if read > computed else "roofline:compute"
