"""The results of the verbs: plain rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from stagedb.files.texts import spans_of
from stagedb.lazy_names import deferred
from stagedb.plans.short_plans import short_plan

if TYPE_CHECKING:
    import pandas as pd

    from stagedb.api import result_parts
    from stagedb.api.memory_rows import RequestRoom
    from stagedb.api.provenance import Provenance
    from stagedb.api.result_parts import RunTimes
    from stagedb.models import SequenceLength
    from stagedb.search import SearchResult
    from stagedb.search.candidates import Ties
    from stagedb.store import Field
    from stagedb.store.answer_parts import FoundGraph, QueryPlan
    from stagedb.systems import Coverage
    from stagedb.timing import JobProfile, Merit
else:
    # Only notebooks show results as HTML.
    (result_parts,) = deferred("stagedb.api.result_parts")


@dataclass(frozen=True)
class Rows:
    """The answer to a query: column names, and one tuple for each row.

    newest: by kind, a description of the instance, profile or run that was taken because none was named. hints: what a
    reader should know of the answer. cut: there are more rows. keep: the columns that hold the answer, the most
    important first. units: by column. graph, plan: nodes and relationships in the rows, and how the store answers, if
    asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    newest: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True, compare=False)
    """If the caller did not name the instance or profile: the newest one, which the query used, by parameter."""
    hints: tuple[str, ...] = dataclasses.field(default=(), kw_only=True, compare=False)
    """Why an answer may be unexpected: words that no store has, or numbers that are not computed yet."""
    cut: bool = dataclasses.field(default=False, kw_only=True, compare=False)
    """Whether there are more rows than the caller wanted."""
    keep: tuple[str, ...] = dataclasses.field(default=(), kw_only=True, compare=False)
    """The columns that hold the answer, the most important first."""
    units: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True, compare=False)
    """Units of columns that have one, as `ns`, `B`, `flop`, `ratio`, by name."""
    graph: FoundGraph | None = dataclasses.field(default=None, kw_only=True, compare=False, repr=False)
    """The nodes and relationships in the rows, if the caller wanted them."""
    plan: QueryPlan | None = dataclasses.field(default=None, kw_only=True, compare=False, repr=False)
    """How the store answers the query, if the caller wanted it, or the text begins with EXPLAIN or PROFILE."""

    def __repr__(self) -> str:
        return f"Rows({len(self.rows):,} of {', '.join(self.columns)})"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a data frame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(self.columns))

    def _repr_html_(self) -> str:
        return result_parts.table(self.columns, self.rows)


@dataclass(frozen=True)
class GraphInfo:
    """A symbolic graph in the store.

    name: the model's. recipe: the framework. options: of the graph (`stagedb.plans.GraphOptions`). sizes: the model's
    symbols. created: UTC. made_by: the user who made it; None if an older stagedb wrote it. tags, notes: those of all
    users. loaded: marks that came with a dump, each with who loaded it and from which file. new: this call wrote it.
    padding: a sentence on rows that the vocabulary has in addition to the published ones, if this call knows of some.
    """

    id: str
    name: str
    recipe: str
    options: Mapping[str, Any]
    sizes: Mapping[str, int]
    created: str
    made_by: str | None = None
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    new: bool = False
    padding: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        return f"graph {self.id[:12]} of {self.name}, recipe {self.recipe}"

    def _repr_html_(self) -> str:
        return result_parts.properties(properties(self), kind_of(self))


