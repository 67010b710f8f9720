"""How answers become pages: templates that escape every text, cells of tables, and errors without a traceback."""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from stagedb.api import Rows
from stagedb.errors import StagedbError, UsageError
from stagedb.files import GB, csv_text, file_name, json_text, printable, readable_cell
from stagedb.files.texts import bytes_text
from stagedb.mentions import OPTIONS, Form, VerbCall, Word, parts_of, value_text
from stagedb.serve.access import WRITER
from stagedb.serve.shared_store import traceback_of
from stagedb.store.failures import ConnectionLost

# Messages on pages: words as a form has them, and links to pages in place of calls of verbs.

_SERVER: Mapping[str, str] = {"timeout": "the time-out of this server (ask whoever runs it)"}
"""Words that no form has, because they are the server's."""

_PAGES: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("ls",): ("the page of instances", "/list/instances"),
    ("ls", "profiles"): ("the page of profiles", "/list/profiles"),
    ("ls", "searches"): ("the page of searches", "/list/searches"),
    ("ls", "runs"): ("the page of runs", "/list/runs"),
    ("models",): ("the page of models", "/models"),
    ("queries",): ("the page of queries", "/queries"),
}
"""Calls that have a page, with its name and its address."""

_PAGES_OF_ONE: Mapping[str, tuple[str, str]] = {
    "show": ("its page", "/show/{}"),
    "memory": ("the page of its memory", "/instances/{}/memory"),
}
"""The same for calls with an id."""


class _Pages(Form):
    """Fields of forms and names of pages: `tp=4`, `sp=false`, the page of instances."""

    def word(self, word: Word) -> str:
        """`tp=4`, as the page that finds plans takes it."""
        if word.name in _SERVER:
            return _SERVER[word.name]
        if word.value is None:
            return word.name
        return f"{word.name}={str(word.value).lower() if isinstance(word.value, bool) else value_text(word.value)}"

    def words(self, words: tuple[Word, ...]) -> str:
        """`tp=4 pp=2`."""
        return " ".join(map(self.word, words))

    def call(self, call: VerbCall) -> str:
        """The name of the page; the command where no page does the same."""
        page = page_of(call)
        return OPTIONS.call(call) if page is None else page[0]


PAGES = _Pages()


def page_of(call: VerbCall) -> tuple[str, str] | None:
    """The name and the address of the page that has what a call gives; None if there is none."""
    if call.words:
        return None
    if (call.verb, *call.arguments) in _PAGES:
        return _PAGES[call.verb, *call.arguments]
    if call.verb in _PAGES_OF_ONE and len(call.arguments) == 1:
        name, path = _PAGES_OF_ONE[call.verb]
        return name, path.format(quote(call.arguments[0], safe=""))
    return None


def linked(message: str) -> list[tuple[str, str | None]]:
    """The texts of a message in order, each with the address to which it leads."""
    found: list[tuple[str, str | None]] = []
    for part in parts_of(message):
        page = page_of(part) if isinstance(part, VerbCall) else None
        found.append(page or (part if isinstance(part, str) else PAGES.mention(part), None))
    return found


SHORT = 28
"""Characters of the longest text that a table shows in one line."""
LONGEST = 2_000
"""Characters of a text in a table. Downloads have all."""
SHORT_ID = 12

FOLDER = Path(str(files("stagedb.serve")))

