"""Memory that was recorded next to what the plan accounts for, as rows and as one sentence."""

from collections.abc import Sequence
from typing import Any

from stagedb.files.texts import EVEN, bytes_text, spans_of
from stagedb.runs.memory_match import MemoryAt

NOT_RECORDED = "memory was not recorded: torch.profiler.profile(profile_memory=True) records it"

COLUMNS = (
    *("class", "ranks", "fullest", "place", "above_start", "moment", "expected", "seen", "difference", "share"),
    *("expected_in", "seen_in"),
)
KEEP = ("moment", "expected", "seen", "difference", "seen_in", "fullest", "class")
UNITS = {**dict.fromkeys(("expected", "seen", "difference"), "B"), "share": "ratio"}

NAMED = 0.01
"""The end of a phase is named if it differs by this share of the expected peak or more."""


def memory_rows(found: Sequence[MemoryAt]) -> tuple[tuple[Any, ...], ...]:
    """A row for each rank class and moment: bytes expected and seen, and the difference in bytes and as a share."""
    return tuple(
        (each.number, list(each.ranks), list(each.fullest), each.place, each.above_start, each.moment, each.expected,
         each.seen, each.difference, each.share, each.expected_in or None, each.seen_in or None)
        for each in found
    )  # fmt: skip


def memory_verdict(found: Sequence[MemoryAt]) -> str:
    """One sentence on the rank class whose peak differs the most: how high it is, when, and what was expected."""
    peaks = [each for each in found if each.moment == "peak"]
    if not peaks:
        return NOT_RECORDED
    most = max(peaks, key=lambda each: abs(each.share or 0.0))
    text = f"memory of {_ranks(most.fullest)}"
    if most.fullest != most.ranks:
        text += f", the fullest of {_ranks(most.ranks)},"
    text += f" peaks at {bytes_text(most.seen, 4)}"
    text += " above the start of the step, on the host" if most.above_start else f" on {most.place}"
    text += f" ({most.seen_in}), {_next_to(most)} {bytes_text(most.expected, 4)} ({most.expected_in})"
    if len(peaks) > 1:
        text += f"; the other {len(peaks) - 1} rank classes differ by less"
    ends = [each for each in found if each.number == most.number and each.moment.endswith(("start", "_end"))]
    end = max(ends, key=lambda each: abs(each.difference), default=None)
    if end is None or abs(end.difference) < NAMED * most.expected:
        return text
    return f"{text}; of the ends of phases {end.moment} differs the most, by {signed_bytes(end.difference)}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {spans_of(ranks)}"


def _next_to(peak: MemoryAt) -> str:
    """How a peak compares with the expected one, such as `5.10% more than the expected`."""
    if peak.share is None or abs(peak.share) >= 1:
        return "instead of the expected"
    if abs(peak.share) < EVEN:
        return "as was expected:"
    return f"{abs(peak.share):.2%} {'more' if peak.share > 0 else 'less'} than the expected"


def signed_bytes(size: int) -> str:
    """A difference of bytes in a readable unit, with its sign; `0` for none.

    size: the difference in bytes.
    """
    return f"{'+' if size > 0 else '-'}{bytes_text(abs(size), 4)}" if size else "0"