@dataclass(frozen=True)
class InstanceInfo:
    """A graph under one plan.

    name: the caller's name of it, else one of the team's or of somebody else (`bob/base`), else the model's. names: all
    its names, as `space/name`. tags, notes: those of all users. loaded: marks that came with a dump, each with who
    loaded it and from which file. graph: the id of its graph. model: the model's name. recipe: the framework. plan: the
    plan's words (`stagedb.plans.Plan.to_dict`). ranks: of the job. classes: the number of rank classes. created: UTC.
    made_by, asked_by: the users who made it, and who last asked for it; None if an older stagedb wrote it. new: this
    call wrote it. usual_length: the sequence length and its reason, if this call named none. padding: a sentence on
    rows that the vocabulary has in addition to the published ones. kept: the store has it; otherwise it was lowered in
    memory alone.
    """

    id: str
    name: str
    graph: str
    model: str
    recipe: str
    plan: Mapping[str, Any]
    ranks: int
    classes: int
    created: str
    made_by: str | None = None
    asked_by: str | None = None
    names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    new: bool = False
    usual_length: SequenceLength | None = dataclasses.field(default=None, compare=False)
    padding: str = dataclasses.field(default="", compare=False)
    kept: bool = dataclasses.field(default=True, compare=False)

    @property
    def called(self) -> str:
        """The instance's own name if it has one, then model and plan in short: `llama3-70b tp8 pp4 dp32`."""
        text = f"{self.model} {short_plan(self.plan)}"
        return text if self.name == self.model else f"{self.name} ({text})"

    def __str__(self) -> str:
        return f"instance {self.id[:12]} {self.called}, {self.ranks:,} ranks in {self.classes:,} classes"

    def _repr_html_(self) -> str:
        return result_parts.properties(properties(self), kind_of(self))


@dataclass(frozen=True)
class Unpacked:
    """A trace set on disk, of a job of `world` ranks. `bytes` counts the trace files.

    `replayed`: whether a replay as in a simulator has checked them. `seconds`: the time of each stage of the work.
    `there`: with `resume`, the set existed already. `mended`: its files that were missing or cut short and have been
    written again. `differences`: known reasons why a simulator's step differs from that of the profile.
    """

    path: Path
    world: int
    files: int
    nodes: int
    bytes: int
    replayed: bool
    seconds: Mapping[str, float]
    there: bool = dataclasses.field(default=False, kw_only=True)
    mended: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    differences: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)


@dataclass(frozen=True)
class Exported(Unpacked):
    """A trace set on disk, and its instance.

    `packed`: bytes of the one file that contains the set, or of its tables; None for a directory of traces. `profile`:
    the profile with the durations of the nodes, if they have any. `following`: the instances that run after it, in a
    window. `receiving`: the instances on further ranks, which go on with its caches.
    """

    instance: InstanceInfo
    packed: int | None = None
    profile: ProfileInfo | None = None
    following: tuple[InstanceInfo, ...] = ()
    receiving: tuple[InstanceInfo, ...] = ()


@dataclass(frozen=True)
class Viewed:
    """A file that shows a step of `step` ns, and its instance. bytes: its size.

    slices, flows: their numbers in a timeline. left_out: what the file lacks, in words. profiles: the profiles in the
    store of the steps that it shows. verdict: how two steps differ, in one sentence.
    """

    path: Path
    bytes: int
    step: int
    instance: InstanceInfo
    slices: int = 0
    flows: int = 0
    left_out: tuple[str, ...] = ()
    profiles: tuple[ProfileInfo, ...] = ()
    verdict: str = ""


@dataclass(frozen=True)
class ViewedSearch:
    """A file with the report of a search. bytes: its size. verdict: what was found, in a few words."""

    path: Path
    bytes: int
    search: SearchInfo
    verdict: str


class Chart(str):
    """The chart of a step of an instance, as text. profile: the profile in the store of the step that it shows."""

    instance: InstanceInfo
    profile: ProfileInfo

    def __new__(cls, text: str, instance: InstanceInfo, profile: ProfileInfo) -> Self:
        found = super().__new__(cls, text)
        found.instance, found.profile = instance, profile
        return found


