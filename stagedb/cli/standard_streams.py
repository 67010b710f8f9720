"""Standard output, standard error and the texts of the command line, as a caller left them.

Imported first, so that it imports little.
"""

import codecs
import io
import os
import sys
from typing import TextIO

ESCAPING = "stagedb.escaping"
"""The error handler of streams that lack a character: it is written as in JSON, so that JSON stays valid."""


def prepare() -> None:
    """Make the streams usable. May begin this process again, for its arguments to be read as UTF-8."""
    _read_as_utf8()
    _open_missing()
    codecs.register_error(ESCAPING, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPING)


def _read_as_utf8() -> None:
    """Under `LANG=C`, arguments and paths are ASCII to Python, and other bytes of them are no characters."""
    if codecs.lookup(sys.getfilesystemencoding()).name != "ascii" or sys.flags.utf8_mode or not sys.executable:
        return
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  # the same program


def _open_missing() -> None:
    """Lead streams that the caller closed to nothing.

    Otherwise the next file that is opened would get their number, and their output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = _nothing(1)
    if sys.stderr is None:
        sys.stderr = _nothing(2)


def _nothing(number: int) -> TextIO:
    return open(number, "w", encoding="utf-8", closefd=False)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[place : place + 2]) for place in range(0, len(units), 2))
    return "".join(f"\\u{code:04x}" for code in codes), error.end
