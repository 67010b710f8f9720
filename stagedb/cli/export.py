"""`export`: an instance as one trace a rank."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stagedb.cli.graphs import count, tell_bubble
from stagedb.cli.options import Common, option_groups
from stagedb.cli.plan import PlanWords
from stagedb.cli.progress import progress


class TraceFormat(StrEnum):
    """How the traces are written."""

    ET = "et"
    JSON = "json"


@option_groups
def export(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[INSTANCE]", help="Id or name of an instance. Plan options change its plan."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Export this model under the plan of the options; makes what is missing."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of the trace set.  [./NAME-RANKS]")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Write these ranks only, such as 0-63 or 0,8,16-23.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Write part I (from 0) of N equal parts: one a machine of several."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DIR if it exists.")] = False,
    format: Annotated[TraceFormat, typer.Option(help="Chakra's binary traces, or the same as JSON.")] = TraceFormat.ET,
    compress: Annotated[
        bool, typer.Option("--compress", help="gzip the traces; ASTRA-sim does not read that, Chakra's own tools do.")
    ] = False,
    replay: Annotated[
        bool | None,
        typer.Option(
            "--replay/--no-replay",
            help="Before DIR gets its name, run the traces as a simulator would.  [for small worlds]",
        ),
    ] = None,
    *,
    words: PlanWords,
    common: Common,
) -> None:
    """Write Chakra execution traces, one a rank.

    Beside them stand communicator groups, inputs for a simulator, a script that runs it, and a manifest. Without
    INSTANCE and --model it takes the newest instance, re-planned to --ranks; from an empty store it writes llama3-70b
    with tp 8 and pp 16.
    """
    from stagedb.api import connect

    said = words.words()
    with connect(common.store) as db, progress(common, "writing", "ranks") as report:
        done = db.export(
            target,
            model=model,
            out=out,
            only=only,
            shard=shard,
            force=force,
            format=format.value,
            compress=compress,
            replay=replay,
            progress=report,
            **said,
        )
    tell_bubble(common, done.instance)
    for stage, seconds in done.seconds.items():
        common.detail(f"{seconds:8.2f} s  {stage}")
    ranks = f"{count(done.instance.ranks, 'rank')}, instance {done.instance.id[:12]}"
    replayed = ", replayed" if done.replayed else ""
    common.say(
        f"{done.directory}: {count(done.files, 'trace')} of {done.instance.name} ({ranks}), {done.nodes:,} nodes, "
        f"{size(done.bytes)}{replayed}, in {sum(done.seconds.values()):.1f} s"
    )


def size(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(export)
