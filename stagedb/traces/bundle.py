"""Files next to the traces: the communicator groups, a manifest that describes the set, and checksums."""

import hashlib
import importlib.metadata
import json
import re
import zlib
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.errors import UsageError
from stagedb.files import open_regular, read_text
from stagedb.lowering.columns import TASK_KINDS, ClassColumns, Step, Workload
from stagedb.lowering.columns import Groups as GroupColumns
from stagedb.lowering.issue_order import Sequence as Nodes
from stagedb.traces.encoded_class import EncodedClass, RankBytes, rank_files
from stagedb.traces.encoding import VERSION
from stagedb.traces.formats import RankFiles, TraceFormat
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.rank_sets import format_ranks
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import Groups, SimulatedJob, Simulator
from stagedb.traces.trace_set import TraceSet

FORMAT = 1
"""Version of the manifest."""

SCRIPT = ".sh"
"""The ending of files that become executable."""

_A_PART = 4096
"""Numbers of a column that are in a list at once."""


def groups_of(workload: Workload) -> Groups:
    """The groups of an instance: ids as text, ranks in ring order."""
    return _GroupsByName(workload.groups)


class _GroupsByName(Mapping[str, Sequence[int]]):
    """Groups whose lists are made when they are asked for: those of a million ranks are 200 MB. columns: the groups."""

    def __init__(self, columns: GroupColumns) -> None:
        self._columns = columns
        self._ends = np.cumsum(columns.sizes)

    @cached_property
    def _order(self) -> Ints:
        return np.argsort(self._columns.gid)

    def __getitem__(self, name: str) -> Sequence[int]:
        gids = self._columns.gid
        found = int(np.searchsorted(gids, int(name), sorter=self._order)) if name.isdecimal() else len(gids)
        if found == len(gids) or str(gids[self._order[found]]) != name:
            raise KeyError(name)
        place = int(self._order[found])
        return self._list(int(self._ends[place]) - int(self._columns.sizes[place]), int(self._ends[place]))

    def _list(self, begin: int, end: int) -> list[int]:
        found: list[int] = self._columns.ranks[begin:end].tolist()
        return found

    def __iter__(self) -> Iterator[str]:
        return map(str, _values(self._columns.gid))

    def __len__(self) -> int:
        return len(self._columns.gid)

    def items(self) -> ItemsView[str, Sequence[int]]:
        """Each group with its ranks, in the order of the columns."""
        return _Items(self)


class _Items(ItemsView[str, Sequence[int]]):
    """The groups in order."""

    _mapping: _GroupsByName

    def __iter__(self) -> Iterator[tuple[str, Sequence[int]]]:
        groups, begin = self._mapping, 0
        for name, end in zip(groups, _values(groups._ends), strict=True):
            yield name, groups._list(begin, end)
            begin = end


def _values(column: Ints) -> Iterator[int]:
    """The numbers of a column, which are never all in a list."""
    for begin in range(0, len(column), _A_PART):
        yield from column[begin : begin + _A_PART].tolist()


