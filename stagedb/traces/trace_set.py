"""A trace set before it is written: what an instance of a store becomes, and what a packed file holds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stagedb.traces.encoded_class import EncodedClass, RankBytes
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.simulators import Groups, SimulatedJob, Simulator

MANIFEST = "manifest.json"
"""Name of the file that says what a written set is."""


@dataclass(frozen=True)
class ClassTraces:
    """The traces of a rank class, or of the part of it that a profile times alike.

    `facts` is the row of the manifest.
    """

    facts: Mapping[str, Any]
    encoded: EncodedClass
    ranks: RankBytes

    @property
    def key(self) -> str:
        """What tells it from the set's others: see `key_of`."""
        return key_of(self.facts)

    @property
    def nodes(self) -> int:
        """Nodes of one rank."""
        return int(self.facts["nodes"])


def groups_text(groups: Groups) -> str:
    """The text of the file of communicator groups."""
    return json.dumps(groups) + "\n"


def key_of(facts: Mapping[str, Any]) -> str:
    """The class's number; of a part also its first lane: `3`, or `3.17`."""
    return f"{facts['class']}.{facts['lanes'][0]}" if "lanes" in facts else str(facts["class"])


@dataclass(frozen=True)
class TraceSet:
    """Classes with those of their ranks that are wanted.

    `facts` is what the manifest says of all, `groups` the communicator groups as the instance has them, `job` what a
    simulator's inputs follow from.
    """

    facts: Mapping[str, Any]
    groups: Groups
    job: SimulatedJob
    classes: tuple[ClassTraces, ...]

    @property
    def name(self) -> str:
        """What the files' names begin with."""
        return str(self.facts["name"])

    @property
    def groups_file(self) -> str:
        """The name of the file of communicator groups."""
        return f"{self.name}.json"

    def files(self, simulator: Simulator | None) -> dict[str, str]:
        """The files beside the traces by name; the groups alone where no simulator is to run them."""
        if simulator is None:
            return {self.groups_file: groups_text(self.groups)}
        groups = simulator.groups(self.job, self.groups)
        return {self.groups_file: groups_text(groups), **simulator.inputs(self.job)}

    @property
    def world(self) -> int:
        """Ranks of the job, wanted or not."""
        return int(self.facts["world"])

    @property
    def ranks(self) -> Ints:
        """The ranks that are wanted, in order."""
        return np.sort(np.concatenate([each.ranks.ranks for each in self.classes]))

    @property
    def count(self) -> int:
        """How many ranks are wanted."""
        return sum(len(each.ranks.ranks) for each in self.classes)

    @property
    def nodes(self) -> int:
        return sum(each.nodes * len(each.ranks.ranks) for each in self.classes)

    @property
    def bytes(self) -> int:
        """Of all traces, as plain files."""
        return sum(each.encoded.size * len(each.ranks.ranks) for each in self.classes)

    def only(self, ranks: Ints) -> "TraceSet":
        """The same set, fewer ranks of it wanted."""
        kept = [replace(each, ranks=each.ranks.only(ranks)) for each in self.classes]
        return replace(self, classes=tuple(each for each in kept if len(each.ranks.ranks)))
