"""`find`: profiled instances of a model under a plan, the most tokens a second an accelerator first."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups
from stagedb.files import GB

HEADS = (
    *("instance", "name", "ranks", "tokens/s/acc", "step ms", "MFU %", "GB", "of GB", "fits", "plan", "model"),
    *("system", "by"),
)
KEEP = ("name", "tokens/s/acc", "step ms", "fits", "plan", "system", "MFU %")
"""Heads of the columns that a narrow terminal shows."""


@option_groups
def find(
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Only of this model.", autocompletion=completion.models)
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only profiles on this system.", autocompletion=completion.systems),
    ] = None,
    fits: Annotated[
        bool, typer.Option("--fits", help="Only what fits into the memory of the system's accelerators.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The first N.")] = 100,
    *,
    words: PlanFlags,
    output: Output,
    common: Common,
) -> None:
    """Find profiled plans, ranked by tokens/s an accelerator.

    Options of the plan are values that the plans have. There is a row for each profile of anybody; those with scaled
    durations are left out. Formats other than the table have all columns, in ns and bytes.
    """
    with common.connect() as db:
        found = db.find(model=model, system=system, fits=fits, limit=limit, **words.words())
    if output.format is RowFormat.TABLE and output.output is None:
        output.write(HEADS, [_shown(row) for row in found], keep=KEEP)
    else:
        output.write(found.columns, found.rows)
    for hint in found.hints:
        common.note(hint)


def _shown(row: Mapping[str, Any]) -> list[Any]:
    """A row as people read it."""
    memory, room = (None if row[name] is None else round(row[name] / GB, 2) for name in ("memory", "room"))
    fits = {True: "yes", False: "no", None: "unknown"}[row["fits"]]
    mfu = None if row["mfu"] is None else round(100 * row["mfu"], 1)
    speed = None if row["tokens_per_accelerator"] is None else round(row["tokens_per_accelerator"], 1)
    figures = (row["ranks"], speed, round(row["step"] / 1e6, 3), mfu, memory, room, fits)
    return [row["instance"][:12], row["name"], *figures, row["plan"], row["model"], row["system"], row["made_by"]]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(find)
