"""Durations of the nodes of traces by parts of rank classes.

The ops of a class take equally long on the ranks of a lane, and usually on several lanes. A class is divided into parts
of lanes with equal durations, and each part is encoded once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.systems.system import System
from stagedb.traces.protobuf_columns import Ints


@dataclass(frozen=True)
class RankPart:
    """Ranks of a class whose ops take equally long: the ranks of `lanes`. ns: one value for each op of the class.

    Without a profile the part is the whole class, with no lanes and no ns.
    """

    lanes: tuple[int, ...]
    ranks: Ints
    ns: Ints | None = None


@dataclass(frozen=True)
class NodeTiming:
    """The durations of an instance's traces from a profile. parts: those of each class, by its number. step: ns."""

    profile: str
    system: System
    step: int
    parts: Mapping[int, tuple[RankPart, ...]]

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's facts of the profile."""
        return {"id": self.profile, "system": self.system.name, "step": self.step}
