"""The places of the stages' chunks in the pipeline."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ChunkPlacement:
    """Chunks have numbers in the pipeline, from 0, in the order of a forward. This maps stages to numbers and back.

    position: the number for (stage, chunk, stages). located: the stage and its chunk for (number, stages).
    """

    position: Callable[[int, int, int], int]
    located: Callable[[int, int], tuple[int, int]]

    def stage(self, number: int, stages: int) -> int:
        """The stage that has a number."""
        return self.located(number, stages)[0]

    def hops(self, number: int, stages: int) -> tuple[int, int]:
        """How many stages away the previous and the next number are, for a number that has both."""
        own = self.stage(number, stages)
        return self.stage(number - 1, stages) - own, self.stage(number + 1, stages) - own

    def chunks_of(self, stage: int, stages: int, chunks: int) -> tuple[int, ...]:
        """The numbers of a stage's chunks, in the order of its chunks."""
        return tuple(self.position(stage, chunk, stages) for chunk in range(chunks))


def _loop_located(number: int, stages: int) -> tuple[int, int]:
    chunk, stage = divmod(number, stages)
    return stage, chunk


LOOP = ChunkPlacement(lambda stage, chunk, stages: chunk * stages + stage, _loop_located)
"""Chunk c of stage i has the number c * stages + i: a message from the last stage goes round to the first."""
