"""Numbers as text."""

from hypothesis import given
from hypothesis import strategies as st

from stagedb.files.texts import nth, parts_in, spans_of


def test_numbers_that_follow_each_other_are_one_span() -> None:
    assert spans_of([1, 2, 3, 5, 7, 8]) == "1-3, 5, 7-8"
    assert spans_of([]) == ""


@given(st.integers(1, 1000), st.lists(st.integers(-(10**12), 10**12), max_size=12))
def test_rounded_parts_add_up(unit: int, parts: list[int]) -> None:
    found = parts_in(unit, parts)
    assert abs(2 * (unit * sum(found) - sum(parts))) <= unit
    assert all(abs(unit * rounded - exact) < unit for rounded, exact in zip(found, parts, strict=True))


def test_a_part_that_is_nothing_remains_nothing() -> None:
    assert parts_in(10, [6, 0, 6, 0, 6]) == [1, 0, 0, 0, 1]


def test_places_in_english() -> None:
    assert [nth(each) for each in (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th")
    ]