@dataclass(frozen=True)
class Memory:
    """The memory of one rank of each class of an instance over a step, in bytes.

    peaks: a row for each class, with the peak and its moment. levels: bytes by class, moment and category; moments are
    the start, the end of each phase, and the peak within each. tensors: the tensors held at the peak, largest first.
    room: bytes of an accelerator for tensors; None without a limit. reserve: its other bytes, by what holds them.
    requests: how many requests fit, if that was asked.
    """

    instance: InstanceInfo
    peaks: Rows
    levels: Rows
    tensors: Rows
    room: int | None = None
    """Bytes for tensors of an accelerator of the system that was named, or of the instance's newest profile; None
    without one."""
    reserve: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The accelerator's other bytes, by what holds them."""
    requests: RequestRoom | None = None
    """How many requests fit, if that was asked."""

    @property
    def fits(self) -> bool:
        """Whether the accelerator's memory holds every rank; True without a limit."""
        return self.room is None or all(row["peak"] <= self.room for row in self.peaks)

    def _repr_html_(self) -> str:
        title = f"bytes of a rank of {self.instance.name}, by class"
        return result_parts.table(self.peaks.columns, self.peaks.rows, title)


@dataclass(frozen=True)
class ProfileInfo:
    """A profile in the store: a step of an instance on a system.

    name: the caller's name of it, else one of the team's or of somebody else; None without a name. names: all its
    names, as `space/name`. tags, notes: those of all users. loaded: marks that came with a dump. instance,
    instance_name: id and name of its instance. system: the system's name. scalings: factors on durations, such as
    `collective:tp=0.5`. blocking: mesh axes whose communication a rank waits for. ranks: of the job. step: ns.
    unscaled: ns of the step without the scalings. tokens_per_second: of the job. mfu, hfu: shares of the peak, from 0
    to 1. measured_time: share of the modelled time that was measured. created: UTC. made_by, asked_by: the users who
    made it, and who last asked for it; None if an older stagedb wrote it. memory: bytes that its fullest rank holds;
    None if an older stagedb made it. room: bytes of an accelerator; None without a bound. new: this call wrote it.
    kept: the store has it.
    """

    id: str
    name: str | None
    instance: str
    instance_name: str
    system: str
    scalings: tuple[str, ...]
    blocking: tuple[str, ...]
    ranks: int
    step: int
    unscaled: int
    tokens_per_second: float | None
    mfu: float | None
    hfu: float | None
    measured_time: float
    created: str
    made_by: str | None = None
    asked_by: str | None = None
    names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    memory: int | None = None
    room: int | None = None
    new: bool = False
    kept: bool = True

    def __str__(self) -> str:
        named = "" if self.name is None else f" {self.name}"
        return f"profile {self.id[:12]}{named} of {self.instance_name} on {self.system}, step {self.step / 1e6:,.3f} ms"

    def _repr_html_(self) -> str:
        return result_parts.properties(properties(self), kind_of(self))


@dataclass(frozen=True)
class SearchInfo:
    """A search in the store: what it asked, and what it found.

    model: the model's name. systems: their names. ranks: numbers of ranks that it searched. by: what is best, such as
    `step`. allow: groups of words that varied. top: the number of best plans. room: bytes of an accelerator; None: that
    of each system. condition: on plans; empty for none. framework: what runs the plans; empty for none. words: those
    that all plans have. size: plans whose degrees divide. timed: plans that were timed. covered: whether every plan was
    tried or ruled out, so that the first is the best. step, peak: ns and bytes of the best plan; None if none that fits
    was found. left: a lower bound of the step of plans that were not tried [ns]. seconds: the time of the work. whole,
    shard: for a shard, the id of its search, and its number such as `3/8`. shards: how many shards the search is cut
    into. finished: for a search that was merged from shards, the numbers of those that are finished. created, made_by,
    tags, notes, loaded: as in `GraphInfo`.
    """

    id: str
    model: str
    systems: tuple[str, ...]
    ranks: tuple[int, ...]
    by: str
    allow: tuple[str, ...]
    top: int
    room: int | None
    condition: str
    framework: str
    words: Mapping[str, Any]
    size: int
    timed: int
    covered: bool
    step: int | None
    peak: int | None
    left: int | None
    seconds: float
    created: str
    whole: str | None = None
    shard: str | None = None
    shards: int | None = None
    finished: tuple[int, ...] | None = None
    made_by: str | None = None
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model

    @property
    def extent(self) -> str:
        """How much of its plans it covers, such as `best of 460 plans, not all tried, shards 1, 3 of 4 finished`."""
        plans = f"best of {self.size:,} plans"
        if self.shard is not None:
            return f"{plans}, shard {self.shard} of {(self.whole or '')[:12]}"
        if self.covered:
            return plans
        finished = f", shards {spans_of(self.finished)} of {self.shards} finished" if self.finished else ""
        return f"{plans}, not all tried{finished}"

    def __str__(self) -> str:
        ranks, systems = ", ".join(map(str, self.ranks)), ", ".join(self.systems)
        return f"search {self.id[:12]} over {self.size:,} plans of {self.model} on {ranks} ranks of {systems}"

    def _repr_html_(self) -> str:
        return result_parts.properties(properties(self), kind_of(self))


