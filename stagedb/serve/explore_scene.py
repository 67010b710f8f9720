"""What the page Explore shows, as its address has it: open nodes, an answer, a path, and what is left out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.datastructures import QueryParams

from stagedb.api.neighbourhood import MOST_OPEN
from stagedb.api.querying import CHOSEN
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.serve.page_frames import address, named

KEPT = 60
"""Nodes without their neighbours that an address has: those that were closed, the last ones."""

LAYOUTS = ("forces", "layers")
"""How a drawing places its nodes: by forces between them, or in layers along the arrows."""


@dataclass(frozen=True)
class Scene:
    """The state of the page.

    node: keys of open nodes. more: `KEY~KIND`, kinds of neighbours of which more are shown. show: keys of nodes without
    their neighbours. at: key of the chosen node. start: name of a query of `explore_starts`. asked: the words of a
    query (`query`, `$name`, `instance` …), for `start` without its text. source, target, over: a path. hide: labels,
    and types with `-` before them. find: a text that marks nodes. layout: one of `LAYOUTS`; None: what suits.
    """

    node: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    at: str | None = None
    start: str | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None
    target: str | None = None
    over: str | None = None
    hide: tuple[str, ...] = ()
    find: str | None = None
    layout: str | None = None

    @property
    def words(self) -> dict[str, Any]:
        """The query of the scene's address, by name."""
        lists = {"node": self.node, "more": self.more, "show": self.show, "hide": self.hide}
        path = {"from": self.source, "to": self.target, "over": self.over}
        one = {"at": self.at, "start": self.start, **self.asked, **path, "find": self.find, "layout": self.layout}
        return {**{name: list(values) for name, values in lists.items() if values}, **one}

    @property
    def address(self) -> str:
        """The address of the scene."""
        return address("explore", **self.words)

    @property
    def is_empty(self) -> bool:
        """Whether the scene shows nothing."""
        return not (self.node or self.more or self.show or self.start or self.asked.get("query") or self.source)

    def choosing(self, key: str) -> "Scene":
        """The scene with another chosen node. key: of that node."""
        return replace(self, at=key)

    def opening(self, key: str) -> "Scene":
        """The scene with one more open node. The oldest one closes if there would be too many. key: of the node."""
        opened = [each for each in self.node if each != key]
        closed = opened[: max(0, len(opened) + 1 - MOST_OPEN)]
        scene = replace(self, node=(*opened[len(closed) :], key), at=key)
        return replace(scene, show=_kept(scene.show, closed), more=_without(scene.more, closed))

    def closing(self, key: str) -> "Scene":
        """The scene in which a node remains without its neighbours. key: of the node."""
        opened = tuple(each for each in self.node if each != key)
        return replace(self, node=opened, more=_without(self.more, [key]), show=_kept(self.show, [key]), at=key)

    def widening(self, key: str, kind: str) -> "Scene":
        """The scene with more neighbours of a node. key: of the node. kind: name of the kind of neighbours."""
        return replace(self, more=(*self.more, f"{key}~{kind}"), at=key)

    def alone(self, key: str) -> "Scene":
        """A scene of one open node and nothing else. key: of the node."""
        return Scene(node=(key,), layout=self.layout)

    def toggling(self, name: str) -> "Scene":
        """The scene with a label or a type hidden, or shown again. name: the label, or `-` and the type."""
        hidden = tuple(each for each in self.hide if each != name)
        return replace(self, hide=hidden if name in self.hide else (*self.hide, name))

    def to(self, key: str | None, over: str | None = None) -> "Scene":
        """The scene with the path from its source to a node.

        key: of the node; None: without a path. over: the type of all relationships of the path; None: any.
        """
        return replace(self, source=self.source if key else None, target=key, over=over, at=key or self.at)


def scene_of(words: QueryParams) -> Scene:
    """The scene of an address. words: the parameters of the address. Raises UsageError for a layout that is none."""
    layout = named(words, "layout")
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {shown(layout)}: it is one of {', '.join(LAYOUTS)}")
    lists = {name: tuple(word for word in words.getlist(name) if word) for name in ("node", "more", "show", "hide")}
    asked = {name: value for name, value in words.items() if name.startswith("$") or name in (*CHOSEN, "query")}
    return Scene(
        **lists,
        at=named(words, "at"),
        start=named(words, "start"),
        asked={name: value for name, value in asked.items() if value.strip()},
        source=named(words, "from"),
        target=named(words, "to"),
        over=named(words, "over"),
        find=named(words, "find"),
        layout=layout,
    )


def _kept(show: tuple[str, ...], closed: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*show, *closed)))[-KEPT:]


def _without(more: tuple[str, ...], closed: Iterable[str]) -> tuple[str, ...]:
    keys = set(closed)
    return tuple(each for each in more if each.rpartition("~")[0] not in keys)
