"""`store`: the database itself."""

import dataclasses

import typer

from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, option_groups

group = typer.Typer(help="The database: status, up, down, migrate, gc.", no_args_is_help=True)


@group.command()
@option_groups
def status(*, output: Output, common: Common) -> None:
    """Show which store is used, its state, and its content.

    Starts nothing.
    """
    from stagedb.api import database

    found = database.status(common.store, insecure=common.insecure)
    output.write(("property", "value"), list(dataclasses.asdict(found).items()))


@group.command()
@option_groups
def up(*, common: Common) -> None:
    """Start the embedded engine, or check a server, and print the address.

    Other commands do the same, so that this is not needed before them.
    """
    from stagedb.api import database

    common.line(database.up(common.store, insecure=common.insecure))


@group.command()
@option_groups
def down(*, common: Common) -> None:
    """End the embedded engine now.

    Its data stays. Without this command it ends some time after its last client.
    """
    from stagedb.api import database

    common.line("stopped" if database.down(common.store) else "was not running")


@group.command()
@option_groups
def migrate(*, common: Common) -> None:
    """Bring a server's store up to date.

    The embedded store does so by itself.
    """
    from stagedb.api import database

    applied = database.migrate(common.store, common.line, insecure=common.insecure)
    common.line(f"applied {', '.join(applied)}" if applied else "up to date")


@group.command()
@option_groups
def gc(*, common: Common) -> None:
    """Remove what processes left unfinished that have ended.

    A process of another machine counts as ended a minute after its last sign of life. `stagedb ls unfinished` shows
    them.
    """
    from stagedb import api

    with common.connect() as db:
        removed = db.gc()
    for info in removed:
        common.line(
            f"removed {api.kind_of(info)} {info.id[:12]}{'' if info.name is None else f' {info.name}'} (unfinished)"
        )
    if not removed:
        common.line("nothing to remove")


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    app.add_typer(group, name="store")
