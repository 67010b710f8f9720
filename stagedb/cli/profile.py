"""`profile`: the time of a step on a system, and where it goes."""

import dataclasses
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli.build_instantiate import count, note_bubble, note_implied, note_model
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, Model, Target, option_groups, print_line
from stagedb.cli.timing_options import TimingOptions
from stagedb.errors import UsageError
from stagedb.files import GB, reserve_text

if TYPE_CHECKING:
    from stagedb.api import PeakMemory, Profile

MS = 1e6
"""Nanoseconds."""

SHARES = ("busy", "exposed", "bubble", "idle")
LANES = 32
"""Lanes in a table on a terminal."""

TITLES = {"kind": "by kind", "axis": "by axis"}
"""Parts of the critical path on a terminal."""


class ProfileRows(StrEnum):
    """The values of `--show` in `profile`: which rows it prints."""

    LANES = "lanes"
    MERIT = "merit"
    PATH = "path"
    ALL = "all"


@option_groups
def profile(
    target: Target = None,
    model: Model = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the profile.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the profile in the store, or write nothing.")
    ] = True,
    show: Annotated[
        ProfileRows | None,
        typer.Option(
            help="lanes: where the step goes, a row for ranks with the same times; merit: tokens and FLOPs; path: "
            "the critical path by kind, axis, phase and stage.  [all in a table, else lanes]"
        ),
    ] = None,
    *,
    timing: TimingOptions,
    words: PlanFlags,
    output: Output,
    common: Common,
) -> None:
    """Time a step on a system, and show where the time goes.

    A rank is busy (it computes), exposed (it communicates and computes nothing), in a bubble (it waits for other
    stages) or idle; together these are the step. The store keeps the profile, and `stagedb query critical-path`
    and `stagedb query hotspots` read it.
    """
    printed = output.format is RowFormat.TABLE and output.output is None
    chosen = show or (ProfileRows.ALL if printed else ProfileRows.LANES)
    if chosen is ProfileRows.ALL and not printed:
        raise UsageError("tables with different columns do not fit into one file: --show lanes, merit or path")
    given = words.words()
    with (
        common.connect() as db,
        progress(common, "writing", "rows", before="making the graph and the instance") as report,
    ):
        found = db.profile(
            target,
            model=model,
            name=name,
            keep=keep,
            progress=report,
            **timing.words(),
            **given,
        )
    common.profile(found.seconds)
    if target is None and model is None and not given:
        common.note(f"of the newest instance, {found.instance.id[:12]} {found.instance.name}")
    note_model(common, found.instance)
    note_implied(common, found.instance, given)
    if model is not None or given:
        note_bubble(common, found.instance)
    did, *figures = _lines(found)
    (common.line if printed else common.note)(did)
    for line in figures:
        if printed:
            print_line(line)  # a result, which --quiet keeps
        else:
            common.note(line)
    _write(found, chosen, printed, output, common)


def _write(found: "Profile", chosen: ProfileRows, printed: bool, output: Output, common: Common) -> None:
    """The chosen tables, shortened where they are printed."""
    if chosen in (ProfileRows.LANES, ProfileRows.ALL):
        _title(chosen, "where the step of each rank goes: ms, and percent of the step")
        output.write(*(_shown_lanes(found) if printed else (found.lanes.columns, found.lanes.rows)))
        if printed and len(found.lanes) > LANES:
            common.line(f"and {len(found.lanes) - LANES} more: --show lanes -f csv prints all")
    if chosen is ProfileRows.MERIT:
        output.write_records([dataclasses.asdict(found.merit)])
    if chosen is ProfileRows.PATH:
        output.write(found.path.columns, found.path.rows)
    elif chosen is ProfileRows.ALL:
        for by, title in TITLES.items():
            _title(chosen, f"the critical path {title}")
            output.write([by, "ms", "%"], _shown_path(found, by))


