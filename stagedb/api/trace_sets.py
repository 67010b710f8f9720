"""The verbs on trace sets, which need no store."""

from collections.abc import Callable
from pathlib import Path

from stagedb.api.results import Unpacked
from stagedb.traces import Report, Request, unpack_traces, validate_traces

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""

WriteProgress = Callable[[int, int, int], None]
"""Called with how many ranks are written, of how many, and how many bytes that is."""


def validate(directory: Path | str, *, replay: bool = True, progress: Progress | None = None) -> Report:
    """Check a trace set, of stagedb or another tool, against every rule that simulators rely on. Needs no store.

    replay: also run it as a simulator would, which finds what hangs. Raises UsageError where there are no traces.
    """
    return validate_traces(Path(directory), replayed=replay, progress=progress or _ignore)


def _ignore(done: int, of: int) -> None:
    """Progress that nobody watches."""


def unpack(
    file: Path | str,
    *,
    out: Path | str | None = None,
    only: str | None = None,
    force: bool = False,
    resume: bool = False,
    format: str = "et",
    compress: bool = False,
    replay: bool | None = None,
    progress: WriteProgress | None = None,
) -> Unpacked:
    """Write the traces of a packed file: the same directory, byte for byte, that `export` writes. Needs no store.

    out: the directory; the file's name without its ending if not given. The rest as of `Stagedb.export`.
    """
    path = Path(file)
    if out is None:
        out = path.with_suffix("") if path.suffix else path.with_name(f"{path.name}.traces")
    request = Request(Path(out), force=force, resume=resume, format=format, compress=compress, replay=replay)
    done = unpack_traces(path, request, only=only, progress=progress)
    return Unpacked(
        path=done.directory,
        world=done.world,
        files=done.files,
        nodes=done.nodes,
        bytes=done.bytes,
        replayed=done.replayed,
        seconds=done.seconds,
        there=done.there,
        mended=done.mended,
    )
