"""`memory`: the memory of a rank over a step, and whether an accelerator has room for it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from stagedb.cli.build_instantiate import count, note_implied, note_model
from stagedb.cli.help_groups import REQUESTS
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, Model, Printing, Target, option_groups, print_line
from stagedb.errors import UsageError
from stagedb.files import GB, reserve_text, shown

if TYPE_CHECKING:
    from stagedb.api import Memory
    from stagedb.api.memory_rows import RequestRoom, RequestWords
    from stagedb.frameworks.engines import EngineSettings
    from stagedb.memory.request_blocks import MemoryShare, RequestFit

# The options of `memory` that ask how many requests fit, and the lines that answer it.


@dataclass(frozen=True)
class RequestOptions:
    """Options that divide an accelerator's memory between weights, activations and caches, as an engine does."""

    PANEL: ClassVar[str] = REQUESTS

    memory_share: Annotated[
        str | None,
        typer.Option(
            metavar="F",
            help="The share of an accelerator's memory that an engine takes: count the requests that fit into it. "
            " [that of the engine's file; 0.9]",
        ),
    ] = None
    block_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of a block of the cache.  [that of the engine's file; 16]"),
    ] = None
    request_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of a request.  [those of the plan at its step's end]")
    ] = None
    held: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What the engine's share holds next to weights and caches, if you measured it, as 1.2GB.  "
            "[activations of the step, and what is known of the engine]",
        ),
    ] = None

    def words(self, capacity: int | None, engine: "EngineSettings | None") -> "RequestWords | None":
        """The options as a request of `Stagedb.memory`; None if none of them was given.

        capacity: bytes of an accelerator, if the command line has them. engine: the settings of an engine's file, if
        the plan is from one.
        """
        from stagedb.api.memory_rows import RequestWords
        from stagedb.frameworks.engines.flags import read_share

        if self == RequestOptions() and (
            engine is None or not (engine.engine.share or "memory_share" in engine.values)
        ):
            return None  # without a share the engine (SGLang) chooses one by itself, which stagedb does not know
        share = None if self.memory_share is None else read_share(self.memory_share)
        if self.memory_share is not None and share is None:
            raise UsageError(
                f"--memory-share takes a number above 0 and up to 1, such as 0.9, not {shown(self.memory_share)}"
            )
        held = None if self.held is None else size_of(self.held, "--held")
        return RequestWords(share, self.block_size, self.request_len, held, capacity, engine)

    def check(self, room: "RequestRoom | None") -> None:
        """Raise UsageError if requests were asked for, and no memory is known."""
        if room is None and self != RequestOptions():
            raise UsageError("how many requests fit depends on the accelerator: name it with --system or --capacity")


def report_requests(printing: Printing, room: "RequestRoom") -> bool:
    """Print how many requests fit, and return whether those of the plan do."""
    share, fit = room.share, room.fit
    printing.line(_account(share))
    for found in room.fits.values():
        printing.line("; ".join(_answer(found)))
    if fit.requests >= room.wanted or share.cache < 0:
        return share.cache >= 0
    each = fit.requests // room.microbatches
    fewer = f"--micro-batch-size {each}, or " if each else ""
    printing.line(
        f"the plan has {room.wanted:,} requests on a rank at once, of {fit.tokens:,} tokens: take {fewer}more --tp"
    )
    return False


def _account(share: "MemoryShare") -> str:
    """A line with the source of the bytes of the cache."""
    if share.given is not None:
        return f"{share.cache / GB:,.2f} GB are given for caches"
    of = f"{_gb(share.capacity)} less {_parts(share.reserve)}" if share.reserve else _gb(share.capacity)
    less = [f"weights {_gb(share.weights)}", *(f"{name} {_gb(size)}" for name, size in share.held.items())]
    if share.of == "free":
        return f"caches have {_gb(share.cache)}: {float(share.share):g} of what is free of {of} ({', '.join(less)})"
    if share.of == "weights":
        less = less[:1]
    return f"caches have {_gb(share.cache)}: {float(share.share):g} of {of}, without {', '.join(less)}"


def _answer(fit: "RequestFit") -> Iterator[str]:
    """The requests that fit, their blocks, and what one more needs."""
    blocks = f": {fit.blocks:,} blocks of {fit.block_tokens}" if fit.even else ""
    if fit.requests:
        prefix = f" that share {fit.shared:,}" if fit.shared else ""
        number = "request" if fit.requests == 1 else "requests"
        yield f"fits {fit.requests:,} {number} of {fit.tokens:,} tokens{prefix}{blocks}"
        yield f"the next needs {_gb(fit.missing)} more"
    else:
        yield f"does not fit: no request of {fit.tokens:,} tokens has room{blocks}"
        yield f"one needs {_gb(fit.missing)} more: take more --tp, --cp or --pp, or fewer tokens"


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_gb(size)}" for name, size in parts.items())


