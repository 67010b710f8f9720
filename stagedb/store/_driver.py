"""The driver, imported without pandas and pyarrow, which it looks for and which nothing here passes through it.

Together they take longer to import than the rest of a command to run. They can be imported afterwards as ever.
What it logs, retries of transactions above all, is for those who set up logging: Python would print it otherwise.
"""

import logging
import sys

_UNUSED = [name for name in ("pandas", "pyarrow") if name not in sys.modules]

for _name in _UNUSED:
    sys.modules[_name] = None  # type: ignore[assignment]  # documented: makes the import fail at once
try:
    import neo4j
finally:
    for _name in _UNUSED:
        del sys.modules[_name]

logging.getLogger("neo4j").addHandler(logging.NullHandler())

__all__ = ["neo4j"]
