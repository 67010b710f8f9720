"""Tensors that live at a moment by the pattern of the model: those of all layers that do the same are one row."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class TensorPattern:
    """Tensors of one name and category in all layers that do the same.

    layers: how many layers have them. count: how many tensors there are. bytes: the sum of their sizes.
    """

    name: str
    category: str
    layers: int
    count: int
    bytes: int


def tensor_patterns(alive: Iterable[tuple[str, str, int, int]]) -> list[TensorPattern]:
    """The patterns of tensors, the largest first. alive: name, category, count and bytes of those of each layer."""
    taken: dict[tuple[str, str], list[int]] = {}
    for name, category, count, size in alive:
        sums = taken.setdefault((name, category), [0, 0, 0])
        for at, value in enumerate((1, count, size)):
            sums[at] += value
    patterns = [TensorPattern(*key, *sums) for key, sums in taken.items()]
    return sorted(patterns, key=lambda pattern: (-pattern.bytes, pattern.name, pattern.category))
