"""A system with all tables that the wheel `aiconfigurator-core` has of an accelerator, as files."""

import dataclasses
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.files import path_text, shown, write_whole
from stagedb.mentions import Word
from stagedb.systems.system_files import load_system, write_system
from stagedb.systems.tables.aiconfigurator import GPUS, VERSION, WHEEL, chosen, rows_of
from stagedb.systems.tables.measured_table import table_of
from stagedb.systems.tables.table_files import packed

PRESETS: Mapping[str, str] = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "gb200": "gb200-nvl72",
    "b300_sxm": "b300",
    "gb300": "gb300-nvl72",
    "l40s": "l40s",
}
"""The preset with the peaks, memory and network of each accelerator of the wheel."""

_LARGEST = 4 << 30
"""Bytes that a wheel may have when it is unpacked."""


@contextmanager
def wheel_data(wheel: Path | None) -> Iterator[Path]:
    """The wheel's folder of measurements: of a .whl file, of a folder that it was unpacked to, or as installed.

    UsageError if there is none.
    """
    with tempfile.TemporaryDirectory(prefix="stagedb-wheel-") as scratch:
        if wheel is not None and wheel.is_file():
            _unpack(wheel, Path(scratch))
            wheel = Path(scratch)
        found = _installed() if wheel is None else wheel
        data = None if found is None else found / "aiconfigurator_core" / "systems" / "data"
        if data is None or not data.is_dir():
            where = "is not installed" if wheel is None else f"is not in {path_text(wheel)}"
            raise UsageError(
                f"{WHEEL} {where}: get it with `pip download --no-deps {WHEEL}=={VERSION}`, and name its file "
                f"({Word('wheel')})"
            )
        yield data


def _installed() -> Path | None:
    found = find_spec("aiconfigurator_core")
    return None if found is None or found.origin is None else Path(found.origin).parents[1]


def _unpack(wheel: Path, to: Path) -> None:
    """The measurements of a wheel. Only files below its own folder are written."""
    inside = "aiconfigurator_core/systems/data/"
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [each for each in archive.infolist() if each.filename.startswith(inside)]
            if sum(each.file_size for each in names) > _LARGEST:
                raise UsageError(f"{path_text(wheel)} is larger than a wheel of measurements")
            for each in names:
                archive.extract(each, to)
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path_text(wheel)} is no wheel: {error} ({Word('wheel')})") from None


def import_wheel(gpu: str, wheel: Path | None, to: Path) -> Iterator[tuple[Path, int]]:
    """Write the system of an accelerator and its tables, from all rows of the wheel. Yields each file and its rows.

    gpu: a folder of the wheel. to: an existing directory. UsageError for an unknown accelerator or wheel.
    """
    if gpu not in PRESETS:
        raise UsageError(
            f"{WHEEL} has no tables of {shown(gpu)} that stagedb reads: {Word('gpu')} takes {', '.join(GPUS)}"
        )
    preset = load_system(PRESETS[gpu])
    tables = []
    with wheel_data(wheel) as data:
        for each in chosen(gpu):
            rows, ns = rows_of(each, data)
            path = to / f"{gpu}-{each.operator}-{each.dtype}.npz"
            write_whole(path, packed(table_of(each.operator, each.dtype, rows, ns)), str(Word("out")))
            words = {"operator": each.operator, "dtype": each.dtype, "file": path.name, "source": each.source}
            tables.append({**words, **({"cast": each.cast} if each.cast else {})})
            yield path, len(ns)
    name = gpu.replace("_", "-")
    content = {**dataclasses.replace(preset, name=name, tables=()).to_dict(), "tables": tables}
    path = to / f"{name}.yaml"
    write_system(path, content)
    yield path, 0
