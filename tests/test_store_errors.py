"""The list of the store's errors: each module is under a heading, and a text keeps what it advises."""

from pathlib import Path

import pytest

from tests.test_docs import ROOT, load_page_module

store_errors = load_page_module("store_errors")


def test_every_error_of_the_layer_is_on_the_page() -> None:
    page = (ROOT / "docs" / "store-errors.md").read_text(encoding="utf-8")
    assert store_errors.errors() in page


def test_an_error_of_a_new_module_needs_a_heading(tmp_path: Path) -> None:
    (tmp_path / "shelves.py").write_text("raise UsageError('the shelf is full: build another')", encoding="utf-8")
    with pytest.raises(ValueError, match="no heading for errors of shelves"):
        store_errors.errors(tmp_path)


def test_a_text_names_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "leases.py"
    path.write_text(
        "WAIT = 3\n"
        "raise StagedbError(f'{kind.lower()} {shown(row[\"id\"])} at {self.uri} is full '\n"
        "    f'for {WAIT} s and {len(a) - 1} rows: wait')\n"
        "raise AssertionError('unreachable')\n"
        "raise UsageError(str(error))\n",
        encoding="utf-8",
    )
    assert [*store_errors.messages(path)] == ["KIND ID at URI is full for 3 s and … rows: wait"]
