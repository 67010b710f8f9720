"""The places of the stages' chunks in the pipeline: in loops, up and down, or as a map from number to stage."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word


@dataclass(frozen=True)
class ChunkRoute:
    """The way of a message from one chunk of the pipeline to the next.

    hop: number of the receiving stage minus that of the sending one. step: the same of their chunks.
    """

    hop: int
    step: int


@dataclass(frozen=True)
class ChunkPlacement:
    """Chunks have numbers in the pipeline, from 0, in the order of a forward. This maps stages to numbers and back.

    position: the number for (stage, chunk, stages). located: the stage and its chunk for (number, stages).
    """

    position: Callable[[int, int, int], int]
    located: Callable[[int, int], tuple[int, int]]

    def stage(self, number: int, stages: int) -> int:
        """The stage that runs a chunk. number: of the chunk in the pipeline. stages: how many the pipeline has."""
        return self.located(number, stages)[0]

    def route(self, number: int, towards: int, stages: int) -> ChunkRoute:
        """The way from a number to the next one (towards 1) or the previous one (-1), which must exist.

        number: of a chunk in the order of a forward. stages: of the pipeline.
        """
        (stage, chunk), (other, its) = self.located(number, stages), self.located(number + towards, stages)
        return ChunkRoute(other - stage, its - chunk)

    def chunks_of(self, stage: int, stages: int, chunks: int) -> tuple[int, ...]:
        """The numbers of a stage's chunks, in the order of its chunks.

        stage: its number. chunks: how many each stage has. stages: how many the pipeline has.
        """
        return tuple(self.position(stage, chunk, stages) for chunk in range(chunks))


def _loop_located(number: int, stages: int) -> tuple[int, int]:
    chunk, stage = divmod(number, stages)
    return stage, chunk


LOOP = ChunkPlacement(lambda stage, chunk, stages: chunk * stages + stage, _loop_located)
"""Chunk c of stage i has the number c * stages + i: a message from the last stage goes round to the first."""


def _turned(place: int, chunk: int, stages: int) -> int:
    return stages - 1 - place if chunk % 2 else place


def _v_located(number: int, stages: int) -> tuple[int, int]:
    chunk, place = divmod(number, stages)
    return _turned(place, chunk, stages), chunk


V = ChunkPlacement(lambda stage, chunk, stages: chunk * stages + _turned(stage, chunk, stages), _v_located)
"""Every second chunk goes back from the last stage to the first: the stage where it turns has two numbers in a row."""

PLACEMENTS = {"loop": LOOP, "v": V}
"""Placements by the names that a plan uses."""


def mapped(of: Sequence[int]) -> ChunkPlacement:
    """The placement that has each number on the stage that `of` gives. A stage counts its chunks in this order."""
    counts: Counter[int] = Counter()
    located: list[tuple[int, int]] = []
    for stage in of:
        located.append((stage, counts[stage]))
        counts[stage] += 1
    numbers = {place: number for number, place in enumerate(located)}
    return ChunkPlacement(
        lambda stage, chunk, stages: numbers[stage, chunk],
        lambda number, stages: located[number],
    )


def stages_of(text: str) -> tuple[int, ...]:
    """The stages of a map as a plan writes it, `0,1,1,0`. text: for each chunk its stage. UsageError if it is none."""
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdecimal() and len(word.strip()) < 8 for word in words):
        raise UsageError(
            f"unknown chunk_placement {shown(text)}: {Word('chunk_placement')} is {' or '.join(PLACEMENTS)}, or the "
            "stage of each chunk in the order of a forward, such as 0,1,1,0"
        )
    return tuple(map(int, words))


def map_text(placement: ChunkPlacement, stages: int, chunks: int) -> str:
    """The placement as a text of a plan, `0,1,1,0`, which `stages_of` reads.

    chunks: how many a stage has. stages: of the pipeline.
    """
    return ",".join(str(placement.stage(number, stages)) for number in range(stages * chunks))
