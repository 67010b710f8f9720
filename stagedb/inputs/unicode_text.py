"""Texts of a command line: they may have bytes that are no text, which no store takes."""

from stagedb.errors import UsageError
from stagedb.inputs.short_values import shown


def check_unicode(text: str, what: str) -> None:
    """Raise UsageError for a text that is not Unicode. what: the name of the text in the error."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not Unicode text: character {error.start} is {shown(text[error.start])}") from None
