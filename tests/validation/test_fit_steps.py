"""The fitted numbers follow from the rows that are calibrated on, and the errors to expect from the predictions."""

import csv
import statistics
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from scripts._fit_steps import (
    AS_IT_IS,
    NUMBERS,
    UNNAMED,
    WITHOUT_ACCELERATOR,
    WITHOUT_KIND,
    WITHOUT_SOURCE,
    numbers_text,
)
from scripts._fitted_numbers import Fits, fit
from scripts._timed_rows import TimedRow
from stagedb.timing.expected_errors import expected_errors
from stagedb.timing.framework_timing import Calibration, calibrations
from stagedb.validation.step_rows import CALIBRATED, HELD_OUT, fitted_together, fixing_rows, job_of, known_rows, parts
from stagedb.validation.step_times import predict

DOCS = Path(__file__).parents[2] / "docs"

SMALL = "SimuMax B200"
"""A source with small graphs, whose rows alone fix a number."""


def written() -> list[dict[str, str]]:
    """The rows of docs/step-predictions.csv."""
    with (DOCS / "step-predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def errors(rows: list[dict[str, str]], way: str) -> list[float]:
    return [abs(float(row[way]) / float(row["published"]) - 1) for row in rows]


def test_a_number_is_the_one_that_its_rows_fix() -> None:
    """`scripts/fit_steps --check` compares all of them."""
    fits = Fits()
    for numbers in fitted_together():
        rows = tuple(dict.fromkeys(row for each in numbers for row in fixing_rows()[each]))
        if all(row.source.startswith(SMALL) for row in rows):
            assert fit(numbers, [fits.timed(row) for row in rows]) == numbers
            break
    else:
        pytest.fail(f"no number is fixed by rows of {SMALL} alone")


def test_a_fit_without_rows_leaves_their_numbers_out_and_the_others_as_they_are() -> None:
    fits = Fits()
    (numbers,) = (each for each in fitted_together() if len(each) == 1)
    rows = fixing_rows()[numbers[0]]
    assert fits._together(numbers, lambda row: row.row in rows) == ()
    (other,) = fits._together(numbers, lambda row: row.row is rows[0])
    assert (other.operator, other.systems, other.rows) == (numbers[0].operator, numbers[0].systems, len(rows) - 1)
    assert abs(other.factor - numbers[0].factor) < Fraction(1, 5)


def test_a_timed_row_is_predicted_as_the_command_does() -> None:
    rows = [row for row in known_rows() if row.source.startswith(SMALL)][:2]
    for row, found in zip(rows, predict(rows), strict=True):
        timed = TimedRow.of(row)
        assert timed.step(calibrations()) == found.seconds
        assert timed.step(()) < timed.step(calibrations())
        assert timed.unnamed_step() != found.seconds


def test_every_known_row_is_written_with_its_part_and_its_kind() -> None:
    rows, part = known_rows(), parts(known_rows())
    found = written()
    assert len(found) == len(rows) == 123
    for row, cells in zip(rows, found, strict=True):
        assert (cells["source"], int(cells["row"]), cells["step of"]) == (row.source, row.line, row.title)
        assert (cells["accelerator"], cells["framework"], cells["model"]) == job_of(row).kind
        assert (cells["rows"], float(cells["published"])) == (part[row], row.seconds)


def test_the_written_times_are_those_of_this_version() -> None:
    rows = [row for row in known_rows() if row.source.startswith(SMALL)]
    by_line = {int(cells["row"]): cells for cells in written() if cells["source"].startswith(SMALL)}
    for found in predict(rows):
        assert found.seconds == pytest.approx(float(by_line[found.row.line][AS_IT_IS]), rel=1e-5)


def test_the_errors_to_expect_follow_from_the_predictions() -> None:
    of: dict[tuple[str, str, bool], list[dict[str, str]]] = {}
    for cells in written():
        of.setdefault((cells["accelerator"], cells["framework"], cells["model"] == "experts"), []).append(cells)
    assert [(each.accelerator, each.framework, each.experts) for each in expected_errors()] == list(of)
    for each, rows in zip(expected_errors(), of.values(), strict=True):
        held_out = [row for row in rows if row["rows"] == HELD_OUT]
        ways = (
            (each.held_out, held_out, AS_IT_IS),
            (each.apart, rows, WITHOUT_KIND),
            (each.elsewhere, rows, WITHOUT_ACCELERATOR),
            (each.unnamed, rows, UNNAMED),
        )
        for figures, own, way in ways:
            off = errors(own, way)
            wanted = len(off), round(statistics.fmean(off), 3), round(max(off), 3)
            assert (figures.rows, figures.mean, figures.worst) == pytest.approx(wanted, abs=0.0011)


def test_fewer_numbers_are_fitted_than_one_for_ten_rows_and_only_to_calibrated_ones() -> None:
    rows = known_rows()
    part = parts(rows)
    others = 5  # that other published steps fixed: docs/step-predictions.md names them
    assert (len(calibrations()) + others) * 10 < len(rows)
    fixing: Mapping[Calibration, tuple[object, ...]] = fixing_rows()
    assert list(fixing) == list(calibrations())
    for each, own in fixing_rows().items():
        assert each.rows == len(own) > 0
        assert all(part[row] == CALIBRATED for row in own)
        assert all(each.holds(job_of(row).profile.name, job_of(row).system.name) for row in own)


def test_the_numbers_are_written_in_their_places() -> None:
    text = NUMBERS.read_text(encoding="utf-8")
    assert numbers_text(text, calibrations()) == text
    changed = numbers_text(text, [Calibration(**{**vars(each), "factor": Fraction(3, 2)}) for each in calibrations()])
    assert changed.count("factor: 1.5\n") == len(calibrations())
    with pytest.raises(ValueError, match="numbers"):
        numbers_text(text, calibrations()[:1])


def test_leaving_a_source_out_changes_what_its_rows_fixed() -> None:
    """The headline is of numbers that no row of the source fixed."""
    sources: dict[str, list[dict[str, str]]] = {}
    for cells in written():
        sources.setdefault(cells["source"], []).append(cells)
    assert len(sources) == 13
    alone = sources["SimuMax B200 bf16 (measured by them)"]
    assert statistics.fmean(errors(alone, WITHOUT_SOURCE)) > statistics.fmean(errors(alone, AS_IT_IS))


def test_the_page_has_every_number() -> None:
    text = (DOCS / "step-predictions.md").read_text(encoding="utf-8")
    for each in calibrations():
        assert f"| {each.operator} | {', '.join(each.frameworks) or 'all'} | " in text
        assert f"| {float(each.factor):g} |" in text
