"""`replay`, and `export`, `timeline` and `report` with `--run`: what is made of a run that was imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.build_instantiate import count
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError

if TYPE_CHECKING:
    from stagedb.runs.stored_run import RunWhatIf

MS = 1e6
"""Nanoseconds."""

OfRun = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="RUN", help="A run that was imported, by id or name, instead.", autocompletion=completion.runs
    ),
]


def refuse_with_run(
    target: str | None, model: str | None, profile: str | None, words: Mapping[str, Any], **others: object
) -> None:
    """Raise UsageError for what only steps of plans have. words: of a plan. others: by option, falsy if not given.

    target, model, profile: as given; None: not given.
    """
    given = {"INSTANCE": target, "--model": model, "--profile": profile, "a plan": words, **others}
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} is for plans, and --run names a run that was recorded: leave out one of them")


@option_groups
def replay(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Id or name of a run that was imported.", autocompletion=completion.runs),
    ],
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale",
            metavar="WHAT=F",
            help="What if these took F times as long: compute, copy, collective, send, phase, stage, rank, op or host, "
            "with a kind, group or number behind a colon, such as rank:3=0.9.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without", metavar="KIND", help="Leave out a kind of dependency: stream, other, host or member."
        ),
    ] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """Time a run again: what would it have taken if this were faster?

    Each op begins when what it waited for has ended: the op before it on its stream, that of another stream, its launch
    by the host, and the other members of its collective. What none of them explains stays as it was, as a gap.
    """
    with common.connect() as db:
        found = db.replay_run(run, scale=scale or (), without=without or ())
    changed = bool(scale or without)
    rows = _rows(found, changed)
    if output.format is RowFormat.TABLE and output.output is None:
        output.write(("run", "ms", "ratio"), [(what, f"{ns / MS:,.3f}", f"{ratio:.4f}") for what, ns, ratio in rows])
        if found.held:
            common.note(
                "the host launches each op when it did, so that next to nothing changes: --scale host=0.5 makes it "
                "faster, --without host leaves it out"
            )
        elif found.launching:
            common.note(
                f"the host launches each op when it did: without that the changes save {found.launching / MS:,.3f} ms "
                "more; --scale host=0.5 makes it faster, --without host leaves it out"
            )
        common.note(f"without gaps that no dependency explains the run is {found.gaps / found.measured:.1%} shorter")
        return
    output.write(("run", "ns", "ratio"), rows)


def _rows(found: "RunWhatIf", changed: bool) -> list[tuple[str, int, float]]:
    steps = [("measured", found.measured), ("timed again", found.base)]
    steps += [("with the changes", found.step)] if changed else []
    steps.append(("timed again without gaps", found.base - found.gaps))
    return [(what, ns, ns / found.measured) for what, ns in steps]


def export_run(run: str, out: Path | None, system: str | None, written: Mapping[str, Any], common: Common) -> None:
    """Run `export --run`: write an imported run as traces.

    run: id or name. out: the directory. system: for the network of a simulator's inputs. written: options of the
    traces, from `WrittenSet.words`.
    """
    from stagedb.cli.export import note_differences, size, what_happened
    from stagedb.cli.progress import progress

    options = dict(written)
    refuse_with_run(None, None, None, {}, **{"--only": options.pop("only")})
    with common.connect() as db, progress(common, "writing", "ranks", speed=True, before="reading the run") as report:
        done = db.export_run(run, out=out, system=system, progress=report, **options)
    for each in done.left_out:
        common.note(each)
    if done.world < done.run.job_ranks:
        common.note(f"{done.world:,} of {done.run.job_ranks:,} ranks were recorded: the traces are theirs, from 0 on")
    note_differences(common, done)
    common.profile(done.seconds)
    replayed = ", replayed" if done.replayed else ""
    name = done.run.names[0] if done.run.names else done.run.id[:12]
    common.line(
        f"{what_happened(done)}{count(done.files, 'trace')} of run {name}, {done.nodes:,} nodes, "
        f"{size(done.bytes)}{replayed}, in {sum(done.seconds.values()):.1f} s"
    )


def view_run(view: str, run: str, out: Path | None, force: bool, common: Common) -> None:
    """`timeline --run` and `report --run`: write the view, and print where.

    view: which of them. run: id or name. out: the file; None: named after the run. force: replace an earlier one.
    """
    from stagedb.cli.export import size
    from stagedb.reports.terminal_chart import span

    with common.connect() as db:
        done = (db.timeline_run if view == "timeline" else db.report_run)(run, out=out, force=force)
    name = done.run.names[0] if done.run.names else done.run.id[:12]
    drawn = f"{count(done.slices, 'slice')}, {count(done.flows, 'arrow')}, " if view == "timeline" else ""
    where = "https://ui.perfetto.dev" if view == "timeline" else "a browser"
    common.line(
        f"{done.path}: run {name} ({count(done.run.world, 'rank')}) takes {span(done.run.step or 0, 6)}, {drawn}"
        f"{size(done.bytes)}; open it in {where}"
    )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(replay)
