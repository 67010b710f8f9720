"""What a shell completes: models, systems, named queries, and what the embedded store holds.

A completion starts no engine and never fails. Names of a store are known while its engine runs; those of a server are
not completed, as it may be slow to answer.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from io import StringIO

from stagedb.places import embedded_home, statements_directory

_SAFE = re.compile(r"[\w.,:@%+=/-]+", re.ASCII)
"""Names that a shell takes as they are. A name in a store may be any text."""

Completer = Callable[[str], list[str]]


def one_of(names: Callable[[], Iterable[str]]) -> Completer:
    """A completer for names that a function finds. Any error means that there are none."""

    def complete(incomplete: str) -> list[str]:
        found: list[str] = []
        # A traceback would appear in the line that the user types.
        with suppress(Exception), redirect_stderr(StringIO()):
            found = [name for name in names() if name.startswith(incomplete)]
        return found

    return complete


def _models() -> Iterable[str]:
    from stagedb.models import card_names

    return card_names()


def _systems() -> Iterable[str]:
    from stagedb.systems import system_names

    return system_names()


def _queries() -> Iterable[str]:
    files = statements_directory().glob("analyze/*/[!_]*.cypher")
    return sorted(file.stem for file in files)


def _instances() -> list[str]:
    return _stored("instance")


def _profiles() -> list[str]:
    return _stored("profile")


def _runs() -> list[str]:
    return _stored("run")


def _stores() -> Iterable[str]:
    from stagedb.api.stores import names

    return names()


def _stored(*kinds: str) -> list[str]:
    """Names and short ids in the embedded store, while its engine runs."""
    # The imports of a store take most of the time, and need an engine to be of use.
    if os.environ.get("NEO4J_URI") or not (embedded_home() / "endpoint.json").exists():
        return []
    from stagedb.api import database

    return [name for name in database.names_at_hand(kinds) if _SAFE.fullmatch(name)]


models = one_of(_models)
stores = one_of(_stores)
systems = one_of(_systems)
queries = one_of(_queries)
instances = one_of(_instances)
profiles = one_of(_profiles)
runs = one_of(_runs)
anything = one_of(lambda: _stored("graph", "instance", "profile", "search"))
asked = one_of(lambda: _stored("instance", "profile", "run"))
compared = one_of(lambda: _stored("instance", "profile"))
