"""Ops of a rank, each joined to the call that launched it, and this to the operator and the annotations around it.

A kernel is joined to its call by its number, and the call to the operator around it on its thread, which holds for
files of every age. What a collective is comes from the kernel, or from the operators around the call, or else from
names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.runs.engine_iterations import engine_iterations
from stagedb.runs.gradient_buckets import REDUCER, GradientBuckets, ReducedGradients
from stagedb.runs.host_waits import program_before, synchronised, waiting_calls
from stagedb.runs.kernel_names import EXCHANGES, LONGEST, PREPARING, SEND_RECV, collective_kind, communication_kind
from stagedb.runs.measured_path import next_of_stream
from stagedb.runs.module_paths import ENGINE, ModulePaths, inner_module, of_step_before
from stagedb.runs.nested_spans import NestedSpans
from stagedb.runs.rank_spans import RankSpans, SpanColumns
from stagedb.runs.rank_trace import (
    BACKGROUND,
    BACKWARD,
    CATEGORIES,
    FORWARD,
    HOST,
    NONE,
    OPTIMIZER,
    RECOMPUTE,
    UNKNOWN,
    Annotation,
    DeviceOps,
    Integers,
    Places,
    RecordedCollective,
)

_KERNEL, _HOST, _BACKGROUND = (CATEGORIES.index(each) for each in ("kernel", HOST, BACKGROUND))
_CHECKPOINT = "CheckpointFunctionBackward"
MULTIPLYING = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product")
"""Begins of the names of operators that are ops of a host even where another operator calls them."""

_STEP = re.compile(r"^ProfilerStep#(\d{1,15})$")
_OPTIMIZER_NAME = re.compile(r"^Optimizer\.step|\boptimizer(?:[_ ]step)?\b", re.IGNORECASE)
_BACKWARD_NAME = re.compile(r"(?<![A-Za-z0-9])(?:backward|bwd)(?![A-Za-z0-9])|\([BW]\)$", re.IGNORECASE)
"""`FSDP::post_backward_reduce` is one, and the name of an operator such as `MulBackward0` is none."""


def device_ops(rank: RankSpans) -> DeviceOps:
    """The ops of devices, each joined to the call that launched it. The spans of its host are gone after that."""
    call = _by_number(rank.device.column("correlation"), rank.calls.column("correlation"))
    moments, threads = (_taken(rank.calls.column(name), call, NONE) for name in ("start", "place"))
    waits = _waits(rank)
    # The calls are joined already: the memory that they take is freed for the columns that follow.
    rank.calls = SpanColumns()
    columns = _LaunchedOps(rank, rank.device, _operators(rank), moments, threads).columns()
    rank.host = SpanColumns()
    return _ops(columns, waits)


def host_ops(rank: RankSpans) -> DeviceOps:
    """Operators that no other one called, where there is no device; collectives are in `record_param_comms`."""
    host, spans = rank.host, _operators(rank)
    asking, waiting = (
        _of_names([name.startswith(words) for name in rank.table], host.column("name")).astype(bool)
        for words in (rank.asking, rank.waiting)
    )
    # No ops of their own: operators around a collective or a matmul, those that only wait, and calls of a backward's
    # operators.
    wrapper = _of_names([name.startswith(ENGINE) for name in rank.table], host.column("name")).astype(bool) | waiting
    multiplies = _of_names([name.startswith(MULTIPLYING) for name in rank.table], host.column("name")).astype(bool)
    # An attention that calls matmuls is the op, not these. An operator that calls itself is a DTensor's wrapper, and no
    # op.
    above = _taken(host.column("name"), spans.above, NONE)
    multiplies &= ~_taken(multiplies, spans.above, False) | (above == host.column("name"))
    up = spans.above[(host.column("collective") != NONE) | asking | waiting | multiplies]
    while len(up := np.unique(up[up != NONE])):
        up = up[~wrapper[up] | (spans.above[up] != NONE)]
        wrapper[up] = True
        up = spans.above[up]
    parent = _taken(wrapper, spans.above, True)
    workers = [each.worker for each in rank.background if each.worker is not None]
    whole = parent & ~wrapper & (spans.end > spans.start) & ~np.isin(host.column("place"), workers)
    chosen = np.flatnonzero(whole)
    device = SpanColumns()
    device.extend(
        **{name: host.column(name)[chosen] for name in ("start", "end", "place", "name", "collective")},
        category=np.full(len(chosen), _HOST),
        bytes=np.full(len(chosen), NONE),
    )
    moments, threads = _with_background(rank, device)
    found = _ops(_LaunchedOps(rank, device, spans, moments, threads).columns(), _waits(rank))
    if not rank.background:
        return found
    order = np.lexsort((device.column("end"), device.column("start")))
    before = program_before(found.end, found.stream, found.launched, threads[order])
    return replace(found, synchronised=np.where(found.category == _BACKGROUND, before, found.synchronised))


def _with_background(rank: RankSpans, device: SpanColumns) -> tuple[Integers, Places]:
    """Add the work of other threads to operators of the program. Returns when and where each op was launched."""
    background = rank.background
    asked = np.array([each.moment for each in background], np.int64)
    moments = np.concatenate((device.column("start"), asked))
    callers = np.array([each.thread for each in background], np.int32)
    threads = np.concatenate((device.column("place"), callers))
    device.extend(
        start=np.array([each.start for each in background], np.int64),
        end=np.array([each.end for each in background], np.int64),
        place=np.array([len(rank.threads) + rank.streams[0, each.stream] for each in background], np.int64),
        name=np.array([rank.table[each.name] for each in background], np.int64),
        category=np.full(len(background), _BACKGROUND),
        bytes=np.full(len(background), NONE),
        collective=np.array([rank.place(each.collective) for each in background], np.int64),
    )
    return moments, threads


@dataclass
class _LaunchedOps:
    """When and where each op was launched. host: operators of the rank. moments: in ns. threads: places."""

    rank: RankSpans
    device: SpanColumns
    host: NestedSpans
    moments: Integers
    threads: Places
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = list(self.rank.table)

    def columns(self) -> "dict[str, npt.NDArray[Any]]":
        """Columns of the ops, by start."""
        device, rank = self.device, self.rank
        inner = self.host.around(self.moments, self.threads)
        phase = _of_names([_autograd_phase(name) for name in self.names], rank.host.column("name")).astype(np.int8)
        phase = self.host.inherited(phase, inner)
        collective = self._collectives(self.host.inherited(rank.host.column("collective"), inner))
        launcher = _taken(rank.host.column("name"), inner, NONE)
        shapes = self.host.inherited(rank.host.column("shapes"), inner)
        paths = ModulePaths(rank, self.host)
        gradients = GradientBuckets(rank, self.host, paths).found()
        module = paths.around(self.moments, self.threads, inner)
        collective, module = self._of_gradients(gradients, inner, collective, module)
        operator = _taken(rank.host.column("number"), inner, NONE)
        kinds = {name: _kind_of_annotation(name) for name in {each.name for each in rank.annotations}}
        around = self._annotations([place for place, each in enumerate(rank.annotations) if not kinds[each.name]])
        numbers = step_numbers(rank.annotations)
        in_step = self._annotations(list(numbers))
        phases = {name: _named_phase(name) for name in kinds}
        # A forward is what is no other phase, if anything is known of an op.
        otherwise = np.where((inner == NONE) & (around == NONE), UNKNOWN, FORWARD)
        phase = np.where(phase == NONE, otherwise, phase)
        named = _taken(np.array([phases[each.name] for each in rank.annotations], np.int8), around, NONE)
        by_place = np.array([numbers.get(place, NONE) for place in range(len(rank.annotations))], np.int64)
        step = _taken(by_place, in_step, NONE)
        columns: dict[str, npt.NDArray[Any]] = {
            "start": device.column("start"),
            "end": device.column("end"),
            "stream": device.column("place"),
            "name": device.column("name"),
            "category": device.column("category"),
            "bytes": device.column("bytes"),
            "collective": collective,
            "launched": self.moments,
            "launcher": launcher,
            "shapes": shapes,
            "module": module,
            "operator": operator,
            "annotation": around,
            "step": step,
            "phase": np.where(named != NONE, named, phase).astype(np.int8),
        }
        order = np.lexsort((columns["end"], columns["start"]))
        ordered = {name: column[order] for name, column in columns.items()}
        self._name_preparations(ordered)
        if rank.paths:
            self._repeat(ordered)
        return ordered

    def _repeat(self, ops: "dict[str, npt.NDArray[Any]]") -> None:
        """Give ops that were launched before the recording the modules and launchers of those that they repeat.

        ops: by start.
        """
        device, collective = ops["category"] < _HOST, ops["collective"] != NONE
        repeated = of_step_before(ops, np.flatnonzero(device & ~collective), np.flatnonzero(device & collective))
        there = np.flatnonzero(repeated != NONE)
        for column in ("module", "launcher"):
            ops[column][there] = ops[column][repeated[there]]
        numbers = list(self.rank.numbers)
        for op in there[collective[there]].tolist():
            weights = numbers[ops["collective"][repeated[op]]].gradients
            if weights:
                ops["collective"][op] = self.rank.place(replace(numbers[ops["collective"][op]], gradients=weights))

    def _collectives(self, inherited: Places) -> Places:
        """What each op recorded, or the operators around its launch, or else its name; no compute op is one."""
        own, category, name = (self.device.column(each) for each in ("collective", "category", "name"))
        kinds = [communication_kind(each) for each in self.names]
        communicates = _of_names([kind is not None for kind in kinds], name).astype(bool)
        kernel = category == _KERNEL
        found = np.where(
            (kernel & communicates) | np.isin(category, (_HOST, _BACKGROUND)),
            np.where(own == NONE, inherited, own),
            NONE,
        )
        left = np.flatnonzero(kernel & communicates & (found == NONE))
        annotations = self.rank.annotations
        chosen = [p for p, each in enumerate(annotations) if _kind_of_annotation(each.name) == _CALLS]
        around = self._annotations(chosen, left).tolist()
        for place, at, annotation in zip(left.tolist(), name[left].tolist(), around, strict=True):
            kind = kinds[at]
            if kind == SEND_RECV and annotation != NONE:
                kind = collective_kind(annotations[annotation].name) or kind
            found[place] = self.rank.place(None if kind is None else RecordedCollective(kind))
        return found

    def _name_preparations(self, columns: "dict[str, npt.NDArray[Any]]") -> None:
        """Give kernels that prepare either a dispatch or a combine the kind of that: of the next op of their stream."""
        names = [PREPARING.search(each, 0, LONGEST) is not None for each in self.names]
        prepares = _of_names(names, columns["name"]).astype(bool)
        if not prepares.any():
            return
        following = next_of_stream(columns["stream"])
        for op in np.flatnonzero(prepares & (following != NONE)).tolist():
            kind = communication_kind(self.names[columns["name"][following[op]]])
            if kind in EXCHANGES:
                columns["collective"][op] = self.rank.place(RecordedCollective(kind))

    def _of_gradients(
        self, gradients: ReducedGradients, inner: Places, collective: Places, module: Places
    ) -> tuple[Places, Places]:
        """Collectives and modules of ops with those of gradients. inner: the innermost operators around launches."""
        rank = self.rank
        rank.unknown_buckets = gradients.unknown
        own = self.host.inherited(gradients.module, inner)
        module = np.where(own == NONE, module, own)
        numbers = list(rank.numbers)
        bucket = self.host.inherited(gradients.bucket, inner)
        collective = collective.copy()
        # The module whose gradient completes a bucket is not that of the bucket.
        module[(bucket != NONE) & (collective != NONE)] = NONE
        for op in np.flatnonzero((bucket >= 0) & (collective != NONE)).tolist():
            weights = gradients.buckets[bucket[op]]
            collective[op] = rank.place(replace(numbers[collective[op]], gradients=weights))
            module[op] = rank.paths[path] if (path := inner_module([each for each, _ in weights])) else NONE
        return collective, module

    def _annotations(self, which: list[int], ops: Integers | None = None) -> Places:
        """The innermost of some annotations around each launch on its thread, or on any: a backward has its own."""
        chosen = [self.rank.annotations[place] for place in which]
        columns = (np.array([getattr(each, name) for each in chosen], np.int64) for name in ("start", "end", "thread"))
        start, end, thread = columns
        moments, threads = (column if ops is None else column[ops] for column in (self.moments, self.threads))
        found = NestedSpans(start, end, thread).around(moments, threads)
        left = np.flatnonzero((found == NONE) & (moments != NONE))
        found[left] = NestedSpans(start, end, np.zeros_like(thread)).around(moments[left], np.zeros_like(left))
        return _taken(np.array(which, np.int32), found, NONE)


_STEPS, _CALLS = 1, 2


def _operators(rank: RankSpans) -> NestedSpans:
    return NestedSpans(*(rank.host.column(name) for name in ("start", "end", "place")))


def _ops(columns: "dict[str, npt.NDArray[Any]]", waits: tuple[Integers, Integers]) -> DeviceOps:
    """Ops of their columns, and what the host had waited for. waits: what `_waits` returns."""
    # Places of ops are those after they were sorted.
    return DeviceOps(**columns, synchronised=synchronised(columns["end"], columns["launched"], waits))


def _waits(rank: RankSpans) -> tuple[Integers, Integers]:
    """When the host began to wait for its device, and until when."""
    waits = _of_names(waiting_calls(list(rank.table)), rank.calls.column("name")).astype(bool)
    return rank.calls.column("start")[waits], rank.calls.column("end")[waits]


def _kind_of_annotation(name: str) -> int:
    """Whether an annotation is one of the profiler's steps, of a collective, or of the program (0)."""
    if _STEP.match(name):
        return _STEPS
    return _CALLS if ":" in name and collective_kind(name) is not None else 0


