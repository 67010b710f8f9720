"""Steps of a file of published times, predicted one by one, without a store."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stagedb.errors import StagedbError, UsageError
from stagedb.files import GB
from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.graphs.graph_identity import model_sizes
from stagedb.lowering.program import Program, program_of
from stagedb.memory import memory_of, peak_of
from stagedb.plans import GraphOptions, Plan, plan_for, uneven_chunks
from stagedb.systems import System
from stagedb.timing import step_of
from stagedb.timing.expected_errors import ExpectedError, expected_error
from stagedb.timing.network_position import placed, remarks
from stagedb.validation.dispatched_tokens import dispatch_words
from stagedb.validation.step_rows import StepJob, StepRow, job_of


@dataclass(frozen=True)
class Prediction:
    """The prediction of a row of published steps.

    job: the row's model, plan and system; None if it has none. seconds: our time; None if no plan can express the row,
    for the `reason`. remarks: notes and warnings that a profile of it has.
    """

    row: StepRow
    job: StepJob | None = None
    seconds: float | None = None
    reason: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """The error of our time, as a share of the published one. Above 0 ours is longer."""
        return None if self.seconds is None else self.seconds / self.row.seconds - 1

    @property
    def expected(self) -> ExpectedError | None:
        """The error to expect of a row that means something: that of published steps of its kind."""
        return None if self.job is None else expected_error(self.job.system, bool(self.job.card.routes))


@dataclass(frozen=True)
class ErrorsOf:
    """The absolute errors of some rows: their mean and the worst."""

    rows: int
    mean: float
    worst: float


def predict(
    rows: Sequence[StepRow], progress: Callable[[int, int], None] = lambda done, of: None
) -> Iterator[Prediction]:
    """Predict rows one after another. A row that cannot be expressed has the reason in place of a time.

    progress: called with the rows that are done, and all.
    """
    for done, row in enumerate(rows):
        progress(done, len(rows))
        job = None
        try:
            row.seconds  # noqa: B018 - a row without a time is refused as such
            job = job_of(row)
            seconds, remarks = _predicted(job)
            yield Prediction(row, job, seconds, remarks=remarks)
        except StagedbError as error:
            yield Prediction(row, job, reason=" ".join(str(error).split()))
    progress(len(rows), len(rows))


def _predicted(job: StepJob) -> tuple[float, tuple[str, ...]]:
    """The seconds of a row's step, and what a profile of it would note."""
    plan = plan_of(job)
    copied = program_of(job.card, plan)
    blocking = job.profile.hides(job.row.cells.get("kernels", "")).blocking
    system, placements = placed(copied.workload, job.system)
    step = step_of(copied.workload, system, blocking)
    return step / 1e9, (*remarks(placements, copied.workload, system), *_memory(copied, system))


def _memory(copied: Program, system: System) -> Iterator[str]:
    """A warning where an accelerator does not hold the fullest rank."""
    peak, room = peak_of(memory_of(copied)), system.accelerator.room
    if room is not None and peak > room:
        yield f"warning: the fullest rank holds {peak / GB:,.1f} GB, and an accelerator {room / GB:,.1f} GB of tensors"


def plan_of(job: StepJob) -> Plan:
    """The plan of a row. What its columns leave open is as its framework has it.

    Where chunks cannot share the layers evenly, embedding and loss count as layers, or the chunks in the middle have
    one layer more (Megatron's --account-for-*-in-pipeline-split and --pipeline-model-parallel-layout). Where ep is not
    among the ranks of dp and cp, it takes those of tp (--expert-tensor-parallel-size 1). A file has no words for what
    `_OPEN` names, so that a row is not refused for it.
    """
    words = dict(job.words)
    sizes = model_sizes(job.card, GraphOptions(recipe=job.profile.recipe).framework)
    if job.card.routes and _over_tp(job.profile, words):
        words["expert_tp"] = False
    words |= dispatch_words(job.profile, words, job.system) if job.card.routes else {}
    chunks = (words.get("virtual_stages") or 1) * (words.get("pp") or 1)
    splits: list[dict[str, Any]] = [{}]
    if (words.get("virtual_stages") or 1) > 1 and job.profile.counts_ends:
        splits += [{"counted_ends": "both"}, {"layers_per_chunk": uneven_chunks(sizes["L"], chunks)}]
    for split in splits[:-1]:
        try:
            return _with_open({**words, **split}, sizes)
        except UsageError as error:
            if "virtual stages" not in str(error):
                raise
    return _with_open({**words, **splits[-1]}, sizes)


_NO_COMMON_NORM = "one norm"
"""What a refusal has where gradients have no common norm."""


def _with_open(words: Mapping[str, Any], sizes: Mapping[str, int]) -> Plan:
    """The plan with these words.

    Gradients that have no common norm are not clipped: a file has no word for it, and it is a pass over the shards of a
    rank.
    """
    try:
        return plan_for(dict(words), sizes)
    except UsageError as error:
        if _NO_COMMON_NORM not in str(error):
            raise
    return plan_for({**words, "clip_norm": False}, sizes)


def _over_tp(profile: FrameworkProfile, words: Mapping[str, Any]) -> bool:
    """Whether the ranks of tp are among those with experts: as the framework has it, or since those of dp and cp are
    too few."""
    ep, tp = words.get("ep") or 1, words.get("tp") or 1
    ranks = (words.get("dp") or 1) * (words.get("cp") or 1)
    if profile.whole_experts:
        return bool(words.get("sp")) and tp > 1 and (tp * ranks) % ep == 0
    return profile.counts_ends and tp > 1 and ranks % ep != 0


class WithError(Protocol):
    """A predicted step with its error; None where it has no time."""

    @property
    def error(self) -> float | None: ...


def errors_of(found: Iterable[WithError]) -> ErrorsOf | None:
    """The absolute errors of the predictions that have a time; None if none has.

    found: the predictions, each with the time that is known.
    """
    off = [abs(each.error) for each in found if each.error is not None]
    return ErrorsOf(len(off), statistics.fmean(off), max(off)) if off else None
