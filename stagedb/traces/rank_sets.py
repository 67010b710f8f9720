"""Sets of ranks as texts for users."""

import re

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.traces.protobuf_columns import Ints


def parse_ranks(text: str, world: int) -> Ints:
    """Ranks of a text such as `0-7,16` or `0-1023:8` (every eighth), sorted.

    Raises UsageError for any other text, or for ranks beyond the world.
    """
    chosen: list[Ints] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,12})(?:-([0-9]{1,12})(?::([0-9]{1,12}))?)?\s*", part)
        if match is None:
            raise UsageError(
                f"{Word('only', shown(text))}: {shown(part)} is neither a rank nor a range such as 0-7 or 0-1023:8"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if first > last or last >= world:
            raise UsageError(f"{Word('only', shown(text))}: {part.strip()} is not within the ranks 0-{world - 1}")
        if step < 1:
            raise UsageError(f"{Word('only', shown(text))}: {part.strip()} takes every 0th rank")
        chosen.append(np.arange(first, last + 1, step, dtype=np.int64))
    return np.unique(np.concatenate(chosen))


def shard_ranks(text: str, world: int) -> str:
    """The ranks, as `parse_ranks` reads them, of a text such as `0/4`: the first of four nearly equal parts.

    Parts are numbered from 0 and are contiguous. world: the number of ranks. Raises UsageError for a part whose number
    is not below the number of parts.
    """
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    part, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not part < parts:
        raise UsageError(f"{Word('shard', shown(text))} is not I/N with I from 0 to N-1, such as 0/4")
    if parts > world:
        raise UsageError(f"{Word('shard', shown(text))}: {world} ranks are not enough for {parts} parts")
    return f"{part * world // parts}-{(part + 1) * world // parts - 1}"


def format_ranks(ranks: Ints) -> str:
    """A set of ranks as a text, such as `0-7,16`, which `parse_ranks` reads."""
    if not len(ranks):
        return ""
    ends = np.flatnonzero(np.diff(ranks) != 1)
    firsts, lasts = ranks[np.concatenate([[0], ends + 1])], ranks[np.concatenate([ends, [len(ranks) - 1]])]
    runs = zip(firsts.tolist(), lasts.tolist(), strict=True)
    steps = set(np.diff(ranks).tolist())
    if len(steps) == 1 and len(ranks) > 2:
        return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if (step := steps.pop()) > 1 else "")
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
