"""Text that a terminal shows and never obeys."""


def printable(text: str, kept: str = "\n\t") -> str:
    """The text with control characters, escapes of colours and reversals of direction as `\\x1b`.

    kept: characters that remain as they are; lines and tabs by default.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)
