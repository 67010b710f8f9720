"""What `report` and `timeline` show: an instance on a system, or a profile with its own."""

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
