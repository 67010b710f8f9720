"""Banned words of code and documentation: `scripts/style` finds them, and the project has none."""

from pathlib import Path

import pytest

from scripts._style import EVERYWHERE, PATTERNS, ROOT, Use, uses, uses_in


def words(path: str, text: str) -> list[tuple[int, str]]:
    return [(use.line, use.word) for use in uses_in(path, text)]


def test_the_project_has_no_banned_words() -> None:
    found = uses(EVERYWHERE)
    assert not found, "\n".join(map(str, found))


def test_a_use_has_its_place_and_its_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one.py").write_text('"""Fine."""\n\nx = 1  # it tells what x is\n', encoding="utf-8")
    (tmp_path / "folder" / "data.json").write_text('"say"', encoding="utf-8")
    assert uses(["folder"], tmp_path) == [Use("folder/one.py", 3, "tell", "x = 1  # it tells what x is")]
    assert str(uses(["folder"], tmp_path)[0]) == "folder/one.py:3: tell: x = 1  # it tells what x is"


def test_a_path_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="no_such_folder"):
        uses(["no_such_folder"])


def test_identifiers_count_and_parts_of_other_words_do_not() -> None:
    assert words("a.py", "said = was_told(standing)\n") == [(1, "say"), (1, "tell"), (1, "stand")]
    assert words("a.py", "stand_alone = 1  # outstanding, understand, a stand-in, stand-alone, besides, believe\n") == [
        (1, "stand")
    ]


def test_a_phrase_may_go_on_in_the_next_line() -> None:
    assert words("a.py", "# This is done in\n# vain.\n") == [(1, "in vain")]
    assert words("a.py", 'error("what it is "\n      "of")\n') == [(1, "what it is of")]


def test_inversions_count_in_any_language() -> None:
    assert words("a.cypher", "// Of each rank its operators.\n") == [(1, "of X, Y")]
    assert words("a.md", "Each has a row: of all ranks the sum.\nOf course.\n") == [(1, "of X, Y")]
    assert words("a.md", "The sum of all ranks.\n") == []


def test_code_in_markdown_does_not_count() -> None:
    text = "It `said`.\n\n    $ say\n    told\n\n```\nsay\n```\n- an item\n\n  that stands\n\nIt lies.\n"
    assert words("page.md", text) == [(11, "stand"), (13, "lie")]


def test_the_style_page_lists_every_banned_word() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    style = page.partition("## How we write")[2]
    assert all(f"`{word}`" in style for word in PATTERNS if word not in ("archaic", "what it is of")), style
