"""Published times of training steps, predicted: `step_times.yaml` in this folder.

A row is a normal workload: card, plan, program, profile on a system. Nothing is special to the row.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from stagedb.models import Card, load_card
from stagedb.plans import Plan
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.validation.programs import ProgramOf, lowered


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
