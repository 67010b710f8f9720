"""How much of what is expensive a run of the tests tries, and which part: chosen by a seed.

STAGEDB_TEST_SHARE is the share of the slow tests (`slow_tests.txt`) and of the heaviest properties' examples, from 0 to
1. Without it everything runs. STAGEDB_TEST_SEED chooses which: `.ci/run` takes it from the commit, so that other
commits try others.
"""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")

SHARE = float(os.environ.get("STAGEDB_TEST_SHARE", "1"))
SEED = int(os.environ.get("STAGEDB_TEST_SEED", "0"))
EVERY = max(1, round(1 / SHARE))
FEWEST = 5

SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")


def slow_tests() -> dict[str, float]:
    """The slow tests, as `file::test`, each with the seconds that all of its cases take."""
    lines = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    found = [line.split() for line in lines if not line.startswith("#")]
    return {test: float(seconds) for seconds, test in found}


def is_tried(slow_test: str, case: int) -> bool:
    """Whether this run tries a case of a slow test: every n-th, from a place that the seed chooses."""
    return (zlib.crc32(slow_test.encode()) + SEED + case) % EVERY == 0


def examples(number: int) -> int:
    """So many examples of a heavy property, or this run's share of them."""
    return max(min(number, FEWEST), round(number * SHARE))


def rows(table: Sequence[Row]) -> Sequence[Row]:
    """The rows of a table that one test goes through, or this run's share of them: every n-th, as the seed chooses."""
    return table[SEED % EVERY :: EVERY]
