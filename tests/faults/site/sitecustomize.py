"""Faults at the seams of stagedb, in processes that tests start with this directory on their path.

Python imports this module at its start. `STAGEDB_FAULT=wrote.build/ops:kill` ends the process there as `kill -9` would;
`:pause` suspends it (SIGSTOP), so that a test can act meanwhile: resumed, it goes on to its end. `:pause:2` does so the
second time. The points are:

- `read.NAME` before a statement that reads, `write.NAME` after one that writes, in its open transaction, and
  `wrote.NAME` once its rows are committed;
- `import.kept` after the ranks of each trace file of an import were kept;
- `export.file` after each file of traces, `export.STAGE` at the end of a stage, `export.rename` before a set or a
  packed file gets its name.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

VARIABLE = "STAGEDB_FAULT"


def fault_point(name: str) -> None:
    """End or suspend this process if the variable names this point."""
    point, _, fault = os.environ.get(VARIABLE, "").partition(":")
    if point != name:
        return
    action, _, times = fault.partition(":")
    if times not in ("", "1"):
        os.environ[VARIABLE] = f"{point}:{action}:{int(times) - 1}"
    elif action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "pause":
        del os.environ[VARIABLE]
        os.kill(os.getpid(), signal.SIGSTOP)


def wrap(owner: Any, name: str, point: Callable[..., str], early: bool = False) -> None:
    """Let a function end, or begin, with the point that its arguments name."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if early:
            fault_point(point(*args))
        result = real(*args, **kwargs)
        if not early:
            fault_point(point(*args))
        return result

    setattr(owner, name, wrapped)


def of_stages(module: Any) -> None:
    """Let each stage of an export end with a point."""
    real = module.WriteClock.stage

    @contextmanager
    def stage(self: Any, name: str) -> Any:
        with real(self, name):
            yield
        fault_point(f"export.{name}")

    module.WriteClock.stage = stage


def of_connections(module: Any) -> None:
    """Reads and writes of a store."""
    wrap(module.Store, "_read", lambda store, name, *_: f"read.{name}", early=True)
    for writes in ("write", "write_rows"):
        wrap(module.Store, writes, lambda store, name, *_: f"wrote.{name}")


def of_names(module: Any) -> None:
    """What is complete gets its name."""
    wrap(module, "_name", lambda *_: "export.rename", early=True)
    real = module.staged_file

    @contextmanager
    def staged_file(out: Any, *, force: bool) -> Any:
        with real(out, force=force) as partial:
            yield partial
            fault_point("export.rename")

    module.staged_file = staged_file


def of_files(module: Any) -> None:
    """The files of ranks, which other processes may write."""
    real = module.rank_files

    def rank_files(*args: Any) -> Any:
        for each in real(*args):
            yield each
            fault_point("export.file")

    module.rank_files = rank_files


SEAMS: dict[str, Callable[[Any], None]] = {
    "stagedb.store.connection": of_connections,
    "stagedb.store.failures": lambda module: wrap(
        module, "written", lambda _, statement, *__: f"write.{statement.name}"
    ),
    "stagedb.runs.trace_files": lambda module: wrap(module.KeptRanks, "keep", lambda *_: "import.kept"),
    "stagedb.traces.set_output": of_stages,
    "stagedb.traces.output_places": of_names,
    "stagedb.traces.encoded_class": of_files,
    "pyarrow.parquet": lambda module: wrap(module, "write_table", lambda *_: "export.file"),
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the seams as Python does, and wraps their functions once they are there."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        seam = SEAMS.pop(name, None)
        found = None if seam is None else importlib.machinery.PathFinder.find_spec(name, path, target)
        if seam is None or found is None or found.loader is None:
            return None
        wrap(found.loader, "exec_module", functools.partial(_wrap, seam))
        return found


def _wrap(seam: Callable[[Any], None], module: Any) -> str:
    seam(module)
    return ""


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, Finder())
