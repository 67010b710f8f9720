"""`systems`: the presets of accelerators and networks, and systems that are made from measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from stagedb.cli import completion
from stagedb.cli.help_groups import OWN
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError
from stagedb.files import make_directory, path_text, shown
from stagedb.frameworks.profiles import FRAMEWORK_NAMES
from stagedb.mentions import Word

# The curves of a system's tables for a terminal: a bar for each size.

BAR = 20
"""Columns of a bar at the whole peak."""


def draw_curves(points: Sequence[Mapping[str, Any]]) -> str:
    """A block of lines for each table, of at most 80 columns: size, rate, and its share of the peak as a bar."""
    lines: list[str] = []
    drawn = None
    for point in points:
        table = point["operator"], point["dtype"]
        if table != drawn:
            whole = "bandwidth" if point["unit"] == "GB/s" else "peak"
            lines += ["", f"{point['operator']} {point['dtype']}: {point['unit']}, share of the {whole}"]
            drawn = table
        share = min(point["share"], 1.0)
        bar = "█" * round(share * BAR)
        lines.append(f"  {point['size']:<36} {point['rate']:>8,.5g} {bar:<{BAR}} {point['share']:>5.0%}")
    return "\n".join(lines[1:])


@dataclass(frozen=True)
class Making:
    """Options of `systems import` and `systems calibrate`, which make systems."""

    PANEL: ClassVar[str] = OWN

    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The accelerator to import, such as h100_sxm.  [all]", show_default=False),
    ] = None
    wheel: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The wheel aiconfigurator-core, or the folder that it was unpacked to.  [the installed one]",
            show_default=False,
        ),
    ] = None
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory of the files that are made.", show_default=True)
    ] = Path()
    base: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM",
            help="The system whose other numbers and curves `calibrate` keeps.  [a flat network, no curves]",
            show_default=False,
            autocompletion=completion.systems,
        ),
    ] = None
    predict: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="A run that `calibrate` predicts and does not fit; repeatable.  [each run from the others]",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None
    framework: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"What made the runs: {', '.join(FRAMEWORK_NAMES)}.  [not known]",
            show_default=False,
        ),
    ] = None
    named: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The calibrated system's name.  [calibrated]", show_default=False),
    ] = None


@option_groups
def systems(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SYSTEM",
            help="A preset's name, or the path of a system's file; `import`, `calibrate`: make one.",
            autocompletion=completion.systems,
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE|RUN...",
            help="What `import` reads: aiconfigurator. Of `calibrate`: ids or names of runs.",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None,
    *,
    making: Making,
    output: Output,
    common: Common,
) -> None:
    """List, show or import systems, or fit one to runs.

    One system is shown whole: accelerator, network, the sources of its numbers, and the curves of its tables.
    `stagedb systems import aiconfigurator` makes systems of the measured latencies in the wheel aiconfigurator-core.
    `stagedb systems calibrate RUN...` makes one from runs that were imported and matched: the speed of matmuls and
    attentions, memory bandwidth, launches, latency and bandwidth of the network, each with its spread over the runs. It
    prints how well the steps are predicted, of the same runs and of runs that were left out. The file has the spreads.
    """
    from stagedb import api

    _check_options(name, making)
    if name == "import":
        _import(sources, making, output)
        return
    if name == "calibrate":
        _calibrate(sources or (), making, output, common)
        return
    if sources:
        raise UsageError(
            f"{' '.join(map(shown, sources))}: one system is shown at a time; a source goes with `stagedb systems "
            "import`, and runs with `stagedb systems calibrate`"
        )
    if name is None:
        output.write_records(
            api.systems(), keep=("name", "bf16_tflops", "memory_gb", "memory_gb_s", "network", "fp8_tflops")
        )
        return
    output.write(("field", "value"), list(api.system(name).items()))
    curves = api.system_curves(name)
    if curves and output.format is RowFormat.TABLE and output.output is None:
        typer.echo("\n" + draw_curves(curves))


def _check_options(action: str | None, making: Making) -> None:
    """Raises UsageError for options of an action that was not asked for."""
    of_import = {"--gpu": making.gpu, "--wheel": making.wheel}
    of_fit = {
        "--base": making.base,
        "--predict": making.predict,
        "--framework": making.framework,
        "--name": making.named,
    }
    for usage, options in (("import aiconfigurator", of_import), ("calibrate RUN...", of_fit)):
        given = [option for option, value in options.items() if value]
        if given and action != usage.partition(" ")[0]:
            raise UsageError(f"{', '.join(given)}: only `stagedb systems {usage}` takes that")


def _calibrate(runs: Sequence[str], making: Making, output: Output, common: Common) -> None:
    """Fit a system, write its file, and print its numbers and the steps that it predicts."""
    with common.connect() as db:
        made = db.calibrate(
            runs,
            base=making.base,
            predict=making.predict or (),
            framework=making.framework,
            name=making.named or "calibrated",
        )
    make_directory(making.out, str(Word("out")))
    path = made.write(making.out / f"{made.system.name}.yaml")
    if output.format is not RowFormat.TABLE or output.output is not None:
        output.write(made.steps.columns, made.steps.rows)
        return
    output.write(made.numbers.columns, [_short(row) for row in made.numbers.rows])
    typer.echo("")
    output.write(made.steps.columns, made.steps.rows, units=made.steps.units)
    left_out = [abs(row["error"]) for row in made.steps if row["fitted"] == "no"]
    if left_out:
        mean, worst = sum(left_out) / len(left_out), max(left_out)
        common.line(f"steps of runs that were left out: {mean:.1%} off on average, {worst:.1%} at most")
    else:
        common.line("no run was left out: name some with --predict to see how far the numbers carry")
    common.line(f"wrote {path_text(path)}; next: stagedb profile INSTANCE --system {path_text(path)}")


def _short(row: Sequence[object]) -> list[object]:
    """A row whose numbers have four digits."""
    return [f"{each:,.4g}" if isinstance(each, float) else each for each in row]


def _import(sources: list[str] | None, making: Making, output: Output) -> None:
    from stagedb import api

    if sources != ["aiconfigurator"]:
        raise UsageError("`stagedb systems import` takes the source aiconfigurator")
    output.write_records(api.import_systems(making.gpu, making.wheel, making.out))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(systems)
