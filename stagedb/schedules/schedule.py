"""What a schedule contains: its order of tasks, and the plans that it suits."""

from collections.abc import Callable
from dataclasses import dataclass

from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.task import Task


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule.

    name: its word in a plan. help: one line. order: the tasks of a stage, by (stage, stages, micro-batches, chunks).
    several_chunks: whether a stage has several chunks (virtual stages) instead of one. chunks: their number, if the
    schedule suits only one.
    chunked: the name of the schedule that replaces it when a plan asks for several chunks.
    one_stage: why a plan with one stage is refused, a text with {name} and {chunks}; empty if one stage suits.
    groups: why micro-batches must be a multiple of the stages, a text with {stages} and {microbatches}; empty if
    any number suits. fewest: why fewer micro-batches than two a stage are refused, a text with {name}, {least} and
    {stages}; empty if they suit. rounds: the same for micro-batches // stages equal rounds, a text with {rounds} too.
    paired: the order in which forwards and backwards run together in pairs; None if the schedule has none.
    pairs_alone: whether it has pairs on one stage only, because its warm-up is too short for those of a pipeline.
    halves: whether backwards run as two halves.
    alternates: whether, with one stage, the backward of each micro-batch follows its forward at once.
    placement: the places of chunks in the pipeline.
    """

    name: str
    help: str
    order: Callable[[int, int, int, int], tuple[Task, ...]]
    several_chunks: bool = False
    chunks: int | None = None
    chunked: str | None = None
    one_stage: str = ""
    groups: str = ""
    rounds: str = ""
    fewest: str = ""
    halves: bool = False
    alternates: bool = False
    placement: ChunkPlacement = LOOP
    paired: Callable[[int, int, int, int], tuple[Task, ...]] | None = None
    pairs_alone: bool = False

    def misfit(self, stages: int, microbatches: int) -> str:
        """Why this number of micro-batches does not suit; empty if it does.

        A multiple of twice the stages suits every schedule. microbatches: of a step.
        """
        if self.fewest and microbatches < 2 * stages:
            return self.fewest.format(name=self.name, least=2 * stages, stages=stages)
        rounds = max(1, microbatches // stages)
        why = self.groups if microbatches % stages else ""
        why = why or (self.rounds if microbatches % rounds else "")
        return why.format(stages=stages, microbatches=microbatches, rounds=rounds)

    def has_pairs(self, stages: int) -> bool:
        """Whether forwards and backwards can run together in pairs on this number of stages."""
        return self.paired is not None and not (self.pairs_alone and stages > 1)

    def orders(
        self, stages: int, microbatches: int, chunks: int = 1, pairs: bool = False
    ) -> tuple[tuple[Task, ...], ...]:
        """The tasks of every stage, in order.

        chunks: on each stage. pairs: run forwards and backwards together, if it can. microbatches: of a step. stages:
        of the pipeline.
        """
        order = self.paired if pairs and self.paired is not None else self.order
        return tuple(order(stage, stages, microbatches, chunks) for stage in range(stages))
