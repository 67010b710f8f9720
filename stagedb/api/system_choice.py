"""Systems and measured durations, which give an instance its times. They need no store."""

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from stagedb.api import lookup
from stagedb.api.python_words import for_python
from stagedb.api.results import InstanceInfo
from stagedb.errors import UsageError
from stagedb.files import is_directory, make_directory, path_text
from stagedb.mentions import Word
from stagedb.store import Store
from stagedb.systems.measured_durations import Durations, read_durations
from stagedb.systems.system import Accelerator, Dimension, System, plain
from stagedb.systems.system_files import DEFAULT, load_system, system_names
from stagedb.systems.tables.aiconfigurator import GPUS, import_wheel
from stagedb.systems.tables.curves import curves


def systems() -> list[dict[str, Any]]:
    """The presets: a row for each system, with rates in TFLOP/s and GB/s, and its network, innermost first."""
    return [_row(name) for name in system_names()]


@for_python
def system(name: str | Path) -> dict[str, Any]:
    """One system, by a preset's name or a file's path, with the keys of its file: `network[0].bandwidth`.

    UsageError for unknown names, and with file, line and key for a file that does not describe a system.
    """
    return dict(_flat("", load_system(name).to_dict()))


@for_python
def system_curves(name: str | Path) -> list[dict[str, Any]]:
    """What the operators of a system's tables reach at usual sizes, a row each; none without tables.

    `rate` is in `unit`, `share` of the accelerator's peak or the network's bandwidth. UsageError as for `system`. name:
    of a preset, or a path of a system's file.
    """
    return [asdict(point) for point in curves(load_system(name))]


@for_python
def import_systems(
    gpu: str | None = None, wheel: Path | str | None = None, to: Path | str = "."
) -> list[dict[str, Any]]:
    """Write systems of the measured latencies in the wheel aiconfigurator-core, and a row for each file.

    gpu: a folder of the wheel's `systems/data`; None: all that stagedb reads. wheel: its file, or the folder that it
    was unpacked to; None: the installed one. to: a directory, which is made if it is missing. UsageError for an
    unknown accelerator, and without the wheel.
    """
    to = Path(to)
    make_directory(to, str(Word("out")))
    written = []
    for each in GPUS if gpu is None else (gpu,):
        for path, rows in import_wheel(each, None if wheel is None else Path(wheel), to):
            written.append({"file": str(path), "rows": rows or None, "bytes": path.stat().st_size})
    return written


@for_python
def durations(path: Path | str) -> Durations:
    """Measured durations: a table (.csv, .parquet), or a Chakra trace of a run (.et, or a directory of them).

    UsageError, with file, row and column, for an invalid table; StagedbError for a damaged trace. path: of the file or
    directory.
    """
    path = Path(path)
    if path.suffix == ".et" or is_directory(path):
        from stagedb.traces.node_durations import trace_durations

        return trace_durations(path)
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(
            f"{path_text(path)}: measured durations are read from .csv or .parquet files, or Chakra traces (.et)"
        )
    return read_durations(path)


def resolve_system(system: str | Path | System | None) -> System:
    """The system of a preset's name or a file's path; the default preset for None."""
    return system if isinstance(system, System) else load_system(system or DEFAULT)


def _row(name: str) -> dict[str, Any]:
    found = load_system(name)
    accelerator = found.accelerator
    peak = {dtype: plain(rate) for dtype, rate in accelerator.peak.items()}
    return {
        "name": found.name,
        "accelerator": accelerator.name,
        "bf16_tflops": peak.get("bf16"),
        "fp8_tflops": peak.get("fp8"),
        "memory_gb": plain(accelerator.capacity),
        "reserve_gb": plain(sum((size for _, size in accelerator.reserve), Fraction(0))),
        "memory_gb_s": plain(accelerator.bandwidth),
        "network": ", ".join(map(_description, found.dimensions)),
    }


def _description(each: Dimension) -> str:
    size = "" if each.size is None else f"{each.size} x "
    return f"{size}{each.name} {plain(each.bandwidth)} GB/s"


def _flat(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [row for name, each in value.items() for row in _flat(f"{key}.{name}" if key else name, each)]
    if isinstance(value, list) and value and isinstance(value[0], dict | str):
        return [row for at, each in enumerate(value) for row in _flat(f"{key}[{at}]", each)]
    return [(key, value)]


def accelerator_of(store: Store, instance: InstanceInfo, system: System | None) -> Accelerator | None:
    """The system's accelerator; without a system, the one in the instance's newest profile. None without a profile."""
    if system is None:
        made = next(iter(lookup.profiles_of(store, instance.id)), None)
        if made is None:
            return None
        from stagedb.store.contents.profiles import read_profile

        system = read_profile(store, made.id).inputs.system
    return system.accelerator
