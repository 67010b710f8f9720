"""The fitted numbers follow from the rows that are calibrated on."""

from pathlib import Path

import pytest

from scripts._fit_steps import fit, rows_of
from stagedb.timing.framework_timing import Calibration, calibrations
from stagedb.validation.known_rows import fitted_together, fixing_rows

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "numbers", fitted_together(), ids=lambda numbers: numbers[0].frameworks[0] + numbers[0].systems[0]
)
def test_a_number_is_the_one_that_its_rows_fix(numbers: tuple[Calibration, ...]) -> None:
    rows = rows_of(numbers)
    factors, errors = fit(numbers, rows)
    assert factors == tuple(each.factor for each in numbers)
    assert len(errors) == len(rows)
    assert [len(fixing_rows()[each]) for each in numbers] == [each.rows for each in numbers]


def test_the_page_has_every_number() -> None:
    text = (DOCS / "step-predictions.md").read_text(encoding="utf-8")
    for each in calibrations():
        assert f"| {', '.join(each.systems)} | {each.operator} | {float(each.factor):g} |" in text
