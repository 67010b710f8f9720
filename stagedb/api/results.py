"""What the verbs give back: plain rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from stagedb.systems import Coverage
    from stagedb.timing import JobProfile, Merit


@dataclass(frozen=True)
class Rows:
    """The answer to a query: column names, and one tuple a row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    newest: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True, compare=False)
    """Where a query was not told which instance or profile: the newest, which it took, by parameter."""
    hints: tuple[str, ...] = dataclasses.field(default=(), kw_only=True, compare=False)
    """Why a query may not answer what was meant: words that no store has, numbers that nobody has computed yet."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a data frame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(self.columns))


@dataclass(frozen=True)
class GraphInfo:
    """A symbolic graph in the store. `new`: this call put it there. `sizes`: the model's symbols."""

    id: str
    name: str
    recipe: str
    options: Mapping[str, Any]
    sizes: Mapping[str, int]
    created: str
    new: bool = False


@dataclass(frozen=True)
class InstanceInfo:
    """A graph under one plan. `graph` is its id, `model` the model's name, `ranks` the size of its world.

    `plan` has the plan's words (`stagedb.plans.Plan.to_dict`), `classes` is the number of rank classes.
    `new`: this call put it there.
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
    new: bool = False


@dataclass(frozen=True)
class Unpacked:
    """A trace set on disk, of a job of `world` ranks. `bytes` counts the trace files.

    `replayed` says whether they were run as a simulator would, `seconds` has the time of each stage of the work.
    `there`: with `resume`, it was there already; `mended` are its files that were missing or cut short and have been
    written again, none where it was complete.
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


@dataclass(frozen=True)
class Exported(Unpacked):
    """A trace set on disk, and the instance that it is of.

    `packed`: bytes of the one file that the set is packed in, or of its tables; None for a directory of traces.
    `profile`: whose durations the nodes have, if they have any.
    """

    instance: InstanceInfo
    packed: int | None = None
    profile: ProfileInfo | None = None


@dataclass(frozen=True)
class Viewed:
    """A file that shows a step of `step` ns, and the instance that it is of. bytes: its size.

    slices, flows: how many a timeline has. left_out: what it lacks, in words.
    """

    path: Path
    bytes: int
    step: int
    instance: InstanceInfo
    slices: int = 0
    flows: int = 0
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Memory:
    """What one rank of each class of an instance holds in memory over a step, in bytes.

    peaks: a row a class: the most, and when it is held. levels: bytes by class, moment and category; moments are the
    start, the end of each phase, and the most within each. tensors: what lives at the peak, the biggest first.
    """

    instance: InstanceInfo
    peaks: Rows
    levels: Rows
    tensors: Rows


@dataclass(frozen=True)
class ProfileInfo:
    """A profile in the store: a step of an instance on a system.

    name: what its maker called it, if anything. instance is the id, instance_name the name of what was profiled.
    blocking: mesh axes whose communication a rank waits for. step, unscaled: ns of the step, and without the scalings.
    measured_time: share of the modelled time that was measured. `new`: this call put it there.
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
    new: bool = False


@dataclass(frozen=True)
class Profile:
    """A step of an instance on a system, and where its time goes; times in ns.

    info: the profile in the store. merit: step, tokens and FLOPs a second, MFU and HFU. lanes: a row a lane (ranks of a
    class and stage that keep the same time): `busy + exposed + bubble + idle` are the step. path: the critical path by
    kind, axis, phase and stage. coverage: how much was measured. job: the step in memory, node by node. seconds: how
    long each stage of the work took.
    """

    info: ProfileInfo
    instance: InstanceInfo
    lanes: Rows
    path: Rows
    job: JobProfile
    seconds: Mapping[str, float]

    @property
    def merit(self) -> Merit:
        """Figures of merit of the step."""
        return self.job.merit

    @property
    def coverage(self) -> Coverage:
        """How much of the step was measured."""
        return self.job.durations.coverage

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.job.step

    @property
    def gain(self) -> int:
        """By how many ns the scalings shorten the step; below 0 where they lengthen it."""
        return self.job.gain


@dataclass(frozen=True)
class QueryInfo:
    """A named query: its subject, its parameters, and the columns that it promises."""

    name: str
    subject: str
    description: str
    parameters: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class OutdatedInfo:
    """An instance or a profile that an older schema wrote, and that is not yet made again.

    kind: Instance or Profile. graph: of an instance, the id of its graph.
    """

    kind: Literal["Instance", "Profile"]
    id: str
    name: str | None
    graph: str | None


KINDS: Mapping[type, str] = {GraphInfo: "graph", InstanceInfo: "instance", ProfileInfo: "profile"}


def kind_of(info: GraphInfo | InstanceInfo | ProfileInfo | OutdatedInfo) -> str:
    """`graph`, `instance` or `profile`."""
    return info.kind.lower() if isinstance(info, OutdatedInfo) else KINDS[type(info)]


def properties(info: GraphInfo | InstanceInfo | ProfileInfo) -> dict[str, Any]:
    """What is known of a graph, an instance or a profile, flat: its plan's words, its options beside the rest."""
    flat: dict[str, Any] = {"kind": kind_of(info)}
    for field in dataclasses.fields(info):
        value = getattr(info, field.name)
        if isinstance(value, Mapping):
            flat |= {word: inner for word, inner in value.items() if word not in flat}
        elif field.name != "new":
            flat[field.name] = value
    return flat


@dataclass(frozen=True)
class Difference:
    """What differs between two instances or two profiles; each row says what, and its value in the first and second.

    plan: words of their plans. work: calls, FLOPs and bytes of a step, all ranks together, by kind, axis and phase.
    time: of profiles, their figures, and what a rank spends on average in each.
    """

    first: InstanceInfo | ProfileInfo
    second: InstanceInfo | ProfileInfo
    plan: Rows
    work: Rows
    time: Rows

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.plan.rows or self.work.rows or self.time.rows)
