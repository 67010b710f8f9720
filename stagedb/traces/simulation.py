"""A simulator that runs a trace set: its inputs, the process, and when each rank finished."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.files import is_directory, open_regular, path_text, read_document, shown
from stagedb.mentions import Word, call
from stagedb.traces.bundle import write_texts
from stagedb.traces.packed_index import groups_of, is_traffic, job_of, wrong_traffic
from stagedb.traces.set_validation import groups_file
from stagedb.traces.simulators import SimulatedJob, Simulator, simulator_named
from stagedb.traces.simulators.astra_files import BUILD, BUILT, SOURCE
from stagedb.traces.trace_set import MANIFEST, groups_text

LARGEST_OUTPUT = 256 << 20
"""Bytes that a simulator may print."""

TIMEOUT = 3600.0
"""Seconds that a simulator may take, if no other limit is given."""

_FINISHED = re.compile(rb"sys\[(\d{1,9})\] finished, (\d{1,18}) cycles, exposed communication (-?\d{1,18}) cycles")
_LARGEST_MANIFEST = 64 << 20
_GZIP = b"\x1f\x8b"
_ARGUMENTS = {
    "comm-group-configuration": "{name}.json",
    "system-configuration": "system.json",
    "remote-memory-configuration": "memory.json",
    "network-configuration": "network.yml",
}


@dataclass(frozen=True)
class RankFinish:
    """A rank in a simulator. finish: when it ended [ns]. computing: how long it computed [ns]."""

    finish: int
    computing: int


@dataclass(frozen=True)
class SimulatedSet:
    """A directory of traces that a simulator can run, by its manifest."""

    directory: Path
    instance: str
    profile: str | None
    job: SimulatedJob
    simulator: Simulator


def read_set(directory: Path) -> SimulatedSet:
    """The set of a directory that `export` wrote. UsageError for one that a simulator cannot run."""
    if not is_directory(directory) or not (directory / MANIFEST).is_file():
        raise UsageError(f"{path_text(directory)} has no {MANIFEST}: `simulate` takes a directory that `export` wrote")
    manifest = read_document(directory / MANIFEST, "manifest", most=_LARGEST_MANIFEST)
    try:
        return _described(directory, manifest)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{MANIFEST} does not describe the set: {shown(str(error))}") from None


def _described(directory: Path, manifest: Mapping[str, Any]) -> SimulatedSet:
    name, world, only = manifest["name"], manifest["world"], manifest.get("only")
    if manifest["traces"] != "et" or only is not None or world < 2:
        raise UsageError(
            f"{path_text(directory)} has not what a simulator runs, the binary traces of all ranks of two or more: "
            f"export without {Word('format')}, {Word('only')} and {Word('shard')}"
        )
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"the name {name}")
    with open_regular(directory / f"{name}.0.et") as first:
        if first.read(2) == _GZIP:
            raise UsageError(f"the simulator does not read gzipped traces: export without {Word('compress', True)}")
    several = sum(map(len, manifest.get("engines", [manifest.get("steps", ())])))
    if several:
        raise UsageError(
            f"{path_text(directory)} has a window of {several} steps, and `simulate` puts one step next "
            "to its profile: its run.sh runs the simulator on the window"
        )
    groups = groups_file(directory / f"{name}.json")
    index = {"set": manifest, "files": {f"{name}.json": groups_text({str(gid): groups[gid] for gid in groups})}}
    traffic = manifest.get("traffic", [])
    if not all(map(is_traffic, traffic)):
        raise ValueError("its traffic is of another form")
    reason = wrong_traffic(traffic, groups_of(index), world)
    if reason is not None:
        raise ValueError(reason)
    profile = manifest.get("profile")
    return SimulatedSet(
        directory,
        str(manifest["instance"]),
        None if profile is None else str(profile["id"]),
        job_of(index),
        simulator_named(manifest.get("simulator")),
    )


PROGRAM = "ASTRA_SIM"
"""The environment's variable with the simulator's program, as `run.sh` of a set reads it."""


def find_program(simulator: Simulator, binary: str | Path | None) -> Path:
    """The program of a simulator: the given one, that of `ASTRA_SIM`, of the search path, or of a checkout here.

    binary: the path or name of the program; None: not given. Raises UsageError that explains how to build one.
    """
    given = binary if binary is not None else os.environ.get(PROGRAM) or None
    if given is not None:
        program = shutil.which(str(given))
        if program is None:
            source = str(Word("with")) if binary is not None else PROGRAM
            raise UsageError(f"cannot run {path_text(Path(given))}: {source} takes the simulator's program")
        return Path(program).resolve()
    program = shutil.which(simulator.program) or shutil.which(BUILT / simulator.program)
    if program is None:
        raise UsageError(
            f"the simulator {simulator.program} is not on this machine's search path. Build it once, with cmake and a "
            f"C++ compiler: `git clone {SOURCE} --recurse-submodules`, then `{BUILD}`. The program is "
            f"{BUILT / simulator.program}: this command finds it from the same folder, and {Word('with', 'PROGRAM')} "
            f"or {PROGRAM}=PROGRAM name any other"
        )
    return Path(program).resolve()


def simulate_set(found: SimulatedSet, program: Path, timeout: float = TIMEOUT) -> dict[int, RankFinish]:
    """Run a simulator on a set, with inputs that match its system, and return when each rank finished.

    The inputs are written anew, to a directory that is removed again: the set's own ones may have been edited. program:
    the simulator. timeout: seconds. Raises StagedbError for one that takes too long or whose ranks hang.
    """
    job = found.job
    with tempfile.TemporaryDirectory(prefix="stagedb-simulate-") as place:
        scratch = Path(place)
        groups = groups_text(found.simulator.groups(job, job.groups))
        write_texts(scratch, {**found.simulator.inputs(job), f"{job.name}.json": groups})
        arguments = [f"--workload-configuration={(found.directory / job.name).resolve()}"]
        arguments += [f"--{option}={scratch / file.format(name=job.name)}" for option, file in _ARGUMENTS.items()]
        _allow_files(job.world + 256)
        output = scratch / "output"
        status = _run([str(program), *arguments], scratch, output, timeout)
        text = output.read_bytes()
    ends = {int(rank): RankFinish(int(end), int(end) - int(exposed)) for rank, end, exposed in _FINISHED.findall(text)}
    missing = [rank for rank in range(job.world) if rank not in ends]
    if missing:
        last = " ".join(text[-400:].decode(errors="replace").split())
        advice = (
            f"{call('validate', str(found.directory))} finds traces that hang"
            if ends
            else f"is {program} the program {found.simulator.program}? If so, {call('validate', str(found.directory))} "
            "finds what stops it"
        )
        raise StagedbError(
            f"{len(missing)} of {job.world} ranks did not finish, the first is rank {missing[0]} (status {status}): "
            f"{shown(last) if last else 'no output'}; {advice}"
        )
    return ends


def _run(command: list[str], place: Path, output: Path, timeout: float) -> int:
    """Run a program whose output goes to a file. Its exit status. StagedbError where it takes or prints too much."""
    end = time.monotonic() + timeout
    with output.open("xb") as printed:
        try:
            process = subprocess.Popen(
                command, cwd=place, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            while True:
                try:
                    return process.wait(min(0.1, max(end - time.monotonic(), 0.01)))
                except subprocess.TimeoutExpired:
                    pass
                if time.monotonic() > end:
                    raise StagedbError(
                        f"the simulator took more than {timeout:g} s: {Word('timeout')} sets another limit"
                    )
                if output.stat().st_size > LARGEST_OUTPUT:
                    raise StagedbError(f"the simulator printed more than {LARGEST_OUTPUT >> 20} MiB, and was ended")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _allow_files(count: int) -> None:
    """Let this process, and those that it starts, open `count` files: the simulator keeps every trace open."""
    if sys.platform == "win32" or os.name != "posix":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
