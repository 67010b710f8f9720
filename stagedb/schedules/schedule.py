"""What a schedule contains: its order of tasks, and the plans that it suits."""

from collections.abc import Callable
from dataclasses import dataclass

from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.task import Task


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule.

    name: its word in a plan. help: one line. order: the tasks of a stage, by (stage, stages, micro-batches, chunks).
    several_chunks: whether a stage has several chunks (virtual stages) instead of one.
    chunked: the name of the schedule that replaces it when a plan asks for several chunks.
    one_stage: why a plan with one stage is refused, a text with {name} and {chunks}; empty if one stage suits.
    groups: why micro-batches must be a multiple of the stages, a text with {stages} and {microbatches}; empty if
    any number suits.
    alternates: whether, with one stage, the backward of each micro-batch follows its forward at once.
    placement: the places of chunks in the pipeline.
    """

    name: str
    help: str
    order: Callable[[int, int, int, int], tuple[Task, ...]]
    several_chunks: bool = False
    chunked: str | None = None
    one_stage: str = ""
    groups: str = ""
    alternates: bool = False
    placement: ChunkPlacement = LOOP

    def orders(self, stages: int, microbatches: int, chunks: int = 1) -> tuple[tuple[Task, ...], ...]:
        """The order of every stage."""
        return tuple(self.order(stage, stages, microbatches, chunks) for stage in range(stages))
