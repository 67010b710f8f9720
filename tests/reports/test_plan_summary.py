"""The summary of a plan: its figures by hand, what it refuses, and the PDF read back."""

import io
from dataclasses import replace
from fractions import Fraction

import pypdf
import pytest

from stagedb.errors import UsageError
from stagedb.reports.plan_summary import PlanPrices, PlanSummary, RivalPlan, SourceSearch, amount
from stagedb.reports.summary_pdf import pdf
from stagedb.timing.expected_errors import ExpectedError

RIVAL = RivalPlan("c" * 20, "other", "tp 4", 8, 2_000_000_000, 50.0, None, None)

ONE = PlanSummary(
    name="mine",
    model="tiny",
    plan="one rank has all of the model",
    system="h100",
    ranks=8,
    instance="a" * 20,
    profile="b" * 20,
    step=1_500_000_000,
    step_tokens=Fraction(6_000),
    mfu=0.4,
    memory=60_000_000_000,
    room=80_000_000_000,
    prices=PlanPrices.of({"tokens": "1M", "price_hour": "2.50", "watts": "900", "price_kwh": "0.2"}),
    error=ExpectedError(3, 0.05, 0.25, True, "as 3 published steps"),
    no_error="",
    rivals=(RIVAL,),
    faster=0,
    searches=(SourceSearch("d" * 20, 2, 100, 30, True, "step"),),
    made="2026-01-01 10:00 UTC by ada",
)


def shown(summary: PlanSummary) -> dict[str, tuple[str, str]]:
    return {row.name: (row.value, row.note) for section in summary.sections() for row in section.rows}


def test_figures_follow_from_the_step_and_what_is_given() -> None:
    assert ONE.tokens_per_second == 4_000  # 6,000 tokens in 1.5 s
    assert ONE.steps == 167  # 166.7 are a part of a step less
    assert ONE.time == 167 * 1_500_000_000
    assert ONE.days == Fraction(501, 2) / 86_400
    assert ONE.hours == 8 * Fraction(501, 2) / 3_600
    assert ONE.price == ONE.hours * Fraction("2.5")
    assert ONE.energy == 8 * 900 * Fraction(501, 2) / 3_600_000
    assert ONE.energy_price == ONE.energy * Fraction("0.2")


def test_many_tokens_take_their_number_over_the_rate() -> None:
    many = replace(ONE, prices=replace(ONE.prices, tokens=15 * 10**12))
    assert many.days is not None
    assert float(many.days) == pytest.approx(15e12 / 4_000 / 86_400, rel=1e-8)
    assert shown(many)["Days"][0] == "43,403"


def test_the_worst_error_bounds_the_days() -> None:
    """Our time is a quarter too long, or too short, of the measured one at worst."""
    assert ONE.days is not None
    assert ONE.worst_days == (ONE.days / Fraction("1.25"), ONE.days / Fraction("0.75"))
    assert ONE.error is not None
    beyond = replace(ONE, error=replace(ONE.error, worst=1.2)).worst_days
    assert beyond == (ONE.days / Fraction("2.2"), None)


def test_without_a_price_the_rows_name_what_is_missing() -> None:
    bare = replace(ONE, prices=PlanPrices.of({"tokens": 10**6}))
    rows = shown(bare)
    assert rows["Price"] == ("–", "give what an accelerator costs an hour")
    assert rows["Energy"][1] == "give the watts that an accelerator takes, with its share of the machine"
    assert rows["Price of the energy"] == ("–", "give the watts that an accelerator takes, and what a kWh costs")
    assert shown(replace(ONE, prices=PlanPrices()))["Days"] == ("–", "give the number of tokens to train on")


def test_rows_have_the_figures_in_words() -> None:
    rows = shown(ONE)
    assert rows["Step time"] == ("1.5 s", "6,000 tokens")
    assert rows["Tokens a second"] == ("4,000", "500.0 an accelerator")
    assert rows["Memory at the peak"] == ("60.00 GB", "of 80.00 GB for tensors of an accelerator (75%): fits")
    assert shown(replace(ONE, memory=90_000_000_000))["Memory at the peak"][1].endswith("(112%): does not fit")
    assert rows["This plan"][0] == "the fastest that fits, with 1 other profile"
    assert shown(replace(ONE, faster=1))["This plan"][0] == "1 that fit are faster, with 1 other profile"
    assert "place 2 by step" in rows["Search dddddddddddd"][1]
    assert shown(replace(ONE, error=None, no_error="a what-if"))["Expected error of the step"] == ("–", "a what-if")
    assert shown(replace(ONE, rivals=(), searches=()))["Other plans"][0] == "none"


@pytest.mark.parametrize(
    ("text", "value"),
    [("15T", 15 * 10**12), ("1e12", 10**12), ("1,000", 1_000), ("1_000", 1_000), ("0.5B", 5 * 10**8), (7, 7)],
)
def test_numbers_of_tokens(text: object, value: int) -> None:
    assert PlanPrices.of({"tokens": text}).tokens == value


def test_an_empty_text_is_no_number() -> None:
    assert PlanPrices.of({"tokens": " ", "watts": ""}) == PlanPrices()
    assert PlanPrices.of({"price_hour": "0"}).price_hour == 0


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("tokens", "-1", "is no number for"),
        ("tokens", "nan", "is no number for"),
        ("tokens", "inf", "is no number for"),
        ("tokens", "1.5", "a whole number above 0"),
        ("tokens", "0", "a whole number above 0"),
        ("tokens", "1e19", "too large"),
        ("tokens", "9" * 300, "is no number for"),
        ("tokens", "١٥", "is no number for"),
        ("price_hour", "-0.5", "is no number for"),
        ("price_hour", "1e99", "too large"),
        ("watts", "1000001", "too large"),
        ("price_kwh", "1/3", "is no number for"),
    ],
)
def test_other_texts_are_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        PlanPrices.of({name: text})


def test_amounts_are_short() -> None:
    values = (Fraction(0), Fraction(1, 8), Fraction(5, 2), Fraction(1_234_567))
    assert [amount(each) for each in values] == ["0.00", "0.125", "2.50", "1,234,567"]


def read_back(file: bytes) -> list[str]:
    return [" ".join(page.extract_text().split()) for page in pypdf.PdfReader(io.BytesIO(file)).pages]


def test_the_pdf_has_every_figure() -> None:
    (text,) = read_back(pdf(ONE))
    for section in ONE.sections():
        assert section.title in text
        for row in section.rows:
            for part in (row.name, row.value, row.note):
                assert part in text, part
        for line in section.lines:
            assert all(each in text for each in line)
    assert pdf(ONE) == pdf(ONE)


def test_a_long_pdf_goes_on_with_a_page_and_hostile_texts_are_written_out() -> None:
    name = "<b>中</b>\x1b[31m" + "w" * 400
    rivals = tuple(replace(RIVAL, id=f"{at:020}", name=f"{name}{at}", plan="tp 4 " * 60) for at in range(8))
    pages = read_back(pdf(replace(ONE, name=name, rivals=rivals)))
    assert len(pages) > 1
    assert "page 2" in pages[1]
    assert "<b>\\u4e2d</b>" in pages[0]
    assert "\x1b" not in "".join(pages)
