"""The keywords of the Python API are those that are declared."""

from scripts import _plan_words


def test_the_keywords_are_current() -> None:
    assert _plan_words.FILE.read_text(encoding="utf-8") == _plan_words.text(), "run scripts/plan_words"