def _gb(size: int) -> str:
    return f"{size / GB:,.2f} GB"


UNITS: Mapping[str, int] = {
    **{f"{letter}iB": 1 << power for letter, power in zip("KMGT", (10, 20, 30, 40), strict=True)},
    **{f"{letter}B": 10**power for letter, power in zip("KMGT", (3, 6, 9, 12), strict=True)},
    "B": 1,
}
MOMENTS = (
    "start",
    "forward_peak",
    "forward_end",
    "backward_peak",
    "backward_end",
    "optimizer_peak",
    "step_end",
    "peak",
    "host",
)
BIGGEST = 12
"""Tensors in a table on a terminal."""


class MemoryRows(StrEnum):
    """The values of `--show` in `memory`: which rows it prints."""

    PEAKS = "peaks"
    PHASES = "phases"
    TENSORS = "tensors"
    ALL = "all"


@option_groups
def memory(
    target: Target = None,
    model: Model = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Check whether each rank fits into this size, as 80GB or 80GiB.  [what the system has for tensors]",
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Check whether each rank fits into this system's accelerator.  [that of the newest profile, if any]",
        ),
    ] = None,
    show: Annotated[
        MemoryRows | None,
        typer.Option(
            help="peaks: a row for each rank class; phases: bytes by category at each phase's end and peak; tensors: "
            "the tensors held at the peak, the largest first.  [all in a table, else peaks]"
        ),
    ] = None,
    rank_class: Annotated[
        int | None, typer.Option("--class", metavar="N", help="Phases and tensors of this class.  [the fullest]")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the numbers in the store, or write nothing.")
    ] = True,
    *,
    requests: RequestOptions,
    words: PlanFlags,
    output: Output,
    common: Common,
) -> None:
    """Account for a rank's memory, tensor by tensor, over a step.

    Parameters, gradients, optimizer state, saved and recomputed activations, gathered parameters, communication
    buffers and temporaries are held from the operator that makes them to the last one that reads them, over the
    schedule's order. Sizes are exact, without an allocator's rounding and fragmentation. The store keeps the numbers
    (`stagedb query memory_at_peak`). With --capacity or --system, exits with status 1 if a class does not fit.
    """
    size = None if capacity is None else size_of(capacity)
    chosen, asked = _chosen(show, output), requests.words(size, words.engine)
    with common.connect() as db, progress(common, "making", "rows", before="making the graph and the instance"):
        found = db.memory(target, model=model, system=system, keep=keep, fitting=asked, **(given := words.words()))
    requests.check(found.requests)
    note_model(common, found.instance)
    note_implied(common, found.instance, given)
    room = found.room if size is None else size
    _write(found, chosen, _fullest(found, rank_class), room, output)
    reserve = {} if capacity is not None else found.reserve
    fits = room is None or _report_fit(common, found.peaks, room, reserve, capacity)
    if found.requests is not None:
        fits = report_requests(common, found.requests) and fits
    if not fits and (capacity, system) != (None, None):
        raise typer.Exit(1)


def _fullest(found: "Memory", rank_class: int | None) -> int:
    """The class that was chosen, else the one that holds the most. Raises UsageError if there is no such class."""
    peaks = list(found.peaks)
    chosen = max(peaks, key=lambda row: int(row["peak"]))["class"] if rank_class is None else rank_class
    if chosen not in [row["class"] for row in peaks]:
        raise UsageError(f"no rank class {chosen}: --class is one of {', '.join(str(row['class']) for row in peaks)}")
    return int(chosen)


def _chosen(show: MemoryRows | None, output: Output) -> MemoryRows:
    """The tables to print. Raises UsageError for several tables in one file."""
    chosen = show or (
        MemoryRows.ALL if output.format is RowFormat.TABLE and output.output is None else MemoryRows.PEAKS
    )
    if chosen is MemoryRows.ALL and (output.format is not RowFormat.TABLE or output.output is not None):
        raise UsageError(
            "three tables with different columns do not fit into one file: --show peaks, phases or tensors"
        )
    return chosen


def _write(found: "Memory", chosen: MemoryRows, fullest: int, room: int | None, output: Output) -> None:
    """The chosen tables; phases and tensors of the class `fullest`."""
    table = output.format is RowFormat.TABLE
    if chosen in (MemoryRows.PEAKS, MemoryRows.ALL):
        output.write(*_peaks(found, room, table), keep=("class", "peak GB", "left GB", "op", "ranks", "phase"))
    if chosen in (MemoryRows.PHASES, MemoryRows.ALL):
        _title(chosen, f"class {fullest}: held at the end of each phase, and at its peak")
        output.write(*_phases(found, fullest, table), keep=("peak", "start", "backward_peak", "step_end"))
    living = [row for row in found.tensors if row["class"] == fullest]
    if chosen is MemoryRows.TENSORS:
        output.write(*_tensors(living), keep=("tensor", "bytes", "category", "layer"), units={"bytes": "B"})
    elif chosen is MemoryRows.ALL:
        _title(chosen, f"class {fullest}: tensors at the peak, the largest first")
        output.write(*_biggest(living), keep=("GB", "category", "count"))


