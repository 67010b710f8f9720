"""`serve`: the store as pages for a browser."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stagedb.cli.listening_options import ListeningOptions
from stagedb.cli.shared_options import Common, option_groups

if TYPE_CHECKING:
    from stagedb.serve.listening import ServedAt


@option_groups
def serve(
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="End a query after this time.")] = 60.0,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="The most rows of an answer.")] = 100_000,
    *,
    place: ListeningOptions,
    common: Common,
) -> None:
    """Show the store in a browser, read-only.

    Pages list models, graphs, instances and profiles, show plans, memory and reports, compare two of them, and answer
    named queries and Cypher. They fetch nothing from elsewhere, write nothing, and links to them can be shared. Ctrl-C
    ends the server.
    """
    from stagedb.serve import Limits, application, listen

    limits, wanted = Limits(timeout=timeout, rows=rows), place.listening()
    common.connect().close()  # a store that does not answer is an error now, not on the first page
    listen(lambda rules: application(common.connect, rules, limits), wanted, lambda at: _print(at, common))


def _print(at: "ServedAt", common: Common) -> None:
    """Where the pages are. A token is printed on a terminal alone: other output may be kept in a log."""
    shown = at.address if at.token is None or not sys.stdout.isatty() else f"{at.address}?token={at.token}"
    common.line(f"serving the store on {shown}")
    if at.source is not None:
        common.note(f"the token is in {at.source}; pages ask for it once")
    sys.stdout.flush()


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(serve)
