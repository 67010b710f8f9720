"""`name`, `tag` and `note`: what people call what the store has, and what they know about it."""

from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.shared_options import Common, option_groups

WordArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID|NAME",
        help="Id of a graph, an instance, a profile, a search or a run (its start is enough), or a name.",
        autocompletion=completion.anything,
    ),
]


@option_groups
def name(
    word: WordArgument,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name: yours, or with your workspace before it (team/base).")
    ],
    *,
    common: Common,
) -> None:
    """Let a name mean an instance, a profile or a run.

    A name is a pointer of yours, or of the workspace that STAGEDB_WORKSPACE names. It moves if it means another thing.
    Nobody else's names change, and ids do not.
    """
    from stagedb import api

    with common.connect() as db:
        found = db.name(word, name)
    common.line(f"{name.strip()} now means {api.kind_of(found)} {found.id[:12]} ({', '.join(found.names)})")


@option_groups
def tag(
    word: WordArgument,
    tags: Annotated[list[str], typer.Argument(metavar="TAG…", help="Words.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take these tags off.")] = False,
    *,
    common: Common,
) -> None:
    """Tag a graph, an instance or a profile, or take tags off.

    Everybody sees the tags: `stagedb ls --tag` lists what has one, and `store gc` keeps it.
    """
    from stagedb import api

    with common.connect() as db:
        found = db.tag(word, *tags, remove=remove)
    common.line(f"{api.kind_of(found)} {found.id[:12]} has {_listed(found.tags)}")


def _listed(tags: tuple[str, ...]) -> str:
    return f"the tags {', '.join(tags)}" if tags else "no tags"


@option_groups
def note(
    word: WordArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note.")],
    *,
    common: Common,
) -> None:
    """Write a note about a graph, an instance or a profile.

    `stagedb show` prints the notes of all users.
    """
    from stagedb import api

    with common.connect() as db:
        found = db.note(word, text)
    common.line(f"{api.kind_of(found)} {found.id[:12]} has {len(found.notes)} notes")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(name)
    app.command()(tag)
    app.command()(note)
