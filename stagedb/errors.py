"""Errors that people see. A message names what happened, where, and what to do about it.

The words and verbs that a message names are data in it (`stagedb.mentions`). So each door shows an error in its own
form, from the one object: `error.text(form)`. `str(error)` has the form of the door through which the error left, and
that of the command line before it left one. An error inside the message of another one keeps its mentions.
"""

from collections.abc import Iterator

from stagedb.mentions import OPTIONS, Form, Mention, parts_of, shown_in


class _Message:
    """A message with mentions, for exceptions.

    form: how `str` shows the mentions.
    """

    args: tuple[object, ...]
    form: Form = OPTIONS

    @property
    def message(self) -> str:
        """The message with its mentions, which goes whole into other messages."""
        return str(self.args[0]) if self.args else ""

    def parts(self) -> Iterator[str | Mention]:
        """The texts and the mentions of the message, in order."""
        return parts_of(self.message)

    def text(self, form: Form) -> str:
        """The message as a door shows it."""
        return shown_in(form, self.message)

    def __str__(self) -> str:
        return self.text(self.form)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(self.message, spec)


class StagedbError(_Message, Exception):
    """Something failed during work: the command line exits with status 1."""

    exit_status = 1


class UnfinishedError(StagedbError):
    """Something else ended the work. What is written so far is good, and the work can be resumed."""


class Interrupted(_Message, KeyboardInterrupt):
    """Ctrl-C ended the work. The message names what is left of it, and how to resume it."""


class UsageError(StagedbError):
    """The request cannot be served (bad option, impossible plan, unknown name): exit status 2, nothing changed."""

    exit_status = 2


class TooLargeError(UsageError):
    """A plan is good, and larger than stagedb can compute: a search knows no more of it than its bounds."""
