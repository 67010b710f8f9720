"""Fit the numbers of `stagedb/timing/calibrations.yaml`: how much slower a kernel is in a framework's step than alone.

    scripts/fit_steps                 # fit all numbers, and print them and the errors by source
    scripts/fit_steps --write         # write the numbers, the errors to expect, and docs/step-predictions.csv
    scripts/fit_steps --check         # exit 1 if a fitted number differs from the one in the file

Only rows that are *calibrated on* are read (`stagedb.validation.step_rows`): a seed drew them, half of each source at
most. Numbers that share a framework on the same systems are fitted together, by the least sum of squared relative
errors. They have two decimals.

Each row is predicted in five ways: by the numbers as they are, by numbers fitted without the rows of its source, of
its kind, and of its accelerator, and without the name of its framework.
"""

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts._fitted_numbers import Fits
from scripts._timed_rows import Kind, TimedRow
from stagedb.timing.framework_timing import Calibration, calibrations
from stagedb.validation.step_rows import HELD_OUT, SEED, StepRow, known_rows, parts

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "stagedb" / "timing" / "calibrations.yaml"
ERRORS = ROOT / "stagedb" / "timing" / "expected_errors.yaml"
PREDICTIONS = ROOT / "docs" / "step-predictions.csv"

AS_IT_IS, UNNAMED = "predicted", "no framework"
WITHOUT_SOURCE, WITHOUT_KIND, WITHOUT_ACCELERATOR = (
    f"without its {each}" for each in ("source", "kind", "accelerator")
)
COLUMNS = ("source", "row", "step of", "accelerator", "framework", "model", "rows", "published")
WAYS = (AS_IT_IS, WITHOUT_SOURCE, WITHOUT_KIND, WITHOUT_ACCELERATOR, UNNAMED)

_ERRORS = """\
# Absolute errors of published steps by kind, as shares. held_out: those of rows that fixed no number, with the numbers
# as they are. apart: those of its rows with numbers that are fitted without them. elsewhere: those of its rows with
# numbers that are fitted without any row on its accelerator. unnamed: those of its rows where no framework is named.
# `scripts/fit_steps --write` writes them, with docs/step-predictions.csv, from which they follow.
"""


@dataclass(frozen=True)
class Predicted:
    """A row, and our seconds for it, by the way in which it was predicted."""

    row: StepRow
    kind: Kind
    part: str
    seconds: Mapping[str, float]

    def error(self, way: str) -> float:
        """The absolute error, as a share of the published time."""
        return abs(self.seconds[way] / self.row.seconds - 1)


def predicted(fits: Fits, numbers: Sequence[Calibration]) -> list[Predicted]:
    """Every known row, in each way. numbers: those as they are."""
    rows = known_rows()
    part = parts(rows)
    timed = [fits.timed(row) for row in rows]
    of_source = {source: fits.numbers(partial(_of_source, source)) for source in {row.source for row in rows}}
    of_kind = {kind: fits.numbers(partial(_of_kind, kind)) for kind in {each.kind for each in timed}}
    of_chip = {chip: fits.numbers(partial(_on, chip)) for chip in {each.kind[0] for each in timed}}
    return [
        Predicted(
            each.row,
            each.kind,
            part[each.row],
            {
                AS_IT_IS: each.step(numbers),
                WITHOUT_SOURCE: each.step(of_source[each.row.source]),
                WITHOUT_KIND: each.step(of_kind[each.kind]),
                WITHOUT_ACCELERATOR: each.step(of_chip[each.kind[0]]),
                UNNAMED: each.unnamed_step(),
            },
        )
        for each in timed
    ]


def _of_source(source: str, row: TimedRow) -> bool:
    return row.row.source == source


def _of_kind(kind: Kind, row: TimedRow) -> bool:
    return row.kind == kind


def _on(accelerator: str, row: TimedRow) -> bool:
    return row.kind[0] == accelerator


