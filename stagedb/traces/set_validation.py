"""`validate`: a directory of traces, of stagedb or another tool, against every rule that simulators rely on."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stagedb.errors import StagedbError, UsageError
from stagedb.files import is_directory, path_text, read_document, shown
from stagedb.mentions import OPTIONS, Word
from stagedb.traces.bundle_rules import check_bundle
from stagedb.traces.checksums import CHECKSUMS, file_crc, read_checksums
from stagedb.traces.formats import FORMATS, FoundTraces, TraceFormat
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.trace_faults import MOST_KEPT, Fault, FaultKind, FaultList
from stagedb.traces.trace_reading import TraceColumns, TraceError
from stagedb.traces.trace_replay import replay
from stagedb.traces.trace_rules import (
    UNKNOWN,
    Groups,
    check_groups,
    check_matching,
    check_messages,
    check_rank,
    check_timed,
)
from stagedb.traces.trace_set import MANIFEST

_LARGEST = 64 << 20
_MOST_RANKS = 1 << 24
_RANK = re.compile(r"\.([0-9]{1,9})\.[a-z]")


@dataclass(frozen=True)
class Report:
    """The result of validation: a set without `faults` is sound.

    faults: broken rules, what hangs a simulator first; at most `trace_faults.MOST_KEPT` are listed.
    conventions: where a set of another tool is not as stagedb writes its own. Simulators run it all the same. In a set
        with stagedb's manifest these are faults.
    kinds, convention_kinds: the same, one entry a kind, with all of them counted.
    files, nodes: how many were read. world: the number of ranks of the set.
    replayed: the set ran to its end as in a simulator. False if no replay was requested, if a rank is missing, or if a
        rule is broken.
    """

    faults: tuple[Fault, ...]
    conventions: tuple[Fault, ...]
    kinds: tuple[FaultKind, ...]
    convention_kinds: tuple[FaultKind, ...]
    files: int
    nodes: int
    world: int
    replayed: bool

    @property
    def counted(self) -> int:
        """How many faults were found, listed or not."""
        return sum(kind.count for kind in self.kinds)

    @property
    def left_out(self) -> int:
        """How many places of faults were found that are not listed in `faults` and `conventions`."""
        conventions = sum(kind.count for kind in self.convention_kinds)
        return self.counted + conventions - len(self.faults) - len(self.conventions)

    @property
    def summary(self) -> str:
        """One line: how much was checked, and how."""
        ranks = f"{self.files} ranks" if self.files == self.world else f"{self.files} of {self.world} ranks"
        return f"{ranks}, {self.nodes:,} nodes, every rule{' and a replay' if self.replayed else ''}"


def validate_traces(
    directory: Path,
    *,
    replayed: bool = True,
    inputs: bool = True,
    own: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Report:
    """Check every trace of a directory. UsageError if there is none.

    If the manifest describes a slice, the ranks of the slice are checked, and there is no replay.

    replayed: also run the set as a simulator would. inputs: also check those of a simulator. own: stagedb wrote the
    set; a set with its manifest is taken as its own in any case. progress: called with the number of traces that are
    checked, and of all.
    """
    format, on_disk = _found(directory)
    files, prefix = on_disk.read, on_disk.prefix
    faults = FaultList(own=own or (directory / MANIFEST).exists(), recorded=_is_recorded(directory))
    if faults.add(_changed(directory)):
        # All that the rules would find in a file that was changed follows from the change.
        return _report(faults, files=len(files), nodes=0, world=len(files), replayed=False)
    world, wanted, fault = _wanted(directory, files)
    if fault is not None:
        faults.add([fault])
    missing = (rank for rank in wanted if rank not in files)
    faults.add(
        Fault(rank, None, "", "files", f"{format.place(prefix, rank)} is missing")
        for rank in itertools.islice(missing, MOST_KEPT)
    )
    further = sum(1 for _ in missing)
    if further:
        faults.add([Fault(None, None, "", "files", f"{further:,} further files are missing")])
    try:
        groups = groups_file(directory / f"{prefix}.json")
    except StagedbError as error:
        groups = {}
        faults.add([Fault(None, None, "", "group", str(error))])
    traces: dict[int, TraceColumns] = {}
    for done, (rank, read) in enumerate(sorted(files.items())):
        progress(done, len(files))
        try:
            traces[rank] = read()
        except TraceError as error:
            faults.add([Fault(rank, None, "", "framing", str(error))])
    progress(len(files), len(files))
    # A job of one rank has no network, and so no inputs of a simulator.
    if inputs and world > 1:
        faults.add(check_bundle(directory, traces, groups, world))
    runs = replayed and len(traces) == world
    # A fault in the rules also breaks a replay, and the replay would report less about it.
    broken = _rule_faults(traces, groups, world)
    if not (directory / f"{prefix}.json").exists():
        broken = _without_groups(f"{prefix}.json", broken)
    if not faults.add(broken) and runs:
        faults.add(replay(traces, groups))
    nodes = sum(map(len, traces.values()))
    return _report(faults, files=len(files), nodes=nodes, world=world, replayed=runs and not faults.unsound)


def _is_recorded(directory: Path) -> bool:
    """Whether a set is of a run that was recorded, by its manifest."""
    try:
        manifest = read_document(directory / MANIFEST, "manifest", most=_LARGEST)
    except UsageError:
        return False
    return isinstance(manifest, dict) and "run" in manifest


def _report(faults: FaultList, *, files: int, nodes: int, world: int, replayed: bool) -> Report:
    return Report(
        faults.kept(unsound=True),
        faults.kept(unsound=False),
        faults.kinds(unsound=True),
        faults.kinds(unsound=False),
        files,
        nodes,
        world,
        replayed,
    )


def _changed(directory: Path) -> Iterator[Fault]:
    """Files that are not as they were written, by the set's checksums; none for a set without them."""
    path = directory / CHECKSUMS
    if not path.is_file():
        return
    try:
        known = read_checksums(path)
    except UsageError as error:
        yield Fault(None, None, "", "checksum", str(error))
        return
    for name, crc in known.items():
        rank = _rank_of(name)
        try:
            actual = file_crc(directory / name)
        except FileNotFoundError:
            if rank is None:
                yield Fault(None, None, "", "files", f"{name} is missing")
            continue  # the ranks that are missing are named together
        except OSError as error:
            yield Fault(rank, None, "", "files", f"{name} cannot be read: {error.strerror}")
            continue
        if actual != crc:
            yield Fault(
                rank,
                None,
                "",
                "checksum",
                f"{name} was changed after it was written: `{OPTIONS.word(Word('resume', True))}` mends it",
            )
    for name in sorted({each.name for each in directory.iterdir()} - known.keys()):
        rank = _rank_of(name)
        if rank is not None:
            yield Fault(rank, None, "", "checksum", f"{name} has no checksum in {CHECKSUMS}")


