"""`serve`: the store as pages for a browser."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagedb.cli.shared_options import Common, option_groups

if TYPE_CHECKING:
    from stagedb.serve.listening import ServedAt


@option_groups
def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen here. Other machines reach 0.0.0.0, and need the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="The port; 0 takes a free one.")] = 8765,
    token: Annotated[
        bool | None,
        typer.Option("--token/--no-token", help="Ask for a token.  [unless only this machine reaches the address]"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The token.  [STAGEDB_SERVE_TOKEN, else one that is made and kept]"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Answer to this name in addresses too, such as that of a proxy."),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate for HTTPS, with --key.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="End a query after this time.")] = 60.0,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="The most rows of an answer.")] = 100_000,
    *,
    common: Common,
) -> None:
    """Show the store in a browser, read-only.

    Pages list models, graphs, instances and profiles, show plans, memory and reports, compare two of them, and answer
    named queries and Cypher. They fetch nothing from elsewhere, write nothing, and links to them can be shared. Ctrl-C
    ends the server.
    """
    from stagedb.serve import Limits, Listening, listen

    wanted = Listening(
        host, port, token, token_file, allow_host or (), certificate, key, Limits(timeout=timeout, rows=rows)
    )
    common.connect().close()  # a store that does not answer is an error now, not on the first page
    listen(common.connect, wanted, lambda at: _print(at, common))


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
