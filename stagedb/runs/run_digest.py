"""The digest of a run's content, which needs one row at a time, in any order.

It has the sum of the digests of all rows of a kind, so that a run of any size needs no memory, and the same rows in any
order have the same digest.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Row = Mapping[str, Any]
Edge = tuple[str, str, Row]

_CONTENT = (
    "format",
    "world",
    "job_ranks",
    "step",
    "steps",
    "ops",
    "devices",
    "busy",
    "exposed",
    "begin",
    "unexplained",
    "launching",
)
"""Properties of a run that its digest covers."""

_SUMS_SINCE = 3
"""The first format of runs whose digest has the sums of those of the rows."""

_encode = msgspec.json.Encoder(order="sorted").encode
_sha256 = hashlib.sha256
_WORDS = 4
"""Numbers of 64 bits in a digest."""

_AT_ONCE = 1 << 12


class RunDigest:
    """A digest that rows are added to. Names that users give do not count, nor do properties that are None."""

    def __init__(self) -> None:
        self._sums: dict[str, npt.NDArray[np.uint64]] = defaultdict(lambda: np.zeros(5, np.uint64))

    def add_nodes(self, label: str, rows: Iterable[Row]) -> None:
        """Count the properties of nodes of a label. rows: the properties of each node."""
        self._add(label, rows)

    def add_edges(self, kind: Iterable[str], rows: Iterable[Edge]) -> None:
        """Count relationships.

        kind: their type, the label of the source and of the target. rows: one a relationship.
        """
        self._add(" ".join(kind), rows)

    def _add(self, kind: str, rows: Iterable[Row | Edge]) -> None:
        made = map(_encode, rows)
        while digests := [_sha256(text).digest() for text in islice(made, _AT_ONCE)]:
            words = np.frombuffer(b"".join(digests), "<u8").reshape(-1, _WORDS)
            # Sums are those of 64 bits, without what is carried.
            self._sums[kind] += np.append(words.sum(axis=0, dtype=np.uint64), np.uint64(len(words)))

    def of(self, own: Row) -> str:
        """The digest of all that was added, and of the run's own properties."""
        text = [{name: own.get(name) for name in _CONTENT}, {kind: sums.tolist() for kind, sums in self._sums.items()}]
        return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()


def run_digest(own: Row, nodes: Mapping[str, Iterable[Row]], edges: Mapping[Any, Iterable[Edge]]) -> str:
    """The digest of all rows of a run. own: properties of its node. nodes: by label. edges: by kind."""
    if own["format"] < _SUMS_SINCE:
        return _digest_of_sorted(own, nodes, edges)
    digest = RunDigest()
    for label, rows in nodes.items():
        digest.add_nodes(label, rows)
    for kind, ends in edges.items():
        digest.add_edges(kind, ends)
    return digest.of(own)


def _digest_of_sorted(own: Row, nodes: Mapping[str, Iterable[Row]], edges: Mapping[Any, Iterable[Edge]]) -> str:
    """The digest that runs of earlier formats have."""
    digest = hashlib.sha256(json.dumps({name: own.get(name) for name in _CONTENT}, sort_keys=True).encode())
    for label in sorted(nodes):
        lines = sorted(json.dumps(row, sort_keys=True) for row in nodes[label])
        digest.update("\n".join((label, *lines)).encode())
    for kind in sorted(edges):
        lines = sorted(json.dumps(edge, sort_keys=True) for edge in edges[kind])
        digest.update("\n".join((*kind, *lines)).encode())
    return digest.hexdigest()
