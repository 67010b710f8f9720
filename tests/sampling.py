"""What the usual run tries of what is expensive. It is the same each time.

`slow_tests.txt` has how many cases of each slow test the usual run tries. Heavy properties have a fifth of their
examples there, and long tables a fifth of their rows. With STAGEDB_TEST_MORE=1, as `.ci/run` sets it, more of the slow
tests run; with STAGEDB_TEST_ALL=1, as `scripts/test --all` sets it, everything does.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")

ALL = os.environ.get("STAGEDB_TEST_ALL") == "1"
MORE = os.environ.get("STAGEDB_TEST_MORE") == "1"
SEED = int(os.environ.get("STAGEDB_TEST_SEED", "0"))
"""Chooses what the fuzzer and the fault trials draw."""

EVERY = 1 if ALL else 5
FEWEST = 5

SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")


@dataclass(frozen=True)
class SlowTest:
    """A line of `slow_tests.txt`.

    seconds: what all cases take. every: `.ci/run` tries one case of so many, the first one first; 0: none. usual: the
    same for `scripts/test`.
    """

    seconds: float
    every: int
    usual: int

    @property
    def _step(self) -> int:
        return 1 if ALL else self.every if MORE else self.usual

    @property
    def tried_seconds(self) -> float:
        """What the cases of this run take."""
        return self.seconds / self._step if self._step else 0.0

    def is_tried(self, case: int) -> bool:
        """Whether this run tries a case. case: its number among those of the test."""
        return self._step > 0 and case % self._step == 0


def slow_tests() -> dict[str, SlowTest]:
    """The slow tests, as `file::test`."""
    found = {}
    for line in SLOW_TESTS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            seconds, share, test = line.split()
            every, _, usual = share.partition("/")
            found[test] = SlowTest(float(seconds), int(every), int(usual or every))
    return found


def examples(number: int) -> int:
    """So many examples of a heavy property, or the usual run's share of them."""
    return max(min(number, FEWEST), number // EVERY)


def draws(number: int, usual: int) -> int:
    """So many draws of a random sweep. usual: how many of them the usual run has, the first ones."""
    return number if ALL else usual


def rows(table: Sequence[Row]) -> Sequence[Row]:
    """The rows of a table that one test goes through, or every fifth of them in the usual run."""
    return table[::EVERY]


def part(things: Sequence[Row], case: int, cases: int) -> Sequence[Row]:
    """What one of several cases tries of things that each case may try: all, or its share in the usual run.

    The shares of all cases are all things.
    """
    return things if ALL else things[case::cases]