def set_facts(
    name: str, workload: Workload, granularity: str, job: SimulatedJob, profile: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Facts of an instance's traces for the manifest: contents, source, and what the simulator inputs follow from.

    profile: facts of the profile of the durations, if the traces have durations. name: of the set, with which its files
    begin. granularity: `op` or `block`.
    """
    return {
        "name": name,
        "instance": workload.instance,
        "graph": workload.graph,
        "model": workload.model,
        "plan": dict(workload.plan),
        **({"steps": _steps(workload.steps)} if workload.steps else {}),
        **({"engines": [_steps(each) for each in workload.engines]} if workload.engines else {}),
        "world": len(workload.ranks),
        "granularity": granularity,
        **({} if profile is None else {"profile": dict(profile)}),
        "versions": {"stagedb": importlib.metadata.version("stagedb"), "chakra": VERSION},
        "system": job.system.to_dict(),
        "traffic": [each.to_dict() for each in job.traffic],
    }


def _steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [{"instance": id, "plan": dict(plan)} for id, plan in steps]


def class_facts(
    columns: ClassColumns, nodes: Nodes, encoded: EncodedClass, ranks: Ints, lanes: Sequence[int]
) -> dict[str, Any]:
    """Facts of the traces of a rank class, or of its `ranks` on these lanes of a profile.

    nodes: of a rank's trace. lanes: none without a profile.
    """
    return {
        "class": columns.number,
        **({"lanes": list(lanes)} if lanes else {}),
        "digest": columns.digest,
        "stages": list(columns.stages),
        "ranks": format_ranks(ranks),
        "nodes": nodes.nodes,
        "bytes": encoded.size,
        "encoding": encoded.digest,
        "tasks": _tasks(columns, nodes),
    }


def manifest(traces: TraceSet, format: TraceFormat, simulator: Simulator | None, files: Mapping[str, str]) -> str:
    """The files of a set, their source, and the class of each rank.

    simulator: the simulator whose inputs are next to the traces, if any; the manifest names it unless it is the
    default. files: all files.
    """
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "what": f"Chakra execution traces of {_what(traces.facts)}, {format.what.format(name=traces.name)}",
        **traces.facts,
        "only": None if traces.count == traces.world else format_ranks(traces.ranks),
        "traces": format.name,
        **({} if simulator is None or simulator == DEFAULT_SIMULATOR else {"simulator": simulator.name}),
        **({} if simulator is None else {"simulated": _simulated(traces.job, simulator)}),
        "classes": [dict(of_class.facts) for of_class in traces.classes],
        "files": {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()},
    }
    return json.dumps(manifest, indent=1) + "\n"


def _what(facts: Mapping[str, Any]) -> str:
    """What the traces are of, in words. Those of a run have no plan."""
    if "engines" in facts:
        first, second = (f"{len(each)} step{'s' * (len(each) > 1)}" for each in facts["engines"])
        return f"{first} of prefill and {second} on other ranks, which get its caches"
    if "steps" in facts:
        return f"{len(facts['steps'])} steps of serving, one after another"
    plan = facts.get("plan")
    return "one step of a run" if plan is None else f"one {plan['workflow']} step"


def _simulated(job: SimulatedJob, simulator: Simulator) -> dict[str, Any]:
    """Where a simulator has the times of compute from, and why its step differs from that of the profile."""
    differences = list(simulator.differences(job))
    compute = "durations" if job.timed else "roofline"
    return {"compute": compute, **({"differences": differences} if differences else {})}


def _tasks(columns: ClassColumns, nodes: Nodes) -> list[str]:
    """Each task's ids: `forward 0: 1-120` is the forward of microbatch 0. The parts of tasks that run together have a
    row each.
    """
    ends = [*(nodes.base[1:] - 1).tolist(), nodes.nodes]
    kinds, microbatches = (each[nodes.task].tolist() for each in (columns.tasks.kind, columns.tasks.microbatch))
    rows = zip(kinds, microbatches, nodes.base.tolist(), ends, strict=True)
    return [f"{TASK_KINDS[kind]} {microbatch}: {first}-{last}" for kind, microbatch, first, last in rows]


def write_texts(directory: Path, files: Mapping[str, str]) -> None:
    """Write small text files into a directory. Those that end in `.sh` become executable."""
    for name, text in files.items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        if name.endswith(SCRIPT):
            path.chmod(path.stat().st_mode | 0o111)


# CRC-32 of the files of a set, in the form of an SFV file, which other tools (cksfv, rhash) check too.
#
# The files of a class differ in few bytes, and a CRC is linear: the CRCs of two buffers of one length differ by the CRC
# of their difference. So the checksum of every rank follows from that of the first one, without its file (`rank_crcs`).
# The arithmetic is that of polynomials over GF(2), as in zlib's `crc32_combine`.

CHECKSUMS = "checksums.sfv"
"""Name of the file of checksums in a set."""

Crcs = npt.NDArray[np.uint32]

_POLYNOMIAL = np.uint32(0xEDB88320)
_ONE = np.uint32(1 << 31)
"""The polynomial 1: bits are in reverse order."""

_STEP = 1 << 12
_BLOCK = 1 << 20
_LARGEST = 64 << 20
_LINE = re.compile(r"(?P<name>[^/\\]+) (?P<crc>[0-9A-F]{8})")


def rank_crcs(encoded: EncodedClass, ranks: RankBytes) -> Crcs:
    """The CRC-32 of each rank's file, in the order of `ranks`."""
    if not len(ranks.ranks):
        return np.zeros(0, np.uint32)
    _, first = next(rank_files(encoded, ranks))
    shared_crc = np.uint32(zlib.crc32(first.data))
    positions, sources = encoded.patched()
    weights = np.zeros(ranks.values.shape[1], np.uint32)
    np.bitwise_xor.at(weights, sources, _shifts(len(first) - 1 - positions))
    table = _multiply(weights[:, None], _byte_crcs()[None, :])
    own = np.bitwise_xor.reduce(table[np.arange(len(weights)), ranks.values], axis=1)
    crcs: Crcs = shared_crc ^ own ^ own[0]
    return crcs


def set_crcs(traces: TraceSet, files: RankFiles) -> dict[str, int] | None:
    """The checksum of each trace by the name of its file; None for files of another form than traces have."""
    if not files.plain:
        return None
    return {
        files.file(traces.name, rank): crc
        for of_class in traces.classes
        for rank, crc in zip(
            of_class.ranks.ranks.tolist(), rank_crcs(of_class.encoded, of_class.ranks).tolist(), strict=True
        )
    }


def file_crc(path: Path) -> int:
    """The CRC-32 of a regular file. Raises OSError as `open_regular` does."""
    crc = 0
    with open_regular(path) as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def checksums_text(crcs: Mapping[str, int]) -> str:
    """The text of the file of checksums.

    crcs: by name of a file, its CRC-32.
    """
    lines = (f"{name} {crc:08X}\n" for name, crc in crcs.items())
    return "".join(lines)


def read_checksums(path: Path) -> dict[str, int]:
    """The checksums by name of the file. UsageError for a file of another form."""
    crc_of = {}
    for number, line in enumerate(read_text(path, "file of checksums", _LARGEST).splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match["name"] in crc_of:
            raise UsageError(f"{path}, line {number}: not a name and its CRC-32")
        crc_of[match["name"]] = int(match["crc"], 16)
    return crc_of


def _shifts(zeros: npt.NDArray[np.int64]) -> Crcs:
    """x^(8 n) for each number n of bytes that follow."""
    low, high = zeros % _STEP, zeros // _STEP
    # Two tables of powers, of small and of large steps: their product has any number of bytes.
    return _multiply(_powers(_power(8), _STEP)[low], _powers(_power(8 * _STEP), int(high.max(initial=0)) + 1)[high])


def _power(exponent: int) -> np.uint32:
    """x^exponent."""
    power, square = np.array([_ONE]), np.array([_ONE >> np.uint32(1)])
    while exponent:
        if exponent & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        exponent >>= 1
    return np.uint32(power[0])


def _powers(base: np.uint32, count: int) -> Crcs:
    """base^0, base^1 … base^(count - 1)."""
    powers, step = np.array([_ONE], np.uint32), np.array([base], np.uint32)
    while len(powers) < count:
        powers = np.concatenate([powers, _multiply(powers, step)])
        step = _multiply(step, step)
    return powers[:count]


def _byte_crcs() -> Crcs:
    """For each value of a byte, the CRC of that byte alone: the table of the usual byte-wise algorithm."""
    crcs = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = (crcs >> np.uint32(1)) ^ np.where(crcs & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    return crcs


def _multiply(one: Crcs, other: Crcs) -> Crcs:
    """The products of polynomials, modulo that of CRC-32; arrays are broadcast."""
    one, other = np.broadcast_arrays(one, other)
    product, shifted = np.zeros(one.shape, np.uint32), other.copy()
    for bit in range(31, -1, -1):
        product ^= np.where((one >> np.uint32(bit)) & np.uint32(1), shifted, np.uint32(0))
        shifted = (shifted >> np.uint32(1)) ^ np.where(shifted & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    return product
