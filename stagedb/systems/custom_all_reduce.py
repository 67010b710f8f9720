"""All-reduces of serving engines: kernels in which ranks read the buffers of each other, for the small messages of a
decode. vLLM has them in csrc/custom_all_reduce.cuh; SGLang's and TensorRT-LLM's have the same two forms.
"""

from dataclasses import dataclass
from fractions import Fraction

MOST_BYTES = 1 << 40
"""A limit is at most this."""


@dataclass(frozen=True)
class CustomAllReduce:
    """What these kernels take in a dimension of the network, whose accelerators read each other's memory.

    In one shot each rank reads the whole buffers of all others. In two, it reads its part of them, all ranks wait for
    each other, and it reads the sums of the other parts.

    one_shot, two_shot: ns of a kernel without bytes, the waiting of ranks for each other in it. share: of the
    dimension's bandwidth, with which a rank reads. limit: bytes; smaller messages are sent so. ranks: sizes of the
    groups that have such kernels, ascending.
    """

    one_shot: Fraction
    two_shot: Fraction
    share: Fraction
    limit: int
    ranks: tuple[int, ...]

    def runs(self, members: int, size: int) -> bool:
        """Whether there is a kernel for a message of `size` bytes in a group of `members` ranks."""
        return members in self.ranks and 0 < size < self.limit

    def time(self, members: int, size: int, pace: Fraction) -> tuple[Fraction, str, Fraction]:
        """ns of the faster kernel, its name, and the bytes that a rank reads from others.

        Others read as many from it. members: ranks of the group. size: bytes of the message. pace: ns a byte at the
        bandwidth between the ranks.
        """
        once, twice = Fraction((members - 1) * size), Fraction(2 * (members - 1) * size, members)
        shots = ((self.one_shot, "one-shot", once), (self.two_shot, "two-shot", twice))
        return min((start + read * pace / self.share, name, read) for start, name, read in shots)
