"""`timeline`, `report`: views of a step of an instance on a system."""

import dataclasses
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from stagedb.cli import completion
from stagedb.cli.build_instantiate import count, note_defaults, note_implied, note_model
from stagedb.cli.export import size
from stagedb.cli.help_groups import OWN
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.progress import progress
from stagedb.cli.run_exports import OfRun, refuse_with_run, view_run
from stagedb.cli.shared_options import Common, Model, Target, option_groups
from stagedb.cli.timing_options import TimingOptions
from stagedb.errors import UsageError

if TYPE_CHECKING:
    from stagedb.api import ProfileInfo, Viewed

# `report --pdf`: the summary of a plan as a PDF.


@dataclass(frozen=True)
class SummaryOptions:
    """What a summary takes. The fields but `pdf` are the words of `Stagedb.save_summary`."""

    PANEL: ClassVar[str] = OWN

    pdf: Annotated[bool, typer.Option("--pdf", help="Write a summary of a page or two as a PDF instead.")] = False
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="With --pdf: tokens to train on, such as 15T.", show_default=False)
    ] = None
    price_hour: Annotated[
        str | None, typer.Option(metavar="PRICE", help="With --pdf: what an accelerator costs an hour.")
    ] = None
    watts: Annotated[
        str | None,
        typer.Option(metavar="W", help="With --pdf: what an accelerator takes, with its share of the machine."),
    ] = None
    price_kwh: Annotated[str | None, typer.Option(metavar="PRICE", help="With --pdf: what a kWh costs.")] = None

    def words(self) -> dict[str, str | None]:
        """The numbers as keyword arguments."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "pdf"}

    def wanted(self, others: Mapping[str, object]) -> bool:
        """Whether the options ask for a summary.

        others: options that a summary does not take. Raises UsageError if one of these is given with it.
        """
        if not self.pdf:
            given = [name for name, value in self.words().items() if value is not None]
            if given:
                raise UsageError(f"--{given[0].replace('_', '-')} is for a summary: add --pdf, or leave it out")
            return False
        wrong = [name for name, value in others.items() if value]
        if wrong:
            name = wrong[0] if wrong[0].startswith("--") or wrong[0].isupper() else f"--{wrong[0].replace('_', '-')}"
            raise UsageError(
                f"--pdf writes a summary of a profile of the store: leave out {name}, or make the profile first with "
                "`stagedb profile`"
            )
        return True


def write_summary(target: str | None, asked: SummaryOptions, out: Path | None, force: bool, common: Common) -> None:
    """Write the PDF, and print what it has in a line.

    target: id or name of what it is about; None: the newest. out: the file; None: named after the plan. force: replace
    an earlier one.
    """
    from stagedb.reports.plan_summary import amount

    with common.connect() as db:
        done = db.save_summary(target, out=out, force=force, **asked.words())
    found = done.summary
    days = "" if found.days is None else f", {amount(found.days)} days for {found.prices.tokens:,} tokens"
    price = "" if found.price is None else f", price {amount(found.price)}"
    common.line(f"{done.path}: {found.model} on {found.ranks:,} x {found.system}{days}{price}, {size(done.bytes)}")


OfProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        help="Show this profile, by id or name, with its system.",
        autocompletion=completion.profiles,
    ),
]
Only = Annotated[str | None, typer.Option(metavar="STAGES", help="Show only these pipeline stages, such as 0,4-7.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file of the same kind and name.")]


class TimelineFormat(StrEnum):
    """The values of `--format` in `timeline`."""

    PERFETTO = "perfetto"
    TEXT = "text"


class SliceGranularity(StrEnum):
    """The values of `--granularity` in `timeline`: what a slice of the trace represents."""

    OP = "op"
    TASK = "task"


@option_groups
def timeline(
    target: Target = None,
    model: Model = None,
    profile: OfProfile = None,
    format: Annotated[
        TimelineFormat, typer.Option(help="A trace for Perfetto's viewer, or a Gantt chart in the terminal.")
    ] = TimelineFormat.PERFETTO,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="File of the trace.  [./NAME-RANKS.pftrace]")
    ] = None,
    granularity: Annotated[
        SliceGranularity | None,
        typer.Option(help="Slices of operators inside those of tasks, or only of tasks.  [op, up to 500,000 slices]"),
    ] = None,
    only: Only = None,
    width: Annotated[
        int | None, typer.Option(metavar="COLUMNS", help="Columns of the text chart.  [the terminal's, else 120]")
    ] = None,
    run: OfRun = None,
    force: Force = False,
    *,
    timing: TimingOptions,
    words: PlanFlags,
    common: Common,
) -> None:
    """Show when everything of a step runs on a system.

    The trace opens in https://ui.perfetto.dev. It has a group of tracks for each pipeline stage, a track a stream,
    operators inside their tasks, an arrow for each message, and the critical path on top.
    """
    plan = words.words()
    if run is not None:
        text = {"--format": format is TimelineFormat.TEXT, "--granularity": granularity, "--only": only}
        refuse_with_run(target, model, profile, plan, **text, **_given(timing))
        view_run("timeline", run, out, force, common)
        return
    if format is TimelineFormat.TEXT:
        for option, given in (("--out", out is not None), ("--granularity", granularity is not None)):
            if given:
                raise UsageError(f"{option} needs --format perfetto: the text chart does not have it")
        asked = {"model": model, "profile": profile, "only": only, **timing.words(), **plan}
        _print_chart(target, width, asked, common)
        return
    if width is not None:
        raise UsageError("--width needs --format text")
    with (
        common.connect() as db,
        progress(common, "writing", "rows", before="making the graph and the instance") as written,
    ):
        done = db.timeline(
            target, model=model, profile=profile, **timing.words(), out=out,
            granularity=None if granularity is None else granularity.value, only=only, force=force, progress=written,
            **plan,
        )  # fmt: skip
    _print_timeline(done, plan, common)


def _print_timeline(done: "Viewed", given: Mapping[str, Any], common: Common) -> None:
    """What was written, and what it lacks."""
    note_defaults(common, done.instance, given)
    for part in done.left_out:
        common.note(f"left out: {part}")
    common.line(
        f"{done.path}: {_description(done)}, {count(done.slices, 'slice')}, {count(done.flows, 'message')}, "
        f"{size(done.bytes)}; open it in https://ui.perfetto.dev"
    )
    _note_kept(common, done.profiles)


def _print_chart(target: str | None, width: int | None, asked: Mapping[str, Any], common: Common) -> None:
    """The Gantt chart, as wide as the terminal where no width is given."""
    terminal = sys.stdout.isatty()
    columns = width or (shutil.get_terminal_size().columns if terminal else 120)
    with (
        common.connect() as db,
        progress(common, "writing", "rows", before="making the graph and the instance") as written,
    ):
        chart = db.chart(target, width=columns, color=terminal, progress=written, **asked)
    note_model(common, chart.instance)
    note_implied(common, chart.instance, asked)
    typer.echo(str(chart), nl=False, color=terminal)
    _note_kept(common, (chart.profile,))


def _note_kept(common: Common, profiles: "Sequence[ProfileInfo]") -> None:
    """Print which profiles of the store were shown, and which of them are new."""
    for each in profiles:
        name = "" if each.name is None else f" {each.name}"
        did = "the store keeps" if each.new else "in the store:"
        common.note(f"{did} profile {each.id[:12]}{name} of {each.instance_name} on {each.system}")


Second = Annotated[
    str | None,
    typer.Argument(
        metavar="SECOND",
        help="A second one to compare with the first: each is a profile or an instance of the store, by id or name.",
    ),
]


@option_groups
def report(
    target: Target = None,
    second: Second = None,
    model: Model = None,
    profile: OfProfile = None,
    run: OfRun = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="File of the page.  [./NAME-RANKS.html]")
    ] = None,
    force: Force = False,
    *,
    summary: SummaryOptions,
    timing: TimingOptions,
    words: PlanFlags,
    common: Common,
) -> None:
    """Write a report of a step or a search as one HTML file.

    The file needs no network. It has the plan and the system, step time, MFU and tokens a second, the pipeline with its
    critical path, where each stage's time goes, memory at the peak and over the step, the exposed communication, and a
    roofline. A report of two profiles or instances has what makes one of them faster, and both pipelines on one scale.
    The store keeps the profile of each step. A report of a search, by its id, has a picture of all candidates, the best
    plans, the fronts of step against memory and ranks, and why the others lose.

    With --pdf it writes a summary of a profile, or of an instance with one, for those who pay for it: days, price and
    energy for --tokens at prices that you give, memory, the expected error, and other plans.
    """
    given = words.words()
    others = {"SECOND": second, "--model": model, "--run": run, **dict.fromkeys(given, True), **_given(timing)}
    if summary.wanted(others):
        write_summary(target if profile is None else profile, summary, out, force, common)
        return
    if run is not None:
        refuse_with_run(target, model, profile, given, SECOND=second, **_given(timing))
        view_run("report", run, out, force, common)
        return
    alone = second is None and model is None and profile is None and not given and not any(timing.words().values())
    with (
        common.connect() as db,
        progress(common, "writing", "rows", before="making the graph and the instance") as written,
    ):
        if target is not None and alone and db.names_search(target):
            found = db.report_search(target, out=out, force=force)
            common.line(f"{found.path}: {found.verdict}, {size(found.bytes)}; open it in a browser")
            return
        done = db.report(
            target,
            second,
            model=model,
            profile=profile,
            out=out,
            force=force,
            progress=written,
            **timing.words(),
            **given,
        )
    if second is None:
        note_defaults(common, done.instance, given)
    common.line(f"{done.path}: {done.verdict or _description(done)}, {size(done.bytes)}; open it in a browser")
    _note_kept(common, done.profiles)


def _given(timing: TimingOptions) -> dict[str, object]:
    """Options of the time of a step, by their names."""
    return {f"--{name.replace('_', '-')}": value for name, value in timing.words().items()}


def _description(done: "Viewed") -> str:
    """The subject of a view."""
    from stagedb.reports.terminal_chart import span

    instance = done.instance
    return f"a step of {instance.name} ({count(instance.ranks, 'rank')}) takes {span(done.step, 6)}"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(timeline)
    app.command()(report)
