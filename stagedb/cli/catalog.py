"""`ls`, `show` and `rm`: what the store holds."""

from enum import StrEnum
from typing import Annotated

import typer

from stagedb.cli.options import Common, option_groups
from stagedb.cli.output import Output


class Kind(StrEnum):
    """What may be listed."""

    GRAPHS = "graphs"
    INSTANCES = "instances"


WordArgument = Annotated[
    str,
    typer.Argument(metavar="ID|NAME", help="Id of a graph or an instance (its start will do), or an instance's name."),
]


@option_groups
def ls(
    kind: Annotated[Kind | None, typer.Argument(metavar="[graphs|instances]", help="List only these.")] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """List graphs and instances, the newest first."""
    from stagedb import api

    with api.connect(common.store) as db:
        graphs = [] if kind is Kind.INSTANCES else db.graphs()
        instances = [] if kind is Kind.GRAPHS else db.instances()
    columns = ("kind", "id", "name", "ranks", "options", "created")
    rows = [
        *(("graph", g.id[:12], g.name, None, api.describe(g.options), g.created) for g in graphs),
        *(("instance", i.id[:12], i.name, i.ranks, api.describe(i.plan), i.created) for i in instances),
    ]
    output.write(columns, rows)


@option_groups
def show(
    word: WordArgument,
    classes: Annotated[bool, typer.Option("--classes", help="One row a rank class of the instance instead.")] = False,
    *,
    output: Output,
    common: Common,
) -> None:
    """Show a graph or an instance: sizes, options, plan."""
    from stagedb import api

    with api.connect(common.store) as db:
        if classes:
            answer = db.classes(word)
            output.write(answer.columns, answer.rows)
            return
        found = db.show(word)
    output.write(("property", "value"), list(api.properties(found).items()))


@option_groups
def rm(
    word: WordArgument,
    force: Annotated[bool, typer.Option("--force", help="With a graph, remove the instances made of it too.")] = False,
    *,
    common: Common,
) -> None:
    """Remove an instance, or a graph that no instance stands on."""
    from stagedb import api

    with api.connect(common.store) as db:
        removed = db.rm(word, force=force)
    for info in removed:
        kind = "graph" if isinstance(info, api.GraphInfo) else "instance"
        common.say(f"removed {kind} {info.id[:12]} {info.name}")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(ls)
    app.command()(show)
    app.command()(rm)
