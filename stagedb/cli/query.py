"""`query` and `queries`: questions in Cypher."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError
from stagedb.files import read_text, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagedb.api import QueryInfo, Rows, Stagedb

About = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME|ID]",
        help="What the query is about, in place of --instance, --profile or --run.  [your newest]",
        show_default=False,
        autocompletion=completion.asked,
    ),
]


@option_groups
def query(
    query: Annotated[
        str,
        typer.Argument(
            metavar="CYPHER|NAME",
            help="A Cypher text that only reads, or a name that `queries` lists.",
            autocompletion=completion.queries,
        ),
    ],
    about: About = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="KEY=VALUE", help="A parameter; VALUE is read as JSON, else as text."),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANCE",
            help="Id or name of the instance for $instance.  [your newest]",
            autocompletion=completion.instances,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Id or name of the profile for $profile.  [your newest, of INSTANCE if that is given]",
            autocompletion=completion.profiles,
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Id or name of a run for $run; a named query about a profile answers for the run.  [your newest]",
            autocompletion=completion.runs,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="End the query after this time.")] = 60.0,
    *,
    output: Output,
    common: Common,
) -> None:
    """Ask the store in Cypher, or run a named query.

    A text that could write is refused. In it, $instance, $profile and $run are ids. Names may be written with - or _.
    """
    params = dict(_pair(text) for text in param or [])
    things: dict[str, Any] = {"instance": instance, "profile": profile, "run": run}
    with common.connect() as db, progress(common, "writing", "ranks and groups") as report:
        if about is not None:
            _set(db, query, about, params, things)
        answer = db.query(query, params, **things, timeout=timeout, progress=report)
    _print(query, answer, output, common)


def _print(query: str, answer: "Rows", output: Output, common: Common) -> None:
    """What the answer is about, its rows, and what is missing in it."""
    from stagedb import api

    for what, which in answer.newest.items():
        common.note(f"of the newest {what}, {which}")
    output.write(answer.columns, answer.rows, keep=answer.keep, units=answer.units)
    last = query.strip().rsplit("/", 1)[-1].replace("-", "_")
    asked = None if answer.rows else next((info for info in api.queries() if info.name == last), None)
    if asked is not None:
        common.note(f"{query}: {asked.description}")
    for hint in answer.hints:
        common.note(hint)


@option_groups
def queries(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Show the columns of this query, with their types, units and meanings.",
            show_default=False,
            autocompletion=completion.queries,
        ),
    ] = None,
    saved: Annotated[bool, typer.Option("--saved", help="List those that users saved in the store instead.")] = False,
    save: Annotated[
        str | None, typer.Option(metavar="NAME", help="Save the query of --file in the store, under this name.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A query: a header as that of the named queries, and Cypher.")
    ] = None,
    forget: Annotated[str | None, typer.Option(metavar="NAME", help="Delete a saved query of yours.")] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """List the named queries by subject, with their parameters.

    With NAME, what one query asks and what its columns mean; a `-` in a name means `_`. Formats other than the table
    have their columns too. A saved query is run by its name, as a named one.
    """
    from stagedb import api

    if (save is None) != (file is None):
        raise UsageError("--save NAME and --file FILE go together: give both, or neither")
    if name is not None and (save is not None or forget is not None):
        raise UsageError(f"{shown(name)} is shown, and --save and --forget change a query: leave one out")
    if save is not None or forget is not None:
        _change(save, file, forget, common)
        return
    if saved:
        with common.connect() as db:
            infos = [each for each in db.queries() if each.subject == "saved"]
    else:
        infos = api.queries()
    if name is not None:
        _explain(name, infos, saved, output, common)
        return
    records = [
        {
            "name": info.name,
            "subject": info.subject,
            "parameters": list(info.parameters),
            "asks": info.description,
            "columns": list(info.columns),
        }
        for info in infos
    ]
    if output.format is RowFormat.TABLE:
        for record in records:
            del record["columns"]  # the list of columns is too wide for a terminal
            record["asks"] = f"{str(record['asks']).split('. ')[0].rstrip('.')}."
        common.note("`stagedb queries NAME` has all of what one asks, and what its columns mean")
    output.write_records(records, keep=("name", "asks", "parameters"))


def _change(save: str | None, file: Path | None, forget: str | None, common: Common) -> None:
    """Save a query in the store, or delete one."""
    with common.connect() as db:
        if save is not None:
            common.line(f"saved query {db.save_query(save, read_text(Path(str(file)), 'query')).name}")
        if forget is not None:
            db.forget_query(forget)
            common.line(f"deleted query {forget}")


def _explain(name: str, infos: "Sequence[QueryInfo]", saved: bool, output: Output, common: Common) -> None:
    """What one query asks, what it takes, and its columns."""
    from stagedb.api import querying

    known = {info.name: info for info in infos}
    if saved and name not in known:
        raise UsageError(f"no query {shown(name)} is saved in the store: `stagedb queries --saved` lists them")
    info = known[name if saved else querying.short(querying.find(name))]
    common.note(f"{info.name}: {info.description}")
    for each in info.takes:
        common.note(f"takes {each.name} ({each.type}): {each.description}")
    rows = [(each.name, each.type, each.unit, each.description) for each in info.gives]
    output.write(("column", "type", "unit", "meaning"), rows, keep=("meaning", "unit", "type"))


def _set(db: "Stagedb", query: str, about: str, params: dict[str, Any], things: dict[str, Any]) -> None:
    """Add what a query is about to its parameters, or to the things by name."""
    from stagedb.api.querying import set_by

    name = set_by(db.store, query, about)
    given = next((each for each, word in things.items() if word is not None), name if name in params else None)
    if given is not None:
        raise UsageError(f"{shown(about)} and {given} both set what the query is about: leave one out")
    (things if name in things else params)[name] = about


def _pair(text: str) -> tuple[str, Any]:
    from stagedb.api.query_forms import given_value

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{shown(text)} is not a parameter: --param takes KEY=VALUE")
    return key, given_value(value, f"--param {key}")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(query)
    app.command()(queries)