@dataclass(frozen=True)
class RunInfo:
    """A run in the store: what ranks of a job executed, as a profiler recorded it.

    tool: what recorded it. world: ranks that were imported. job_ranks: ranks of the job. step: ns from its first op to
    the end of its last one; None for a run whose files have no times, which has none of the other times either. steps:
    those that the profiler counted; 0 without. ops: their number. devices: names of the accelerators. busy: ns of
    computing and copying, mean of the ranks. exposed: ns of communication that nothing hides, mean of the ranks.
    unexplained, launching: ns of gaps of the critical path, after and before the launch of the next op. left_out: what
    of the files was not understood. new: this call imported it. known_as: names that it had before this call imported
    it again. name, names, tags, notes, loaded, created, made_by, asked_by: as in `ProfileInfo`.
    """

    id: str
    name: str | None
    tool: str
    world: int
    job_ranks: int
    step: int | None
    steps: int
    ops: int
    devices: tuple[str, ...]
    busy: int | None
    exposed: int | None
    unexplained: int | None
    launching: int | None
    left_out: tuple[str, ...]
    created: str
    made_by: str | None = None
    asked_by: str | None = None
    names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    new: bool = False
    known_as: tuple[str, ...] = ()

    @property
    def extent(self) -> str:
        """What was recorded, such as `2 of 128 ranks, 3 steps, 2,358 ops`."""
        of = "" if self.world == self.job_ranks else f" of {self.job_ranks:,}"
        ranks = f"{self.world:,}{of} rank{'' if self.job_ranks == 1 else 's'}"
        steps = f"{self.steps:,} step{'' if self.steps == 1 else 's'}"
        return ", ".join([ranks, *([steps] if self.steps else []), f"{self.ops:,} ops"])

    @property
    def times(self) -> RunTimes | None:
        """Where the time of the run goes; None if its files have no times."""
        from stagedb.api.result_parts import RunTimes

        values = self.step, self.busy, self.exposed, self.unexplained, self.launching
        known = [each for each in values if each is not None]
        return RunTimes(*known) if len(known) == len(values) else None

    def __str__(self) -> str:
        named = "" if self.name is None else f" {self.name}"
        if self.step is None:
            return f"run {self.id[:12]}{named}: {self.extent}, without times"
        each = f" ({self.step / self.steps / 1e6:,.3f} ms a step)" if self.steps > 1 else ""
        return f"run {self.id[:12]}{named}: {self.extent}, {self.step / 1e6:,.3f} ms{each}"

    def _repr_html_(self) -> str:
        return result_parts.properties(properties(self), kind_of(self))


Thing = GraphInfo | InstanceInfo | ProfileInfo | SearchInfo | RunInfo
"""What a store has, and what an id or a name finds."""


@dataclass(frozen=True)
class PeakMemory:
    """Bytes that a rank of a class holds at the peak of a step: in all, and by category. stages: of the class."""

    rank_class: int
    stages: tuple[int, ...]
    bytes: int
    categories: Mapping[str, int]


