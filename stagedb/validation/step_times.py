"""Published times of training steps, predicted: `step_times.yaml` in this folder.

A row is a normal workload: card, plan, program, profile on a system. Nothing is special to the row.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import yaml

from stagedb.errors import StagedbError, UsageError
from stagedb.files import GB
from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.graphs.graph_identity import model_sizes
from stagedb.lowering.columns import Program
from stagedb.lowering.program import program_of
from stagedb.memory import memory_of, peak_of
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions, Plan, plan_for, uneven_chunks
from stagedb.systems import System, load_system
from stagedb.timing import profile_job
from stagedb.timing.expected_errors import ExpectedError, expected_error
from stagedb.timing.host_waits import host_notes
from stagedb.timing.network_position import placed, remarks
from stagedb.timing.step_profile import step_and_waits
from stagedb.validation.rank_counts import ProgramOf, lowered
from stagedb.validation.step_rows import StepJob, StepRow, dispatch_words, job_of


@dataclass(frozen=True)
class PublishedStep:
    """A row: its source, the model and plan, and the time of its step [s].

    blocking: mesh axes whose communication its framework waits for. calibrated: whether the system's curves were fitted
    to it. within: the allowed error, as a share of its time.
    """

    source: str
    system: str
    card: Card
    words: Mapping[str, Any]
    blocking: tuple[str, ...]
    seconds: float
    calibrated: bool
    within: float

    @property
    def title(self) -> str:
        """The model, and the words that distinguish its plan."""
        names = {"virtual_stages": "v", "micro_batch_size": "micro-batch", "global_batch_size": "batch"}
        degrees = [
            f"{names.get(word, word)} {self.words[word]}"
            for word in ("tp", "cp", "pp", "virtual_stages", "dp", "micro_batch_size", "global_batch_size")
            if self.words.get(word, 1) > 1
        ]
        sp = ["sp"] if self.words.get("sp") else []
        recompute = [f"recompute {self.words['recompute']}"] if "recompute" in self.words else []
        return " ".join([self.card.name, *degrees, *sp, *recompute])


@dataclass(frozen=True)
class StepTime:
    """A published step and our time for it. seconds: our time."""

    published: PublishedStep
    seconds: float

    @property
    def error(self) -> float:
        """The error of our time, as a share of the printed one. Above 0 ours is longer."""
        return self.seconds / self.published.seconds - 1

    @property
    def agrees(self) -> bool:
        """Whether the error is within its table's bound."""
        return abs(self.error) <= self.published.within


@dataclass(frozen=True)
class Errors:
    """The errors of the rows of one table: the mean and the worst of their absolute values, and the number of rows."""

    source: str
    calibrated: bool
    rows: int
    mean: float
    worst: float


def published_steps() -> tuple[PublishedStep, ...]:
    """The published steps of `step_times.yaml`, table after table."""
    text = resources.files(__package__).joinpath("step_times.yaml").read_text(encoding="utf-8")
    return tuple(_row(table, row) for table in yaml.safe_load(text) for row in table["rows"])


def _row(table: Mapping[str, Any], row: Mapping[str, Any]) -> PublishedStep:
    card = load_card(row["model"])
    words = {**table["plan"], **row["plan"]}
    return PublishedStep(
        source=table["source"],
        system=table["system"],
        card=dataclasses.replace(card, **table.get("sizes", {})),
        words=words,
        blocking=tuple(table["blocking"]),
        seconds=row["seconds"] if "seconds" in row else _seconds(card, words, table["formula"], row["teraflops"]),
        calibrated=row.get("calibrated", False),
        within=table["within"],
    )


def _seconds(card: Card, words: Mapping[str, Any], formula: str, teraflops: float) -> float:
    """The time of a step. formula: of `FORMULAS`, for the FLOPs. teraflops: TFLOP/s of a GPU."""
    s = words["seq_len"]
    flops = words["global_batch_size"] * s * FORMULAS[formula](card, s)
    return float(flops / (Plan.from_mapping(words).world * teraflops * 1e12))


FORMULAS: Mapping[str, Callable[[Card, int], float]] = {
    "recomputed": lambda card, s: (
        96 * card.layers * card.hidden**2 * (1 + s / (6 * card.hidden) + card.vocab / (16 * card.layers * card.hidden))
    ),
    "model": lambda card, s: 6 * card.count_parameters() + 12 * card.layers * card.heads * card.head_dim * s,
}
"""FLOPs of a token in a sequence of length s: with recomputed layers by equation 3 of arXiv 2104.04473; without by the
formula of MFU in arXiv 2204.02311, appendix B, whose attention is not masked."""


def check_steps(
    rows: Sequence[PublishedStep],
    program_of: ProgramOf = lowered,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Iterator[StepTime]:
    """Predict rows one after another.

    progress: called with the rows that are done, and all.
    """
    for done, row in enumerate(rows):
        progress(done, len(rows))
        made = program_of(row.card, row.words).workload
        yield StepTime(row, profile_job(made, load_system(row.system), blocking=row.blocking).step / 1e9)
    progress(len(rows), len(rows))


def errors(found: Iterable[StepTime]) -> list[Errors]:
    """The errors by table, with rows that the system was fitted to counted separately.

    found: the predicted step of each published row.
    """
    tables: dict[tuple[str, bool], list[float]] = {}
    for each in found:
        tables.setdefault((each.published.source, each.published.calibrated), []).append(abs(each.error))
    return [
        Errors(source, calibrated, len(off), statistics.fmean(off), max(off))
        for (source, calibrated), off in tables.items()
    ]


# Steps of a file of published times, predicted one by one, without a store.


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
    step, waited = step_and_waits(copied.workload, system, blocking)
    notes = (
        *remarks(placements, copied.workload, system),
        *host_notes(waited, step, copied.workload.plan),
        *_memory(copied, system),
    )
    return step / 1e9, notes


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
