"""What was seen of one step, and what follows from it: counts, order, live bytes. Plain data, without torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Work(NamedTuple):
    """A matmul or an attention. seen: its FLOPs without masked pairs, 0 for a matmul."""

    phase: str
    name: str
    dims: tuple[int, ...]
    flops: int
    seen: int


class Sent(NamedTuple):
    """One call of a collective, or one end of a send, with the bytes of this rank's operand and result."""

    phase: str
    kind: str
    axis: str
    group: int
    dtype: str
    bytes_in: int
    bytes_out: int
    peer: int | None = None


Event = Work | Sent


@dataclass(eq=False)
class Held:
    """A storage: its bytes now, the phase that made it, and the category that it is found to have.

    direction: the phase of a message of a pipeline that it is sent or received in.
    """

    size: int
    phase: str
    category: str = ""
    direction: str | None = None


@dataclass
class Operators:
    """By phase and operator: calls, elements of results, bytes of operands and of results."""

    rows: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, phase: str, name: str, *numbers: int) -> None:
        row = self.rows.setdefault(phase, {}).setdefault(name, [0, 0, 0, 0])
        for place, number in enumerate((1, *numbers)):
            row[place] += number


@dataclass
class Step:
    """A recorded step. changes: storages and their new sizes, in order; marks: names of moments, and changes before."""

    events: list[Event] = field(default_factory=list)
    changes: list[tuple[Held, int]] = field(default_factory=list)
    start: dict[Held, int] = field(default_factory=dict)
    marks: list[tuple[str, int]] = field(default_factory=list)
    operators: Operators = field(default_factory=Operators)

    def mark(self, name: str) -> None:
        """Everything from here on comes after a moment."""
        self.marks.append((name, len(self.changes)))

    def live(self, until: int) -> Mapping[str, int]:
        """Bytes by category after a number of changes."""
        sizes = dict(self.start)
        for held, size in self.changes[:until]:
            sizes[held] = size
        found: dict[str, int] = {}
        for held, size in sizes.items():
            if size:
                found[held.category] = found.get(held.category, 0) + size
        return dict(sorted(found.items()))

    def totals(self) -> Iterator[int]:
        """Live bytes after each change."""
        sizes = dict(self.start)
        total = sum(sizes.values())
        for held, size in self.changes:
            total += size - sizes.get(held, 0)
            sizes[held] = size
            yield total

    def at(self, name: str) -> int:
        """The number of changes before a moment."""
        return next(place for word, place in self.marks if word == name)

    def peak(self, begin: int, end: int) -> tuple[int, int]:
        """The most bytes that live between two places, and the number of changes at which they do."""
        found = [(sum(self.start.values()), 0), *((total, place + 1) for place, total in enumerate(self.totals()))]
        return max(found[begin : end + 1], key=lambda each: each[0])


def run_length(words: Sequence[str]) -> str:
    """A list of words with repetitions in brackets, as in `a (b c)x3`: the longest gain first, from the left."""
    parts: list[str] = []
    place = 0
    while place < len(words):
        gain, length, times = 0, 1, 1
        for size in range(1, min(600, (len(words) - place) // 2) + 1):
            count = 1
            block = words[place : place + size]
            while words[place + count * size : place + (count + 1) * size] == block:
                count += 1
            if count > 1 and (count - 1) * size > gain:
                gain, length, times = (count - 1) * size, size, count
        block = words[place : place + length]
        if times > 1:
            parts.append(f"({' '.join(block)})x{times}")
        else:
            parts.append(block[0])
        place += length * times
    return " ".join(parts)