@dataclass(frozen=True)
class Profile:
    """A step of an instance on a system, and where its time goes; times in ns.

    info: the profile in the store. merit: step, tokens and FLOPs a second, MFU and HFU. lanes: a row for each lane
    (ranks of a class and stage with the same times): `busy + exposed + bubble + idle` are the step. path: the critical
    path by kind, axis, phase and stage. coverage: how much was measured. job: the step in memory, node by node.
    seconds: the time of each stage of the work. memory: the peak of each rank class, the fullest first.
    room: bytes of an accelerator for tensors; None without a limit. reserve: its other bytes, by what holds them.
    """

    info: ProfileInfo
    instance: InstanceInfo
    lanes: Rows
    path: Rows
    job: JobProfile = dataclasses.field(repr=False)
    seconds: Mapping[str, float]
    memory: tuple[PeakMemory, ...]
    room: int | None
    reserve: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the accelerator's memory holds every rank; True without a limit."""
        return self.room is None or self.memory[0].bytes <= self.room

    @property
    def merit(self) -> Merit:
        """Figures of merit of the step."""
        return self.job.merit

    @property
    def coverage(self) -> Coverage:
        """How many ops of the step, and how much of its time, have a measured duration."""
        return self.job.durations.coverage

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.job.step

    @property
    def gain(self) -> int:
        """The ns by which the scalings shorten the step; negative if they lengthen it."""
        return self.job.gain

    def _repr_html_(self) -> str:
        figures = result_parts.properties(dataclasses.asdict(self.merit), f"{self.instance.name} on {self.info.system}")
        return figures + result_parts.table(self.lanes.columns, self.lanes.rows, "a step of each lane, ns")


@dataclass(frozen=True)
class Advised:
    """Advice on a step of a plan: what bounds it, and which changes make it shorter or make it fit.

    instance: the instance, if the store has it. step: ns. peak: bytes of the fullest rank. room: bytes of an
    accelerator for tensors; None without a limit. reserve: its other bytes, by what holds them. bound: `memory`,
    `compute`, `bubble`, `idle`, or the axis whose communication costs the most; bound_share: its share of the step (of
    the room, for memory). verdict: both in a sentence, with the best change. expected_error: that of the step, and of
    which published steps it is.

    changes: a row for each plan near this one, the best first: those that fit, by their step. what_ifs: the step with
    less of each loss. `command` runs it. refused: by change, why it is no plan. seconds: the time of the work.
    remarks: notes and warnings on the places of ranks.
    """

    instance: InstanceInfo | None
    model: str
    system: str
    plan: Mapping[str, Any]
    ranks: int
    step: int
    peak: int
    room: int | None
    bound: str
    bound_share: float
    verdict: str
    expected_error: str
    changes: Rows
    what_ifs: Rows
    refused: Mapping[str, str]
    seconds: float
    provenance: Provenance
    reserve: Mapping[str, int] = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the accelerator's memory holds the plan that was asked about, unchanged."""
        return self.room is None or self.peak <= self.room