def _autograd_phase(operator: str) -> int:
    """The phase in which what an operator calls is, if it is autograd's, or `NONE`."""
    if not operator.startswith(ENGINE):
        # DDP copies gradients out of their buckets at the end of a backward.
        return BACKWARD if operator.startswith(REDUCER) else NONE
    return RECOMPUTE if _CHECKPOINT in operator else BACKWARD


def _named_phase(annotation: str) -> int:
    """The phase that an annotation names, or `NONE`."""
    if _OPTIMIZER_NAME.search(annotation) and "zero_grad" not in annotation:
        return OPTIMIZER
    return BACKWARD if _BACKWARD_NAME.search(annotation) else NONE


def step_number(name: str) -> int | None:
    """The number of the profiler's step that an annotation is; None if it is none. name: of the annotation."""
    match = _STEP.match(name)
    return None if match is None else int(match[1])


def step_named(name: str) -> bool:
    """Whether an annotation is one of the profiler's steps. name: of the annotation."""
    return step_number(name) is not None


def step_numbers(annotations: Sequence[Annotation]) -> dict[int, int]:
    """The numbers of the steps of a rank, by the places of their annotations: those of the profiler, or else the places
    of an engine's iterations."""
    found = {place: step_number(each.name) for place, each in enumerate(annotations)}
    counted = {place: number for place, number in found.items() if number is not None}
    return counted or {each.place: each.number for each in engine_iterations(annotations)}


def _by_number(wanted: Integers, numbers: Integers) -> Integers:
    """The place of each wanted number in `numbers`, the first one, or `NONE`; `NONE` is found nowhere."""
    if not len(numbers):
        return np.full(len(wanted), NONE, np.int64)
    order = np.argsort(numbers, kind="stable")
    at = np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(numbers) - 1)
    place = order[at]
    return np.where((numbers[place] == wanted) & (wanted != NONE), place, NONE)


def _of_names(values: list[Any], names: Places) -> "npt.NDArray[Any]":
    """For each of some names, as places, its value."""
    return np.array(values or [0])[names]


def _taken(column: "npt.NDArray[Any]", places: Places, otherwise: int) -> "npt.NDArray[Any]":
    """Values at places, and another one where the place is `NONE`."""
    if not len(column):
        return np.full(len(places), otherwise, column.dtype)
    return np.where(places == NONE, np.array(otherwise, column.dtype), column[places])
