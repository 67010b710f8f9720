"""Import of runs that a profiler recorded, from files into the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stagedb.api import lookup
from stagedb.api.results import RunInfo
from stagedb.errors import UsageError
from stagedb.inputs import is_directory, is_there
from stagedb.outputs import path_text
from stagedb.runs import RankTrace, file_digest, measured_run, read_trace
from stagedb.runs.measured_run import numbered
from stagedb.runs.trace_files import ENDINGS
from stagedb.store import Store
from stagedb.store.contents.runs import has_run, known_ranks, record_run
from stagedb.store.naming import set_name, wanted_name

MOST_FILES = 65_536

Progress = Callable[[int, int, str], None]
"""Called with what is done, of how much, and of what: `reading`, in bytes, or `writing`, in rows."""


def import_run(
    store: Store, paths: Sequence[Path], name: str | None, keep_names: bool, progress: Progress | None = None
) -> RunInfo:
    """Import the run of these traces, or find it by its files. See `Stagedb.import_run`."""
    files = trace_files(paths)
    wanted = None if name is None else wanted_name(store, name)
    digests = [file_digest(path) for path in files]
    if len({*digests}) < len(digests):
        twice = next(path for place, path in enumerate(files) if digests[place] in digests[:place])
        raise UsageError(f"{path_text(twice)} is there twice among the traces: name each file once")
    found = known_ranks(store, digests)
    new = False
    if found is None or not has_run(store, found):
        traces = _read(files, digests, progress)
        run = measured_run(traces)
        names = {
            rank: path.name if keep_names else None
            for rank, path in _by_rank(traces, dict(zip(digests, files, strict=True))).items()
        }
        new = record_run(
            store,
            run,
            None if wanted is None else wanted.name,
            names,
            lambda done, of: _report(progress, done, of, "writing"),
        )
        found = run.id
    if wanted is not None:
        set_name(store, "Run", found, wanted)
    return replace(lookup.made_run(store, found), new=new)


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files of these paths: those themselves, and the traces in directories, by name. Raises UsageError."""
    if not paths:
        raise UsageError("name at least one trace file, or a directory with traces")
    found: list[Path] = []
    for path in paths:
        if is_directory(path):
            inside = sorted(each for each in path.iterdir() if each.name.endswith(ENDINGS) and each.is_file())
            if not inside:
                raise UsageError(f"the directory {path_text(path)} has no file that ends in {' or '.join(ENDINGS)}")
            found += inside
        elif is_there(path):
            found.append(path)
        else:
            raise UsageError(f"there is no file {path_text(path)}")
    if len(found) > MOST_FILES:
        raise UsageError(f"{len(found):,} files are more than the {MOST_FILES:,} that one run may have")
    return found


def _read(files: Sequence[Path], digests: Sequence[str], progress: Progress | None) -> list[RankTrace]:
    sizes = [path.stat().st_size for path in files]
    of, at = sum(sizes), 0
    traces: list[RankTrace] = []
    for path, digest, size in zip(files, digests, sizes, strict=True):

        def report(done: int, before: int = at) -> None:
            _report(progress, before + done, of, "reading")

        traces += read_trace(path, digest, report)
        at += size
    return traces


def _report(progress: Progress | None, done: int, of: int, what: str) -> None:
    if progress is not None:
        progress(done, of, what)


def _by_rank(traces: Sequence[RankTrace], paths: Mapping[str, Path]) -> dict[int, Path]:
    return {rank: paths[trace.digest] for rank, trace in numbered(traces).items()}