def _rank_of(name: str) -> int | None:
    """The rank of a trace's file."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def _rule_faults(traces: Mapping[int, TraceColumns], groups: Groups, world: int) -> Iterator[Fault]:
    yield from check_groups(groups, world)
    for rank, trace in traces.items():
        yield from check_rank(rank, trace, groups, world)
    yield from check_timed(traces)
    yield from check_matching(traces, groups)
    yield from check_messages(traces)


def _without_groups(name: str, faults: Iterator[Fault]) -> Iterator[Fault]:
    """One fault of a set without its file of groups, in place of one a collective."""
    unknown = 0
    for fault in faults:
        if fault.rule == "group" and fault.message.endswith(UNKNOWN):
            unknown += 1
        else:
            yield fault
    if unknown:
        holds = 'the ranks of each communicator group ({"1": [0, 1], ...})'
        reason = f"{name} is missing, the file with {holds} that {unknown:,} collectives name"
        yield Fault(None, None, "", "group", reason)


def _found(directory: Path) -> tuple[TraceFormat, FoundTraces]:
    """The traces of a directory, and their format. UsageError if there are none in a readable format."""
    if not is_directory(directory):
        what = "is a file, not a directory" if directory.exists() else "does not exist, so it is not a directory"
        raise UsageError(
            f"{path_text(directory)} {what}: `validate` takes a directory of traces, of any tool"
            + (f", such as {path_text(directory.parent)}" if directory.exists() else "")
        )
    readable = [(each, each.find) for each in FORMATS.values() if each.find is not None]
    for format, find in readable:
        found = find(directory)
        if found is not None:
            return format, found
    places = " or ".join(format.what.format(name="NAME").rpartition(": ")[2] for format, _ in readable)
    names = sorted(each.name for each in directory.iterdir())
    has = f"it has {shown(', '.join(names))}: rename what is a trace" if names else "it is empty"
    raise UsageError(f"{path_text(directory)} holds no traces ({places}); {has}")


def _wanted(directory: Path, files: Mapping[int, object]) -> tuple[int, Sequence[int], Fault | None]:
    """The number of ranks, and the ranks that should be there: all, unless the manifest describes a slice.

    A set of another program has no manifest; one that cannot be read is a fault. UsageError for a rank that no set has.
    """
    least = max(files) + 1
    if least > _MOST_RANKS:
        raise UsageError(
            f"{path_text(directory)} has a trace of rank {least - 1}, and a set has at most {_MOST_RANKS:,} ranks, "
            "from 0 on: rename the file"
        )
    if not (directory / MANIFEST).exists():
        return least, range(least), None
    try:
        manifest = read_document(directory / MANIFEST, "manifest", most=_LARGEST)
        world, only = manifest["world"], manifest.get("only")
        if type(world) is not int or not least <= world <= _MOST_RANKS:
            raise UsageError(f"a world of {shown(world)} ranks, and the set has rank {least - 1}")
        chosen = range(world) if only is None else sorted({*parse_ranks(only, world).tolist()})
    except (LookupError, TypeError, AttributeError, UsageError) as error:
        reason = f"{MANIFEST} does not describe the set: {shown(str(error))}"
        return least, range(least), Fault(None, None, "", "manifest", reason)
    return world, chosen, None


def groups_file(path: Path) -> dict[int, list[int]]:
    """The communicator groups of a set; empty if it has no file of them."""
    if not path.exists():
        return {}
    try:
        content = read_document(path, "communicator groups", most=_LARGEST)
        return {int(group): [int(rank) for rank in members] for group, members in content.items()}
    except (ValueError, TypeError, AttributeError, UsageError) as error:
        raise StagedbError(f'{path.name} is not {{"<id>": [ranks]}}: {error}') from None
