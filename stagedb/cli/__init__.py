"""The command line: one module for each command group, as a thin layer over `stagedb.api`.

`main` runs it. Heavy packages are imported only when a command needs them, so that `--help` and completion are fast.
"""

import gc
import sys

__all__ = ["main"]

EXIT_INTERRUPTED = 130

GARBAGE = 100_000
"""Objects that are made between two searches for unused cycles: Python's 700 take a tenth of a short command."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 refused (nothing changed), 70 an error of stagedb itself."""
    gc.set_threshold(GARBAGE)
    try:
        from stagedb.cli.standard_streams import prepare

        prepare()
        from stagedb.cli.application import run

        run()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)  # noqa: T201  # typer may not be imported yet
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # the last resort: one line, and a file with details
        from stagedb.cli.unexpected_errors import report

        sys.exit(report(error, sys.argv))
