"""`sweep`: a plan and its system with some words and numbers varied, and what to buy."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, Model, Target, option_groups, print_line
from stagedb.cli.timing_options import SystemOptions
from stagedb.errors import UsageError
from stagedb.files import GB, check_path, write_whole

if TYPE_CHECKING:
    from stagedb.api import Gains, Stagedb, Swept

MS = 1e6
"""Nanoseconds."""

ENDING = ".svg"


@option_groups
def sweep(
    target: Target = None,
    model: Model = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="What varies: a word of the plan (tp=1,2,4, micro_batch_size=1..8), the system (system=h100,h200), or "
            "a number of it by the keys of its file (system.network.nvlink.bandwidth=450,900). Several make every "
            "combination.",
        ),
    ] = None,
    together: Annotated[
        bool,
        typer.Option("--together", help="Take the first values of all --vary together, then the second, and so on."),
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the steps as an SVG, along the first that varies.")
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity", help="What to buy: the step by each number of the system, in place of what varies."
        ),
    ] = False,
    *,
    words: PlanFlags,
    on: SystemOptions,
    output: Output,
    common: Common,
) -> None:
    """Time combinations of plan words and system numbers.

    A combination that is no plan is a row with the reason. Measured times of operators change with a number as the
    formula does that the system has for them without tables. Nothing is written to the store.
    """
    _check(vary, together, picture, sensitivity)
    request: dict[str, Any] = {
        "model": model,
        "system": on.system,
        "blocking": on.blocking,
        "framework": on.framework,
        **words.words(),
    }
    with common.connect() as db:
        if sensitivity:
            _sensitivity(db, target, request, output, common)
        else:
            _sweep(db, target, request, vary or [], together, picture, output, common)


def _check(vary: Sequence[str] | None, together: bool, picture: Path | None, sensitivity: bool) -> None:
    """Refuse options that contradict each other, before any work."""
    if sensitivity and (vary or together or picture is not None):
        raise UsageError("--sensitivity tries every number of the system: leave out --vary, --together and --picture")
    if not sensitivity and not vary:
        raise UsageError("nothing varies: name what does with --vary tp=1,2,4, or use --sensitivity")
    if picture is not None:
        check_path(picture, "--picture")
        if picture.suffix != ENDING:
            raise UsageError(f"--picture {picture} is no name of an SVG: it ends in {ENDING}")


def _sweep(
    db: "Stagedb",
    target: str | None,
    request: dict[str, Any],
    vary: Sequence[str],
    together: bool,
    picture: Path | None,
    output: Output,
    common: Common,
) -> None:
    with progress(common, "trying", "points", before="making the plans") as report:

        def tried(done: int, of: int, outcome: str) -> None:
            if report is not None:
                report(done, of)
                if outcome:
                    report.line(outcome)

        found = db.sweep(target, vary=vary, together=together, progress=tried, **request)
    common.profile({"sweep": found.seconds})
    if picture is not None:
        write_whole(picture, found.picture().encode(), "--picture")
    printed = output.format is RowFormat.TABLE and output.output is None
    (print_line if printed else common.note)(f"{found.model}: {found.verdict}")
    if printed:
        columns, rows = _shown(found)
        output.write(columns, rows, keep=[*columns[: len(found.varied)], "bound by", "step ms", "peak GB", "fits"])
    else:
        output.write(found.rows.columns, found.rows.rows, provenance=found.provenance)
    if picture is not None:
        common.line(f"drew {picture}")


def _sensitivity(db: "Stagedb", target: str | None, request: dict[str, Any], output: Output, common: Common) -> None:
    with progress(common, "trying", "numbers", before="timing the plan") as report:

        def tried(done: int, of: int, outcome: str) -> None:
            if report is not None:
                report(done, of)

        found = db.sensitivity(target, progress=tried, **request)
    common.profile({"sensitivity": found.seconds})
    printed = output.format is RowFormat.TABLE and output.output is None
    lines = [found.verdict, _figures(found)]
    for line in lines:
        (print_line if printed else common.note)(line)
    if printed:
        output.write(*_shown_gains(found), keep=["number", "elasticity", "10 % saves", "value"])
    else:
        output.write(found.rows.columns, found.rows.rows, provenance=found.provenance)


def _figures(found: "Gains") -> str:
    room = "" if found.room is None else f" of {found.room / GB:,.1f} GB for tensors"
    return (
        f"step {found.step / MS:,.3f} ms, peak {found.peak / GB:,.1f} GB{room}, of {found.model} on {found.ranks:,} "
        f"ranks of {found.system}"
    )


def _shown(found: "Swept") -> tuple[list[str], Sequence[Sequence[Any]]]:
    """The columns of a terminal. A refused point has its reason in place of what bounds it."""
    columns = [*_heads(found.varied), "step ms", "MFU %", "peak GB", "fits", "tokens/s", "bound by"]
    rows = []
    for row in found.rows:
        varied = [row[name] for name in found.varied]
        if row["refused"] is not None:
            rows.append([*varied, None, None, None, None, None, f"refused: {row['refused']}"])
            continue
        bound = f"{row['bound']} ({row['bound_share']:.0%})"
        mfu = None if row["mfu"] is None else round(100 * row["mfu"], 1)
        tokens = row["tokens_per_second_per_accelerator"]
        figures = [round(row["step"] / MS, 3), mfu, round(row["peak"] / GB, 1), "yes" if row["fits"] else "no"]
        rows.append([*varied, *figures, None if tokens is None else round(tokens, 1), bound])
    return columns, rows


def _heads(varied: Sequence[str]) -> list[str]:
    """Short heads of columns for what varies: the last two keys of a number's path, if no other column has them."""
    short = [".".join(name.split(".")[-2:]) for name in varied]
    return [each if short.count(each) == 1 else name for each, name in zip(short, varied, strict=True)]


def _shown_gains(found: "Gains") -> tuple[list[str], Sequence[Sequence[Any]]]:
    rows = [
        [
            row["number"],
            f"{row['value']} {row['unit']}",
            round(row["elasticity"], 3) + 0.0,
            f"{row['share_1']:.2%}",
            f"{row['share_10']:.1%}",
        ]
        for row in found.rows
    ]
    return ["number", "value", "elasticity", "1 % saves", "10 % saves"], rows


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(sweep)
