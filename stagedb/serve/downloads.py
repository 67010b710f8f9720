"""Answers as files: CSV and JSON."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Rows
from stagedb.errors import UsageError
from stagedb.files import csv_text, file_name, json_text
from stagedb.serve.page_frames import named

FORMATS: Mapping[str, str] = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


def format_of(request: Request) -> str | None:
    """The format of the file that an address asks for; None for a page. Raises UsageError for an unknown one."""
    format_ = named(request.query_params, "format")
    if format_ is not None and format_ not in FORMATS:
        raise UsageError(f"there is no format {format_[:20]}: it is one of {', '.join(FORMATS)}")
    return format_


def file_of(found: Rows, format_: str, name: str, *, cut: bool) -> Response:
    """The rows as a file. cut: whether there are more; a header shows it.

    format_: `csv` or `json`. name: of the file, without its ending.
    """
    text = csv_text(found.columns, found.rows) if format_ == "csv" else json_text(found.columns, found.rows)
    headers = {
        "content-disposition": f'attachment; filename="{file_name(name)}.{format_}"',
        "x-stagedb-cut": "yes" if cut else "no",
    }
    return Response(text, media_type=FORMATS[format_], headers=headers)
