"""Messages on pages: words as a form has them, and links to pages in place of calls of verbs."""

from collections.abc import Mapping
from urllib.parse import quote

from stagedb.mentions import OPTIONS, Form, VerbCall, Word, parts_of, value_text

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
