"""`mcp`: the store as tools for agents."""

import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer

from stagedb.cli import EXIT_INTERRUPTED
from stagedb.cli.listening_options import ListeningOptions
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError

if TYPE_CHECKING:
    from stagedb.serve.listening import ServedAt

GENERATION = "2"
"""The first number of the version of the package."""


@option_groups
def mcp(
    http: Annotated[
        bool, typer.Option("--http", help="Listen for HTTP at /mcp, instead of using standard input and output.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="End a query, and tools that try plans, after this time.")
    ] = 60.0,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="The most rows of an answer.")] = 1_000,
    most_bytes: Annotated[
        int, typer.Option("--bytes", metavar="N", min=2_000, max=10_000_000, help="The most bytes of an answer.")
    ] = 60_000,
    *,
    place: ListeningOptions,
    common: Common,
) -> None:
    """Give agents tools that read the store (Model Context Protocol).

    An agent's program starts this command and talks to it over standard input and output; with --http it listens. Tools
    list, show and compare what the store has, answer named queries and Cypher, show runs, and time plans in memory.
    They write nothing and read no files. Ctrl-C ends the server.
    """
    if not http and place.given():
        raise UsageError(f"{place.given()[0]} is about HTTP: add --http, or leave it out")
    _check_package()
    from stagedb.agents import AnswerLimits, serve_over_http, serve_over_stdio

    limits = AnswerLimits(rows, most_bytes, timeout, asking=max(2, (os.cpu_count() or 1) // 2))
    common.connect().close()  # a store that does not answer is an error now, not in the first call
    if http:
        serve_over_http(common.connect, limits, place.listening(), lambda at: _print(at, common))
    else:
        signal.signal(signal.SIGINT, _end)
        serve_over_stdio(common.connect, limits)


def _end(number: int, frame: object) -> None:
    """End at once: a thread waits for the next line of input, and nothing but a line would end it."""
    os.write(2, b"Interrupted.\n")
    os._exit(EXIT_INTERRUPTED)


def _check_package() -> None:
    """Raise UsageError unless the protocol's package is there, in a version that has what the tools use."""
    try:
        found = version("mcp")
    except PackageNotFoundError:
        found = ""
    if found.partition(".")[0] != GENERATION:
        there = f", and version {found} is here" if found else ""
        raise UsageError(f'agents need the package `mcp` {GENERATION}{there}: `pip install "stagedb[mcp]"`')


def _print(at: "ServedAt", common: Common) -> None:
    """Where the tools are, and where the token is, which is not printed."""
    common.line(f"tools for agents on {at.address}mcp")
    if at.source is not None:
        common.note(f"the token is in {at.source}: agents send it in the header Authorization, after the word Bearer")
    sys.stdout.flush()


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(mcp)