def _lines(found: "Profile") -> list[str]:
    """What was done, and its results, in a few lines."""
    info, merit = found.info, found.merit
    what = "made" if info.new else "already in the store:"
    if not info.kept:
        what = "not kept:"
    named = "" if info.name is None else f" {info.name}"
    lines = [
        f"{what} profile {info.id[:12]}{named} of {found.instance.name} ({count(found.instance.ranks, 'rank')}) on "
        f"{info.system}, in {sum(found.seconds.values()):.1f} s"
    ]
    figures = [f"step {found.step / MS:,.3f} ms"]
    if merit.tokens_per_second is not None and merit.tokens_per_second_per_accelerator is not None:
        figures.append(
            f"{merit.tokens_per_second:,.0f} tokens/s ({merit.tokens_per_second_per_accelerator:,.1f} an accelerator)"
        )
    if merit.mfu is not None and merit.hfu is not None:
        figures.append(f"MFU {merit.mfu:.1%}, HFU {merit.hfu:.1%} of the {merit.dtype} peak")
    lines.append(", ".join(figures))
    lines += _of_drafts(found)
    if info.blocking:
        lines.append(f"a rank waits for its communication on {', '.join(info.blocking)}")
    if found.job.scalings:
        scalings = ", ".join(info.scalings)
        lines.append(f"with {scalings}: {_gain(found)}")
    if found.job.measured is not None:
        each = found.coverage
        lines.append(
            f"measured: {each.share_of_time:.1%} of the modelled time, {each.share_of_ops:.1%} of the operators' runs"
        )
        if unmatched := found.job.durations.unmatched:
            rows = ", ".join(row.where for row in unmatched[:4]) + (", …" if len(unmatched) > 4 else "")
            lines.append(f"{count(len(unmatched), 'measured row')} without an operator here: {rows}")
    if not found.job.scalings and found.job.measured is None:
        lines.append(_expected(found))
    lines += found.job.remarks
    lines.append(memory_line(found.memory, found.room))
    if found.room is not None and (reserve := reserve_text(found.room, found.reserve)):
        lines.append(reserve)
    return lines


def _of_drafts(found: "Profile") -> Iterator[str]:
    """What requests gain from a step that checks drafts."""
    from stagedb.plans import Plan

    plan = Plan.from_mapping(found.job.workload.plan)
    if not plan.drafted:
        return
    if plan.accepted is None:
        yield (
            f"a request gains a token, and those of its draft of {plan.drafted} that are accepted: --acceptance P "
            "gives tokens a second"
        )
        return
    gained = float(plan.accepted)
    yield (
        f"a request gains {gained:.2f} tokens, with a draft of {plan.drafted} of which each is accepted with "
        f"{plan.acceptance:g}: {found.step / MS / gained:,.3f} ms a token"
    )


def _expected(found: "Profile") -> str:
    """The error to expect of the step, as published steps of its kind have it."""
    from stagedb.timing.expected_errors import error_words

    return f"expected error {error_words(found.job.system, found.job.workload)}"


def memory_line(memory: "Sequence[PeakMemory]", room: int | None) -> str:
    """The peak memory of the fullest rank, and what does not fit.

    memory: the fullest class first. room: bytes of an accelerator for tensors; None: no limit.
    """
    fullest = memory[0]
    if room is None:
        return f"peak memory {fullest.bytes / GB:,.1f} GB"
    text = f"peak memory {fullest.bytes / GB:,.1f} GB of {room / GB:,.1f} GB for tensors: "
    over = [each for each in memory if each.bytes > room]
    if not over:
        return f"{text}fits"
    stages = sorted({stage for each in over for stage in each.stages})
    where = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
    largest = sorted(fullest.categories.items(), key=lambda each: -each[1])[:3]
    held = ", ".join(f"{category.replace('_', ' ')} {size / GB:,.1f} GB" for category, size in largest)
    return (
        f"{text}{where} {'does' if len(stages) == 1 else 'do'} not fit, by {(fullest.bytes - room) / GB:,.1f} GB; "
        f"most are {held} (`stagedb advise` names what fits)"
    )


def _gain(found: "Profile") -> str:
    before, gain = found.job.unscaled, found.gain
    share = abs(gain) / before if before else 0.0
    difference = f"{abs(gain) / MS:,.3f} ms ({share:.1%}) {'shorter' if gain > 0 else 'longer'}"
    change = difference if gain else "of equal length"
    return f"the step is {change}; it was {before / MS:,.3f} ms"


def _title(chosen: ProfileRows, text: str) -> None:
    if chosen is ProfileRows.ALL:
        print_line(f"\n{text}")


def _shown_lanes(found: "Profile") -> tuple[list[str], Sequence[Sequence[Any]]]:
    columns = ["class", "stage", "ranks"]
    for word in SHARES:
        columns += [word, "%"]
    rows = []
    for lane in list(found.lanes)[:LANES]:
        times = [_times(lane[word], found.step) for word in SHARES]
        rows.append([lane["class"], lane["stage"], lane["ranks"], *(each for pair in times for each in pair)])
    return columns, rows


def _shown_path(found: "Profile", by: str) -> list[list[Any]]:
    return [[row["part"], *_times(row["ns"], found.step)] for row in found.path if row["by"] == by]


def _times(ns: int, step: int) -> tuple[float, float]:
    """Milliseconds, and percent of the step."""
    return round(ns / MS, 3), round(100 * ns / step, 1) if step else 0.0


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(profile)
