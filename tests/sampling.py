"""How much of what is expensive a run of the tests tries, and which part: chosen by a seed.

STAGEDB_TEST_SHARE is the share of the heaviest properties' examples and of long tables' rows, from 0 to 1; with it, the
slowest tests of commands run on one of the two engines. Without it everything runs. STAGEDB_TEST_SEED chooses which:
`.ci/run` takes it from the commit, so that other commits try others.
"""

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

Row = TypeVar("Row")

SHARE = float(os.environ.get("STAGEDB_TEST_SHARE", "1"))
SEED = int(os.environ.get("STAGEDB_TEST_SEED", "0"))
FEWEST = 5


def examples(number: int) -> int:
    """So many examples of a heavy property, or this run's share of them."""
    return max(min(number, FEWEST), round(number * SHARE))


def is_tried(test: str, choice: int, choices: int) -> bool:
    """Whether this run tries one of the choices of a test, such as its engines. A share tries one, by the seed."""
    return SHARE == 1 or (zlib.crc32(test.encode()) + SEED) % choices == choice


def rows(table: Sequence[Row]) -> Sequence[Row]:
    """The rows of a table, or this run's share of them: every n-th, from a place that the seed chooses."""
    every = max(1, round(1 / SHARE))
    return table[SEED % every :: every]
