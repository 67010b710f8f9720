"""Writes measured rows of engines with their predictions (`known_served.csv`), and their errors (`served_errors.yaml`).

`python -m scripts._served_rows FILE` draws the rows from AIConfigurator's silicon_sample.csv: at most `OF_KIND` of
each kind on H100 and H200 with a time, by a seed. Without FILE it predicts those that are there again, and leaves out
those that have no time any more.
"""

import csv
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from stagedb.validation import known_served, predict_served, read_served, served_errors
from stagedb.validation.served_times import COLUMNS, PREDICTED, ServedTime, is_of_experts

PACKAGE = Path(__file__).parents[1] / "stagedb"
SEED, OF_KIND = 20261127, 12


def drawn(path: Path) -> list[ServedTime]:
    """The rows of a file that are drawn, with their predictions."""
    rows = [row for row in read_served(path) if row.cells["system"] in ("h100_sxm", "h200_sxm")]
    random.Random(SEED).shuffle(rows)
    timed = [each for each in predict_served(rows, _show) if each.ms is not None]
    kept: list[ServedTime] = []
    for kind in sorted({each.row.kind for each in timed}):
        kept += [each for each in timed if each.row.kind == kind][:OF_KIND]
    return kept


def write_rows(found: Sequence[ServedTime]) -> None:
    """Write the rows with their predictions."""
    with (PACKAGE / "validation" / "known_served.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, PREDICTED], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({**each.row.cells, PREDICTED: each.ms} for each in found)


def write_errors(found: Sequence[ServedTime]) -> None:
    """Write the errors of models with and without experts."""
    errors = {}
    for name, experts in (("dense", False), ("experts", True)):
        figures = served_errors([each for each in found if is_of_experts(each.row) is experts])
        if figures is not None:
            errors[name] = {each: round(value, 4) for each, value in vars(figures).items()}
    text = "# Written by scripts/_served_rows.py: errors of the time a token of known_served.csv, as shares.\n"
    path = PACKAGE / "timing" / "served_errors.yaml"
    path.write_text(text + yaml.safe_dump(errors, sort_keys=False), encoding="utf-8")


def _show(done: int, of: int) -> None:
    if done % 50 == 0 or done == of:
        print(f"{done:,} of {of:,}", file=sys.stderr)


if __name__ == "__main__":
    rows = (
        drawn(Path(sys.argv[1])) if len(sys.argv) > 1 else predict_served([each.row for each in known_served()], _show)
    )
    for each in rows:
        if each.ms is None:
            print(f"row {each.row.line} is left out: {each.reason}", file=sys.stderr)
    rows = [each for each in rows if each.ms is not None]
    write_rows(rows)
    write_errors(rows)
