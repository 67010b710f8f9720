"""`stagedb report` of a search, and words that mean a search where a step is wanted."""

import json
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.test_search import ASKED


def test_a_report_of_a_search_by_its_id(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = run("search", *ASKED, "--allow", "none", "--top", "2", "-q")
    assert found.status == 0, found.err
    id = json.loads(run("ls", "searches", "-f", "json").out)[0]["id"]
    done = run("report", id[:8], "--out", str(page))
    assert done.status == 0, done.err
    best = found.out.splitlines()[3].split("  ")[0]
    plans = found.out.split()[0]
    assert done.out.startswith(f"{page}: the best of {plans} plans takes ") and "open it in a browser" in done.out
    text = page.read_text(encoding="utf-8")
    assert f'<td class="w">{best}</td>' in text
    assert "stagedb search --model llama3.2-1b --ranks 4 --global-batch-size 4 --seq-len 1024 --allow none" in text
    again = run("report", id[:8], "--out", str(page))
    assert again.status == 2 and "exists: name another file" in again.err
    for refused, message in (
        (("report", id[:8], "--tp", "2"), "is a search, of plans of llama3.2-1b"),
        (("report", id[:8], "--system", "h200"), "is a search, of plans of llama3.2-1b"),
        (("report", id[:8], id[:9]), "is a search: a report of two steps takes profiles or instances"),
        (("timeline", id[:8]), "an instance is wanted here"),
        (("memory", id[:8]), "an instance is wanted here"),
    ):
        answer = run(*refused)
        assert answer.status == 2 and message in answer.err, answer.err
