"""What `report` and `timeline` show: an instance on a system, or a profile with its own."""

from pathlib import Path

from tests.cli.conftest import Run

PLAN = ("--tp", "2", "--ranks", "4", "--global-batch-size", "4", "--seq-len", "32")


def test_a_profile_is_shown_with_its_system(run: Run, tiny: str) -> None:
    made = run("profile", "--model", tiny, *PLAN, "--system", "a100-80gb", "--name", "mine")
    assert made.status == 0, made.err
    page = run("report", "mine", "--out", "page.html")
    assert page.status == 0, page.err
    assert "mine of tiny on a100-80gb" in page.err
    assert run("timeline", "mine", "--out", "step.pftrace").status == 0
    chart = run("timeline", "mine", "--format", "text")
    assert chart.status == 0, chart.err
    # A profile has its own system.
    refused = run("report", "mine", "--system", "h100", "--out", "other.html")
    assert refused.status == 2
    assert "mine" in refused.err
    assert "is a profile, of instance" in refused.err


def test_a_summary_is_a_pdf(run: Run, tiny: str) -> None:
    made = run("profile", "--model", tiny, *PLAN, "--name", "mine")
    assert made.status == 0, made.err
    done = run("report", "mine", "--pdf", "--tokens", "2B", "--price-hour", "3", "--out", "mine.pdf")
    assert done.status == 0, done.err
    assert "days for 2,000,000,000 tokens, price" in done.err + done.out
    assert Path("mine.pdf").read_bytes().startswith(b"%PDF-")
    for words, reason in (
        (("--pdf", "--tokens", "-3"), "is no number for --tokens"),
        (("--pdf", "--watts", "1e9"), "is too large for --watts"),
        (("--tokens", "3"), "add --pdf"),
        (("--pdf", "--tp", "4"), "leave out --tp"),
        (("--pdf", "--out", "mine.pdf"), "--force"),
    ):
        refused = run("report", "mine", *words)
        assert refused.status == 2, words
        assert reason in refused.err
