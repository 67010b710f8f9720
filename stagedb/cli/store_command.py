"""`store`: the database itself."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated

import typer

from stagedb.cli import completion, named_stores
from stagedb.cli.help_groups import QuickGroup
from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError
from stagedb.files import path_text, shown

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
    named_stores.register(group)
    app.add_typer(group, name="store")
