"""The definition of a simulator target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The command line shows its options without importing the systems.
    from stagedb.systems.system import System

Groups = Mapping[str, Sequence[int]]
"""The ranks of each communicator group, in ring order, by the group's id as text."""

MESSAGE = "send"
"""The kind of traffic that is a message from one rank to another."""


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind and size in one group, or messages of one size between two ranks.

    bytes: that a rank passes in. count: how often a rank runs it in a step. group: name of the group. ends: both ranks
    of a message.
    """

    kind: str
    bytes: int
    count: int
    group: str = ""
    ends: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The traffic as a row of the manifest."""
        place = {"ends": list(self.ends)} if self.kind == MESSAGE else {"group": self.group}
        return {"kind": self.kind, **place, "bytes": self.bytes, "count": self.count}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Traffic":
        """The traffic of a row of the manifest."""
        return cls(row["kind"], row["bytes"], row["count"], row.get("group", ""), tuple(row.get("ends", ())))


@dataclass(frozen=True)
class SimulatedJob:
    """The source of a simulator's inputs, apart from the traces.

    name: the beginning of the names of the traces. world: ranks. degrees: those of the mesh, innermost first. system:
    the accelerators and the network. timed: whether the nodes of the traces have durations. groups: the communicator
    groups in the instance's order. traffic: what ranks communicate; empty where it is not known.
    """

    name: str
    world: int
    degrees: tuple[int, ...]
    system: "System"
    timed: bool = False
    groups: Groups = field(default_factory=dict)
    traffic: tuple[Traffic, ...] = ()


def _accept(job: SimulatedJob) -> None:
    """Every job suits a simulator that has no rule of its own."""


def _as_stored(job: SimulatedJob, groups: Groups) -> Groups:
    return groups


def _alike(job: SimulatedJob) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Simulator:
    """A simulator with its network back end, as the files that it reads in addition to the traces.

    name: its word in `simulator`. help: a description. program: the name of its binary.
    files: the text of each file for a job, by name; names that end in `.sh` become executable. check: raises UsageError
    for a job that the simulator cannot run, and names a way out. groups: the communicator groups of a job, from those
    of the instance, in the order of the simulator's rings. differences: known reasons why its times differ from those
    of the profile with the durations, in words.
    """

    name: str
    help: str
    program: str
    files: Mapping[str, Callable[[SimulatedJob], str]]
    check: Callable[[SimulatedJob], None] = _accept
    groups: Callable[[SimulatedJob, Groups], Groups] = _as_stored
    differences: Callable[[SimulatedJob], tuple[str, ...]] = _alike

    def inputs(self, job: SimulatedJob) -> dict[str, str]:
        """The files by name. UsageError for a job that it cannot run, or that has no place in the system."""
        self.check(job)
        return {name: text(job) for name, text in self.files.items()}
