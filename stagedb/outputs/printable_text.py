"""Text that a terminal shows and never obeys."""

_KEPT = "\n\t"


def printable(text: str) -> str:
    """The text with control characters, escapes of colours and reversals of direction as `\\x1b`. Lines remain."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _KEPT else ascii(each)[1:-1] for each in text)
