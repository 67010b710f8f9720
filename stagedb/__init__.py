"""A graph database of execution traces of distributed LLM training.

`connect` opens a store, and its result has most verbs. `unpack` and `validate` work on files and need no store.
See `stagedb.api`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagedb import api
    from stagedb.api import Stagedb, unpack, validate

__all__ = ["api", "connect", "unpack", "validate"]


def __getattr__(name: str) -> Any:
    """Load these names from `stagedb.api` on first use, and `stagedb.api` itself."""
    if name == "api":
        import importlib

        return importlib.import_module("stagedb.api")
    if name in __all__:
        import stagedb.api

        return getattr(stagedb.api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names of the package, those among them that are not loaded yet."""
    return sorted({*globals(), *__all__})


def connect(store: str | None = None, *, database: str | None = None, insecure: bool = False) -> "Stagedb":
    """Open a store: a bolt:// or neo4j:// address, or a name that `stagedb store add` gave it.

    Without one: `NEO4J_URI` if it is set, else the store of the project (`.stagedb.toml`), else the default of the user
    (`stagedb store use`), else the embedded store of this machine, which is started if it does not run. database: the
    database of a Neo4j server. insecure: send the password unencrypted to another machine too. Raises
    `stagedb.errors.StagedbError` if no store answers.
    """
    # Not at the top: every import of the package runs this file, and most need neither driver nor models.
    from stagedb.api import connect as open_store

    return open_store(store, database=database, insecure=insecure)
