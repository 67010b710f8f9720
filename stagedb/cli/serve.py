"""`serve`: the store as pages for a browser."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagedb.cli.listening_options import ListeningOptions
from stagedb.cli.shared_options import Common, option_groups

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from stagedb.serve.access import AccessRules
    from stagedb.serve.listening import ServedAt


@option_groups
def serve(
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="End a query after this time.")] = 60.0,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="The most rows of an answer.")] = 100_000,
    writer_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The token of those who may write.  [STAGEDB_SERVE_WRITER_TOKEN, else nobody may]"
        ),
    ] = None,
    *,
    place: ListeningOptions,
    common: Common,
) -> None:
    """Show the store in a browser. It only reads, unless somebody has the writers' token.

    Pages list models, graphs, instances and profiles, show plans, memory and reports, compare two of them, and answer
    named queries and Cypher. They fetch nothing from elsewhere, and links to them can be shared. Who has the writers'
    token names, tags, notes and removes things; without such a token nobody does. Ctrl-C ends the server.
    """
    from stagedb.serve import Limits, application, listen
    from stagedb.serve.access import find_writer_token

    limits, wanted = Limits(timeout=timeout, rows=rows), place.listening()
    writer = find_writer_token(writer_token_file)
    common.connect().close()  # a store that does not answer is an error now, not on the first page

    def served(rules: "AccessRules") -> "Starlette":
        allowed = rules.with_writer(None if writer is None else writer.token)
        return application(common.connect, allowed, limits, reads_ahead=True)

    listen(served, wanted, lambda at: _print(at, common, None if writer is None else writer.source))


def _print(at: "ServedAt", common: Common, writers: str | None) -> None:
    """Where the pages are. A token is printed on a terminal alone: other output may be kept in a log."""
    shown = at.address if at.token is None or not sys.stdout.isatty() else f"{at.address}?token={at.token}"
    common.line(f"serving the store on {shown}")
    if at.source is not None:
        common.note(f"the token is in {at.source}; pages ask for it once")
    if writers is not None:
        common.note(f"the writers' token is in {writers}; the page {at.address}login takes it")
    sys.stdout.flush()


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(serve)
