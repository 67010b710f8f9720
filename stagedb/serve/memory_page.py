"""The memory of an instance: the peaks of its rank classes, memory over the step, and the tensors of any moment."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stagedb import api
from stagedb.api import InstanceInfo, Memory, ProfileInfo, Stagedb, lookup, memory_rows, system_choice
from stagedb.errors import UsageError
from stagedb.files import printable, reserve_text, shown
from stagedb.memory import ClassMemory, Point
from stagedb.memory.usage import tensor_patterns
from stagedb.reports.memory_sections import (
    CATEGORIES,
    MemoryCurve,
    MomentLink,
    TaskSpans,
    curve_chart,
    curve_of,
    curve_over_time,
    moment_marks,
)
from stagedb.reports.page_parts import Cell, TableColumn, count_ticks, table, time_ticks
from stagedb.reports.step_view import task_words
from stagedb.reports.terminal_chart import span
from stagedb.serve import page_frames
from stagedb.serve.compared_bars import DrawnPiece, memory_part, stacked_bar
from stagedb.serve.instance_pages import the_instance
from stagedb.serve.page_frames import SHORT_ID, address, cell, gigabytes, named
from stagedb.store.contents.memory import analyse

MOMENT = "peak"
TENSORS = 200
"""Rows of the table of tensors."""
TASKS = 400
"""Rows of the table of tasks."""


@dataclass(frozen=True)
class ClassCurve:
    """The memory of a rank class over a step: over the time of a profile, or over its tasks where there is none."""

    memory: ClassMemory
    curve: MemoryCurve
    profile: ProfileInfo | None
    times: TaskSpans | None

    def piece_of(self, point: Point) -> int:
        """The piece of the curve in which a moment is."""
        order = range(len(self.memory.usage.tasks)) if self.times is None else self.times.order
        place = {task: at for at, task in enumerate(order)}
        found = [
            at
            for at, each in enumerate(self.curve.points)
            if (place[each.task], each.index) <= (place[point.task], point.index)
        ]
        return found[-1] if found else 0


def moment_links(instance: str, system: str | None = None) -> MomentLink:
    """The addresses of the tensors of moments of an instance.

    instance: its id. system: whose memory the page shows; None: none.
    """

    def link(number: int, point: Point) -> str:
        words = {"class": number, "at": f"{point.task}.{point.index}", "system": system}
        return address("instances", instance, "memory", **words) + "#moment"

    return link


def memory(request: Request) -> Response:
    """The memory of a rank of each class of an instance. What the store does not have is computed, and not stored."""
    system = named(request.query_params, "system")
    if system is not None and system not in {row["name"] for row in api.systems()}:
        # A word that is no preset would be the path of a file on the server's machine.
        raise UsageError(f"there is no system {shown(system)}: the list on this page has all of them")
    at, word = named(request.query_params, "at"), named(request.query_params, "class")
    if at is not None and re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", at) is None:
        raise UsageError(f"{shown(at)} is not a moment: those of the chart are a task and an item of it, such as 3.14")
    chosen = at is not None or word is not None
    shared, kept = request.app.state.shared, request.app.state.kept
    found, profile = shared.read(lambda db: _asked(db, request, system))
    key = ("memory", found.id, system, found.name)

    def result() -> Memory:
        of = None if system is None else system_choice.resolve_system(system)

        def read(db: Stagedb) -> Memory:
            return memory_rows.read_memory(db.store, found, of, lambda: _analysed(request, found))

        made: Memory = kept.get(key, lambda: shared.read(read))
        return made

    def parts() -> str:
        made = result()
        number = _chosen_class(word, made)
        own = address("instances", found.id, "memory", system=system)
        peaks = page_frames.part("memory_peaks.html", **_peaks(made, own))
        of_class = _class_memory(request, found, number, profile)
        return peaks + _over_the_step(of_class, made.room, at, moment_links(found.id, system))

    return page_frames.page_in_parts(
        request,
        "memory.html",
        parts,
        # Only the memory itself shows whether it has the class and the moment of the address.
        ready=chosen or (kept.has(key) and kept.has(_curve_key(found, _chosen_class(None, result()), profile))),
        info=found,
        short=found.id[:SHORT_ID],
        system=system,
        systems=[row["name"] for row in api.systems()],
    )


def _peaks(result: Memory, own: str) -> dict[str, Any]:
    """What the page shows of the peaks. own: the address of the page."""
    levels = [row for row in result.levels if row["moment"] == MOMENT]
    there = {row["category"] for row in levels}
    categories = [each for each in CATEGORIES if each in there]
    whole = max([row["peak"] for row in result.peaks] + ([result.room] if result.room else []), default=1)
    bars = [
        {
            "label": f"class {row['class']}",
            "to": f"{own}{'&' if '?' in own else '?'}class={row['class']}#moment",
            "peak": gigabytes(row["peak"]),
            "parts": _bar(levels, row["class"], categories, whole),
        }
        for row in result.peaks
    ]
    others = [name for name in result.peaks.columns if name != "peak"]
    return {
        "bars": bars,
        "categories": [(CATEGORIES.index(each), each.replace("_", " ")) for each in categories],
        "room": None if result.room is None else (gigabytes(result.room), 100 * result.room / whole),
        "reserve": "" if result.room is None else reserve_text(result.room, result.reserve),
        "fits": result.fits,
        "columns": others,
        "rows": [[cell(row[name]) for name in others] for row in result.peaks],
    }


def _bar(levels: list[dict[str, Any]], number: int, categories: list[str], whole: int) -> tuple[DrawnPiece, ...]:
    """The bar of a class: its categories, in percent of the whole."""
    sizes = {row["category"]: row["bytes"] for row in levels if row["class"] == number}
    return stacked_bar("", "", [memory_part(each, sizes.get(each, 0)) for each in categories], whole).pieces


def _chosen_class(word: str | None, result: Memory) -> int:
    """The class of an address, or the fullest one. Raises UsageError for one that the instance does not have."""
    peaks = {int(row["class"]): int(row["peak"]) for row in result.peaks}
    if word is None:
        return max(peaks, key=lambda number: peaks[number], default=0)
    if not (word.isascii() and word.isdecimal() and int(word[:9]) in peaks):
        raise UsageError(f"the instance has no rank class {shown(word)}: it has {', '.join(map(str, peaks))}")
    return int(word)


def _asked(db: Stagedb, request: Request, system: str | None) -> tuple[InstanceInfo, ProfileInfo | None]:
    """The instance of an address, and its newest profile without scaled durations: on a system, if that is named."""
    found = the_instance(db, request)
    profiles = (each for each in lookup.profiles_of(db.store, found.id) if not each.scalings)
    return found, next((each for each in profiles if system in (None, each.system)), None)


def _curve_key(info: InstanceInfo, number: int, profile: ProfileInfo | None) -> tuple[Any, ...]:
    return ("curve", info.id, number, None if profile is None else profile.id)


def _analysed(request: Request, info: InstanceInfo) -> Sequence[ClassMemory]:
    """The memory of each class of an instance, which the server keeps for the tables and the curves."""
    shared, kept = request.app.state.shared, request.app.state.kept
    made: Sequence[ClassMemory] = kept.get(
        ("analysed", info.id), lambda: shared.read(lambda db: analyse(db.store, info.id))
    )
    return made


def _class_memory(request: Request, info: InstanceInfo, number: int, profile: ProfileInfo | None) -> ClassCurve:
    """The memory of a class over the step, which the server keeps."""
    shared, kept = request.app.state.shared, request.app.state.kept

    def read(db: Stagedb) -> ClassCurve:
        one = next(each for each in _analysed(request, info) if each.rank_class.number == number)
        rows = [] if profile is None else db.store.read("profile/class_tasks", profile=profile.id, **{"class": number})
        if profile is None or len(rows) != len(one.usage.tasks):
            return ClassCurve(one, curve_of(one), None, None)
        times = TaskSpans([row["start"] for row in rows], [row["finish"] for row in rows], profile.step)
        return ClassCurve(one, curve_over_time(one, times), profile, times)

    found: ClassCurve = kept.get(_curve_key(info, number, profile), lambda: shared.read(read))
    return found


def _over_the_step(of_class: ClassCurve, room: int | None, at: str | None, link: MomentLink) -> str:
    """The sections of memory over the step, and of the tensors of a moment."""
    found, curve = of_class.memory, of_class.curve
    number = found.rank_class.number
    point = found.peak if at is None else _point(found, at)
    is_peak = (point.task, point.index) == (found.peak.task, found.peak.index)
    piece = curve.fullest if is_peak else of_class.piece_of(point)
    to = {
        "the first moment": curve.points[0],
        "earlier": curve.points[max(piece - 1, 0)],
        "later": curve.points[min(piece + 1, len(curve.points) - 1)],
        "the moment of the peak": found.peak,
    }
    ways = "".join(f'<a href="{escape(link(number, where))}">{name}</a> ' for name, where in to.items())
    near = room is not None and room <= 4 * sum(found.usage.at(found.peak).values())
    limit = (float(room), "for tensors of an accelerator") if room is not None and near else None
    most = math.inf if room is None else float(room)
    axis = count_ticks(len(found.usage.tasks)) if of_class.times is None else time_ticks(of_class.times.step or 1)
    chart = curve_chart(curve, limit, axis, moment_marks(found, curve, link), piece, most)
    when = "" if of_class.times is None else f", at {_time(curve.starts[piece])} of the step"
    return (
        f"<section><h2>Memory over the step, class {number}</h2><p>{_about_axis(of_class)} A click chooses a moment."
        f'</p>{chart}<p class="axis">{"tasks" if of_class.times is None else "time"} of the step</p>'
        f"{_tasks(of_class, link)}</section>{_moment(found, point, ways, when)}"
    )


def _about_axis(of_class: ClassCurve) -> str:
    """What the curve is over, as HTML."""
    count, profile = len(of_class.memory.usage.tasks), of_class.profile
    if profile is None:
        return (
            f"What one rank holds over its {count:,} tasks, in the order in which it runs them: no profile has times."
        )
    name = escape(printable(f"{profile.name or profile.id[:SHORT_ID]} on {profile.system}", kept=""))
    return (
        f'What one rank holds over the step of profile <a href="{address("profiles", profile.id)}">{name}</a>, '
        f"{_time(profile.step)}: its {count:,} tasks when they run, with the moments of each spread evenly over it."
    )


def _tasks(of_class: ClassCurve, link: MomentLink) -> str:
    """The tasks of the step as a table: what each holds at its fullest moment."""
    found, times = of_class.memory, of_class.times
    order = list(range(len(found.usage.tasks))) if times is None else times.order
    columns = [TableColumn("task", wraps=True), TableColumn("fullest", True)]
    columns += [] if times is None else [TableColumn("begins", True), TableColumn("takes", True)]
    rows, ids = list[list[Cell]](), list[str]()
    for task in order[:TASKS]:
        totals = found.usage.levels(task).sum(axis=0)
        size = int(totals.max())
        row: list[Cell] = [task_words(found.usage.tasks[task]), (gigabytes(size), size)]
        if times is not None:
            took = times.finishes[task] - times.starts[task]
            row += [(_time(times.starts[task]), times.starts[task]), (_time(took), took)]
        rows.append(row)
        ids.append(link(found.rank_class.number, found.usage.fuller(task, int(totals.argmax()))))
    left = f'<p class="small">{len(order) - TASKS:,} more tasks follow.</p>' if len(order) > TASKS else ""
    return f"<details><summary>The tasks as a table</summary>{table(columns, rows, links=ids)}{left}</details>"


def _time(ns: float) -> str:
    return span(ns, 4) if ns else "0"


def _point(found: ClassMemory, at: str) -> Point:
    """The moment of an address. Raises UsageError for one that the step does not have."""
    task, index = map(int, at.split("."))
    tasks = found.usage.tasks
    if task >= len(tasks):
        raise UsageError(f"there is no moment {at}: the last task of this rank class is {len(tasks) - 1}")
    last = len(found.items(tasks[task]))
    if index > last:
        raise UsageError(f"there is no moment {at}: task {task} ends at {task}.{last}")
    return found.usage.fuller(task, index)


def _moment(found: ClassMemory, point: Point, ways: str, when: str) -> str:
    """The tensors of a moment by the pattern of the model, as in a terminal. when: its time in words."""
    task, _, name = found.at(point)
    whole = sum(found.usage.at(point).values())
    alive = found.usage.alive(point)
    patterns = tensor_patterns((each.name, str(each.category), each.count, each.bytes) for each in alive)
    columns = [
        TableColumn("tensor", wraps=True),
        TableColumn("memory", True, first=True),
        TableColumn("category"),
        TableColumn("layers", True),
        TableColumn("count", True),
    ]
    rows: list[list[Cell]] = [
        [
            printable(each.name),
            (gigabytes(each.bytes), each.bytes),
            each.category.replace("_", " "),
            (f"{each.layers:,}", each.layers),
            (f"{each.count:,}", each.count),
        ]
        for each in patterns[:TENSORS]
    ]
    most = max((each.bytes for each in patterns), default=1) or 1
    rest = sum(each.bytes for each in patterns[TENSORS:])
    left = f'<p class="small">{len(patterns) - TENSORS:,} more rows have {gigabytes(rest)}.</p>' if rest else ""
    shares = [each.bytes / most for each in patterns[:TENSORS]]
    return (
        f'<section class="long" id="moment"><h2>{gigabytes(whole)} in {escape(task_words(task))}</h2>'
        f"<p>Held while <code>{escape(printable(name))}</code> runs{when}: a tensor of all layers is one row.</p>"
        f'<p class="links">{ways}</p>{table(columns, rows, shares, "busy")}{left}</section>'
    )
