"""How a pipeline splits layers into stages, orders their tasks, and sends messages between them."""

from typing import Annotated, Literal

from stagedb.plans.aspects.word import WordSpec, aspect
from stagedb.schedules import DEFAULT, EXPLICIT, PLACEMENTS, SCHEDULES

_SCHEDULES = "; ".join(f"{name}, {schedule.help}" for name, schedule in SCHEDULES.items())


@aspect
class Pipeline:
    """The stages of a pipeline and the order of their tasks."""

    schedule: Annotated[
        str,
        WordSpec(
            f"Order of micro-batches on the stages: {_SCHEDULES}; or a file with the order of each stage: YAML, JSON, "
            "or torch's CSV.",
            property=f"pipeline schedule: {', '.join(SCHEDULES)} or {EXPLICIT}",
            metavar="|".join((*SCHEDULES, "FILE")),
        ),
    ] = DEFAULT.name
    virtual_stages: Annotated[
        int,
        WordSpec(
            "Chunks of layers on each stage; 1f1b is then interleaved.",
            property="chunks of layers that a stage holds",
            least=1,
        ),
    ] = 1
    """With more than one chunk, 1f1b is interleaved 1F1B."""
    chunk_placement: Annotated[
        str | None,
        WordSpec(
            "Stages of the chunks in the order of a forward: in loops over the stages, up and down them (v), or the "
            "stage of each chunk, such as 0,1,1,0.",
            property="chunks in loops over the stages, up and down them (v), or the stage of each",
            unset="as the schedule has them",
            metavar="|".join((*PLACEMENTS, "N,N,…")),
            numbers=True,
        ),
    ] = None
    """Consecutive chunks on one stage hand over without a message."""
    task_order: Annotated[
        tuple[str, ...],
        WordSpec(
            "With schedule explicit: the tasks of each stage in order, as text (F0 F1 B0 B1).",
            property="schedule explicit: the tasks of each stage in order",
            # The command line takes the name of a file instead, as --schedule.
            command_line=False,
        ),
    ] = ()
    layers_per_stage: Annotated[
        tuple[int, ...] | None,
        WordSpec(
            "Layers of each stage.",
            property="layers of each pipeline stage",
            unset="evenly, the remainder to the early stages",
            filled=True,
        ),
    ] = None
    layers_per_chunk: Annotated[
        tuple[int, ...] | None,
        WordSpec(
            "Layers of each chunk in the order of a forward; 0 for a first chunk with only the embedding, or a last "
            "one with only the head; or Megatron-Core's text for them, such as Et|(tt|)*30mL.",
            property="layers of each chunk in the order of a forward, where the chunks of a stage differ",
            layout=True,
            unset="a stage's layers evenly",
        ),
    ] = None
    """Chunks have numbers in the pipeline; the placement maps them to stages."""
    counted_ends: Annotated[
        Literal["none", "embedding", "loss", "both"],
        WordSpec(
            "Ends of the model that count as one layer each in an even split: its stages and chunks have so much less.",
            property="ends that count as layers in an even split; an instance has the split itself",
        ),
    ] = "none"
    """Megatron's `account_for_embedding_in_pipeline_split` and `account_for_loss_in_pipeline_split`."""


@aspect
class PipelineOptions:
    """The word on how messages between stages are sent."""

    scatter_gather: Annotated[
        bool,
        WordSpec(
            "Ranks of tp with the same tensor each send a part of it to the next stage, which gathers it; without it "
            "each sends the whole.",
            property="ranks of tp each send their part to the next stage",
        ),
    ] = False
    """The next stage gathers the parts over tp (Narayanan et al. 2021, section 4.1)."""
