"""Where the chunks of the stages are in the pipeline."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ChunkPlacement:
    """The numbers that chunks have in the pipeline, from 0, in the order of a forward.

    position: of (stage, chunk, stages) the number. located: of (number, stages) the stage and its chunk.
    """

    position: Callable[[int, int, int], int]
    located: Callable[[int, int], tuple[int, int]]

    def stage(self, number: int, stages: int) -> int:
        """The stage of a number."""
        return self.located(number, stages)[0]

    def hops(self, number: int, stages: int) -> tuple[int, int]:
        """How many stages away the number before and the number after are, for a number that has both."""
        own = self.stage(number, stages)
        return self.stage(number - 1, stages) - own, self.stage(number + 1, stages) - own

    def chunks_of(self, stage: int, stages: int, chunks: int) -> tuple[int, ...]:
        """The numbers of a stage's chunks, by chunk."""
        return tuple(self.position(stage, chunk, stages) for chunk in range(chunks))


def _loop_located(number: int, stages: int) -> tuple[int, int]:
    chunk, stage = divmod(number, stages)
    return stage, chunk


LOOP = ChunkPlacement(lambda stage, chunk, stages: chunk * stages + stage, _loop_located)
"""Chunk c of stage i is number c * stages + i: from the last stage a message goes round to the first."""
