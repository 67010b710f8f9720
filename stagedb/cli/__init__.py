"""The command line: one module a command group, thin skins over `stagedb.api`.

`main` runs it. Nothing heavy is imported before a command needs it, so that `--help` and completion answer at once.
"""

from stagedb.cli.application import app, main

__all__ = ["app", "main"]
