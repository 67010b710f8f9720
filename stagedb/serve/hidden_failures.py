"""Errors for readers that may be anybody: without the passwords that this process has."""

import os
import sys
import traceback

from stagedb.store.store_settings import config_file, known_secrets, without_secrets


def hidden(text: str) -> str:
    """A text without the passwords that this process has."""
    return without_secrets(text, known_secrets(sys.argv, os.environ, config_file(os.environ)))


def traceback_of(error: Exception) -> str:
    """An unexpected error with its traceback, for the log of a server."""
    return hidden("".join(traceback.format_exception(error)))
