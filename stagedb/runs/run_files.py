"""The files of a run: its profiles, and the execution traces next to them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.outputs import path_text
from stagedb.runs.execution_trace import is_execution_trace, read_execution_trace, with_execution_traces
from stagedb.runs.gloo_groups import with_groups
from stagedb.runs.kineto import file_digest
from stagedb.runs.measured_run import MeasuredRun, measured_run
from stagedb.runs.rank_trace import RankTrace
from stagedb.runs.trace_files import read_trace


@dataclass(frozen=True)
class RunFiles:
    """Files of one run. profiles: each by the digest of what its ranks are read from, with execution traces of all."""

    profiles: Mapping[str, Path]
    execution: Sequence[Path]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "RunFiles":
        """The files of these paths, by what is in them. Raises UsageError."""
        digests: dict[str, Path] = {}
        for path in paths:
            digest = file_digest(path)
            if digest in digests:
                raise UsageError(f"{path_text(path)} is there twice among the traces: name each file once")
            digests[digest] = path
        execution = {digest: path for digest, path in digests.items() if is_execution_trace(path)}
        profiles = {digest: path for digest, path in digests.items() if digest not in execution}
        if not profiles:
            raise UsageError(
                f"{path_text(paths[0])} is an execution trace, and no profiler trace of its rank is among the files: "
                "name the traces that were recorded with it, too"
            )
        if execution:
            others = "".join(sorted(execution))
            profiles = {hashlib.sha256((each + others).encode()).hexdigest(): path for each, path in profiles.items()}
        return cls(profiles, tuple(execution.values()))

    def read(self, progress: Callable[[int, int], None] = lambda done, of: None) -> MeasuredRun:
        """The run. progress: called with the bytes of the profiles that were read, and with all of them."""
        of, at = sum(path.stat().st_size for path in self.profiles.values()), 0
        traces: list[RankTrace] = []
        for digest, path in self.profiles.items():

            def report(done: int, before: int = at) -> None:
                progress(before + done, of)

            traces += read_trace(path, digest, report)
            at += path.stat().st_size
        found = [read_execution_trace(path) for path in self.execution]
        return measured_run(with_groups(with_execution_traces(traces, found)))