@dataclass(frozen=True)
class ComparedPlan:
    """A given plan next to the best one of a search.

    plan: what its words are beyond those of the search. step: ns. peak: bytes of its fullest rank. sent: bytes that the
    rank that sends most sends. fits: whether an accelerator holds it. worse: by which share it is worse than the best
    plan, by what the search makes best; below 0 if it is better, None if the search has found no plan. code, why: the
    term by which it loses. terms: ns of its step. best_terms: those of the best plan's step, which differ from them by
    the difference of the steps; empty if the search has found no plan. drawn: plans of the search that fit, drawn with
    equal chances. better: those of them that are better than this one. late: whether there was no time for all that
    were to be drawn. complete: whether `drawn` are all plans that fit, each once. command: profiles it.
    """

    plan: str
    step: int
    peak: int
    sent: int
    fits: bool
    worse: float | None
    code: str
    why: str
    terms: Mapping[str, int]
    drawn: int
    better: int
    command: str | None
    best_terms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    late: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Searched:
    """The result of a search over the plans of a model.

    id: the digest of what was asked. size: plans of the search. covered: whether every one was tried or ruled out, so
    that the first candidate is the best. left: a lower bound of the step of those that were not [ns]; None if there are
    none. seconds: of the work, that on `compared` included. by: what is best. allow: the groups of words that varied.
    candidates: a row for each plan that was tried, and for each set that was ruled out; the best first. regions: if
    strategies vary, the best plan with other rules in one region of the model, a row each: `part`, its `rules`, those
    `instead`, and step, peak and bytes sent with these, or `why` they are refused; no rows for a search that is read by
    its id. result: candidates as objects. expected_errors: by system, the error to expect of its times, and of which
    published steps it is; empty for a search that is read by its id. ties: on each number of ranks, the plans that are
    no further from the best than that error in the mean; none where no time decides. kept: whether a store has it. new:
    whether this call searched; False if the store had the result. compared: the plan that was to be compared with the
    best one.
    """

    id: str
    model: str
    size: int
    covered: bool
    left: int | None
    seconds: float
    by: str
    allow: tuple[str, ...]
    candidates: Rows
    regions: Rows
    result: SearchResult
    expected_errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ties: tuple[Ties, ...] = ()
    kept: bool = False
    new: bool = True
    compared: ComparedPlan | None = None

    def to_pandas(self) -> pd.DataFrame:
        """The candidates as a data frame."""
        return self.candidates.to_pandas()


@dataclass(frozen=True)
class Swept:
    """The points of a sweep, a row each: what varies, then what came out.

    varied: names of what varies, which are columns too. rows: ranks, step [ns], mfu, peak [bytes of the fullest rank],
    fits, tokens a second and accelerator, what bounds the step and its share; or, in `refused`, why a point is no plan.
    verdict: how many points there are, and the best of those that fit. seconds: the time of the work.
    """

    model: str
    varied: tuple[str, ...]
    rows: Rows
    verdict: str
    seconds: float
    provenance: Provenance

    def to_pandas(self) -> pd.DataFrame:
        """The points as a data frame, a row each."""
        return self.rows.to_pandas()

    def picture(self) -> str:
        """The steps as an SVG: along the first that varies, a line for each combination of the others.

        Raises UsageError for more lines than there are colours.
        """
        from stagedb.reports.sweep_chart import sweep_chart

        return sweep_chart(f"{self.model}: the step of each point", self.varied, list(self.rows))

    def _repr_html_(self) -> str:
        return result_parts.table(self.rows.columns, self.rows.rows, self.verdict)


@dataclass(frozen=True)
class Gains:
    """What a step gains by each number of its system.

    step: ns. peak: bytes of the fullest rank. room: bytes of an accelerator for tensors; None without a limit. rows:
    for each number its value, unit and elasticity (d ln step / d ln number), and the step [ns] with it 1 % and 10 %
    better, with the share of the step that this saves; the largest saving first. verdict: what to buy, in a sentence.
    seconds: the time of the work.
    """

    model: str
    system: str
    ranks: int
    step: int
    peak: int
    room: int | None
    rows: Rows
    verdict: str
    seconds: float
    provenance: Provenance

    @property
    def fits(self) -> bool:
        """Whether the accelerator's memory holds the plan."""
        return self.room is None or self.peak <= self.room

    def to_pandas(self) -> pd.DataFrame:
        """The numbers as a data frame, a row each."""
        return self.rows.to_pandas()

    def _repr_html_(self) -> str:
        return result_parts.table(self.rows.columns, self.rows.rows, self.verdict)


@dataclass(frozen=True)
class QueryInfo:
    """A named query: its subject, its parameters, and its columns.

    takes, gives: the same parameters and columns, each with its type, unit and meaning. text: its Cypher.
    """

    name: str
    subject: str
    description: str
    parameters: tuple[str, ...]
    columns: tuple[str, ...]
    takes: tuple[Field, ...] = ()
    gives: tuple[Field, ...] = ()
    text: str = ""


