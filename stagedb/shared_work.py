"""Work shared among processes that are copies of this one (`stagedb.copied_processes`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from stagedb.copied_processes import copies
from stagedb.cores import usable_cores

Answer = Mapping[str, Any]
"""What most pieces of work return."""

Found = TypeVar("Found")

Work = Callable[[int], Answer]
"""Does such a piece of work, by its place."""

LOST = "so that there is no answer; nothing was written"


def shared(
    work: Callable[[int], Found], names: Sequence[str], processes: int | None = None
) -> Iterator[tuple[int, Found]]:
    """The place of each piece of work and its answer, as they end.

    work: does a piece, by its place, and returns plain data. names: of the pieces, for errors. processes: those that
    work; None for one on each core. Raises StagedbError if a process ends before its work does, and what the work
    raises.
    """
    count = min(usable_cores() if processes is None else processes, len(names))
    left = iter(range(len(names)))
    with copies(work, count, lambda at: names[at], LOST) as others:

        def ask() -> None:
            while others.idle and (at := next(left, None)) is not None:
                others.ask(at)

        ask()
        while others.busy:
            for answered in others.answers():
                ask()  # so that no process waits while this one reads the answer
                yield answered
