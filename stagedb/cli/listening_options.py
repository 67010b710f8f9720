"""Where a server listens, and for whom: options of the commands that serve."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stagedb.serve.listening import Listening

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class ListeningOptions:
    """An address of this machine, who may reach it, and the files for HTTPS."""

    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help=f"Listen here. Other machines reach 0.0.0.0, and need the token.  [{LOCAL}]",
            show_default=False,
        ),
    ] = None
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65_535, help="The port; 0 takes a free one.  [8765]")
    ] = None
    token: Annotated[
        bool | None,
        typer.Option("--token/--no-token", help="Ask for a token.  [unless only this machine reaches the address]"),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The token.  [STAGEDB_SERVE_TOKEN, else one that is made and kept]"),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Answer to this name in addresses too, such as that of a proxy."),
    ] = None
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate for HTTPS, with --key.")] = None
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None

    def given(self) -> list[str]:
        """The names of the options that have a value."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value not in (None, [])]

    def listening(self) -> "Listening":
        """The options as the place where a server listens."""
        from stagedb.serve import Listening

        port = 8765 if self.port is None else self.port
        allow = self.allow_host or ()
        return Listening(self.host or LOCAL, port, self.token, self.token_file, allow, self.certificate, self.key)
