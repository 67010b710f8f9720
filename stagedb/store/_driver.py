"""The driver, imported without pandas and pyarrow, which it looks for and which nothing here passes through it.

Together they take longer to import than the rest of a command to run. They can be imported afterwards as ever.
"""

import sys

_UNUSED = [name for name in ("pandas", "pyarrow") if name not in sys.modules]

for _name in _UNUSED:
    sys.modules[_name] = None  # type: ignore[assignment]  # documented: makes the import fail at once
try:
    import neo4j
finally:
    for _name in _UNUSED:
        del sys.modules[_name]

__all__ = ["neo4j"]
