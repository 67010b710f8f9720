"""The driver, imported without numpy, pandas and pyarrow. It would import them, and stagedb passes it plain values.

Their import takes longer than the rest of a command. Code may still import them afterwards. The driver's log, above all
of transactions that it runs again, goes to programs that set up logging: Python would print it otherwise.
"""

import logging
import sys

_UNUSED = [name for name in ("numpy", "pandas", "pyarrow") if name not in sys.modules]

for _name in _UNUSED:
    sys.modules[_name] = None  # type: ignore[assignment]  # documented: makes the import fail at once
try:
    import neo4j
finally:
    for _name in _UNUSED:
        del sys.modules[_name]

logging.getLogger("neo4j").addHandler(logging.NullHandler())

__all__ = ["neo4j"]
