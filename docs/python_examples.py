"""The examples of the page for Python: their code runs in one session, and the page has what it prints."""

import contextlib
import functools
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs import generate

_SECONDS = re.compile(r", in [0-9.]+ s")


@functools.cache
def _session() -> dict[str, Any]:
    """The names that earlier examples of the page made."""
    return {"__name__": "__main__"}


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="stagedb-docs-")


def example(code: str) -> str:
    """The code of an example as a block, followed by a block with its output."""
    printed = io.StringIO()
    with _place(), contextlib.redirect_stdout(printed):
        exec(compile(code, "<docs/python.md>", "exec"), _session())  # noqa: S102  # the project's own page
    blocks = ["```python", code.strip(), "```", ""]
    if printed.getvalue():
        blocks += ["```text", _SECONDS.sub("", printed.getvalue()).rstrip(), "```", ""]
    return "\n".join(blocks)


@contextlib.contextmanager
def _place() -> Iterator[None]:
    """A folder and a store of the page's own."""
    before = {**os.environ}
    os.environ.update(generate._first_store("python"))
    where = Path.cwd()
    os.chdir(_folder().name)
    try:
        yield
    finally:
        os.chdir(where)
        os.environ.clear()
        os.environ.update(before)
