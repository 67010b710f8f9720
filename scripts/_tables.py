"""Make the tables that stagedb carries from the wheel aiconfigurator-core, and print how far they are off.

    scripts/tables errors WHEEL [--seed 7]   # tables made anew without a tenth of the rows, compared with that tenth
    scripts/tables errors WHEEL --carried    # the tables that stagedb carries, with the tenth that they never had
    scripts/tables build WHEEL               # writes them into stagedb/systems/presets/tables
    scripts/tables sample WHEEL FILE         # some held-out rows of each table, for the test of the bounds

WHEEL is the wheel's file, or the folder that it was unpacked to. `pip download --no-deps aiconfigurator-core==0.12.0`
gets it.
"""

import argparse
import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stagedb.systems.tables.aiconfigurator import GPUS, Chosen, chosen, rows_of
from stagedb.systems.tables.curves import SEED, errors, held_out
from stagedb.systems.tables.grids import Bools, Floats
from stagedb.systems.tables.measured_table import Columns, MeasuredTable, table_of
from stagedb.systems.tables.table_files import digest_of, load_table, packed, shipped

SAMPLED = 100
"""Held-out rows of each table in the sample."""


@contextmanager
def unpacked_wheel(path: Path) -> Iterator[Path]:
    """The folder `systems/data` of the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        if path.is_file():
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(folder)
            path = Path(folder)
        yield path / "aiconfigurator_core" / "systems" / "data"


def taken(rows: Columns, ns: Floats, mask: Bools) -> tuple[Columns, Floats]:
    """Some of the rows."""
    return {name: values[mask] for name, values in rows.items()}, ns[mask]


def name_of(gpu: str, table: Chosen) -> str:
    """The name of a carried table."""
    return f"{gpu.replace('_', '-')}-{table.operator}-{table.dtype}"


def build(data: Path) -> None:
    """Write all tables, each without its held-out tenth."""
    shipped("x").parent.mkdir(exist_ok=True)
    total = 0
    for gpu in GPUS:
        for each in chosen(gpu):
            rows, ns = rows_of(each, data)
            table = table_of(each.operator, each.dtype, *taken(rows, ns, ~held_out(len(ns))))
            content = packed(table)
            total += len(content)
            shipped(name_of(gpu, each)).write_bytes(content)
            print(f"{name_of(gpu, each)}: {len(ns)} rows, {len(content)} bytes")
    print(f"{total} bytes in all")


def compare(data: Path, seed: int, carried: bool) -> None:
    """Print the errors of each table."""
    print("| table | rows | held out | mean | worst | source |\n|---|---:|---:|---:|---:|---|")
    for gpu in GPUS:
        for each in chosen(gpu):
            rows, ns = rows_of(each, data)
            mask = held_out(len(ns), SEED if carried else seed)
            table = _carried(gpu, each) if carried else table_of(each.operator, each.dtype, *taken(rows, ns, ~mask))
            for error in errors(table, *taken(rows, ns, mask)):
                print(
                    f"| `{name_of(gpu, each)}` {error.part} | {len(ns)} | {error.rows} | {100 * error.mean:.1f}% "
                    f"| {100 * error.worst:.0f}% | {each.path} |"
                )


def _carried(gpu: str, each: Chosen) -> MeasuredTable:
    name = name_of(gpu, each)
    return load_table(name, each.operator, each.dtype, digest_of(name))


def sample(data: Path, to: Path) -> None:
    """Write held-out rows of each table as JSON."""
    found = {}
    for gpu in GPUS:
        for each in chosen(gpu):
            rows, ns = rows_of(each, data)
            rows, ns = taken(rows, ns, held_out(len(ns)))
            some = np.sort(np.random.default_rng(0).permutation(len(ns))[:SAMPLED])
            columns = {name: [_short(value) for value in values[some]] for name, values in rows.items()}
            found[name_of(gpu, each)] = {**columns, "ns": [round(value) for value in ns[some].tolist()]}
    to.write_text(json.dumps(found, separators=(",", ":")).replace('},"', '},\n"') + "\n", encoding="utf-8")


def _short(value: float) -> float:
    return int(value) if value == int(value) else float(value)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("errors", "build", "sample"))
    parser.add_argument("wheel", type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--carried", action="store_true")
    options = parser.parse_args()
    with unpacked_wheel(options.wheel) as data:
        if options.command == "build":
            build(data)
        elif options.command == "errors":
            compare(data, options.seed, options.carried)
        elif options.file is None:
            parser.error("sample needs a FILE to write to")
        else:
            sample(data, options.file)


if __name__ == "__main__":
    main()
