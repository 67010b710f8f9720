"""What the usual run tries of what is expensive. It is the same each time.

`slow_tests.txt` has how many cases of each slow test the usual run tries. Heavy properties have a fifth of their
examples there, and long tables a fifth of their rows. With STAGEDB_TEST_ALL=1, as `scripts/test --all` sets it,
everything runs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")

ALL = os.environ.get("STAGEDB_TEST_ALL") == "1"
SEED = int(os.environ.get("STAGEDB_TEST_SEED", "0"))
"""Chooses what the fuzzer and the fault trials draw."""

EVERY = 1 if ALL else 5
FEWEST = 5

SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")


@dataclass(frozen=True)
class SlowTest:
    """A line of `slow_tests.txt`.

    seconds: what all cases take. every: in the usual run one case of so many is tried, the first one first; 0: none.
    """

    seconds: float
    every: int

    @property
    def tried_seconds(self) -> float:
        """What the cases of this run take."""
        return self.seconds if ALL else self.seconds / self.every if self.every else 0.0

    def is_tried(self, case: int) -> bool:
        """Whether this run tries a case. case: its number among those of the test."""
        return ALL or (self.every > 0 and case % self.every == 0)


def slow_tests() -> dict[str, SlowTest]:
    """The slow tests, as `file::test`."""
    lines = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    found = [line.split() for line in lines if line and not line.startswith("#")]
    return {test: SlowTest(float(seconds), int(every)) for seconds, every, test in found}


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
