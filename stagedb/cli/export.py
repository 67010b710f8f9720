"""`export`: an instance as one trace a rank, or packed; `unpack`: the traces of a packed file."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.build_instantiate import count, note_defaults
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.progress import progress
from stagedb.cli.run_exports import OfRun, export_run, refuse_with_run
from stagedb.cli.shared_options import Common, option_groups
from stagedb.traces.formats import DEFAULT, FORMATS, format_named
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import SIMULATORS, simulator_named

if TYPE_CHECKING:
    from stagedb.api import Exported, Unpacked

SHOWN = 5
"""Names of files that a message has."""


class NodeGranularity(StrEnum):
    """The values of `--granularity` in `export`: what a node of a trace represents."""

    OP = "op"
    BLOCK = "block"


@dataclass(frozen=True)
class WrittenSet:
    """How the traces are written, for both commands; fields are words of `Stagedb.export` and `unpack`."""

    only: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS", help="Write these ranks only, such as 0-63, 0,8,16-23 or 0-1023:8 (every eighth)."
        ),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace the trace set that exists under the name.")] = False
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an interrupted run of the same command has written.")
    ] = False
    format: Annotated[
        str,
        typer.Option(
            metavar=f"<{'|'.join(FORMATS)}>",
            autocompletion=completion.one_of(lambda: FORMATS),
            help=f"{'; '.join(f'{each.name}: {each.help}' for each in FORMATS.values())}.",
        ),
    ] = DEFAULT.name
    compress: Annotated[
        bool, typer.Option("--compress", help="gzip the traces; Chakra's own tools read that, ASTRA-sim does not.")
    ] = False
    replay: Annotated[
        bool | None,
        typer.Option(
            "--replay/--no-replay",
            help="Before DIR gets its name, run the traces as a simulator would.  [for small worlds]",
        ),
    ] = None

    simulator: Annotated[
        str | None,
        typer.Option(
            metavar=f"<{'|'.join(SIMULATORS)}>",
            autocompletion=completion.one_of(lambda: SIMULATORS),
            help=f"The simulator that the inputs are for.  [{DEFAULT_SIMULATOR.name}]",
        ),
    ] = None

    def words(self) -> dict[str, Any]:
        """The options as keyword arguments of `Stagedb.export`.

        UsageError for an unknown name, before a store is opened.
        """
        format_named(self.format)
        simulator_named(self.simulator)
        return dataclasses.asdict(self)


Target = Annotated[
    str | None,
    typer.Argument(
        metavar="INSTANCE",
        help="Id or name of an instance. Plan options change its plan.",
        autocompletion=completion.instances,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Export this model under the plan of the options; makes what is missing.",
        autocompletion=completion.models,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="DIR",
        help="Directory of the trace set, or name of the packed file.  [./NAME-RANKS; with --shard 0/3 "
        "./NAME-RANKS.0of3; with --packed that with .packed behind it]",
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Write part I (from 0) of N equal parts: one a machine of several."),
]
Granularity = Annotated[
    NodeGranularity,
    typer.Option(help="A node an operator, or one for all that is computed between two communications."),
]
DescribedSystem = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="The system that the simulator's inputs describe: a preset (`stagedb systems` lists them) or a "
        "system's file.  [h100, or the profile's]",
        autocompletion=completion.systems,
    ),
]
OfProfile = Annotated[
    str | None,
    typer.Option(
        metavar="PROFILE",
        help="Id or name of a profile: the traces are of its instance, and each node has its duration.",
        autocompletion=completion.profiles,
    ),
]
Timed = Annotated[
    bool,
    typer.Option(
        "--durations-in-traces",
        help="Profile the instance on the system, and write the durations. A simulator then takes them, and computes "
        "only communication.",
    ),
]
Then = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INSTANCE",
        help="An instance whose step of serving follows on the same ranks. May be given several times.",
        autocompletion=completion.instances,
    ),
]
Steps = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Steps of the last instance, a decode, each with a token more in the cache."),
]
SendTo = Annotated[
    str | None,
    typer.Option(
        metavar="INSTANCE",
        help="A decode on further ranks, to which the ranks of this prefill send their caches.",
        autocompletion=completion.instances,
    ),
]
AsOneFile = Annotated[
    bool, typer.Option("--packed", help="Write one small file, from which `stagedb unpack` makes the directory.")
]


@option_groups
def export(
    target: Target = None,
    model: Model = None,
    out: Out = None,
    shard: Shard = None,
    granularity: Granularity = NodeGranularity.OP,
    system: DescribedSystem = None,
    profile: OfProfile = None,
    durations_in_traces: Timed = False,
    then: Then = None,
    steps: Steps = 1,
    send_to: SendTo = None,
    packed: AsOneFile = False,
    run: OfRun = None,
    *,
    written: WrittenSet,
    words: PlanFlags,
    common: Common,
) -> None:
    """Write Chakra execution traces, one a rank.

    The directory also has communicator groups, inputs for a simulator, a script that runs it, and a manifest. Without
    INSTANCE and --model it takes your newest instance, re-planned to --ranks; from an empty store it writes llama3-70b
    with tp 8 and pp 16.
    """
    given = words.words()
    if run is not None:
        blocks = granularity is not NodeGranularity.OP
        refuse_with_run(target, model, profile, given, **{
            "--shard": shard, "--packed": packed, "--granularity": blocks, "--durations-in-traces": durations_in_traces,
            "--then": then, "--steps": steps > 1, "--send-to": send_to,
        })  # fmt: skip
        export_run(run, out, system, written.words(), common)
        return
    with (
        common.connect() as db,
        progress(common, "writing", "ranks", speed=True, before="making the graph and the instance") as report,
    ):
        done = db.export(
            target,
            model=model,
            out=out,
            shard=shard,
            granularity=granularity.value,
            system=system,
            profile=profile,
            durations_in_traces=durations_in_traces,
            then=then or (),
            steps=steps,
            send_to=send_to,
            packed=packed,
            progress=report,
            **written.words(),
            **given,
        )
    note_defaults(common, done.instance, given)
    note_differences(common, done)
    common.profile(done.seconds)
    common.line(_line(done, f" of {done.instance.name} ({_what(done)})", _packed_in(done)))


def _what(done: "Exported") -> str:
    """The ranks, the instance with its profile, how many follow it, and those that its caches are sent to."""
    timed = "" if done.profile is None else f", profile {done.profile.id[:12]}"
    more = f" and {len(done.following):,} more, one after another" if done.following else ""
    if not done.receiving:
        return f"{count(done.instance.ranks, 'rank')}, instance {done.instance.id[:12]}{timed}{more}"
    first, *others = done.receiving
    then = f" and {len(others):,} more, one after another" if others else ""
    own = f"{count(done.instance.ranks, 'rank')}, instance {done.instance.id[:12]}{timed}{more}"
    return f"{own}; caches sent to {count(first.ranks, 'rank')} of {first.name}, instance {first.id[:12]}{then}"


def _packed_in(done: "Exported") -> str:
    return "" if done.packed is None else f" packed in {size(done.packed)}"


@option_groups
def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `export --packed` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Directory of the trace set.  [FILE without its ending]"),
    ] = None,
    *,
    written: WrittenSet,
    common: Common,
) -> None:
    """Write the traces of a packed file, all or some ranks.

    Needs no store. The directory is the one that `export` would have written, byte for byte.
    """
    from stagedb.api import unpack as run

    options = written.words()
    with progress(common, "writing", "ranks", speed=True) as report:
        done = run(file, out=out, progress=report, **options)
    note_differences(common, done)
    common.profile(done.seconds)
    common.line(_line(done, f" ({count(done.world, 'rank')})"))


def _line(done: "Unpacked", of: str, packed_in: str = "") -> str:
    """What was written, in one line."""
    replayed = ", replayed" if done.replayed else ""
    return (
        f"{what_happened(done)}{count(done.files, 'trace')}{of}, {done.nodes:,} nodes, {size(done.bytes)}{packed_in}"
        f"{replayed}, in {sum(done.seconds.values()):.1f} s"
    )


def note_differences(common: Common, done: "Unpacked") -> None:
    """Note what a simulator does in another way than the profile whose durations the traces have."""
    for each in done.differences:
        common.note(each)


def what_happened(done: "Unpacked") -> str:
    """The beginning of the summary: the set was written, completed, or was there already."""
    if not done.there:
        return f"{done.path}: "
    if not done.mended:
        return f"{done.path} was complete already, nothing was written: "
    shown = [*done.mended[:SHOWN], *(["…"] if len(done.mended) > SHOWN else [])]
    written = count(len(done.mended), "file was", "files were")
    return f"{done.path} was there, of which {written} missing or damaged and written again ({', '.join(shown)}): "


def size(count: float) -> str:
    """A number of bytes with a unit. count: in bytes."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(export)
    app.command()(unpack)
