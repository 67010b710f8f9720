"""`systems`: the presets of accelerators and networks."""

from pathlib import Path
from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.curve_chart import draw_curves
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError


@option_groups
def systems(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SYSTEM",
            help="A preset's name, or the path of a system's file; `import`: make one.",
            autocompletion=completion.systems,
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="What `import` reads: aiconfigurator.", show_default=False)
    ] = None,
    *,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The accelerator to import, such as h100_sxm.  [all]", show_default=False),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The wheel aiconfigurator-core, or the folder that it was unpacked to.  [the installed one]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory of the imported files.", show_default=True)
    ] = Path(),
    output: Output,
    common: Common,
) -> None:
    """List the systems of the library, show one, or import one.

    One system is shown whole: accelerator, network, the sources of its numbers, and the curves of its tables.
    `stagedb systems import aiconfigurator` makes systems of the measured latencies in the wheel aiconfigurator-core.
    """
    del common  # reads no store
    from stagedb import api

    if name == "import":
        _import(source, gpu, wheel, out, output)
        return
    if source is not None or gpu is not None or wheel is not None:
        raise UsageError("SOURCE, --gpu and --wheel go with `stagedb systems import aiconfigurator`")
    if name is None:
        output.write_records(
            api.systems(), keep=("name", "bf16_tflops", "memory_gb", "memory_gb_s", "network", "fp8_tflops")
        )
        return
    output.write(("field", "value"), list(api.system(name).items()))
    curves = api.system_curves(name)
    if curves and output.format is RowFormat.TABLE and output.output is None:
        typer.echo("\n" + draw_curves(curves))


def _import(source: str | None, gpu: str | None, wheel: Path | None, out: Path, output: Output) -> None:
    from stagedb import api

    if source != "aiconfigurator":
        raise UsageError("`stagedb systems import` takes the source aiconfigurator")
    output.write_records(api.import_systems(gpu, wheel, out))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(systems)
