"""Import of runs that a profiler recorded, from files into the store."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stagedb.api import lookup
from stagedb.api.results import RunInfo
from stagedb.errors import UsageError
from stagedb.files import is_directory, is_there, path_text
from stagedb.places import embedded_home
from stagedb.runs.run_files import RunFiles
from stagedb.runs.trace_files import ENDINGS, KeptRanks, TraceReading
from stagedb.store import Store, current_user
from stagedb.store.contents.runs import has_run, known_ranks, record_run
from stagedb.store.naming import set_name, wanted_name

MOST_FILES = 65_536

Progress = Callable[[int, int, str], None]
"""Called with what is done, of how much, and of what: `reading`, in bytes, or `writing`, in rows."""


def import_run(
    store: Store,
    paths: Sequence[Path],
    name: str | None,
    keep_names: bool,
    progress: Progress | None = None,
    notes: Callable[[str], None] = lambda text: None,
) -> RunInfo:
    """Import the run of these traces, or find it by its files. See `Stagedb.import_run`."""
    files = RunFiles.of(trace_files(paths))
    wanted = None if name is None else wanted_name(store, name)
    found = known_ranks(store, list(files.profiles))
    new = False
    kept = KeptRanks(embedded_home() / "imports")
    if found is None or not has_run(store, found):
        of = files.size
        reading = TraceReading(lambda done: _report(progress, done, of, "reading"), kept, notes)
        run = files.read(reading)
        names = {rank: files.profiles[trace.digest].name if keep_names else None for rank, trace in run.ranks.items()}
        new = record_run(
            store,
            run,
            None if wanted is None else wanted.name,
            names,
            lambda done, of: _report(progress, done, of, "writing"),
        )
        found = run.id
    kept.remove(files.profiles)
    known_as = () if new else lookup.made_run(store, found).names
    if wanted is not None:
        set_name(store, "Run", found, wanted)
    info = replace(lookup.made_run(store, found), new=new, known_as=known_as)
    # A run may have several names: the result shows the one that was asked for.
    return info if wanted is None else replace(info, name=str(wanted).removeprefix(f"{current_user()}/"))


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


def _report(progress: Progress | None, done: int, of: int, what: str) -> None:
    if progress is not None:
        progress(done, of, what)
