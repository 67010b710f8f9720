"""Values in errors: their beginning, on one line, without control characters."""

import reprlib

from stagedb.outputs import printable

_MOST = 60
_WHOLE = 200


class _Short(reprlib.Repr):
    """`repr` of few items, few levels and short texts, with an ellipsis for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple, self.maxset = 2, 4, 4, 4, 4
        self.maxstring = self.maxother = _MOST
        self.maxlong = 40


_SHORT = _Short()


def shown(value: object) -> str:
    """A value as an error prints it: `repr` in printable characters, cut short. The whole `repr` is never made."""
    text = _SHORT.repr(value)
    if len(text) > _WHOLE:
        text = f"{text[:_WHOLE]}..."
    return printable(text, kept="")
