"""Errors that people see. A message says what happened, where, and what to do about it."""


class StagedbError(Exception):
    """Something failed while stagedb worked: the command line exits with status 1."""

    exit_status = 1


class UnfinishedError(StagedbError):
    """Work that something else ended: what is written so far is good and can be gone on with."""


class Interrupted(KeyboardInterrupt):
    """Work that Ctrl-C ended: what is left of it, and how to go on."""


class UsageError(StagedbError):
    """The request cannot be served (bad option, impossible plan, unknown name): exit status 2, nothing changed."""

    exit_status = 2
