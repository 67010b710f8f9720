"""A part of a long listing: the rows that contain a text, page by page."""

from dataclasses import dataclass
from typing import Any

from stagedb.api.results import Rows
from stagedb.errors import UsageError

SEARCHED = ("id", "name", "model", "plan", "system", "timing", "made_by", "state", "names", "tags")
"""Columns of a listing in which a text is searched."""


@dataclass(frozen=True)
class ListedPage:
    """A page of a listing. number: from 1. found: rows on all pages; pages: at least 1."""

    rows: Rows
    number: int
    pages: int
    found: int


def page(listed: Rows, text: str | None, number: int, size: int) -> ListedPage:
    """The rows of a listing (`Stagedb.ls`) that contain every word of a text, in any case: page `number` of them.

    size: rows of a page. Raises UsageError for a page that does not exist.
    """
    words = (text or "").casefold().split()
    rows = [row for row in listed.rows if _contains(dict(zip(listed.columns, row, strict=True)), words)]
    pages = max(1, -(-len(rows) // size))
    if not 1 <= number <= pages:
        raise UsageError(f"there is no page {number}: the pages are 1 to {pages}")
    return ListedPage(Rows(listed.columns, tuple(rows[(number - 1) * size : number * size])), number, pages, len(rows))


def _contains(row: dict[str, Any], words: list[str]) -> bool:
    texts = " ".join(str(row[name]) for name in SEARCHED if row.get(name) is not None).casefold()
    return all(word in texts for word in words)