def _title(chosen: MemoryRows, text: str) -> None:
    if chosen is MemoryRows.ALL:
        print_line(f"\n{text}")


def _unit(column: str, table: bool) -> str:
    return f"{column} GB" if table else column


def _shown(size: int, table: bool) -> float | int:
    return round(size / GB, 3) if table else size


def _peaks(found: "Memory", room: int | None, table: bool) -> tuple[list[str], list[list[Any]]]:
    levels = {(row["class"], row["category"]): row["bytes"] for row in found.levels if row["moment"] == "peak"}
    categories = [] if table else _categories(found)  # a terminal shows the categories by phase
    columns = ["class", "stages", "ranks", _unit("peak", table)]
    columns += [_unit("left", table)] if room is not None else []
    columns += ["phase", "microbatch", "op", *categories]
    rows = []
    for row in found.peaks:
        left = [] if room is None else [_shown(room - row["peak"], table)]
        sizes = [_shown(levels.get((row["class"], category), 0), table) for category in categories]
        when = [row["phase"], row["microbatch"], row["name"]]
        rows.append([row["class"], row["stages"], row["ranks"], _shown(row["peak"], table), *left, *when, *sizes])
    return columns, rows


def _phases(found: "Memory", rank_class: int, table: bool) -> tuple[list[str], list[list[Any]]]:
    levels = {(row["category"], row["moment"]): row["bytes"] for row in found.levels if row["class"] == rank_class}
    moments = [moment for moment in MOMENTS if any(each == moment for _, each in levels)]
    categories = [each for each in _categories(found) if any((each, moment) in levels for moment in moments)]
    rows: list[list[Any]] = [
        [category, *(_shown(levels.get((category, moment), 0), table) for moment in moments)] for category in categories
    ]
    totals = (sum(levels.get((category, moment), 0) for category in categories) for moment in moments)
    rows.append(["in all", *(_shown(total, table) for total in totals)])
    return [_unit("category", table), *moments], rows


def _tensors(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    columns = ["class", "tensor", "layer", "category", "count", "bytes"]
    names = ["class", "name", "layer", "category", "count", "bytes"]
    return columns, [[row[name] for name in names] for row in rows]


def _biggest(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """A tensor of all layers as one row."""
    from stagedb.memory.usage import tensor_patterns

    found = tensor_patterns((row["name"], row["category"], row["count"], row["bytes"]) for row in rows)
    return ["tensor", "category", "layers", "count", "GB"], [
        [each.name, each.category, each.layers, each.count, _shown(each.bytes, True)] for each in found[:BIGGEST]
    ]


def _categories(found: "Memory") -> list[str]:
    """The categories with bytes, the largest first."""
    totals: dict[str, int] = {}
    for row in found.levels:
        totals[row["category"]] = totals.get(row["category"], 0) + row["bytes"]
    return sorted(totals, key=lambda category: -totals[category])


def _report_fit(
    common: Common, rows: Iterable[Mapping[str, Any]], room: int, reserve: Mapping[str, int], capacity: str | None
) -> bool:
    """Print whether all classes fit into the room for tensors, and what else an accelerator holds. Return the first.

    capacity: the room, if it was given.
    """
    peaks = list(rows)
    size = f"{room / GB:,.2f} GB {'for tensors' if capacity is None else 'of --capacity'}"
    over = [row for row in peaks if row["peak"] > room]
    most, ranks = max(row["peak"] for row in peaks), sum(row["ranks"] for row in over)
    if over:
        common.line(
            f"does not fit: {count(ranks, 'rank')} of {len(over)} of {count(len(peaks), 'class', 'classes')} hold more "
            f"than {size}, the fullest by {(most - room) / GB:,.2f} GB"
        )
    else:
        common.line(f"fits: the fullest rank leaves {(room - most) / GB:,.2f} GB of {size} free")
    if reserve:
        common.line(reserve_text(room, reserve))
    return not over


def size_of(text: str, option: str = "--capacity") -> int:
    """Bytes of `80GiB`, `80 GB` or `1.5TiB`. option: the one that has it. text: the size."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?i?B)", text, re.IGNORECASE)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise UsageError(
            f"{shown(text)} is not a size: {option} takes a number and one of {', '.join(UNITS)}, such as 80GiB"
        )
    return int(float(match[1]) * units[match[2].lower()])


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(memory)
