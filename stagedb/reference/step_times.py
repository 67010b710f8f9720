"""Published times of training steps, predicted: `step_times.yaml` beside this file.

A row goes the way of any workload: card, plan, instance, durations on a system, timeline. Nothing is the row's own.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import yaml

from stagedb.api import Stagedb
from stagedb.issue.columns import SEND, Ints, Workload
from stagedb.issue.source import read_workload
from stagedb.models import Card, load_card
from stagedb.parallel import Plan
from stagedb.profile import Lane, Network, Timeline, network_of, run_step
from stagedb.profile.times import time_ops
from stagedb.systems import Costs, System, Transfer, load_system


@dataclass(frozen=True)
class Habits:
    """What a framework does at run time that no plan says.

    blocking: mesh axes whose communication the rank waits for before it computes on. scattered_messages: where ranks of
    tp send the same to the next stage, each sends its part of it, and the parts are gathered over tp behind it
    (Narayanan et al. 2021, section 4.1).
    """

    blocking: tuple[str, ...] = ()
    scattered_messages: bool = False


@dataclass(frozen=True)
class PublishedStep:
    """A row: where it is printed, the model and plan, and the time of its step [s].

    calibrated: whether the system's curves were fitted to it. within: the share of its time that ours may be off.
    """

    source: str
    system: str
    card: Card
    words: Mapping[str, Any]
    habits: Habits
    seconds: float
    calibrated: bool
    within: float

    @property
    def title(self) -> str:
        """The model, and what sets its plan apart."""
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
    """A row and ours of it [s]."""

    published: PublishedStep
    seconds: float

    @property
    def error(self) -> float:
        """How far ours is off, as a share of what was printed: above 0 it takes longer."""
        return self.seconds / self.published.seconds - 1

    @property
    def agrees(self) -> bool:
        """Whether it is no further off than its table says."""
        return abs(self.error) <= self.published.within


@dataclass(frozen=True)
class Errors:
    """How far the rows of one table are off: the mean and the worst of absolute errors, and how many rows."""

    source: str
    calibrated: bool
    rows: int
    mean: float
    worst: float


def published_steps() -> tuple[PublishedStep, ...]:
    """Every row, table after table."""
    text = resources.files(__package__).joinpath("step_times.yaml").read_text(encoding="utf-8")
    return tuple(_row(table, row) for table in yaml.safe_load(text) for row in table["rows"])


def _row(table: Mapping[str, Any], row: Mapping[str, Any]) -> PublishedStep:
    card = load_card(row["model"])
    words = {**table["plan"], **row["plan"]}
    habits = table["habits"]
    return PublishedStep(
        source=table["source"],
        system=table["system"],
        card=dataclasses.replace(card, **table.get("sizes", {})),
        words=words,
        habits=Habits(tuple(habits["blocking"]), habits["scattered_messages"]),
        seconds=row["seconds"] if "seconds" in row else _seconds(card, words, table["formula"], row["teraflops"]),
        calibrated=row.get("calibrated", False),
        within=table["within"],
    )


def _seconds(card: Card, words: Mapping[str, Any], formula: str, teraflops: float) -> float:
    """The time of a step that achieves so much a GPU, by one of `FORMULAS`."""
    s = words["seq_len"]
    flops = words["global_batch_size"] * s * FORMULAS[formula](card, s)
    return float(flops / (Plan.from_mapping(words).world * teraflops * 1e12))


FORMULAS: Mapping[str, Callable[[Card, int], float]] = {
    "recomputed": lambda card, s: (
        96 * card.layers * card.hidden**2 * (1 + s / (6 * card.hidden) + card.vocab / (16 * card.layers * card.hidden))
    ),
    "model": lambda card, s: 6 * card.count_parameters() + 12 * card.layers * card.heads * card.head_dim * s,
}
"""FLOPs of a token in a sequence of length s: with layers recomputed, by equation 3 of arXiv 2104.04473; without, by
the formula of MFU in arXiv 2204.02311, appendix B, whose attention is not masked."""


def check_steps(
    db: Stagedb, rows: Sequence[PublishedStep], progress: Callable[[int, int], None] = lambda done, of: None
) -> Iterator[StepTime]:
    """Predict rows one after another. What was made in the store for it is removed again."""
    for done, row in enumerate(rows):
        progress(done, len(rows))
        found = step_of(step_workload(db, row), load_system(row.system), row.habits)
        yield StepTime(row, found.step / 1e9)
    progress(len(rows), len(rows))


def step_workload(db: Stagedb, row: PublishedStep) -> Workload:
    """A row's instance as a timeline needs it. What was made in the store for it is removed again."""
    known = {graph.id for graph in db.graphs()}
    made = db.instantiate(row.card, **row.words)
    try:
        return read_workload(db.store, made.id)
    finally:
        if made.new:
            db.rm(made.id)
        if made.graph not in known:
            db.rm(made.graph)


def step_of(workload: Workload, system: System, habits: Habits) -> Timeline:
    """The step of a workload on a system, run as a framework of such habits runs it."""
    network = network_of(workload, "axis")
    took = step_durations(workload, network, system, habits)
    return run_step(network, took, "in-order", blocking=habits.blocking)


def step_durations(workload: Workload, network: Network, system: System, habits: Habits) -> list[Ints]:
    """Of each lane the durations of its ops [ns]."""
    found = [each.copy() for each in time_ops(workload, network.lanes, system).ns]
    if habits.scattered_messages and workload.plan["tp"] > 1 and not workload.plan["sp"]:
        costs = Costs(system, len(workload.ranks))
        for lane, columns, took in zip(network.lanes, network.columns, found, strict=True):
            for op in np.flatnonzero(columns.ops.type == SEND).tolist():
                ahead = int(columns.ops.towards[op]) == 1
                took[op] = _scattered(workload, costs, lane, ahead, int(columns.ops.size[op]))
    return found


def _scattered(workload: Workload, costs: Costs, lane: Lane, ahead: bool, size: int) -> int:
    """A part of a message over the way between stages, and an all-gather of the parts [ns]."""
    target = int((workload.ranks.next if ahead else workload.ranks.previous)[lane.rank])
    tp = int(workload.plan["tp"])
    # Ranks of tp are neighbours in the plans of this file.
    group = costs.placement(tuple(range(tp)))
    part = size // tp
    return costs.transfer(Transfer(part, lane.rank, target)).ns + costs.placed("all_gather", part, group).ns


def errors(found: Iterable[StepTime]) -> list[Errors]:
    """By table, rows that the system was fitted to apart from the others."""
    tables: dict[tuple[str, bool], list[float]] = {}
    for each in found:
        tables.setdefault((each.published.source, each.published.calibrated), []).append(abs(each.error))
    return [
        Errors(source, calibrated, len(off), statistics.fmean(off), max(off))
        for (source, calibrated), off in tables.items()
    ]
