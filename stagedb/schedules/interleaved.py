"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2), with Megatron's count of warm-up forwards.

In pairs it is the order of Megatron-Core's combined 1F1B (`overlap_moe_expert_parallel_comm`): one more forward warms
up (`get_pp_rank_microbatches`), so that no backward needs the forward that it runs together with.
"""

from stagedb.schedules.schedule import Schedule, Task
from stagedb.workflows import TaskKind
from stagedb.workflows.training import BACKWARD_TASK, FORWARD_TASK, STEP_TASK


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage: groups of `stages` micro-batches run through one chunk, then the next.

    stage, stages: the index of the stage, and how many there are. microbatches: of a step, a multiple of `stages`.
    chunks: on each stage.
    """
    return _order(stage, stages, microbatches, chunks, paired=False)


def paired_order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """Interleaved 1F1B with one more forward of warm-up, after which each forward runs together with a backward.

    The parameters are those of `breadth_first.order`.
    """
    return _order(stage, stages, microbatches, chunks, paired=True)


def _order(stage: int, stages: int, microbatches: int, chunks: int, paired: bool) -> tuple[Task, ...]:
    total = microbatches * chunks
    warm_up = min(_warm_up_forwards(stage, stages, chunks) + paired, total)

    def at(kind: TaskKind, index: int, joined: bool = False) -> Task:
        group, rest = divmod(index, stages * chunks)
        chunk, inside = divmod(rest, stages)
        return Task(kind, group * stages + inside, chunk if kind.upward else chunks - 1 - chunk, joined)

    found = [at(FORWARD_TASK, index) for index in range(warm_up)]
    for index in range(total):
        steady = warm_up + index < total
        if steady:
            found.append(at(FORWARD_TASK, warm_up + index))
        found.append(at(BACKWARD_TASK, index, joined=paired and steady))
    return (*found, Task(STEP_TASK))


def _warm_up_forwards(stage: int, stages: int, chunks: int) -> int:
    """The forwards that Megatron runs on a stage before the forward of its first backward."""
    return 2 * (stages - stage - 1) + (chunks - 1) * stages


INTERLEAVED = Schedule(
    "interleaved",
    "1F1B over several chunks of layers a stage",
    order,
    several_chunks=True,
    paired=paired_order,
    one_stage="virtual_stages {chunks} with pp 1 interleaves nothing",
    groups=(
        "interleaved 1F1B runs micro-batches in groups of pp {stages}, which do not divide the plan's {microbatches}"
    ),
)
