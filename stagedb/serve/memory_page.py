"""The memory of an instance: the peaks of its rank classes, memory over the step, and the tensors of any moment."""

import math
import re
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stagedb import api
from stagedb.api import InstanceInfo, Memory, Stagedb
from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.memory import ClassMemory, Point
from stagedb.memory.tensor_patterns import tensor_patterns
from stagedb.outputs import printable, reserve_text
from stagedb.reports.figures import task_words
from stagedb.reports.memory_curve import MemoryCurve, curve_of
from stagedb.reports.memory_sections import CATEGORIES, MomentLink, curve_chart, moment_marks
from stagedb.reports.page_parts import Cell, TableColumn, count_ticks, table
from stagedb.serve import page_frames
from stagedb.serve.compared_bars import DrawnPiece, memory_part, stacked_bar
from stagedb.serve.instance_pages import the_instance
from stagedb.serve.page_frames import SHORT_ID, address, cell, gigabytes, named
from stagedb.store.contents.memory import analyse

MOMENT = "peak"
TENSORS = 200
"""Rows of the table of tensors."""


def moment_links(instance: str, system: str | None = None) -> MomentLink:
    """The addresses of the tensors of moments of an instance."""

    def link(number: int, point: Point) -> str:
        words = {"class": number, "at": f"{point.task}.{point.index}", "system": system}
        return address("instances", instance, "memory", **words) + "#moment"

    return link


def memory(request: Request) -> Response:
    """The memory of a rank of each class of an instance. What the store does not have is computed, and not stored."""
    system = named(request.query_params, "system")
    if system is not None and system not in {row["name"] for row in api.systems()}:
        # Other words that name a system are files of the server's machine.
        raise UsageError(f"there is no system {shown(system)}: the list on this page has all of them")
    at, word = named(request.query_params, "at"), named(request.query_params, "class")
    if at is not None and re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", at) is None:
        raise UsageError(f"{shown(at)} is not a moment: those of the chart are a task and an item of it, such as 3.14")
    chosen = at is not None or word is not None
    shared, kept = request.app.state.shared, request.app.state.kept
    found = shared.read(lambda db: the_instance(db, request))
    key = ("memory", found.id, system, found.name)

    def result() -> Memory:
        made: Memory = kept.get(key, lambda: shared.read(lambda db: db.memory(found.id, system=system, keep=False)))
        return made

    def parts() -> str:
        made = result()
        number = _chosen_class(word, made)
        own = address("instances", found.id, "memory", system=system)
        peaks = page_frames.part("memory_peaks.html", **_peaks(made, own))
        of_class = _class_memory(request, found, number)
        return peaks + _over_the_step(of_class, made.room, at, moment_links(found.id, system))

    return page_frames.page_in_parts(
        request,
        "memory.html",
        parts,
        # Only the memory itself shows whether it has the class and the moment of the address.
        ready=chosen or (kept.has(key) and kept.has(("curve", found.id, _chosen_class(None, result())))),
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


def _class_memory(request: Request, info: InstanceInfo, number: int) -> tuple[ClassMemory, MemoryCurve]:
    """The memory of a class and its curve, which the server keeps."""
    shared, kept = request.app.state.shared, request.app.state.kept

    def read(db: Stagedb) -> tuple[ClassMemory, MemoryCurve]:
        every = analyse(db.store, info.id)
        one = next(each for each in every if each.rank_class.number == number)
        return one, curve_of(one)

    found: tuple[ClassMemory, MemoryCurve] = kept.get(("curve", info.id, number), lambda: shared.read(read))
    return found


def _over_the_step(
    of_class: tuple[ClassMemory, MemoryCurve], room: int | None, at: str | None, link: MomentLink
) -> str:
    """The sections of memory over the step, and of the tensors of a moment."""
    found, curve = of_class
    number = found.rank_class.number
    point = found.peak if at is None else _point(found, at)
    # The piece of the curve in which the moment is.
    places = [place for place, each in enumerate(curve.points) if (each.task, each.index) <= (point.task, point.index)]
    piece = places[-1] if places else 0
    if (point.task, point.index) == (found.peak.task, found.peak.index):
        piece = curve.fullest
    to = {
        "the first moment": curve.points[0],
        "earlier": curve.points[max(piece - 1, 0)],
        "later": curve.points[min(piece + 1, len(curve.points) - 1)],
        "the moment of the peak": found.peak,
    }
    ways = "".join(f'<a href="{escape(link(number, where))}">{name}</a> ' for name, where in to.items())
    count = len(found.usage.tasks)
    near = room is not None and room <= 4 * sum(found.usage.at(found.peak).values())
    limit = (float(room), "for tensors of an accelerator") if room is not None and near else None
    most = math.inf if room is None else float(room)
    chart = curve_chart(curve, limit, count_ticks(count), moment_marks(found, curve, link), piece, most)
    return (
        f"<section><h2>Memory over the step, class {number}</h2><p>What one rank holds over its {count:,} tasks, in "
        "the order in which it runs them. A click chooses a moment.</p>"
        f'{chart}<p class="axis">tasks of the step</p></section>{_moment(found, point, ways)}'
    )


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


def _moment(found: ClassMemory, point: Point, ways: str) -> str:
    """The tensors of a moment by the pattern of the model, as in a terminal."""
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
        f"<p>Held while <code>{escape(printable(name))}</code> runs: a tensor of all layers is one row.</p>"
        f'<p class="links">{ways}</p>{table(columns, rows, shares, "busy")}{left}</section>'
    )
