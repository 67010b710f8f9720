"""`ls`, `show` and `rm`: the content of the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.name_tag_note import WordArgument
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups
from stagedb.files import GB


class Kind(StrEnum):
    """The kinds of things that `ls` can list alone."""

    GRAPHS = "graphs"
    INSTANCES = "instances"
    PROFILES = "profiles"
    SEARCHES = "searches"
    RUNS = "runs"
    UNFINISHED = "unfinished"


class Sort(StrEnum):
    """The values of `--sort` in `ls`."""

    CREATED = "created"
    NAME = "name"
    RANKS = "ranks"
    STEP = "step"
    MFU = "mfu"
    MEMORY = "memory"


_NS = frozenset({"step", "unscaled", "left", "busy", "exposed", "unexplained", "launching"})
_BYTES = frozenset({"memory", "room", "peak"})
_SHARES = frozenset({"mfu", "hfu", "measured_time"})
"""Properties of profiles, searches and runs by what their numbers are."""


@dataclass(frozen=True)
class _ListedColumn:
    """A column of a listing on a terminal: its header, and how a value is shown."""

    head: str
    shown: Callable[[Any], Any] = str


_SHOWN: Mapping[str, _ListedColumn] = {
    "id": _ListedColumn("id", lambda value: value[:12]),
    "name": _ListedColumn("name"),
    "model": _ListedColumn("model"),
    "ranks": _ListedColumn("ranks", lambda value: value),
    "step": _ListedColumn("step ms", lambda value: round(value / 1e6, 1)),
    "mfu": _ListedColumn("MFU %", lambda value: round(100 * value, 1)),
    "peak": _ListedColumn("GB", lambda value: round(value / GB, 2)),
    "plan": _ListedColumn("plan"),
    "system": _ListedColumn("system"),
    "created": _ListedColumn("created"),
    "made_by": _ListedColumn("by"),
    "tags": _ListedColumn("tags", " ".join),
    "loaded": _ListedColumn("loaded", lambda texts: " ".join(dict.fromkeys(text.split()[0] for text in texts))),
    "state": _ListedColumn("state"),
}


_TITLES = {"unfinished": "unfinished", "search": "searches"}
"""Titles of lists that are no plain plural."""

_KEEP = ("name", "plan", "ranks", "step ms", "system", "GB", "MFU %", "model")
"""Heads of the columns that a narrow terminal shows."""


@option_groups
def ls(
    kind: Annotated[
        Kind | None,
        typer.Argument(metavar="graphs|instances|profiles|searches|runs|unfinished", help="List only these."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Only what is of this model.", autocompletion=completion.models)
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only profiles and searches on it.", autocompletion=completion.systems),
    ] = None,
    sort: Annotated[
        Sort,
        typer.Option(
            help="created: yours first, then the newest; step: the shortest; mfu: the highest; memory: the smallest "
            "peak; ranks: the fewest."
        ),
    ] = Sort.CREATED,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Only what has this tag.")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only what you made, asked for or named.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first N of each kind.")] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """List what the store has, yours first.

    Yours is what you made or asked for; the newest is first. A name of somebody else has the user before it.

    Step time and MFU are those of profiles; a search has the step of its best plan, and a run the time that was
    recorded. An instance has its peak memory (GB of the fullest rank) once `stagedb memory` has computed it. What a
    process builds or deletes is under `unfinished`: `stagedb store gc --dead` removes what processes left that have
    ended. Formats other than the table have one list with all columns, in ns and bytes.
    """

    with common.connect() as db:
        found = db.ls(
            None if kind is None else kind.value,
            model=model,
            system=system,
            tag=tag,
            mine=mine,
            sort=sort.value,
            limit=limit,
        )
    if output.format is not RowFormat.TABLE or output.output is not None or not found.rows:
        short = {"id", "instance"}
        rows = [[value[:12] if name in short and value else value for name, value in row.items()] for row in found]
        output.write(found.columns, rows)
        return
    kinds = [*dict.fromkeys(row["kind"] for row in found)]
    for each in kinds:
        if len(kinds) > 1:
            typer.echo(f"{'' if each == kinds[0] else chr(10)}{_TITLES.get(each, f'{each}s')}")
        output.write(*_table([row for row in found if row["kind"] == each]), keep=_KEEP)


def _table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """The columns that have a value in some row, as people read them."""
    used = [name for name in _SHOWN if any(row.get(name) not in (None, []) for row in rows)]
    if all(row["model"] == row["name"] for row in rows) and "model" in used:
        used.remove("model")
    if len({row["made_by"] for row in rows}) == 1 and "made_by" in used:
        used.remove("made_by")
    whole = [{**row, "plan": " ".join(filter(None, (row["plan"], row["timing"])))} for row in rows]
    cells = [[None if row[name] is None else _SHOWN[name].shown(row[name]) for name in used] for row in whole]
    return [_SHOWN[name].head for name in used], cells


@option_groups
def show(
    word: WordArgument,
    classes: Annotated[bool, typer.Option("--classes", help="Show a row for each rank class of the instance.")] = False,
    *,
    output: Output,
    common: Common,
) -> None:
    """Show a graph, an instance, a profile, a search or a run.

    Prints sizes, options, the plan and figures. The table leaves out what has no value; the data model of the
    documentation has what each property means.
    """
    from stagedb import api

    with common.connect() as db:
        if classes:
            answer = db.classes(word)
            output.write(answer.columns, answer.rows)
            return
        found = db.show(word)
    values = api.properties(found)
    if output.format is RowFormat.TABLE and not isinstance(found, api.InstanceInfo | api.GraphInfo):
        values = {name: _readable(name, value) for name, value in values.items()}
    if output.format is RowFormat.TABLE and output.output is None:
        values = {name: value for name, value in values.items() if value not in (None, "", [], ())}
    output.write(("property", "value"), list(values.items()))
    common.note(_next(found))


def _next(found: Any) -> str:
    """Commands that ask more about a thing."""
    from stagedb import api

    id = found.id[:12]
    match api.kind_of(found):
        case "graph":
            return f"next: `stagedb instantiate {id}` makes an instance of it"
        case "instance":
            return f"next: `stagedb memory {id}`, `stagedb profile {id}`, or `stagedb export {id}` for its traces"
        case "profile":
            instance = found.instance[:12]
            return f"next: `stagedb query hotspots --profile {id}`, or `stagedb export {instance}` for its traces"
        case "search":
            return f"next: `stagedb query best-plans -p search={id}`, or `stagedb report {id}` for its picture"
        case _ if found.times is None:
            return f"next: `stagedb query ops-by-module --run {id}`, or `stagedb query collectives-by-group --run {id}`"
        case _:
            return (
                f"next: `stagedb query critical-breakdown --run {id}`, or `stagedb report --run {id}` for its picture"
            )


def _readable(name: str, value: Any) -> Any:
    """A property of a profile, a search or a run as people read it: times, bytes and shares with units."""
    from stagedb.files.texts import bytes_text
    from stagedb.reports.terminal_chart import span

    if value is None:
        return None
    if name in _NS:
        return span(value, 6)
    return bytes_text(value, 4) if name in _BYTES else f"{value:.1%}" if name in _SHARES else value


@option_groups
def rm(
    word: WordArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Remove what others need too: their names, profiles and instances.")
    ] = False,
    *,
    common: Common,
) -> None:
    """Remove a name with what it means, or a thing by its id.

    What has other names, or what other users made, stays when a name is removed, and is refused by its id. An instance
    is removed with its profiles. A graph that instances need is refused. --force removes all of this. Unfinished things
    can be removed too, if the process that began them has ended.
    """
    from stagedb import api

    with common.connect() as db:
        removed = db.rm(word, force=force)
    for info in removed:
        common.line(_removed(api.kind_of(info), info))


def _removed(kind: str, info: Any) -> str:
    """A line about a thing or a name that was removed, with the users whose it was."""
    name = "" if info.name is None else f" {info.name}"
    holders = getattr(info, "holders", ())
    if holders:
        return f"removed the name{name}; {kind} {info.id[:12]} stays ({'; '.join(holders)})"
    others = [each for each in getattr(info, "names", ()) if each.rpartition("/")[2] != info.name]
    made = getattr(info, "made_by", None)
    whose = [*(f"named {each}" for each in others), *([f"made by {made}"] if others and made else [])]
    return f"removed {kind} {info.id[:12]}{name}" + (f" ({', '.join(whose)})" if whose else "")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(ls)
    app.command()(show)
    app.command()(rm)
