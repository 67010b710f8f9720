"""`ls`, `show`, `tag` and `rm`: the content of the store."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, option_groups

if TYPE_CHECKING:
    from stagedb.api import ProfileInfo


class Kind(StrEnum):
    """Kinds of things to list."""

    GRAPHS = "graphs"
    INSTANCES = "instances"
    PROFILES = "profiles"


WordArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID|NAME",
        help="Id of a graph, an instance or a profile (its start is enough), or the name of one of the last two.",
    ),
]


@option_groups
def ls(
    kind: Annotated[Kind | None, typer.Argument(metavar="graphs|instances|profiles", help="List only these.")] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """List graphs, instances and profiles, the newest first."""
    from stagedb import api

    with api.connect(common.store, insecure=common.insecure) as db:
        graphs = db.graphs() if kind in (None, Kind.GRAPHS) else []
        instances = db.instances() if kind in (None, Kind.INSTANCES) else []
        profiles = db.profiles() if kind in (None, Kind.PROFILES) else []
    columns = ("kind", "id", "name", "ranks", "options", "created")
    rows = [
        *(("graph", g.id[:12], g.name, None, api.describe(g.options), g.created) for g in graphs),
        *(("instance", i.id[:12], i.name, i.ranks, api.describe(i.plan), i.created) for i in instances),
        *(("profile", p.id[:12], p.name, p.ranks, _profiled(p), p.created) for p in profiles),
    ]
    output.write(columns, rows)


def _profiled(info: "ProfileInfo") -> str:
    """The instance, the system and the step of a profile, in words."""
    words = [f"{info.instance_name} {info.instance[:12]} on {info.system}:", f"{info.step / 1e6:,.1f} ms"]
    waits = [f"blocking {','.join(info.blocking)}"] if info.blocking else []
    return " ".join([*words, *info.scalings, *waits])


@option_groups
def show(
    word: WordArgument,
    classes: Annotated[bool, typer.Option("--classes", help="Show a row for each rank class of the instance.")] = False,
    *,
    output: Output,
    common: Common,
) -> None:
    """Show a graph, an instance or a profile.

    Prints sizes, options, the plan and figures.
    """
    from stagedb import api

    with api.connect(common.store, insecure=common.insecure) as db:
        if classes:
            answer = db.classes(word)
            output.write(answer.columns, answer.rows)
            return
        found = db.show(word)
    output.write(("property", "value"), list(api.properties(found).items()))


@option_groups
def tag(
    word: WordArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    *,
    common: Common,
) -> None:
    """Rename an instance or a profile.

    Several may have one name, which then means the newest of them. Ids do not change.
    """
    from stagedb import api

    with api.connect(common.store, insecure=common.insecure) as db:
        found = db.tag(word, name)
    common.line(f"{api.kind_of(found)} {found.id[:12]} now has the name {found.name}")


@option_groups
def rm(
    word: WordArgument,
    force: Annotated[bool, typer.Option("--force", help="With a graph, remove its instances too.")] = False,
    *,
    common: Common,
) -> None:
    """Remove an instance, a profile or a graph.

    An instance is removed with its profiles. A graph that instances need is refused without --force.
    """
    from stagedb import api

    with api.connect(common.store, insecure=common.insecure) as db:
        removed = db.rm(word, force=force)
    for info in removed:
        name = "" if info.name is None else f" {info.name}"
        common.line(f"removed {api.kind_of(info)} {info.id[:12]}{name}")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(ls)
    app.command()(show)
    app.command()(tag)
    app.command()(rm)
