"""A rank class as bytes, compact: each template once, the places of its ids, and the differences between ranks.

Processes exchange the same object that a packed export holds. `expand` makes one buffer of it, the file of a rank
except for some bytes. `patched` gives the positions of these bytes, and the byte of a rank's own bytes that belongs at
each.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from stagedb.traces.protobuf_columns import Bytes, Ints, put_padded

Small = npt.NDArray[np.int32]


@dataclass(frozen=True)
class EncodedClass:
    """The bytes of a class.

    Templates follow each other in `data`, template i from `data_starts[i]` to `data_starts[i + 1]`. The first one is
    the file's beginning, which holds no node. In the same way, `slots` are positions (in the template) of varints of
    `width` bytes, each the value of reference `slot_refs` plus `slot_offsets`; and `patches` are positions of bytes
    that differ between ranks, taken from byte `patch_sources` of a rank's own bytes.
    A file is the sequence of the templates `tasks`, each with its row of `references`.
    """

    width: Ints
    data: Bytes
    data_starts: Ints
    slots: Small
    slot_refs: Small
    slot_offsets: Small
    slot_starts: Ints
    patches: Small
    patch_sources: Small
    patch_starts: Ints
    tasks: Small
    references: Ints

    @property
    def size(self) -> int:
        """Bytes of one rank's file."""
        return int(np.diff(self.data_starts)[self.tasks].sum())

    @property
    def digest(self) -> str:
        """sha256 of all columns."""
        sha256 = hashlib.sha256()
        for name, column in self.arrays().items():
            sha256.update(f"{name} {column.dtype.str} {column.shape}\n".encode())
            sha256.update(np.ascontiguousarray(column).tobytes())
        return sha256.hexdigest()

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The columns of the class by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def expand(self) -> Bytes:
        """One buffer of all tasks, with ids filled in; bytes that differ between ranks are those of the templates."""
        out = np.empty(self.size, np.uint8)
        width, at = int(self.width[0]), 0
        parts = [self._template(index) for index in range(len(self.data_starts) - 1)]
        for task, template in enumerate(self.tasks):
            data, slots, refs, offsets = parts[template]
            view = out[at : at + len(data)]
            view[:] = data
            put_padded(view, slots, self.references[task][refs] + offsets, width)
            at += len(data)
        return out

    def patched(self) -> tuple[Ints, Small]:
        """Positions in the expanded buffer that differ between ranks, and the index of the rank's own byte for each."""
        sizes = np.diff(self.data_starts)[self.tasks]
        begins = np.cumsum(sizes) - sizes
        positions, sources = [], []
        for begin, template in zip(begins, self.tasks, strict=True):
            one = slice(self.patch_starts[template], self.patch_starts[template + 1])
            positions.append(self.patches[one] + begin)
            sources.append(self.patch_sources[one])
        return np.concatenate(positions), np.concatenate(sources)

    def _template(self, index: int) -> tuple[Bytes, Ints, Small, Ints]:
        one = slice(self.slot_starts[index], self.slot_starts[index + 1])
        data = self.data[self.data_starts[index] : self.data_starts[index + 1]]
        return data, self.slots[one].astype(np.int64), self.slot_refs[one], self.slot_offsets[one].astype(np.int64)


@dataclass(frozen=True)
class RankBytes:
    """The bytes that differ between the ranks of a class: a row of `values` for each of `ranks`."""

    ranks: Ints
    values: Bytes

    def only(self, ranks: Ints) -> "RankBytes":
        """The rows that are among `ranks`."""
        chosen = np.isin(self.ranks, ranks)
        return RankBytes(self.ranks[chosen], self.values[chosen])


def rank_files(encoded: EncodedClass, ranks: RankBytes) -> Iterator[tuple[int, Bytes]]:
    """Each rank with the bytes of its file, in one buffer that the next rank's bytes overwrite.

    From one rank to the next few of its own bytes change: only those are written.
    """
    buffer = encoded.expand()
    positions, sources = encoded.patched()
    order = np.argsort(sources, kind="stable")
    places = np.split(positions[order], np.searchsorted(sources[order], np.arange(1, ranks.values.shape[1])))
    changed = np.ones(ranks.values.shape, bool)
    changed[1:] = ranks.values[1:] != ranks.values[:-1]
    for rank, values, row in zip(ranks.ranks.tolist(), ranks.values, changed, strict=True):
        for source in row.nonzero()[0].tolist():
            buffer[places[source]] = values[source]
        yield rank, buffer
