"""Errors that people see. A message names what happened, where, and what to do about it."""


class StagedbError(Exception):
    """Something failed during work: the command line exits with status 1.

    on_command_line: the message with options of the command line, if its text has keywords of Python instead.
    """

    exit_status = 1
    on_command_line: str | None = None


class UnfinishedError(StagedbError):
    """Something else ended the work. What is written so far is good, and the work can be resumed."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the work. The message names what is left of it, and how to resume it."""


class UsageError(StagedbError):
    """The request cannot be served (bad option, impossible plan, unknown name): exit status 2, nothing changed."""

    exit_status = 2
