"""Values of options that need no conversion, without the library that typer converts values with.

typer has pydantic check every value, those of options that nobody gave included. Its import, and a schema for each
option, take as long as all else that a short command does. A value that certainly passes is returned here as it is; any
other one goes to typer, whose errors a user sees.
"""

import os
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

_NUMBERS = {int: re.compile(r"-?[0-9]{1,18}", re.ASCII), float: re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)}
"""Texts of numbers that every reader of numbers reads alike."""

_WRONG = object()


class QuickValues:
    """The conversion of one option's values, in place of typer's."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command gets it, by typer's rules. param, ctx: typer's parameter and context."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        info, wanted = param.type_descriptor.parameter_info, param.type_descriptor.annotation
        found = _WRONG
        if info.parser is None and ctx.token_normalize_func is None:
            found = _several(value, wanted, info) if get_origin(wanted) is list else _one(value, wanted, info)
        if found is not _WRONG:
            return found
        # Without a conversion of its own, the parameter makes typer's.
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def read_quickly(parameters: Sequence[Any]) -> None:
    """Have options of typer convert their values quickly. Parameters of another typer stay as they are.

    parameters: of a command.
    """
    for each in parameters:
        if hasattr(each, "get_runtime_param") and getattr(each, "_runtime_param", _WRONG) is None:
            each._runtime_param = QuickValues()


def _several(value: Any, wanted: Any, info: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _WRONG
    found = [_one(each, get_args(wanted)[0], info) for each in value]
    return _WRONG if any(each is _WRONG for each in found) else found


def _one(value: Any, wanted: Any, info: Any) -> Any:
    """The value of this type, or `_WRONG` if typer has to look at it. info: what the option declares."""
    if wanted is str:
        return value if isinstance(value, str) and _is_unicode(value) else _WRONG
    if wanted in _NUMBERS:
        if isinstance(value, str) and _NUMBERS[wanted].fullmatch(value):
            value = wanted(value)
        least, most = info.min, info.max
        fits = type(value) is wanted and (least is None or value >= least) and (most is None or value <= most)
        return value if fits else _WRONG
    if wanted is Path:
        return _path(value, info)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        same = (each for each in wanted if each is value or (info.case_sensitive and each.value == value))
        return next(same, _WRONG)
    return _WRONG


def _path(value: Any, info: Any) -> Any:
    """The path, unless the option wants something of it that typer has to look at."""
    wants = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type is not None
    if wants or not (info.file_okay and info.dir_okay) or (isinstance(value, str) and not _is_unicode(value)):
        return _WRONG
    path = Path(value)
    try:
        path.stat()
    except OSError:
        return path
    except ValueError:  # no name of a file
        return _WRONG
    return path if os.access(path, os.R_OK) or not info.readable else _WRONG


def _is_unicode(text: str) -> bool:
    """Whether a text has no bytes that the terminal's encoding does not have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
