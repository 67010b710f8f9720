"""Values that a store answers: anybody may have written them."""

from typing import Any, cast

from stagedb.errors import StagedbError, UsageError
from stagedb.files.documents import parse_json
from stagedb.files.texts import shown


class DamagedError(StagedbError):
    """The store has a value that stagedb does not write."""


def json_mapping(text: str, what: str) -> dict[str, Any]:
    """The mapping in a JSON text of a store. DamagedError, which names `what`, for another text."""
    return cast("dict[str, Any]", _json(text, what, dict, "a mapping"))


def json_list(text: str, what: str) -> list[Any]:
    """The list in a JSON text of a store. DamagedError, which names `what`, for another text."""
    return cast("list[Any]", _json(text, what, list, "a list"))


def _json(text: str, what: str, kind: type, kind_name: str) -> object:
    try:
        content = parse_json(text, what)
    except UsageError as error:
        raise DamagedError(f"{error}") from None
    if not isinstance(content, kind):
        raise DamagedError(f"{what} is {shown(content)}, and not {kind_name}")
    return content
