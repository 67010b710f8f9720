"""The files of a run: its profiles, and the execution traces next to them."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stagedb.errors import UsageError
from stagedb.files import path_text
from stagedb.runs.chakra_files import is_chakra, read_chakra
from stagedb.runs.execution_ranks import read_untimed, with_execution_traces
from stagedb.runs.execution_trace import is_execution_trace, read_execution_trace
from stagedb.runs.gloo_groups import with_groups
from stagedb.runs.kineto import file_digest
from stagedb.runs.measured_run import MeasuredRun, UntimedRun, measured_run, untimed_run
from stagedb.runs.trace_files import TraceReading, read_traces


@dataclass(frozen=True)
class RunFiles:
    """Files of one run. profiles: each by the digest of what its ranks are read from, with execution traces of all.

    execution: the execution traces next to profiles. form: what the profiles are.
    """

    profiles: Mapping[str, Path]
    execution: Sequence[Path] = ()
    form: Literal["profiles", "chakra", "execution traces"] = "profiles"

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "RunFiles":
        """The files of these paths, by what is in them. Raises UsageError."""
        digests: dict[str, Path] = {}
        for path in paths:
            digest = file_digest(path)
            if digest in digests and not is_chakra(path):
                raise UsageError(f"{path_text(path)} is there twice among the traces: name each file once")
            while digest in digests:
                # Ranks of a set may do the same, and then their files have the same bytes.
                digest = hashlib.sha256(f"{digest} again".encode()).hexdigest()
            digests[digest] = path
        chakra = {digest: path for digest, path in digests.items() if is_chakra(path)}
        if chakra:
            return cls(_of_one_set(chakra, digests), form="chakra")
        execution = {digest: path for digest, path in digests.items() if is_execution_trace(path)}
        profiles = {digest: path for digest, path in digests.items() if digest not in execution}
        if not profiles:
            return cls(execution, form="execution traces")
        if execution:
            others = "".join(sorted(execution))
            profiles = {hashlib.sha256((each + others).encode()).hexdigest(): path for each, path in profiles.items()}
        return cls(profiles, tuple(execution.values()))

    def read(self, reading: TraceReading | None = None) -> MeasuredRun | UntimedRun:
        """The run, without times if the files have none.

        reading: how, as of `read_traces`; traces of Chakra and execution traces without profiles are read at once, and
        none is kept.
        """
        if self.form == "execution traces":
            return untimed_run([read_untimed(path, digest) for digest, path in self.profiles.items()])
        if self.form == "chakra":
            ranks = read_chakra(self.profiles)
            return measured_run(ranks) if all(each.order is None for each in ranks) else untimed_run(ranks)
        traces = read_traces(self.profiles, reading)
        found = [read_execution_trace(path) for path in self.execution]
        return measured_run(with_groups(with_execution_traces(traces, found)))

    @property
    def size(self) -> int:
        """Bytes of the profiles."""
        return sum(path.stat().st_size for path in self.profiles.values())


def _of_one_set(chakra: Mapping[str, Path], every: Mapping[str, Path]) -> Mapping[str, Path]:
    """The traces of a set; files next to them that a simulator reads are left out. Raises UsageError for others."""
    for digest, path in every.items():
        if digest not in chakra and path.name not in _NO_TRACES and not _is_groups(path, chakra.values()):
            raise UsageError(
                f"{path_text(path)} is no trace of Chakra, and {path_text(next(iter(chakra.values())))} is one: import "
                "those of one tool together"
            )
    return chakra


def _is_groups(path: Path, traces: Iterable[Path]) -> bool:
    """Whether a file has the communicator groups of a set: it has the name of the traces, without a rank."""
    return any(each.name.startswith(f"{path.name.removesuffix('.json')}.") for each in traces)


_NO_TRACES = frozenset(("manifest.json", "system.json", "memory.json", "network.yml"))
"""Files of a set that are no traces."""
