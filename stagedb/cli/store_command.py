"""`store`: the database itself, and the stores that have names."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.help_groups import QuickGroup
from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, Printing, option_groups
from stagedb.errors import UsageError
from stagedb.files import path_text, shown

# `store add`, `use`, `list` and `remove`: the stores that have names.

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


def register_named_stores(group: typer.Typer) -> None:
    """Add the commands to the group of `store`."""
    group.command()(add)
    group.command()(use)
    group.command("list")(list_)
    group.command()(remove)


group = typer.Typer(
    cls=QuickGroup, help="The database: which one, status, check, gc, dump and more.", no_args_is_help=True
)


@group.command()
@option_groups
def status(*, output: Output, common: Common) -> None:
    """Show which store is used, its state, and its content.

    Starts nothing.
    """
    from stagedb.api import database

    found = database.status(common.store, database=common.database, insecure=common.insecure)
    output.write(("property", "value"), list(dataclasses.asdict(found).items()))


@group.command()
@option_groups
def up(*, common: Common) -> None:
    """Start the embedded engine, or check a server, and print the address.

    Other commands do the same, so that this is not needed before them.
    """
    from stagedb.api import database

    common.line(database.up(common.store, database=common.database, insecure=common.insecure))


@group.command()
@option_groups
def wait(
    word: Annotated[
        str | None,
        typer.Argument(metavar="ID|NAME", help="A graph, an instance or a profile.  [the store alone]"),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0, help="Give up after this time, with exit status 1.", show_default=True)
    ] = 600.0,
    *,
    common: Common,
) -> None:
    """Wait until the store answers, or until it has a thing that another process makes.

    Writes nothing. Many tasks of a job can wait for what the first one makes.
    """
    from stagedb.api import database, kind_of

    found = database.wait(word, common.store, database=common.database, insecure=common.insecure, seconds=seconds)
    common.line("the store answers" if found is None else f"{kind_of(found)} {found.id}")


@group.command()
@option_groups
def down(*, common: Common) -> None:
    """End the embedded engine now.

    Its data stays. Without this command it ends some time after its last client.
    """
    from stagedb.api import database

    common.line("stopped" if database.down(common.store, database=common.database) else "was not running")


@group.command()
@option_groups
def migrate(*, common: Common) -> None:
    """Bring a server's store up to date.

    The embedded store does so by itself.
    """
    from stagedb.api import database

    applied = database.migrate(common.store, database=common.database, insecure=common.insecure)
    common.line(f"applied {', '.join(applied)}" if applied else "up to date")


@group.command()
@option_groups
def gc(
    dead: Annotated[
        bool, typer.Option("--dead", help="What processes left unfinished that have ended. Builders do this too.")
    ] = False,
    unnamed_older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="What nobody named or tagged, nor made or asked for within this time, such as 30d or 12h.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove it. Without this, what is not dead is only listed.")
    ] = False,
    *,
    common: Common,
) -> None:
    """Remove what nobody needs.

    At least one scope is needed. A process of another machine counts as ended a minute after its last sign of life:
    `stagedb ls unfinished` shows them. What is unnamed is listed first, and removed with --yes.
    """
    from stagedb import api

    age = None if unnamed_older_than is None else days_of(unnamed_older_than, "--unnamed-older-than")
    dry = age is not None and not yes
    with common.connect() as db:
        removed = db.gc(dead=dead, unnamed_older_than=age, dry_run=dry)
    for info in removed:
        name = "" if info.name is None else f" {info.name}"
        why = f"unnamed, made by {info.made_by or 'somebody'}" if isinstance(info, api.Unused) else "unfinished"
        common.line(f"{'would remove' if dry else 'removed'} {api.kind_of(info)} {info.id[:12]}{name} ({why})")
    if not removed:
        common.line("nothing to remove")
    elif dry:
        common.note(f"{len(removed)} things; add --yes to remove them")


@group.command()
@option_groups
def check(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Remove what cannot be read any more: what belongs to nothing, and dead work."),
    ] = False,
    *,
    output: Output,
    common: Common,
) -> None:
    """Compare all content with what it is made from.

    Prints what is wrong, where, and what to do, and ends with status 1 if something is wrong. Writes nothing without
    --repair, which lists first what it removes. The store may be in use.
    """
    with common.connect() as db:
        found = db.check(notice=common.note)
        rows = [(each.label, each.id, each.problem, each.remedy) for each in found]
        output.write(("label", "id", "problem", "remedy"), rows)
        explained = sum(each.explained for each in found)
        left = [each for each in found if not (each.explained or (repair and each.repairable))]
        if repair:
            common.note(f"removed {db.repair(found):,} things")
    if explained:
        common.note(f"{explained:,} things of another version of stagedb cannot be checked, and nothing shows damage")
    if left:
        common.note(f"{len(left):,} problems are left" if repair else f"{len(left):,} problems")
        raise typer.Exit(1)
    common.note("nothing is wrong" if len(found) == explained else "nothing is wrong any more")


@group.command()
@option_groups
def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The dump, such as team.dump.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID|NAME]...", help="Only these.  [everything]", autocompletion=completion.anything),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    *,
    common: Common,
) -> None:
    """Write content into a file for another store, or as a backup.

    A profile comes with its instance, and an instance with its graph. The store may be in use. Names, tags and notes
    come along, and saved queries in a dump of everything; the log stays behind.
    """
    with common.connect() as db:
        count = db.dump(file, *(names or ()), force=force, notice=common.note)
    common.line(f"{path_text(file)} has {count:,} graphs, instances, profiles, searches and runs")


@group.command()
@option_groups
def load(file: Annotated[Path, typer.Argument(metavar="FILE", help="A dump.")], *, common: Common) -> None:
    """Write what the store lacks of a dump.

    All of the file is checked first, and a file that is not sound writes nothing. A load that was stopped goes on when
    it is run again. A name that means something else here stays as it is.
    """
    with common.connect() as db:
        count = db.load(file, notice=common.note)
    common.line(f"{count:,} graphs, instances, profiles, searches and runs were new")


Moved = Annotated[
    list[str],
    typer.Argument(metavar="ID|NAME...", help="Graphs, profiles, searches …", autocompletion=completion.anything),
]


@group.command()
@option_groups
def push(
    names: Moved,
    to: Annotated[str, typer.Option("--to", metavar="URI|STORE", help="The other store.")],
    *,
    common: Common,
) -> None:
    """Send what another store lacks of these.

    What they are made from comes along, and so do names, tags and notes. Everything is checked before anything is
    written. The account in NEO4J_USERNAME and NEO4J_PASSWORD belongs to one server, that of NEO4J_URI or --store, and
    is sent to no other one. --database belongs to --store: each database of a server can be a store of its own with
    `stagedb store add`.
    """
    with common.connect() as db:
        count = db.push(*names, to=to, insecure=common.insecure, notice=common.note)
    common.line(f"{count:,} graphs, instances, profiles, searches and runs were new there")


@group.command()
@option_groups
def pull(
    names: Annotated[list[str], typer.Argument(metavar="ID|NAME...", help="Graphs, profiles, searches … there.")],
    source: Annotated[str, typer.Option("--from", metavar="URI|STORE", help="The other store, which is only read.")],
    *,
    common: Common,
) -> None:
    """Fetch what this store lacks of these.

    As `stagedb store push`, in the other direction.
    """
    with common.connect() as db:
        count = db.pull(*names, source=source, insecure=common.insecure, notice=common.note)
    common.line(f"{count:,} graphs, instances, profiles, searches and runs were new")


def days_of(text: str, option: str) -> float:
    """The days of an age such as `30d`, `12h` or `0d`. text: the age. option: the one that has it, for errors."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} {shown(text)} is not an age: write days or hours, such as 30d or 12h")
    return float(found[1]) / (24 if found[2] == "h" else 1)


_AGE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([dh])")


@group.command()
@option_groups
def log(
    word: Annotated[
        str | None,
        typer.Argument(metavar="ID|NAME", help="Only about this.  [everything]", autocompletion=completion.anything),
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="USER", help="Only what this user did.")] = None,
    days: Annotated[float, typer.Option(metavar="N", help="How far back.")] = 30.0,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The newest N.")] = 100,
    origin: Annotated[
        bool, typer.Option("--origin", help="Instead, who made ID|NAME, how, and the digest of each of its inputs.")
    ] = False,
    *,
    output: Output,
    common: Common,
) -> None:
    """Show who changed the store: when, what, with which command.

    What is removed can be named by its whole id.
    """
    if origin and word is None:
        raise UsageError("--origin needs an ID|NAME")
    with common.connect() as db:
        found = db.origin(str(word)) if origin else db.log(word, user=user, days=days, limit=limit)
    output.write(found.columns, found.rows)
    for hint in found.hints:
        common.note(hint)


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    register_named_stores(group)
    app.add_typer(group, name="store")