KINDS: Mapping[type, str] = {
    GraphInfo: "graph",
    InstanceInfo: "instance",
    ProfileInfo: "profile",
    SearchInfo: "search",
    RunInfo: "run",
}


def kind_of(info: Any) -> str:
    """`graph`, `instance`, `profile`, `search` or `run`. info: a thing of a store."""
    return KINDS.get(type(info)) or str(info.kind).lower()


def label_of(info: InstanceInfo | ProfileInfo | RunInfo) -> Literal["Instance", "Profile", "Run"]:
    """The label of what can have a name. info: a thing of a store."""
    if isinstance(info, RunInfo):
        return "Run"
    return "Profile" if isinstance(info, ProfileInfo) else "Instance"


_OF_CALL = ("new", "known_as", "usual_length", "padding")
"""Fields that describe a call, not what the store has."""


def properties(info: Thing) -> dict[str, Any]:
    """All properties of a thing of a store, flat: the plan's words and the options among them."""
    flat: dict[str, Any] = {"kind": kind_of(info)}
    for field in dataclasses.fields(info):
        value = getattr(info, field.name)
        if isinstance(value, Mapping):
            flat |= {word: inner for word, inner in value.items() if word not in flat}
        elif field.name not in _OF_CALL and field.compare:
            flat[field.name] = value
    return flat


@dataclass(frozen=True)
class Difference:
    """The differences of two instances, profiles or runs. Each row names one, with its value in the first and second.

    plan: words of their plans. work: calls, FLOPs and bytes of a step, all ranks together, by kind, axis and phase.
    For runs work has times and calls of operators, and time where the time of a rank goes, both for a step.
    time, for profiles: their figures, and the average time of a rank in each kind of work. verdict: one sentence; for
    profiles which one is faster, by how much, and what makes most of the difference; for instances the same of work.

    longer: for profiles, the share by which the second step is longer, for as many tokens as the first has; negative
    for a shorter one. grew: the term of the step that grew the most, in words; empty if none did. limit: the share that
    was asked for; None if none was.

    memory, for a run and a plan: bytes by rank class at moments of a step, expected and seen; no rows if the run has
    none. memory_verdict: one sentence on them, or how to record them; empty for others. remark: one sentence if the run
    was recorded on other processors than the plan is timed on.
    """

    first: InstanceInfo | ProfileInfo | RunInfo
    second: InstanceInfo | ProfileInfo | RunInfo
    plan: Rows
    work: Rows
    time: Rows
    verdict: str
    provenance: Provenance
    longer: float | None = None
    grew: str = ""
    limit: float | None = None
    memory: Rows = dataclasses.field(default_factory=lambda: Rows((), ()))
    memory_verdict: str = ""
    remark: str = ""

    @property
    def failed(self) -> bool:
        """Whether the second step is longer than the first by more than the limit."""
        return self.limit is not None and self.longer is not None and self.longer > self.limit

    @property
    def failure(self) -> str:
        """Why it failed, in a sentence with the term that grew; empty if it did not."""
        if not self.failed:
            return ""
        limit = f"{100 * (self.limit or 0.0):g}%"
        text = f"the second step is {self.longer:.2%} longer than the first, by more than {limit}"
        return f"{text}: {self.grew}" if self.grew else text

    @property
    def same(self) -> bool:
        """Whether nothing differs between both sides."""
        held = any(row["difference"] for row in self.memory)
        return not (self.plan.rows or self.work.rows or self.time.rows or held)

    def _repr_html_(self) -> str:
        tables = (("plan", self.plan), ("work", self.work), ("time", self.time), ("memory", self.memory))
        shown = [result_parts.table(rows.columns, rows.rows, title) for title, rows in tables if rows.rows]
        return "".join(shown) or "<p>nothing differs</p>"
