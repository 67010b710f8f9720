"""`store add`, `use`, `list` and `remove`: the stores that have names."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Printing, option_groups
from stagedb.errors import UsageError
from stagedb.files import path_text

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A store that was added, or embedded.", autocompletion=completion.stores),
]


@option_groups
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What you call it.")],
    uri: Annotated[str, typer.Argument(metavar="URI", help="Its address, such as bolt+s://graphs.example.org:7687.")],
    username: Annotated[
        str | None, typer.Option(metavar="USER", help="The account.  [neo4j, if it has a password]")
    ] = None,
    keyring: Annotated[
        bool, typer.Option("--keyring", help="Ask for the password, and keep it in the system's keyring.")
    ] = False,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The password is this file's line; only you can read it.")
    ] = None,
    password_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="The password is in this variable, as NEO4J_PASSWORD.")
    ] = None,
    database: Annotated[str | None, typer.Option(metavar="NAME", help="The database of the server.  [neo4j]")] = None,
    workspace: Annotated[str | None, typer.Option(metavar="NAME", help="The team's space of names in it.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Send the password unencrypted too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a store of this name.")] = False,
    *,
    printing: Printing,
) -> None:
    """Give a server's store a name.

    `--store NAME` takes it from then on. The configuration file gets the address, and where the password is, never the
    password itself. --keyring reads the password from the terminal, or a line from standard input. Nothing is sent to
    the server.
    """
    from stagedb.api import stores
    from stagedb.store.store_settings import InFile, InKeyring, InVariable

    sources = (
        InKeyring() if keyring else None,
        None if password_file is None else InFile(password_file),
        None if password_env is None else InVariable(password_env),
    )
    given = [each for each in sources if each is not None]
    if len(given) > 1:
        raise UsageError("give one of --keyring, --password-file and --password-env")
    new = stores.NewStore(name, uri, username, database, workspace, given[0] if given else None, insecure)
    config = stores.add(new, replace=force, password=_password)
    printing.line(f"added {name} to {path_text(config)}")
    printing.note(f"`stagedb store status --store {name}` tries it, `stagedb store use {name}` makes it your default")


def _password() -> str:
    """The password that a person types, without an echo, or a line of standard input."""
    from stagedb.store.store_settings import LONGEST, one_line

    if sys.stdin.isatty():
        return one_line(str(typer.prompt("Password", hide_input=True, err=True)).encode(), "the password")
    return one_line(sys.stdin.buffer.readline(LONGEST + 1), "the password on standard input")


@option_groups
def use(
    name: Name,
    project: Annotated[
        bool, typer.Option("--project", help="Only below this directory, by its .stagedb.toml, which others may share.")
    ] = False,
    *,
    printing: Printing,
) -> None:
    """Make a store your default.

    --store and NEO4J_URI go before it, and so does the .stagedb.toml of a project.
    """
    from stagedb.api import stores

    path = stores.use(name, project=project)
    printing.line(f"{path_text(path)} names {name}")
    used, by = stores.chosen()
    if used != name:
        printing.note(f"but {by} goes before it here")


@option_groups
def list_(*, output: Output, printing: Printing) -> None:
    """List the stores with names, and what names the one that is used here."""
    from stagedb.api import stores

    del printing
    found = stores.listed()
    output.write(found.columns, found.rows)


@option_groups
def remove(name: Name, *, printing: Printing) -> None:
    """Forget the name of a store, and its password in the keyring.

    The server and its content stay as they are.
    """
    from stagedb.api import stores

    config, was_default, forgot = stores.remove(name)
    printing.line(f"removed {name} from {path_text(config)}{', and its password from the keyring' if forgot else ''}")
    if was_default:
        printing.note("it was your default: without --store it is the embedded store now")


def register(group: typer.Typer) -> None:
    """Add the commands to the group of `store`."""
    group.command()(add)
    group.command()(use)
    group.command("list")(list_)
    group.command()(remove)