def errors_text(found: Sequence[Predicted]) -> str:
    """The content of `expected_errors.yaml`."""
    lines = []
    for kind in dict.fromkeys(each.kind for each in found):
        own = [each for each in found if each.kind == kind]
        ways = {
            "held_out": _figures(each.error(AS_IT_IS) for each in own if each.part == HELD_OUT),
            "apart": _figures(each.error(WITHOUT_KIND) for each in own),
            "elsewhere": _figures(each.error(WITHOUT_ACCELERATOR) for each in own),
            "unnamed": _figures(each.error(UNNAMED) for each in own),
        }
        accelerator, framework, model = kind
        lines.append(
            f"- accelerator: {accelerator}\n  framework: {framework}\n  experts: {str(model == 'experts').lower()}\n"
        )
        lines += [f"  {name}: {figures}\n" for name, figures in ways.items()]
    return _ERRORS + "".join(lines)


def _figures(errors: Iterable[float]) -> str:
    off = list(errors)
    return f"{{rows: {len(off)}, mean: {statistics.fmean(off):.3f}, worst: {max(off):.3f}}}"


def numbers_text(text: str, numbers: Sequence[Calibration]) -> str:
    """The content of `calibrations.yaml` with these factors and rows. Raises ValueError if it has other numbers."""
    blocks = re.split(r"^(?=- )", text, flags=re.MULTILINE)
    if len(blocks) != 1 + len(numbers):
        raise ValueError(f"{NUMBERS.name} has {len(blocks) - 1} numbers, and {len(numbers)} were fitted")
    for place, each in enumerate(numbers, 1):
        fitted = f"factor: {float(each.factor):g}\n  rows: {each.rows}\n"
        blocks[place] = re.sub(r"factor: .*\n  rows: .*\n", fitted, blocks[place])
    return "".join(blocks)


def write_predictions(found: Sequence[Predicted]) -> None:
    """Write docs/step-predictions.csv."""
    with PREDICTIONS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*COLUMNS, *WAYS))
        for each in found:
            cells = (each.row.source, each.row.line, each.row.title, *each.kind, each.part, each.row.cells["seconds"])
            writer.writerow((*cells, *(f"{each.seconds[way]:.6g}" for way in WAYS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the numbers, the errors to expect, and the table")
    parser.add_argument("--check", action="store_true", help="exit 1 if a number differs from the file's")
    options = parser.parse_args()
    fits = Fits(_progress)
    numbers = _in_order(fits.numbers())
    same = numbers == calibrations()
    print(f"seed {SEED}\n\n| operator | frameworks | systems | factor | in the file | rows |")
    print("|---|---|---|---:|---:|---:|")
    for now, before in zip(numbers, calibrations(), strict=True):
        print(
            f"| {now.operator} | {', '.join(now.frameworks) or 'all'} | {', '.join(now.systems) or 'all'} "
            f"| {float(now.factor):g} | {float(before.factor):g} ({before.rows} rows) | {now.rows} |"
        )
    if not options.check or options.write:
        found = predicted(fits, numbers)
        _print(found)
    if options.write:
        NUMBERS.write_text(numbers_text(NUMBERS.read_text(encoding="utf-8"), numbers), encoding="utf-8")
        ERRORS.write_text(errors_text(found), encoding="utf-8")
        write_predictions(found)
    sys.exit(0 if same or not options.check else 1)


def _in_order(numbers: Sequence[Calibration]) -> tuple[Calibration, ...]:
    """The numbers in the order of the file."""
    by_name = {(each.operator, each.systems, each.frameworks): each for each in numbers}
    return tuple(by_name[each.operator, each.systems, each.frameworks] for each in calibrations())


def _print(found: Sequence[Predicted]) -> None:
    print("\n| source | rows | as it is | worst | without its source | worst |\n|---|---:|---:|---:|---:|---:|")
    means = []
    for source in dict.fromkeys(each.row.source for each in found):
        own = [each for each in found if each.row.source == source]
        cells = []
        for way in (AS_IT_IS, WITHOUT_SOURCE):
            off = [each.error(way) for each in own]
            cells.append(f"{statistics.fmean(off):.1%} | {max(off):.1%}")
        means.append(statistics.fmean(each.error(WITHOUT_SOURCE) for each in own))
        print(f"| {source} | {len(own)} | {' | '.join(cells)} |")
    worst = max(each.error(WITHOUT_SOURCE) for each in found)
    print(
        f"\nmean over {len(means)} sources, each without itself: {statistics.fmean(means):.1%}; worst row {worst:.1%}"
    )


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
