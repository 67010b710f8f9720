"""Steps of a file of published times, predicted one by one, without a store."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stagedb.build.graph_identity import model_sizes
from stagedb.build.model_graph import build_graph
from stagedb.errors import StagedbError
from stagedb.models import Card
from stagedb.plans import GraphOptions, Plan, plan_for
from stagedb.timing import timed_step
from stagedb.validation.step_rows import StepJob, StepRow, job_of
from stagedb.workload.copied_instances import GraphInMemory, copy_in_memory


@dataclass(frozen=True)
class Prediction:
    """A row and our time for it [s]; or `reason`, why no plan can express it.

    job: what the row means, if it means something.
    """

    row: StepRow
    job: StepJob | None = None
    seconds: float | None = None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """The error of our time, as a share of the published one. Above 0 ours is longer."""
        return None if self.seconds is None else self.seconds / self.row.seconds - 1


@dataclass(frozen=True)
class ErrorsOf:
    """The absolute errors of some rows: their mean and the worst."""

    rows: int
    mean: float
    worst: float


@dataclass
class _Graphs:
    """The graph of the latest card and options, which rows next to each other often share."""

    key: tuple[Card, GraphOptions] | None = None
    made: list[GraphInMemory] = field(default_factory=list)

    def of(self, card: Card, options: GraphOptions) -> GraphInMemory:
        if self.key != (card, options):
            self.key, self.made = (card, options), [GraphInMemory.of(build_graph(card, options))]
        return self.made[0]


def predict(
    rows: Sequence[StepRow], progress: Callable[[int, int], None] = lambda done, of: None
) -> Iterator[Prediction]:
    """Predict rows one after another. A row that cannot be expressed has the reason in place of a time."""
    graphs = _Graphs()
    for done, row in enumerate(rows):
        progress(done, len(rows))
        job = None
        try:
            row.seconds  # noqa: B018 - a row without a time is refused as such
            job = job_of(row)
            yield Prediction(row, job, _seconds(job, graphs))
        except StagedbError as error:
            yield Prediction(row, job, reason=" ".join(str(error).split()))
    progress(len(rows), len(rows))


def _seconds(job: StepJob, graphs: _Graphs) -> float:
    plan = plan_of(job)
    copied = copy_in_memory(graphs.of(job.card, plan.options), plan)
    blocking = job.profile.hides(job.row.cells.get("kernels", "")).blocking
    _, found = timed_step(copied.workload, job.system, None, blocking)
    return found.step / 1e9


def plan_of(job: StepJob) -> Plan:
    """The plan of a row. Where chunks cannot share the layers evenly, they differ as its framework has it."""
    words = dict(job.words)
    sizes = model_sizes(job.card, GraphOptions(recipe=job.profile.recipe).framework)
    try:
        return plan_for(words, sizes)
    except StagedbError as error:
        if (words.get("virtual_stages") or 1) < 2 or not job.profile.counts_ends or "virtual stages" not in str(error):
            raise
    return plan_for({**words, "counted_ends": "both"}, sizes)


def errors_of(found: Iterable[Prediction]) -> ErrorsOf | None:
    """The errors of the rows that have a time; None if none has."""
    off = [abs(each.error) for each in found if each.error is not None]
    return ErrorsOf(len(off), statistics.fmean(off), max(off)) if off else None
