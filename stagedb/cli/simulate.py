"""`simulate`: a trace set in a simulator, next to the profile of the same step."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagedb.cli.build_instantiate import count
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups, print_line

if TYPE_CHECKING:
    from stagedb.api import Simulated

MS = 1e6
"""Nanoseconds."""

TIMES = ("computing", "exposed", "waiting", "simulated_computing", "simulated_other", "simulated_finish")


@option_groups
def simulate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A trace set with all ranks, written by `export`.")],
    binary: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="PROGRAM",
            help="The simulator, a program of ASTRA-sim as it is built. Default: ASTRA_SIM, the search path, or a "
            "checkout astra-sim here.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="End the simulator after this time.", min=1)] = 3600,
    *,
    output: Output,
    common: Common,
) -> None:
    """Run a trace set in a simulator, next to its profile.

    The simulator is ASTRA-sim, unmodified, with inputs that match the system of the set. The rows have the times of
    each rank in the profile and in the simulator. A second table has what each rule of the simulator makes of the
    profile's step: what remains after the last is not explained.
    """
    printed = output.format is RowFormat.TABLE and output.output is None
    with common.connect() as db:
        found = db.simulate(directory, binary=binary, timeout=timeout)
    line = (
        f"{found.path} on {found.system}, compute by {found.compute}: the simulator ends after "
        f"{found.makespan / MS:,.3f} ms, {found.ratio:.3f} of the profile's step of {found.step / MS:,.3f} ms"
    )
    if not printed:
        common.note(line)
        output.write(found.ranks.columns, found.ranks.rows)
        return
    print_line(line)  # a result, which --quiet keeps
    _tables(found, output)


def _tables(found: "Simulated", output: Output) -> None:
    """Both tables, in ms."""
    print_line(f"\nthe times of {count(len(found.ranks), 'lane')}: ms in the profile, then in the simulator")
    shown = ("stage", "rank", "ranks", *TIMES)
    names = ("stage", "rank", "ranks", "computing", "exposed", "waiting", "computing", "other", "end")
    output.write(
        names, [[_cell(name, row[found.ranks.columns.index(name)]) for name in shown] for row in found.ranks.rows]
    )
    print_line("\nthe profile's step with one rule of the simulator after the other")
    output.write(
        ("with", "ms", "ratio"),
        [(what, f"{ns / MS:,.3f}", f"{ratio:.3f}") for what, ns, ratio in found.differences.rows],
    )


def _cell(name: str, value: int) -> object:
    return f"{value / MS:,.3f}" if name in TIMES else value


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(simulate)
