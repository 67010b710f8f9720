"""A trace set before it is written: made from an instance of a store, or read from a packed file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from stagedb.traces.encoded_class import EncodedClass, RankBytes
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.simulators import Groups, SimulatedJob, Simulator

MANIFEST = "manifest.json"
"""Name of the file that describes a written set."""

_GROUPS_A_PART = 1024


@dataclass(frozen=True)
class ClassTraces:
    """The traces of a rank class, or of a part of it with equal durations in a profile.

    facts: its row of the manifest. encoded: the bytes that its ranks share. ranks: the bytes that differ between them.
    """

    facts: Mapping[str, Any]
    encoded: EncodedClass
    ranks: RankBytes

    @property
    def key(self) -> str:
        """The key of the class, or of its part, which is unique in the set: see `key_of`."""
        return key_of(self.facts)

    @property
    def nodes(self) -> int:
        """The number of nodes of one rank's trace."""
        return int(self.facts["nodes"])


def groups_text(groups: Groups) -> str:
    """The text of the file of communicator groups."""
    return "".join(group_texts(groups))


def group_texts(groups: Groups) -> Iterator[str]:
    """The text of the file of communicator groups, in parts: `json.dumps` of all of them, and a line's end."""
    left = iter(groups.items())
    for place, some in enumerate(iter(lambda: dict(islice(left, _GROUPS_A_PART)), {})):
        yield ("{" if place == 0 else ", ") + json.dumps(some)[1:-1]
    yield "}\n" if groups else "{}\n"


def key_of(facts: Mapping[str, Any]) -> str:
    """The class's number; for a part also its first lane: `3`, or `3.17`.

    facts: of the class in the manifest.
    """
    return f"{facts['class']}.{facts['lanes'][0]}" if "lanes" in facts else str(facts["class"])


@dataclass(frozen=True)
class TraceSet:
    """Classes with their requested ranks.

    `facts` are the manifest's facts of the whole set, `groups` the communicator groups in the instance's order, `job`
    the source of a simulator's inputs.
    """

    facts: Mapping[str, Any]
    groups: Groups
    job: SimulatedJob
    classes: tuple[ClassTraces, ...]

    @property
    def name(self) -> str:
        """The name of the set, with which the names of its files begin."""
        return str(self.facts["name"])

    @property
    def groups_file(self) -> str:
        """The name of the file of communicator groups."""
        return f"{self.name}.json"

    def files(self, simulator: Simulator | None) -> dict[str, str]:
        """The files other than traces, by name; only the groups if no simulator is to run them."""
        if simulator is None:
            return {self.groups_file: groups_text(self.groups)}
        groups = simulator.groups(self.job, self.groups)
        return {self.groups_file: groups_text(groups), **simulator.inputs(self.job)}

    @property
    def world(self) -> int:
        """Number of ranks of the job, requested or not."""
        return int(self.facts["world"])

    @property
    def ranks(self) -> Ints:
        """The requested ranks, in order."""
        return np.sort(np.concatenate([of_class.ranks.ranks for of_class in self.classes]))

    @property
    def count(self) -> int:
        """The number of requested ranks."""
        return sum(len(of_class.ranks.ranks) for of_class in self.classes)

    @property
    def nodes(self) -> int:
        """The number of nodes in the traces of all requested ranks."""
        return sum(of_class.nodes * len(of_class.ranks.ranks) for of_class in self.classes)

    @property
    def bytes(self) -> int:
        """Bytes that all traces take as plain files."""
        return sum(of_class.encoded.size * len(of_class.ranks.ranks) for of_class in self.classes)

    def only(self, ranks: Ints) -> "TraceSet":
        """The set with fewer requested ranks: those of its own that are among `ranks`."""
        kept = [replace(of_class, ranks=of_class.ranks.only(ranks)) for of_class in self.classes]
        return replace(self, classes=tuple(of_class for of_class in kept if len(of_class.ranks.ranks)))
