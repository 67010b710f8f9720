"""`store`: the database itself."""

import dataclasses

import typer

from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, option_groups

group = typer.Typer(help="The database: status, up, down, migrate.", no_args_is_help=True)


@group.command()
@option_groups
def status(*, output: Output, common: Common) -> None:
    """Tell which store is meant, whether it answers, and what it holds. Starts nothing."""
    from stagedb.api import database

    found = database.status(common.store)
    output.write(("property", "value"), list(dataclasses.asdict(found).items()))


@group.command()
@option_groups
def up(*, common: Common) -> None:
    """Start the embedded engine, or see that a server answers, and print the address.

    Not needed before other commands: they do the same.
    """
    from stagedb.api import database

    common.say(database.up(common.store))


@group.command()
@option_groups
def down(*, common: Common) -> None:
    """End the embedded engine now. It keeps what it holds; without this it ends some time after its last client."""
    from stagedb.api import database

    common.say("stopped" if database.down(common.store) else "was not running")


@group.command()
@option_groups
def migrate(*, common: Common) -> None:
    """Bring a server's store up to date; the embedded store does so by itself."""
    from stagedb.api import database

    applied = database.migrate(common.store, common.say)
    common.say(f"applied {', '.join(applied)}" if applied else "up to date")


def register(app: typer.Typer) -> None:
    """Add the group to the application."""
    app.add_typer(group, name="store")
