"""The command line: one module for each command group, as a thin layer over `stagedb.api`.

`main` runs it. Heavy packages are imported only when a command needs them, so that `--help` and completion are fast.
"""

from stagedb.cli.application import app, main

__all__ = ["app", "main"]
