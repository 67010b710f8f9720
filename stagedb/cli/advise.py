"""`advise`: what bounds a step, and which changes of its plan are worth a try."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli.build_instantiate import count
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, Model, Target, option_groups, print_line
from stagedb.cli.timing_options import SystemOptions
from stagedb.errors import UsageError
from stagedb.files import GB, printable, reserve_text

if TYPE_CHECKING:
    from stagedb.api import Advised

MS = 1e6
"""Nanoseconds."""
COMMANDS = 3
"""Changes whose commands are printed."""


class AdviceRows(StrEnum):
    """The values of `--show` in `advise`: which rows it prints."""

    CHANGES = "changes"
    WHAT_IFS = "what-ifs"
    ALL = "all"


@option_groups
def advise(
    target: Target = None,
    model: Model = None,
    show: Annotated[
        AdviceRows | None,
        typer.Option(
            help="changes: a row for each plan near this one; what-ifs: the step without each of its losses.  "
            "[all in a table, else changes]"
        ),
    ] = None,
    *,
    words: PlanFlags,
    on: SystemOptions,
    output: Output,
    common: Common,
) -> None:
    """Name what bounds a step, and the change that helps most.

    Each plan near this one has one choice changed, on the same ranks and with the same global batch: sequence
    parallelism, framework, ZeRO stage, recomputation, micro-batch size, virtual stages, schedule, degrees. All are
    timed on the system, with their memory. Those that fit come first, by their step. Nothing is written to the store.
    """
    printed = output.format is RowFormat.TABLE and output.output is None
    chosen = show or (AdviceRows.ALL if printed else AdviceRows.CHANGES)
    if chosen is AdviceRows.ALL and not printed:
        raise UsageError("tables with different columns do not fit into one file: --show changes or what-ifs")
    given = words.words()
    with common.connect() as db, progress(common, "trying", "plans", before="timing the plan") as report:

        def tried(done: int, of: int, outcome: str) -> None:
            if report is not None:
                report(done, of)
                if outcome:
                    report.line(outcome)

        found = db.advise(
            target,
            model=model,
            system=on.system,
            blocking=on.blocking,
            framework=on.framework,
            progress=tried,
            **given,
        )
    common.profile({"advice": found.seconds})
    if target is None and model is None and not given and found.instance is not None:
        common.note(f"of the newest instance, {found.instance.id[:12]} {found.instance.name}")
    _write(found, chosen, printed, output, common)


def _write(found: "Advised", chosen: AdviceRows, printed: bool, output: Output, common: Common) -> None:
    """The verdict, the chosen tables, and the commands of the best changes."""
    if printed:
        print_line(found.verdict)  # a result, which --quiet keeps
        print_line(_figures(found))
        for each in found.remarks:
            print_line(each)
    else:
        for each in (found.verdict, f"expected error {found.expected_error}", *found.remarks):
            common.note(each)
    if chosen in (AdviceRows.CHANGES, AdviceRows.ALL):
        some = any(row["fits"] for row in found.changes)
        _title(chosen, f"plans near it, {'those that fit first' if some else 'none fits'}")
        rows = _shown_changes(found) if printed else (found.changes.columns, found.changes.rows)
        output.write(*rows, provenance=found.provenance)
    if chosen in (AdviceRows.WHAT_IFS, AdviceRows.ALL):
        _title(chosen, "the step, if one loss were less")
        rows = _shown_what_ifs(found) if printed else (found.what_ifs.columns, found.what_ifs.rows)
        output.write(*rows, provenance=found.provenance)
    if printed:
        typer.echo()
        print_line(f"expected error {found.expected_error}")
        if found.room is not None and (reserve := reserve_text(found.room, found.reserve)):
            print_line(reserve)
    for row in _worth(found) if printed else ():
        typer.echo(f"\n{printable(row['change'])}:\n  {printable(row['command'])}")  # a command is copied whole


def _figures(found: "Advised") -> str:
    """The step as it is, and how much was tried."""
    room = "" if found.room is None else f" of {found.room / GB:,.1f} GB for tensors"
    refused = f", {len(found.refused)} refused by the checks of plans" if found.refused else ""
    return (
        f"step {found.step / MS:,.3f} ms, peak {found.peak / GB:,.1f} GB{room}, on {found.system}, sequences of "
        f"{found.plan['seq_len']:,}; {count(len(found.changes), 'change')} tried{refused}, in {found.seconds:.1f} s"
    )


def _worth(found: "Advised") -> list[dict[str, Any]]:
    """The best changes that shorten the step, or make it fit; where none fits, the one that holds least."""
    if not found.fits and not any(row["fits"] for row in found.changes):
        return [row for row in found.changes if row["command"]][:1]
    rows = [row for row in found.changes if row["fits"] and row["command"]]
    return [row for row in rows if _percent(row["share"]) > 0 or not found.fits][:COMMANDS]


def _shown_changes(found: "Advised") -> tuple[list[str], Sequence[Sequence[Any]]]:
    rows = [
        [
            row["change"],
            round(row["step"] / MS, 3),
            _percent(row["share"]),
            round(row["peak"] / GB, 1),
            "yes" if row["fits"] else "no",
        ]
        for row in found.changes
    ]
    return ["change", "step ms", "saves %", "peak GB", "fits"], rows


def _shown_what_ifs(found: "Advised") -> tuple[list[str], Sequence[Sequence[Any]]]:
    rows = [[row["what_if"], round(row["step"] / MS, 3), _percent(row["share"])] for row in found.what_ifs]
    return ["what if", "step ms", "saves %"], rows


def _percent(share: float) -> float:
    """A share as a table shows it. Nothing is shown as -0."""
    return round(100 * share, 1) + 0.0


def _title(chosen: AdviceRows, text: str) -> None:
    if chosen is AdviceRows.ALL:
        print_line(f"\n{text}")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(advise)
