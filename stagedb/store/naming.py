"""Names, tags and notes of what is in a store.

A name is a pointer: a node of its own, in the space of a user or of the workspace of a team (`alice/base`,
`team/base`). Content does not change when a name moves, and nobody moves a name of somebody else.
"""

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stagedb.errors import StagedbError, UsageError
from stagedb.files import check_unicode, shown
from stagedb.mentions import Word, call
from stagedb.store.connection import Store
from stagedb.store.events import current_user, new_event
from stagedb.store.leases import Kind
from stagedb.store.store_settings import config_file, read_settings
from stagedb.store.store_targets import current_project

NamedKind = Literal["Instance", "Profile", "Run"]

WORKSPACE = "STAGEDB_WORKSPACE"
"""Environment variable: the space of names that a team shares; before `workspace` of files."""

LONGEST_NAME, LONGEST_TAG, LONGEST_NOTE = 200, 64, 4_000


@dataclass(frozen=True)
class Name:
    """A name: the space that it is in, and the name there. Its text is `space/name`."""

    space: str
    name: str

    def __str__(self) -> str:
        return f"{self.space}/{self.name}"


def workspace(store: Store, environment: Mapping[str, str] | None = None) -> str | None:
    """The space of names that the caller shares with a team; None without one.

    The environment names it, else the project's file, else the entry of the store in the configuration file, else
    `workspace` there.
    """
    env = os.environ if environment is None else environment
    source, word = _workspace(store, env)
    return None if word is None else checked_workspace(word, source)


def checked_workspace(word: object, source: str) -> str:
    """A space of names. source: where the word comes from, for errors. Raises UsageError for what is no such word."""
    if not isinstance(word, str) or not is_word(word) or "/" in word:
        raise UsageError(f"{source} must be one word of at most {LONGEST_TAG} characters without /, not {shown(word)}")
    return word


def _workspace(store: Store, environment: Mapping[str, str]) -> tuple[str, object]:
    """The place that sets the workspace of names, and its value there; None if nothing sets one."""
    if word := environment.get(WORKSPACE):
        return WORKSPACE, word
    project = current_project(environment)
    if project is not None and project.workspace is not None:
        return f"workspace in {project.file.place('workspace')}", project.workspace
    if store.workspace is not None:
        return f"workspace of the entry of {store.uri}", store.workspace
    settings = read_settings(config_file(environment))
    return f"workspace in {settings.place('workspace')}", settings.content.get("workspace")


def spaces(store: Store) -> tuple[str, ...]:
    """The spaces in which the caller may set names: the user's own, then that of the workspace."""
    user, team = current_user(), workspace(store)
    return (user,) if team in (None, user) else (user, str(team))


def wanted_name(store: Store, word: str) -> Name:
    """The name that a word asks for: one of the caller's own, or `space/name` with a space that is the caller's.

    Raises UsageError for somebody else's space, and for a text that is no name.
    """
    text = word.strip()
    check_unicode(text, str(Word("name")))
    if not text or not text.isprintable() or len(text) > LONGEST_NAME:
        raise UsageError(f"{shown(word)} is not a name: a name has 1 to {LONGEST_NAME} printable characters")
    space, slash, rest = text.partition("/")
    if not slash:
        return Name(current_user(), text)
    own = spaces(store)
    if space not in own or not rest:
        team = own[1] if len(own) > 1 else None
        yours = f"{own[0]}/…" + (f" or {team}/…" if team else f"; {WORKSPACE} names the workspace of a team")
        raise UsageError(
            f"{shown(text)} is a name of {shown(space)}, and nobody moves a name of somebody else: yours begin with "
            f"{yours}"
        )
    return Name(space, rest)


def set_name(store: Store, kind: NamedKind, id: str, name: Name) -> str | None:
    """Let a name mean an instance or a profile. Returns the id of what it meant before, if that was another one.

    Nothing is written if somebody let it mean that here already. kind: of the thing. id: of the thing. name: with its
    space. Raises StagedbError if there is no such thing.
    """
    low, key = kind.lower(), f"{kind.lower()}:{name}"
    if store.read("team/meaning", name=key) == [{"id": id, "origin": None}]:
        return None
    user = current_user()
    row = store.write(
        f"lifecycle/name_{low}",
        id=id,
        name=key,
        properties={
            "kind": low,
            "space": name.space,
            "name": name.name,
            "user": user,
            "time": time.time_ns() // 1_000_000,
        },
        user=user,
        event=new_event("named", kind, id, str(name)),
    )
    if not row:
        raise _gone(kind, id)
    moved: str | None = row["moved"]
    return moved


def remove_name(store: Store, kind: NamedKind, id: str, name: Name) -> bool:
    """Remove a name of an instance or a profile. False if it does not mean that (any more).

    kind: of the thing. id: of the thing. name: with its space.
    """
    low = kind.lower()
    event = new_event("unnamed", kind, id, str(name))
    return bool(store.write(f"lifecycle/unname_{low}", id=id, name=f"{low}:{name}", user=current_user(), event=event))


def add_tag(store: Store, kind: Kind, id: str, tag: str) -> None:
    """Tag a graph, an instance or a profile with a word. id: of the thing. tag: one word."""
    word = _tag(tag)
    if not store.write(
        f"lifecycle/tag_{kind.lower()}", id=id, tag=word, user=current_user(), event=new_event("tagged", kind, id, word)
    ):
        raise _gone(kind, id)


def remove_tag(store: Store, kind: Kind, id: str, tag: str) -> None:
    """Take a tag off. id: of the thing. Raises UsageError if it is not there."""
    word = _tag(tag)
    event = new_event("untagged", kind, id, word)
    if not store.write(f"lifecycle/untag_{kind.lower()}", id=id, tag=word, user=current_user(), event=event):
        raise UsageError(f"{kind.lower()} {id} has no tag {shown(word)}: {call('show', id)} prints its tags")


def add_note(store: Store, kind: Kind, id: str, text: str) -> None:
    """Write a note about a graph, an instance or a profile. Earlier notes remain.

    id: of the thing. text: of the note. UsageError for an empty or a too long one.
    """
    check_unicode(text, "the note")
    clean = text.strip()
    if not clean or len(clean) > LONGEST_NOTE:
        raise UsageError(f"a note has 1 to {LONGEST_NOTE} characters, not {len(clean)}")
    if not store.write(
        f"lifecycle/note_{kind.lower()}",
        id=id,
        note=secrets.token_hex(8),
        text=clean,
        user=current_user(),
        event=new_event("noted", kind, id),
    ):
        raise _gone(kind, id)


def _tag(text: str) -> str:
    word = text.strip()
    if not is_word(word):
        raise UsageError(f"{shown(text)} is not a tag: a tag is one word of at most {LONGEST_TAG} characters")
    return word


def is_word(text: str) -> bool:
    """Whether a text is a word as tags and spaces are."""
    return 0 < len(text) <= LONGEST_TAG and text.isprintable() and not any(each.isspace() for each in text)


def _gone(kind: Kind, id: str) -> StagedbError:
    return StagedbError(
        f"{kind.lower()} {id} was removed by another process meanwhile: {call('ls')} lists what there is"
    )