_log = logging.getLogger("stagedb.serve")


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the address that it leads to, and whether it is a number."""

    text: str
    to: str | None = None
    number: bool = False

    @property
    def long(self) -> bool:
        """Whether the text needs several lines."""
        return len(self.text) > SHORT or "\n" in self.text


def cell(value: Any, to: str | None = None) -> Cell:
    """A value as a cell of a table: control characters are written out, long texts cut. to: its link."""
    text = printable(readable_cell(value), kept="\n")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text):,} characters)", to, number)


def cells(rows: Sequence[Sequence[Any]]) -> list[list[Cell]]:
    """Rows of values as cells."""
    return [[cell(value) for value in row] for row in rows]


def origin(found: Any) -> dict[str, Any]:
    """Who made a thing and how, and its inputs as a table, from the rows of `Stagedb.origin`. found: those rows."""
    columns = ("input", "name", "digest")
    first = next(iter(found), None)
    made = (
        "" if first is None else f"Made by {first['user']} with stagedb {first['version']}, {minute(first['time'])} UTC"
    )
    pages = {"graph": "graphs", "instance": "instances"}
    rows = []
    for row in found:
        if row["input"] is not None:
            to = address(pages[row["input"]], row["digest"]) if row["input"] in pages else None
            rows.append([cell(row["input"]), cell(row["name"]), cell(row["digest"][:SHORT_ID], to)])
    return {"made": made, "command": "" if first is None else first["command"], "columns": columns, "rows": rows}


def gigabytes(size: float) -> str:
    """Bytes in GB, with two digits, or in a smaller unit where these would show nothing. size: in bytes."""
    return bytes_text(size) if 0 < size < GB / 200 else f"{size / GB:,.2f} GB"


def minute(time: str) -> str:
    """A time of the store (UTC), to the minute."""
    return time.replace("T", " ").removesuffix("Z")[:16]


def address(*parts: str, **words: Any) -> str:
    """A path of this server, with the words that are not None as its query.

    parts: of the path. words: parameters of the query.
    """
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    query = urlencode([(name, value) for name, value in words.items() if value is not None], doseq=True)
    return f"{path}?{query}" if query else path


def _with_code(text: str) -> Markup:
    """A text whose parts between backticks are code. An odd backtick remains."""
    *pairs, end = text.split("`")
    if len(pairs) % 2:
        return escape(text)
    parts = [
        Markup("<code>{}</code>").format(each) if at % 2 else escape(each) for at, each in enumerate([*pairs, end])
    ]
    return Markup("").join(parts)


_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals["address"] = address
_templates.filters["with_code"] = lambda text: _with_code(printable(str(text), kept=""))
_templates.filters["printable"] = lambda text: printable(str(text), kept="")
_templates.filters["printable_lines"] = lambda text: printable(str(text), kept="\n")


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page from its template. Its values are text, which the template escapes.

    `writer` is whether who asks may write, None on a server where nobody may. status: the HTTP status.
    """
    writer = request.scope.get(WRITER)
    words = {"path": request.url.path, "query": request.url.query, "writer": writer, **values}
    return HTMLResponse(_templates.get_template(template).render(words), status)


def part(template: str, **values: Any) -> str:
    """A part of a page from its template, which escapes every text.

    template: its file's name. values: what the template names.
    """
    return _templates.get_template(template).render(values)


def page_in_parts(request: Request, template: str, parts: Callable[[], str], *, ready: bool, **values: Any) -> Response:
    """A page whose head a browser shows at once. parts: HTML that takes longer, for `parts` in the template.

    ready: it takes no time now, or may prove the address wrong, so that the page is sent as a whole with its status,
    and others may have the same one. Where making it fails, the page has a message, and `failed.html` for what the
    store knows. template: its file's name. values: what the template names.
    """
    mark = secrets.token_hex(16)
    writer = request.scope.get(WRITER)
    words = {"path": request.url.path, "query": request.url.query, "writer": writer, **values}
    head, _, end = _templates.get_template(template).render(words, parts=mark).partition(mark)

    def made() -> tuple[int, str]:
        try:
            return 200, parts()
        except Exception as error:  # noqa: BLE001 - the head may be sent: the error becomes a part of the page
            status, title, message = explained(request, error)
            return status, _templates.get_template("failed.html").render(words, title=title, message=message)

    def pieces() -> Iterator[str]:
        yield head
        yield made()[1]
        yield end

    if not ready:
        return StreamingResponse(pieces(), media_type="text/html")
    status, text = made()
    return HTMLResponse(f"{head}{text}{end}", status)


class BusyError(StagedbError):
    """The server answers too many requests at the moment."""


def error_page(request: Request, error: Exception) -> Response:
    """What happened, and what to do. The details of an unexpected error go to the server's log alone."""
    status, title, message = explained(request, error)
    return page(request, "error.html", status, title=title, message=message)


def explained(request: Request, error: Exception) -> tuple[int, str, list[tuple[str, str | None]]]:
    """The status, the title and the message of an error."""
    if isinstance(error, UsageError):
        return 400, "This does not work", linked(error.message)
    if isinstance(error, ConnectionLost):
        text = "The store does not answer at the moment. Load the page again in a minute; if that does not help, ask "
        return 503, "The store is away", linked(f"{text}whoever runs this server.")
    if isinstance(error, BusyError):
        return 503, "Not at the moment", linked(error.message)
    if isinstance(error, StagedbError):
        return 500, "This failed", linked(error.message)
    _log.error("%s %s\n%s", request.method, request.url.path, traceback_of(error))
    text = "The server has written the details to its log. Other pages work; please report what you did."
    return 500, "stagedb itself failed", linked(text)


def missing_page(request: Request) -> Response:
    """The answer for an address without a page."""
    text = "There is no such page. The links above lead to all that the store has."
    return page(request, "error.html", 404, title="No such page", message=linked(text))


def named(words: Mapping[str, str], name: str) -> str | None:
    """A word of an address; None if it is absent or empty.

    words: the parameters of the address. name: the word's.
    """
    return words.get(name, "").strip() or None


# Answers as files: CSV and JSON.

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
