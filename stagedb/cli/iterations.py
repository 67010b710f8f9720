"""`iterations`: what an engine that serves ran, next to what a plan of its requests takes."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, Model, System, option_groups


@option_groups
def iterations(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Id or name of a run that was imported.", autocompletion=completion.runs),
    ],
    rank: Annotated[
        int | None, typer.Option(metavar="RANK", help="The rank.  [the first with iterations]", show_default=False)
    ] = None,
    model: Model = None,
    system: System = None,
    alike: Annotated[
        bool,
        typer.Option("--alike", help="Plan the requests of an iteration as if all had the mean length."),
    ] = False,
    *,
    words: PlanFlags,
    output: Output,
    common: Common,
) -> None:
    """What an engine ran, next to plans of its requests.

    vLLM, SGLang and ATOM name each iteration with the sums of its requests in the traces that they profile. With a
    model each iteration is planned with its own requests: the step that is expected on a system is next to the one that
    was seen, from the first op that the iteration launched to the end of the last. Without a system it is the one whose
    accelerator the run names. Nothing is written.
    """
    with common.connect() as db, progress(common, "planning", "batches") as report:
        found = db.iterations(run, rank=rank, model=model, system=system, alike=alike, progress=report, **words.words())
    printed = output.format is RowFormat.TABLE and output.output is None
    write = common.line if printed else common.note
    write(str(found))
    if found.unknown:
        write(
            f"{found.unknown} of them without the sums of their requests (profile vLLM with "
            "detailed_trace_annotation), or with drafts of several lengths"
        )
    rows = found.rows
    if printed:
        times = [place for place, name in enumerate(rows.columns) if name in rows.units]
        columns = [f"{name}_ms" if name in rows.units else name for name in rows.columns]
        in_ms = [_in_ms(row, times) for row in rows.rows]
        output.write(columns, in_ms, keep=[f"{name}_ms" if name in rows.units else name for name in rows.keep])
    else:
        output.write(rows.columns, rows.rows, keep=rows.keep, units=rows.units)
    if found.model is None and printed:
        word = found.run.names[0].rpartition("/")[2] if found.run.names else found.run.id[:12]
        write(f"next: stagedb iterations {word} --model MODEL --system SYSTEM")


def _in_ms(row: Sequence[Any], times: Sequence[int]) -> tuple[Any, ...]:
    return tuple(
        round(value / 1e6, 3) if place in times and value is not None else _rounded(value)
        for place, value in enumerate(row)
    )


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(iterations)
