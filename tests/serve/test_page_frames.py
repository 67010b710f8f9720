"""Texts on pages: what is code in them, and sizes."""

import pytest

from stagedb.serve.page_frames import _with_code, gigabytes


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "plain"),
        ("`stagedb memory` computes it", "<code>stagedb memory</code> computes it"),
        ("a `b` c `d`", "a <code>b</code> c <code>d</code>"),
        ("an odd ` remains", "an odd ` remains"),
        ("`a` and `", "`a` and `"),
        ("`<b>` & <i>", "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"),
        ("<script>`</script>`", "&lt;script&gt;<code>&lt;/script&gt;</code>"),
    ],
)
def test_text_between_backticks_is_code_and_nothing_else_is_html(text: str, html: str) -> None:
    assert str(_with_code(text)) == html


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.00 GB"),
        (512, "512 B"),
        (4_999_999, "5 MB"),
        (5_000_000, "0.01 GB"),
        (82_830_000_000, "82.83 GB"),
        (1_234_567_890_000, "1,234.57 GB"),
    ],
)
def test_a_size_that_is_there_is_not_shown_as_nothing(size: int, text: str) -> None:
    assert gigabytes(size) == text
